// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Least recently used. Metric: time since the last touch. What every engine ships; right where reuse is soon or never, wrong
 * where a scan is longer than the cache: it then keeps only what nobody comes back for. Experts of one event are as recent as one
 * another: of those the lowest handle goes first. 9 bytes an object, 17 an expert.
 */
#include "base.h"

struct lru {
	struct nt_base base;
	struct nt_list *lists; /* [groups] */
	struct nt_link *links; /* [objects] */
	uint64_t *touched;     /* [objects] tick of the last touch; experts only, else NULL */
};

static void lru_carve(struct lru *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	s->lists = nt_carve(block, offset, config->groups, sizeof(struct nt_list));
	s->links = nt_carve(block, offset, config->objects, sizeof(struct nt_link));
	s->touched = config->kind == NEOTIER_KIND_EXPERT ?
			     nt_carve(block, offset, config->objects, sizeof(uint64_t)) : NULL;
}

static void lru_start(struct lru *s, const struct neotier_placement_config *config)
{
	uint32_t group;

	for (group = 0; group < config->groups; group++)
		nt_list_init(&s->lists[group]);
}

NT_STATE(lru, base, UINT32_MAX)

/* To the front of its list; behind those of the same event that have a higher handle. */
static void lru_touch(struct lru *s, const struct neotier_event *event, uint32_t object)
{
	struct nt_list *list = &s->lists[nt_group(&s->base, object)];
	uint32_t front = list->front, behind = NEOTIER_NO_OBJECT;

	if (s->touched) {
		s->touched[object] = event->tick;
		for (; front != NEOTIER_NO_OBJECT && s->touched[front] == event->tick && front > object;
		     front = s->links[front].next)
			behind = front;
	}
	if (behind == NEOTIER_NO_OBJECT)
		nt_list_push_front(list, s->links, object);
	else
		nt_list_insert_behind(list, s->links, behind, object);
}

static int lru_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct lru *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->base, object))
		return NEOTIER_REFUSED;
	nt_list_unlink(&s->lists[nt_group(&s->base, object)], s->links, object);
	lru_touch(s, event, object);
	return NEOTIER_OK;
}

static int lru_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct lru *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	s->base.place[object] = NT_HELD;
	lru_touch(s, event, object);
	return NEOTIER_OK;
}

static int lru_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct lru *s = state;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN)
		return NEOTIER_OK;
	s->base.place[object] = NT_OUT;
	nt_list_unlink(&s->lists[nt_group(&s->base, object)], s->links, object);
	return NEOTIER_OK;
}

static uint32_t lru_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct lru *s = state;

	return nt_list_take(&s->lists[nt_group(&s->base, event->access[index].object)], s->links, s->base.flags, want, out);
}

const struct neotier_placement neotier_placement_lru = {
	NT_SLOTS(lru),
	.name = "lru",
	.text = "least recently used",
	.source = "classic; vLLM, SGLang, LMCache and Mooncake ship it",
	.flags = NEOTIER_KV | NEOTIER_EXPERTS,
};
