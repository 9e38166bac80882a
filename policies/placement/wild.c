// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Reuse probability per kind of workload, after KVCache in the Wild: each category (the host's kind of request, first or later turn)
 * has an exponential law of reuse times, fitted online; worth = P(reuse within the next life of a block | age) = r (e^(-age/m) -
 * e^(-(age + life)/m)), r the share that is reused at all, m the mean reuse time, life what a block last had until eviction.
 * Falls with age within a category, so each category's oldest is the candidate; ties and blocks of one request: the deepest offset
 * goes first, head blocks are worth more. Right where kinds differ; an exponential cannot say "nobody returns within ten
 * seconds". 19 bytes an object.
 */
#include "base.h"
#include "bits.h"

enum { WILD_KINDS = 16, WILD_CATEGORIES = 2 * WILD_KINDS };

struct wild_law {
	double touches, reuses, sum_s; /* fading counts; sum of reuse times */
};

struct wild {
	struct nt_base base;
	struct nt_list lists[WILD_CATEGORIES];
	struct wild_law laws[WILD_CATEGORIES];
	double life_s, now_s;
	uint32_t later_turn;    /* of the request being served */
	uint32_t last;          /* object touched before this one in the event, or NEOTIER_NO_OBJECT */
	struct nt_link *links;
	double *touched_s;
	uint8_t *category, *seen;
};

static void wild_carve(struct wild *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	s->links = nt_carve(block, offset, config->objects, sizeof(*s->links));
	s->touched_s = nt_carve(block, offset, config->objects, sizeof(*s->touched_s));
	s->category = nt_carve(block, offset, config->objects, 1);
	s->seen = nt_carve(block, offset, config->objects, 1);
}

static void wild_start(struct wild *s, const struct neotier_placement_config *config)
{
	uint32_t i;

	(void)config;
	for (i = 0; i < WILD_CATEGORIES; i++) {
		nt_list_init(&s->lists[i]);
		/* Assumed until seen: every tenth comes back, after 100 s. */
		s->laws[i] = (struct wild_law){ .touches = 10, .reuses = 1, .sum_s = 100 };
	}
	s->life_s = 60;
	s->last = NEOTIER_NO_OBJECT;
}

NT_STATE(wild, base, 1)

static void wild_event(void *state, const struct neotier_event *event)
{
	struct wild *s = state;

	s->now_s = (double)event->now_ns * 1e-9;
	s->last = NEOTIER_NO_OBJECT;
	/* The first block is mostly a system prompt that all share. */
	s->later_turn = event->nr > 1 && event->access[1].object != NEOTIER_NO_OBJECT && s->seen[event->access[1].object];
}

static void wild_touch(struct wild *s, const struct neotier_event *event, uint32_t object)
{
	struct wild_law *law;

	if (s->seen[object]) {
		law = &s->laws[s->category[object]];
		law->reuses += 1;
		law->sum_s += s->now_s - s->touched_s[object];
	}
	s->seen[object] = 1;
	s->category[object] = (uint8_t)(event->category % WILD_KINDS * 2 + s->later_turn);
	s->touched_s[object] = s->now_s;
	law = &s->laws[s->category[object]];
	law->touches += 1;
	if (law->touches > 1e5) {
		law->touches /= 2;
		law->reuses /= 2;
		law->sum_s /= 2;
	}
}

/* Behind the request's block before it: deeper blocks go first. */
static void wild_add(struct wild *s, uint32_t object)
{
	struct nt_list *list = &s->lists[s->category[object]];

	if (s->last != NEOTIER_NO_OBJECT)
		nt_list_insert_behind(list, s->links, s->last, object);
	else
		nt_list_push_front(list, s->links, object);
	s->last = object;
}

static void wild_drop(struct wild *s, uint32_t object)
{
	if (s->last == object)
		s->last = NEOTIER_NO_OBJECT;
	nt_list_unlink(&s->lists[s->category[object]], s->links, object);
}

static int wild_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct wild *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->base, object))
		return NEOTIER_REFUSED;
	wild_drop(s, object);
	wild_touch(s, event, object);
	wild_add(s, object);
	return NEOTIER_OK;
}

static int wild_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct wild *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	s->base.place[object] = NT_HELD;
	/* What moves here is no use of it; but of what was never seen here this is all there is to know. */
	if (event->kind == NEOTIER_EVENT_DEMAND || !s->seen[object])
		wild_touch(s, event, object);
	if (event->kind == NEOTIER_EVENT_DEMAND)
		wild_add(s, object);
	else
		nt_list_push_front(&s->lists[s->category[object]], s->links, object);
	return NEOTIER_OK;
}

static int wild_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct wild *s = state;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN) {
		s->seen[object] = 0;
		return NEOTIER_OK;
	}
	if (reason == NEOTIER_EVICTED)
		s->life_s += 0.001 * (s->now_s - s->touched_s[object] - s->life_s);
	s->base.place[object] = NT_OUT;
	wild_drop(s, object);
	return NEOTIER_OK;
}

static double wild_worth(const struct wild *s, uint32_t object)
{
	const struct wild_law *law = &s->laws[s->category[object]];
	double rate = 1.4426950408889634 * law->reuses / (law->sum_s + 1e-9); /* log2(e) / mean */
	double age = s->now_s - s->touched_s[object];

	return law->reuses / law->touches * (nt_exp2(-rate * age) - nt_exp2(-rate * (age + s->life_s)));
}

static uint32_t wild_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct wild *s = state;
	uint32_t category, object, best = NEOTIER_NO_OBJECT;
	double lowest = 0, worth;

	(void)event, (void)index, (void)want;
	for (category = 0; category < WILD_CATEGORIES; category++) {
		if (nt_list_take(&s->lists[category], s->links, s->base.flags, 1, &object) == 0)
			continue;
		worth = wild_worth(s, object);
		if (best == NEOTIER_NO_OBJECT || worth < lowest) {
			lowest = worth;
			best = object;
		}
	}
	out[0] = best;
	return best != NEOTIER_NO_OBJECT;
}

const struct neotier_placement neotier_placement_wild = {
	NT_SLOTS(wild),
	.on_event = wild_event,
	.name = "reuse-probability",
	.text = "probability of reuse within a block's life, an exponential law for each kind of request",
	.source = "KVCache Cache in the Wild, USENIX ATC 2025",
	.flags = NEOTIER_KV,
};
