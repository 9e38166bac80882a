/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Activation-matrix matching (MoE-Infinity): see activation_matrix.h, which is all of it. */
#include "activation_matrix.h"
#include "predict.h"

struct matrix_predictor {
	struct nt_matrix matrix;
	uint32_t groups;
};

static const struct neotier_placement_param matrix_predictor_params[] = { NT_MATRIX_PARAMS };

static void matrix_predictor_carve(struct matrix_predictor *s, void *block, size_t *offset,
				   const struct neotier_placement_config *config)
{
	nt_matrix_carve(&s->matrix, block, offset, config);
}

static void matrix_predictor_start(struct matrix_predictor *s, const struct neotier_placement_config *config)
{
	nt_matrix_start(&s->matrix, config);
	s->groups = config->groups;
}

NT_PREDICTOR_STATE(matrix_predictor)

static void matrix_predictor_event(void *state, const struct neotier_event *event)
{
	nt_matrix_event(&((struct matrix_predictor *)state)->matrix, event);
}

static uint32_t matrix_predictor_prefetch(void *state, const struct neotier_event *event,
					  const struct neotier_prefetch_request *request, struct neotier_prediction *out)
{
	const struct matrix_predictor *s = state;
	struct nt_predictions p = { out, 0, request->max };

	NT_FOR_TARGETS(event, request, s->groups, lead, target)
	{
		uint32_t object = target * s->matrix.per_group, end = object + s->matrix.per_group, row;

		for (; object < end; object++) {
			float not_used = 1, estimate;

			for (row = 0; row < s->matrix.batch; row++) {
				estimate = nt_matrix_estimate(&s->matrix, row, object);
				not_used *= estimate < 1 ? 1 - estimate : 0;
			}
			nt_predict(&p, target, object, 1 - not_used);
		}
	}
	return p.nr;
}

const struct neotier_placement neotier_predictor_activation_matrix = {
	NT_PREDICTOR_SLOTS(matrix_predictor),
	.name = "activation-matrix",
	.text = "what the sequence, and the earlier one most like it, have used",
	.source = "MoE-Infinity (arXiv 2401.14361)",
	.nr_params = NT_MATRIX_NR_PARAMS,
	.params = matrix_predictor_params,
};
