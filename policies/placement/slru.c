// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Segmented LRU: newcomers in a probationary list, what is touched again in a protected one of 80 % of the room, whose overflow
 * falls back to the front of probation. Right against scans; wrong where the first reuse comes later than probation lasts.
 * 9 bytes an object.
 */
#include "base.h"

enum { SLRU_PROBATION = NT_HELD, SLRU_PROTECTED };

struct slru {
	struct nt_base base;
	struct nt_list probation, protected_;
	struct nt_link *links;
	uint32_t protected_max;
};

static const struct neotier_placement_param slru_params[] = {
	{ "protected_share", 0.8, 0, 1, "share of the capacity for what was touched again" },
};

static void slru_carve(struct slru *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	s->links = nt_carve(block, offset, config->objects, sizeof(struct nt_link));
}

static void slru_start(struct slru *s, const struct neotier_placement_config *config)
{
	nt_list_init(&s->probation);
	nt_list_init(&s->protected_);
	s->protected_max = (uint32_t)(config->params[0] * (double)config->capacity);
}

NT_STATE(slru, base, 1)

static struct nt_list *slru_list(struct slru *s, uint32_t object)
{
	return s->base.place[object] == SLRU_PROTECTED ? &s->protected_ : &s->probation;
}

static int slru_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct slru *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->base, object))
		return NEOTIER_REFUSED;
	nt_list_unlink(slru_list(s, object), s->links, object);
	s->base.place[object] = SLRU_PROTECTED;
	nt_list_push_front(&s->protected_, s->links, object);
	if (s->protected_.size > s->protected_max) {
		uint32_t last = s->protected_.back;

		nt_list_unlink(&s->protected_, s->links, last);
		s->base.place[last] = SLRU_PROBATION;
		nt_list_push_front(&s->probation, s->links, last);
	}
	return NEOTIER_OK;
}

static int slru_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct slru *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	s->base.place[object] = SLRU_PROBATION;
	nt_list_push_front(&s->probation, s->links, object);
	return NEOTIER_OK;
}

static int slru_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct slru *s = state;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN)
		return NEOTIER_OK;
	nt_list_unlink(slru_list(s, object), s->links, object);
	s->base.place[object] = NT_OUT;
	return NEOTIER_OK;
}

static uint32_t slru_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct slru *s = state;
	uint32_t found = nt_list_take(&s->probation, s->links, s->base.flags, want, out);

	(void)event, (void)index;
	return found + nt_list_take(&s->protected_, s->links, s->base.flags, want - found, out + found);
}

const struct neotier_placement neotier_placement_slru = {
	NT_SLOTS(slru),
	.name = "slru",
	.text = "segmented LRU: probation, then 80 % of the room for what was touched again",
	.source = "Karedla, Love, Wherry, IEEE Computer 27(3), 1994",
	.flags = NEOTIER_KV,
	.nr_params = 1,
	.params = slru_params,
};
