// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * ARC: an LRU of what was touched once (t1) and one of what was touched more (t2); what leaves either is remembered (b1, b2, a
 * capacity in all besides the residents), and a return from b1 or b2 moves the share of t1 towards the list that was too short.
 * Right where recency and frequency take turns; wrong, like all that learn from a capacity's worth of history, where the reuse
 * distance is several capacities. 9 bytes an object.
 */
#include "base.h"

enum { ARC_B1 = 1, ARC_B2 = 2, ARC_T1 = NT_HELD, ARC_T2 };

struct arc {
	struct nt_base base;
	struct nt_list t1, t2, b1, b2;
	struct nt_link *links;
	double target; /* size of t1 aimed at: the paper's p */
	int from_b2;   /* the object to be inserted is remembered by b2 */
};

static void arc_carve(struct arc *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	s->links = nt_carve(block, offset, config->objects, sizeof(struct nt_link));
}

static void arc_start(struct arc *s, const struct neotier_placement_config *config)
{
	(void)config;
	nt_list_init(&s->t1);
	nt_list_init(&s->t2);
	nt_list_init(&s->b1);
	nt_list_init(&s->b2);
}

NT_STATE(arc, base, 1)

static struct nt_list *arc_list(struct arc *s, uint32_t object)
{
	switch (s->base.place[object]) {
	case ARC_B1: return &s->b1;
	case ARC_B2: return &s->b2;
	case ARC_T1: return &s->t1;
	default: return &s->t2;
	}
}

static void arc_move(struct arc *s, uint32_t object, uint8_t place)
{
	if (s->base.place[object] != NT_OUT)
		nt_list_unlink(arc_list(s, object), s->links, object);
	s->base.place[object] = place;
	if (place != NT_OUT)
		nt_list_push_front(arc_list(s, object), s->links, object);
}

static int arc_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct arc *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->base, object))
		return NEOTIER_REFUSED;
	arc_move(s, object, ARC_T2);
	return NEOTIER_OK;
}

/* Everything is let in; but this is where a miss is seen once, before victims(): the paper adapts before it replaces. */
static int arc_admit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct arc *s = state;
	uint32_t object = event->access[index].object;
	double capacity = (double)s->base.capacity, step;

	s->from_b2 = s->base.place[object] == ARC_B2;
	if (event->kind != NEOTIER_EVENT_DEMAND)
		return 1;
	if (s->base.place[object] == ARC_B1) {
		step = s->b1.size >= s->b2.size ? 1 : (double)s->b2.size / s->b1.size;
		s->target = s->target + step < capacity ? s->target + step : capacity;
	} else if (s->from_b2) {
		step = s->b2.size >= s->b1.size ? 1 : (double)s->b1.size / s->b2.size;
		s->target = s->target > step ? s->target - step : 0;
	}
	return 1;
}

static int arc_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct arc *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	arc_move(s, object, s->base.place[object] == NT_OUT ? ARC_T1 : ARC_T2);
	while (s->b1.size > 0 && s->t1.size + s->b1.size > s->base.capacity)
		arc_move(s, s->b1.back, NT_OUT);
	while (s->b2.size > 0 && s->t1.size + s->b1.size + s->t2.size + s->b2.size > 2 * s->base.capacity)
		arc_move(s, s->b2.back, NT_OUT);
	return NEOTIER_OK;
}

static int arc_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct arc *s = state;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_EVICTED)
		arc_move(s, object, s->base.place[object] == ARC_T1 ? ARC_B1 : ARC_B2);
	else
		arc_move(s, object, NT_OUT);
	return NEOTIER_OK;
}

static uint32_t arc_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct arc *s = state;
	double t1 = (double)s->t1.size;
	int from_t1 = s->t1.size > 0 && (t1 > s->target || (s->from_b2 && t1 >= s->target));
	uint32_t found;

	(void)event, (void)index, (void)want;
	found = nt_list_take(from_t1 ? &s->t1 : &s->t2, s->links, s->base.flags, 1, out);
	return found ? found : nt_list_take(from_t1 ? &s->t2 : &s->t1, s->links, s->base.flags, 1, out);
}

const struct neotier_placement neotier_placement_arc = {
	NT_SLOTS(arc),
	.admit = arc_admit,
	.name = "arc",
	.text = "adaptive replacement: recency and frequency lists whose shares follow what returns",
	.source = "Megiddo, Modha, ARC, FAST 2003; vLLM's other choice",
	.flags = NEOTIER_KV,
};
