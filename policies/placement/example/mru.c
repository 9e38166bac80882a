// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * A whole policy outside the library, to start from: most recently used, which is right for a loop over more than fits and for
 * little else.
 *   cc -O2 -shared -fPIC -I.. mru.c -o libmru.so && neotier kv replay TRACE --policy ./libmru.so
 */
#include "base.h"

struct mru {
	struct nt_base base;
	struct nt_list list;
	struct nt_link *links;
};

static void mru_carve(struct mru *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	s->links = nt_carve(block, offset, config->objects, sizeof(struct nt_link));
}

static void mru_start(struct mru *s, const struct neotier_placement_config *config)
{
	(void)config;
	nt_list_init(&s->list);
}

NT_STATE(mru, base, 1)

/* The back of the list is what goes first. */
static void mru_push(struct mru *s, uint32_t object)
{
	if (s->list.size > 0)
		nt_list_insert_behind(&s->list, s->links, s->list.back, object);
	else
		nt_list_push_front(&s->list, s->links, object);
}

static int mru_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct mru *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->base, object))
		return NEOTIER_REFUSED;
	nt_list_unlink(&s->list, s->links, object);
	mru_push(s, object);
	return NEOTIER_OK;
}

static int mru_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct mru *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	s->base.place[object] = NT_HELD;
	mru_push(s, object);
	return NEOTIER_OK;
}

static int mru_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct mru *s = state;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN)
		return NEOTIER_OK;
	s->base.place[object] = NT_OUT;
	nt_list_unlink(&s->list, s->links, object);
	return NEOTIER_OK;
}

static uint32_t mru_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct mru *s = state;

	(void)event, (void)index;
	return nt_list_take(&s->list, s->links, s->base.flags, want, out);
}

const struct neotier_placement neotier_placement_entry = {
	NT_SLOTS(mru),
	.name = "mru",
	.text = "most recently used goes first",
	.source = "an example",
	.flags = NEOTIER_KV,
};
