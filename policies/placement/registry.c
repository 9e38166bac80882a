// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The list of placement policies. A new one is its own file, two lines here and one in CMakeLists.txt. */
#include "registry.h"

extern const struct neotier_placement neotier_placement_hazard;
extern const struct neotier_placement neotier_placement_lru;
extern const struct neotier_placement neotier_placement_lfu;
extern const struct neotier_placement neotier_placement_slru;
extern const struct neotier_placement neotier_placement_twoq;
extern const struct neotier_placement neotier_placement_arc;
extern const struct neotier_placement neotier_placement_s3fifo;
extern const struct neotier_placement neotier_placement_lrfu;
extern const struct neotier_placement neotier_placement_gdsf;
extern const struct neotier_placement neotier_placement_hyperbolic;
extern const struct neotier_placement neotier_placement_lhd;
extern const struct neotier_placement neotier_placement_marconi;
extern const struct neotier_placement neotier_placement_wild;
extern const struct neotier_placement neotier_placement_ttl;
extern const struct neotier_placement neotier_placement_static_popularity;
extern const struct neotier_placement neotier_placement_lfu_decay;
extern const struct neotier_placement neotier_placement_hybrimoe;
extern const struct neotier_placement neotier_placement_least_stale;
extern const struct neotier_placement neotier_placement_moe_infinity;
extern const struct neotier_placement neotier_placement_expert_learned;
extern const struct neotier_placement neotier_predictor_popularity;
extern const struct neotier_placement neotier_predictor_previous_token;
extern const struct neotier_placement neotier_predictor_affinity;
extern const struct neotier_placement neotier_predictor_activation_matrix;
extern const struct neotier_placement neotier_predictor_learned;
extern const struct neotier_placement neotier_placement_belady;
extern const struct neotier_placement neotier_placement_belady_forced;

const struct neotier_placement *const neotier_placements[] = {
	&neotier_placement_hazard,
	&neotier_placement_lru,
	&neotier_placement_lfu,
	&neotier_placement_slru,
	&neotier_placement_twoq,
	&neotier_placement_arc,
	&neotier_placement_s3fifo,
	&neotier_placement_lrfu,
	&neotier_placement_gdsf,
	&neotier_placement_hyperbolic,
	&neotier_placement_lhd,
	&neotier_placement_marconi,
	&neotier_placement_wild,
	&neotier_placement_ttl,
	&neotier_placement_static_popularity,
	&neotier_placement_lfu_decay,
	&neotier_placement_hybrimoe,
	&neotier_placement_least_stale,
	&neotier_placement_moe_infinity,
	&neotier_placement_expert_learned,
	&neotier_predictor_popularity,
	&neotier_predictor_previous_token,
	&neotier_predictor_affinity,
	&neotier_predictor_activation_matrix,
	&neotier_predictor_learned,
	&neotier_placement_belady,
	&neotier_placement_belady_forced,
	NULL,
};
