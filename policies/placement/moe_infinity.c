/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * MoE-Infinity's cache: the expert that the sequence's activation matrix (its own counts, and the most similar earlier sequence)
 * expects least goes. Right where a sequence keeps to its subject; slow where experts change within one. The published priority
 * also falls with the distance of the layer, which is the same for all experts of a layer's own cache. 13 bytes an
 * expert, 4 an expert and row, 4 an expert and matrix in the library.
 */
#include "activation_matrix.h"
#include "expert.h"

struct moe_infinity {
	struct nt_expert expert;
	struct nt_matrix matrix;
};

static const struct neotier_placement_param moe_infinity_params[] = { NT_MATRIX_PARAMS };

static void moe_infinity_carve(struct moe_infinity *s, void *block, size_t *offset,
			       const struct neotier_placement_config *config)
{
	nt_matrix_carve(&s->matrix, block, offset, config);
}

static void moe_infinity_start(struct moe_infinity *s, const struct neotier_placement_config *config)
{
	nt_matrix_start(&s->matrix, config);
}

NT_EXPERT_STATE(moe_infinity)

static void moe_infinity_event(void *state, const struct neotier_event *event)
{
	struct moe_infinity *s = state;
	uint32_t object = event->group * s->expert.base.per_group, end = object + s->expert.base.per_group, row;

	nt_matrix_event(&s->matrix, event);
	for (; object < end; object++) {
		s->expert.score[object] = 0;
		for (row = 0; row < s->matrix.batch; row++)
			s->expert.score[object] += (double)nt_matrix_estimate(&s->matrix, row, object);
	}
}

const struct neotier_placement neotier_placement_moe_infinity = {
	NT_EXPERT_SLOTS(moe_infinity),
	.name = "moe-infinity",
	.text = "what the sequence's activation matrix expects least goes",
	.source = "MoE-Infinity (arXiv 2401.14361)",
	.nr_params = NT_MATRIX_NR_PARAMS,
	.params = moe_infinity_params,
};
