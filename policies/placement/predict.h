/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Predictors of experts: on_event learns, prefetch says for each expert of the layers asked for how probable it is that the
 * layer's next event uses it. They hold no cache, so the slots about residency are NULL.
 */
#ifndef NEOTIER_PLACEMENT_PREDICT_H
#define NEOTIER_PLACEMENT_PREDICT_H

#include "expert.h"

/* Experts' layers that prefetch goes through: target is the layer, lead its distance from the event's, from 1. */
#define NT_FOR_TARGETS(event, request, nr_groups, lead, target)                                                        \
	for (uint32_t i_ = 0, target = (request)->group_first % (nr_groups),                                           \
		      lead = (target + (nr_groups) - (event)->group - 1) % (nr_groups) + 1;                            \
	     i_ < (request)->groups && lead <= (nr_groups); i_++, lead++, target = (target + 1) % (nr_groups))

struct nt_predictions {
	struct neotier_prediction *out;
	uint32_t nr, max;
};

static inline void nt_predict(struct nt_predictions *p, uint32_t group, uint32_t object, float probability)
{
	if (p->nr == p->max)
		return;
	p->out[p->nr++] = (struct neotier_prediction){ .object = object, .group = group, .probability = probability };
}

/* NT_STATE without a base: struct NAME has nothing in common with other predictors' state. */
#define NT_PREDICTOR_STATE(name) NT_STATE_OF(name, nt_expert_config_ok(config), (void)0)

#define NT_PREDICTOR_SLOTS(name_)                                                                                      \
	.abi = NEOTIER_PLACEMENT_ABI, .struct_bytes = sizeof(struct neotier_placement),                                \
	.flags = NEOTIER_EXPERTS | NEOTIER_PREDICTOR, .state_bytes = name_##_state_bytes, .init = name_##_init,        \
	.on_event = name_##_event, .prefetch = name_##_prefetch

#endif
