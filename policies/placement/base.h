/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What nearly every policy keeps: the config's facts and which objects are held. First member of a policy's state. */
#ifndef NEOTIER_PLACEMENT_BASE_H
#define NEOTIER_PLACEMENT_BASE_H

#include "list.h"
#include "state.h"

/* Which list or heap an object is in; 0: none. A policy names its own from NT_HELD up; below are histories. */
enum { NT_OUT = 0, NT_HELD = 128 };

struct nt_base {
	const uint8_t *flags;
	uint32_t objects, groups, per_group, capacity;
	uint8_t *place; /* [objects] */
};

static inline void nt_base_carve(struct nt_base *base, void *block, size_t *offset,
				 const struct neotier_placement_config *config)
{
	base->flags = config->flags;
	base->objects = config->objects;
	base->groups = config->groups;
	base->per_group = config->experts_per_group ? config->experts_per_group : config->objects;
	base->capacity = config->capacity;
	base->place = (uint8_t *)nt_carve(block, offset, config->objects, 1);
}

static inline uint32_t nt_group(const struct nt_base *base, uint32_t object)
{
	return base->groups == 1 ? 0 : object / base->per_group;
}

static inline int nt_held(const struct nt_base *base, uint32_t object)
{
	return object < base->objects && base->place[object] >= NT_HELD;
}

static inline int nt_may_insert(const struct nt_base *base, uint32_t object)
{
	return object < base->objects && base->place[object] < NT_HELD;
}

/* Whether on_remove() may do what it is asked. */
static inline int nt_may_remove(const struct nt_base *base, uint32_t object, enum neotier_remove_reason reason)
{
	return object < base->objects && (base->place[object] >= NT_HELD) == (reason != NEOTIER_FORGOTTEN);
}

/*
 * state_bytes and init of a policy or predictor whose state is `struct NAME`. `ok`: whether `config` will do. `parts` cuts what
 * kinds of policies have in common out of `block` (NULL while the size is counted), with `s` and `offset` at hand. NAME_carve(s,
 * block, &offset, config) cuts the rest; NAME_start(s, config) sets what is not zero. Both see the parts done.
 */
#define NT_STATE_OF(name, ok, parts) \
	static size_t name##_state_bytes(const struct neotier_placement_config *config) \
	{ \
		struct name probe, *s = &probe; \
		void *block = NULL; \
		size_t offset = 0; \
 \
		if (!(ok)) \
			return 0; \
		nt_carve(block, &offset, 1, sizeof(struct name)); \
		parts; \
		name##_carve(s, block, &offset, config); \
		return offset; \
	} \
	static int name##_init(void *block, const struct neotier_placement_config *config) \
	{ \
		struct name *s = (struct name *)block; \
		size_t offset = 0; \
 \
		if (!(ok)) \
			return NEOTIER_REFUSED; \
		nt_carve(block, &offset, 1, sizeof(struct name)); \
		parts; \
		name##_carve(s, block, &offset, config); \
		name##_start(s, config); \
		return NEOTIER_OK; \
	}

/* Of a policy with its struct nt_base at `base_`. most_groups: 1 for policies of one shared cache. */
#define NT_STATE(name, base_, most_groups) \
	NT_STATE_OF(name, nt_config_ok(config) && config->groups <= (most_groups), nt_base_carve(&s->base_, block, &offset, config))

/* The slots that every policy has; the rest is written out in its descriptor. */
#define NT_SLOTS(name_)                                                                                                \
	.abi = NEOTIER_PLACEMENT_ABI, .struct_bytes = sizeof(struct neotier_placement),                                \
	.state_bytes = name_##_state_bytes, .init = name_##_init, .on_hit = name_##_hit, .on_insert = name_##_insert,  \
	.on_remove = name_##_remove, .victims = name_##_victims

#endif
