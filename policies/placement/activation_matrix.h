/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Expert activation matrices (MoE-Infinity, arXiv 2401.14361): how often a sequence has used each expert of each layer, a library
 * of the matrices of sequences that ended, and the one of them that is most like the sequence at hand (cosine). Estimate: the
 * matched matrix counts as match_tokens tokens of experience, which the sequence's own counts then outgrow.
 */
#ifndef NEOTIER_PLACEMENT_ACTIVATION_MATRIX_H
#define NEOTIER_PLACEMENT_ACTIVATION_MATRIX_H

#include "base.h"

#define NT_MATRIX_PARAMS                                                                                               \
	{ "library", 64, 1, 4096, "matrices of ended sequences that are kept" },                                       \
	{ "match_tokens", 16, 0, 1e6, "tokens that the matched matrix counts as" }
enum { NT_MATRIX_NR_PARAMS = 2 };

struct nt_matrix_row {
	uint64_t tokens;    /* of the sequence, so far */
	uint32_t match;     /* index in the library, or NEOTIER_NO_OBJECT */
	uint32_t reserved;
};

struct nt_matrix {
	uint32_t objects, per_group, batch, library, stored;
	float match_tokens;
	struct nt_matrix_row *rows; /* [batch] */
	float *own;                 /* [batch][objects] uses in the sequence */
	float *kept;                /* [library][objects] uses a token */
	float *norm;                /* [library] squared length of kept */
};

void nt_matrix_carve(struct nt_matrix *m, void *block, size_t *offset, const struct neotier_placement_config *config);
/* params: the policy's, NT_MATRIX_PARAMS first. */
void nt_matrix_start(struct nt_matrix *m, const struct neotier_placement_config *config);
/* Counts the event; at a sequence's first event stores the row's former one; matches anew once a token. */
void nt_matrix_event(struct nt_matrix *m, const struct neotier_event *event);
/* Expected share of the row's next tokens that use the expert, 0 .. 1. */
float nt_matrix_estimate(const struct nt_matrix *m, uint32_t row, uint32_t object);

#endif
