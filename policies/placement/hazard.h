/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What hazard.c (the policy) and hazard_model.c (what it learns) share. */
#ifndef NEOTIER_PLACEMENT_HAZARD_H
#define NEOTIER_PLACEMENT_HAZARD_H

#include "base.h"
#include "bits.h"

enum { BUCKETS = 32, RANGES = 4, MOST_VALUES = 8, SAMPLES = 8, NO_BUCKET = 255 };
enum signal { END, COUNT, TURN, FRESH, OWN, SIGNALS };

/* Distinct values of each signal when it is on. */
static const uint32_t hazard_values[SIGNALS] = { [END] = 3, [COUNT] = 4, [TURN] = 5, [FRESH] = 6, [OWN] = 5 };

/* Parameters: the signals, then these. */
enum { P_ADMISSION = SIGNALS, P_LEARN, P_KEEP, P_FIT_EVERY, P_PRIOR, NR_PARAMS };

/* What came back within a bucket, and what outlived it. */
struct outcome {
	float returned, outlived;
};

/* Cuts a quantity whose scale is not known into values that come up equally often. */
struct quantiles {
	float seen[64];                 /* by half-octave */
	uint8_t value[64];              /* of a half-octave */
};

struct observation {
	uint64_t at;
	uint32_t object;
	uint16_t class;
	uint8_t returned; /* bucket, or NO_BUCKET */
};

struct hazard {
	struct nt_base base;
	uint32_t classes, class_words, radix[SIGNALS];
	uint64_t clock;                /* references so far */
	uint64_t edge[BUCKETS + 1];    /* age where a bucket begins */
	uint32_t shift;                /* log2 of the first bucket's width */
	uint64_t swept[BUCKETS];       /* clock when its lists were last looked at */

	/* [objects] */
	struct nt_link *links;
	uint64_t *touched;
	uint32_t *observed; /* ring index, or NEOTIER_NO_OBJECT */
	uint16_t *class;
	uint8_t *bucket, *count, *turn;

	/* [classes x BUCKETS]: "cells" */
	struct nt_list *lists;
	struct outcome *outcomes;
	float *worth;
	uint32_t *by_worth; /* cells, lowest first */
	uint32_t *rank;     /* its inverse */
	uint32_t *scratch;  /* for the sort */
	uint64_t *occupied; /* bitmap of ranks whose list is not empty */
	uint32_t first;     /* no word of it below this one has a bit set */
	uint8_t *used;      /* [classes]: some block has been in it */
	uint64_t *young;    /* [BUCKETS x class_words]: bitmap of classes whose list of the bucket is not empty */
	uint32_t held;

	/* the model */
	float base_rate[BUCKETS];
	float factor[SIGNALS][MOST_VALUES][RANGES];
	struct outcome (*totals)[RANGES]; /* [classes]: returned, and expected by base_rate */
	struct quantiles fresh, own;
	uint64_t next_fit, fit_every;

	struct observation *ring;
	uint64_t ring_size, ring_head, cursor[BUCKETS]; /* counts; a ring index is one modulo ring_size, a power of two */

	/* the request being served */
	uint32_t request_blocks, request_turn, request_fresh, sample_every;
	const double *params;
};

/* Scale of quantities whose values are quantiles: 0 for 0, else 1 + floor(2 log2 x), about; at most 63. */
uint32_t hazard_half_octave(uint64_t x);
/* Index of the bucket that an age in references falls in. */
uint8_t hazard_bucket(const struct hazard *s, uint64_t age);
/* Counts what the observations that have left a bucket did in it. */
void hazard_learn(struct hazard *s);
/* Takes the model anew from what was counted, and ranks the cells by it. */
void hazard_refit(struct hazard *s);
/* The same from what is assumed at the start. */
void hazard_assume(struct hazard *s);
/* Writes the class's row of s->worth. */
void hazard_worth(struct hazard *s, uint32_t class);

#endif
