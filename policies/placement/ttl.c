// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Time to live: a block is kept for ttl_s after its last touch, whatever comes; while all are within it, newcomers pass by. Right
 * where the return is known to come within a time (an agent whose tool is running); wrong where the room is short of rate x time:
 * then who comes first stays. 17 bytes an object.
 */
#include "base.h"

struct ttl {
	struct nt_base base;
	struct nt_list list;
	struct nt_link *links;
	uint64_t *touched_ns; /* [objects] */
	uint64_t ttl_ns;
};

static const struct neotier_placement_param ttl_params[] = {
	{ "ttl_s", 300, 0, 1e9, "seconds a block is kept after its last touch" },
};

static void ttl_carve(struct ttl *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	s->links = nt_carve(block, offset, config->objects, sizeof(struct nt_link));
	s->touched_ns = nt_carve(block, offset, config->objects, sizeof(uint64_t));
}

static void ttl_start(struct ttl *s, const struct neotier_placement_config *config)
{
	nt_list_init(&s->list);
	s->ttl_ns = (uint64_t)(config->params[0] * 1e9);
}

NT_STATE(ttl, base, 1)

static void ttl_touch(struct ttl *s, const struct neotier_event *event, uint32_t object)
{
	s->touched_ns[object] = event->now_ns;
	nt_list_push_front(&s->list, s->links, object);
}

static int ttl_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct ttl *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->base, object))
		return NEOTIER_REFUSED;
	nt_list_unlink(&s->list, s->links, object);
	ttl_touch(s, event, object);
	return NEOTIER_OK;
}

static int ttl_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct ttl *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	s->base.place[object] = NT_HELD;
	ttl_touch(s, event, object);
	return NEOTIER_OK;
}

static int ttl_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct ttl *s = state;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN)
		return NEOTIER_OK;
	s->base.place[object] = NT_OUT;
	nt_list_unlink(&s->list, s->links, object);
	return NEOTIER_OK;
}

static int ttl_admit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct ttl *s = state;

	(void)index;
	return s->list.size < s->base.capacity || event->now_ns - s->touched_ns[s->list.back] >= s->ttl_ns;
}

static uint32_t ttl_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct ttl *s = state;

	(void)event, (void)index;
	return nt_list_take(&s->list, s->links, s->base.flags, want, out);
}

const struct neotier_placement neotier_placement_ttl = {
	NT_SLOTS(ttl),
	.admit = ttl_admit,
	.name = "ttl",
	.text = "time to live: kept ttl_s after the last touch, newcomers pass by meanwhile",
	.source = "Continuum (arXiv 2511.02230) pins an agent's cache so; Mooncake's leases",
	.flags = NEOTIER_KV,
	.nr_params = 1,
	.params = ttl_params,
};
