/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What hazard.c (the policy) and hazard_model.c (what it learns) share. */
#ifndef NEOTIER_PLACEMENT_HAZARD_H
#define NEOTIER_PLACEMENT_HAZARD_H

#include "base.h"
#include "bits.h"

enum { BUCKETS = 32, RANGES = 4, MOST_VALUES = 16, SAMPLES = 8 };
enum signal { END, COUNT, TURN, FRESH, OWN, SIGNALS };

/* Distinct values of each signal when it is on. */
static const uint32_t hazard_values[SIGNALS] = { [END] = 3, [COUNT] = 16, [TURN] = 5, [FRESH] = 6, [OWN] = 5 };

/* Parameters: the signals, then these. */
enum { P_ADMISSION = SIGNALS, P_LEARN, P_KEEP, P_FIT_EVERY, P_PRIOR, NR_PARAMS };

/*
 * What came back in a bucket, and the references that passed while blocks were in it, each divided by the clock it came at: their
 * ratio, divided by today's clock, is the hazard (the essay in hazard.c says why).
 */
struct outcome {
	float returned, exposure;
};

/* Cuts a quantity whose scale is not known into values that come up equally often. */
struct quantiles {
	float seen[64];                 /* by half-octave */
	uint8_t value[64];              /* of a half-octave */
};

struct observation {
	uint64_t at;
	uint32_t object;
	uint32_t age; /* when it came back, or 0 */
	uint16_t slot;
};

struct hazard {
	struct nt_base base;
	uint32_t classes, class_words, radix[SIGNALS];
	uint32_t nr_slots;             /* classes that some block has been in, numbered as they come up */
	uint32_t nr_ranked;            /* of them; the rest ranks last */
	uint64_t clock;                /* references so far */
	uint64_t edge[BUCKETS + 1];    /* age where a bucket begins */
	uint32_t shift;                /* log2 of the first bucket's width */
	uint64_t swept[BUCKETS];       /* clock when its lists were last looked at */

	/* [objects] */
	struct nt_link *links;
	uint64_t *touched;
	uint32_t *observed; /* ring index, or NEOTIER_NO_OBJECT */
	uint16_t *slot; /* of its class */
	float *mean;    /* half-octaves: of the times between touches, the latest some 16 */
	uint8_t *bucket, *count, *turn;

	/* [classes] */
	uint16_t *slot_of;  /* plus 1; 0: none yet */
	uint16_t *class_of; /* by slot */
	struct outcome (*totals)[RANGES]; /* by slot: returned, and expected by base_rate */

	/* [classes x BUCKETS], by slot: "cells" */
	struct nt_list *lists;
	struct outcome *outcomes;
	float *worth;
	uint32_t *by_worth; /* cells, lowest first */
	uint32_t *rank;     /* its inverse */
	uint32_t *scratch;  /* for the sort */
	uint64_t *occupied; /* bitmap of ranks whose list is not empty */
	uint32_t first;     /* no word of it below this one has a bit set */
	uint64_t *young;    /* [BUCKETS x class_words]: bitmap of slots whose list of the bucket is not empty */
	uint32_t held;

	/* the model */
	float base_rate[BUCKETS]; /* returns a reference */
	float factor[SIGNALS][MOST_VALUES][RANGES];
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
/* Counts what the observations that have left a bucket did in it. */
void hazard_learn(struct hazard *s);
/* Takes the model anew from what was counted, and ranks the cells by it. */
void hazard_refit(struct hazard *s);
/* The same from what is assumed at the start. */
void hazard_assume(struct hazard *s);
/* Ranks the cells by the model as it is. */
void hazard_rank(struct hazard *s);
/* The class's slot; a new one where no block has been in it: its cells rank last until the next ranking. */
uint32_t hazard_slot(struct hazard *s, uint32_t class);

#endif
