/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Expert policies that score every expert of a layer at each of its events: a layer holds few (some 4 to 64), so that a
 * scan beats an ordered structure, and scores may change without a touch. The lowest score goes; ties to the lowest handle. A
 * policy fills `score` in on_event and needs nothing else. 13 bytes an expert.
 */
#ifndef NEOTIER_PLACEMENT_EXPERT_H
#define NEOTIER_PLACEMENT_EXPERT_H

#include "base.h"

/* First member of the state of such a policy. */
struct nt_expert {
	struct nt_base base;
	double *score;     /* [objects] */
	uint32_t *held;    /* [groups][per_group]: the objects held, in no order */
	uint32_t *nr_held; /* [groups] */
};

static inline void nt_expert_carve(struct nt_expert *s, void *block, size_t *offset,
				   const struct neotier_placement_config *config)
{
	s->score = (double *)nt_carve(block, offset, config->objects, sizeof(double));
	s->held = (uint32_t *)nt_carve(block, offset, config->objects, sizeof(uint32_t));
	s->nr_held = (uint32_t *)nt_carve(block, offset, config->groups, sizeof(uint32_t));
}

static inline int nt_expert_config_ok(const struct neotier_placement_config *config)
{
	return nt_config_ok(config) && config->experts_per_group >= 1 && config->experts_per_group <= 256 &&
	       config->top_k >= 1 && config->batch >= 1 &&
	       config->top_k <= config->experts_per_group && config->top_k < 256 &&
	       config->objects == (uint64_t)config->groups * config->experts_per_group;
}

int nt_expert_hit(void *state, const struct neotier_event *event, uint32_t index);
int nt_expert_insert(void *state, const struct neotier_event *event, uint32_t index);
int nt_expert_remove(void *state, uint32_t object, enum neotier_remove_reason reason);
uint32_t nt_expert_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out);
/* Refuses an object that scores below everything it could replace. */
int nt_expert_admit(void *state, const struct neotier_event *event, uint32_t index);

/* NT_STATE with struct nt_expert first. */
#define NT_EXPERT_STATE(name) \
	NT_STATE_OF(name, nt_expert_config_ok(config), \
		    (nt_base_carve(&s->expert.base, block, &offset, config), nt_expert_carve(&s->expert, block, &offset, config)))

#define NT_EXPERT_SLOTS(name_)                                                                                         \
	.abi = NEOTIER_PLACEMENT_ABI, .struct_bytes = sizeof(struct neotier_placement), .flags = NEOTIER_EXPERTS,      \
	.state_bytes = name_##_state_bytes, .init = name_##_init, .on_event = name_##_event, .on_hit = nt_expert_hit,  \
	.on_insert = nt_expert_insert, .on_remove = nt_expert_remove, .victims = nt_expert_victims

#endif
