// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Least recently used. Metric: time since the last touch. What every engine ships; right where reuse is soon or never, wrong
 * where a scan is longer than the cache: it then keeps only what nobody comes back for. 9 bytes an object.
 */
#include "list.h"
#include "state.h"

struct lru {
	const uint8_t *flags;
	uint32_t objects, groups, per_group;
	struct nt_list *lists; /* [groups] */
	struct nt_link *links; /* [objects] */
	uint8_t *held;         /* [objects] */
};

static size_t lru_carve(struct lru *s, void *base, const struct neotier_placement_config *config)
{
	size_t offset = 0;

	nt_carve(base, &offset, 1, sizeof(struct lru));
	s->lists = nt_carve(base, &offset, config->groups, sizeof(struct nt_list));
	s->links = nt_carve(base, &offset, config->objects, sizeof(struct nt_link));
	s->held = nt_carve(base, &offset, config->objects, 1);
	return offset;
}

static size_t lru_state_bytes(const struct neotier_placement_config *config)
{
	struct lru probe;

	return nt_config_ok(config) ? lru_carve(&probe, NULL, config) : 0;
}

static int lru_init(void *state, const struct neotier_placement_config *config)
{
	struct lru *s = state;
	uint32_t group;

	if (!nt_config_ok(config))
		return NEOTIER_REFUSED;
	lru_carve(s, state, config);
	s->flags = config->flags;
	s->objects = config->objects;
	s->groups = config->groups;
	s->per_group = config->experts_per_group;
	for (group = 0; group < s->groups; group++)
		nt_list_init(&s->lists[group]);
	return NEOTIER_OK;
}

static struct nt_list *lru_list(struct lru *s, uint32_t object)
{
	return &s->lists[s->groups == 1 ? 0 : object / s->per_group];
}

static int lru_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct lru *s = state;
	uint32_t object = event->access[index].object;

	if (object >= s->objects || !s->held[object])
		return NEOTIER_REFUSED;
	nt_list_unlink(lru_list(s, object), s->links, object);
	nt_list_push_front(lru_list(s, object), s->links, object);
	return NEOTIER_OK;
}

static int lru_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct lru *s = state;
	uint32_t object = event->access[index].object;

	if (object >= s->objects || s->held[object])
		return NEOTIER_REFUSED;
	s->held[object] = 1;
	nt_list_push_front(lru_list(s, object), s->links, object);
	return NEOTIER_OK;
}

static int lru_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct lru *s = state;

	if (object >= s->objects || s->held[object] == (reason == NEOTIER_FORGOTTEN))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN)
		return NEOTIER_OK;
	s->held[object] = 0;
	nt_list_unlink(lru_list(s, object), s->links, object);
	return NEOTIER_OK;
}

static uint32_t lru_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct lru *s = state;

	return nt_list_take(lru_list(s, event->access[index].object), s->links, s->flags, want, out);
}

const struct neotier_placement neotier_placement_lru = {
	.abi = NEOTIER_PLACEMENT_ABI,
	.struct_bytes = sizeof(struct neotier_placement),
	.name = "lru",
	.text = "least recently used",
	.source = "classic; vLLM, SGLang, LMCache and Mooncake ship it",
	.flags = NEOTIER_KV | NEOTIER_EXPERTS,
	.state_bytes = lru_state_bytes,
	.init = lru_init,
	.on_hit = lru_hit,
	.on_insert = lru_insert,
	.on_remove = lru_remove,
	.victims = lru_victims,
};
