/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Learns online, per layer, how soon each of its experts is used again, from what a decoding sequence has chosen so far. One
 * logistic model a layer, whose inputs are
 *   recency   which experts the layer used at this token (by the router's rank), and at the one before: a row of weights for
 *             each, so that "15 after 7" is learned, not only "15 again";
 *   frequency how often it used each expert lately, as logarithms of four fading averages (some 2, 10, 50 and 500 tokens);
 *   sequence  what the two layers below and the first layer chose for this token, and the layer above for the last one.
 * Target: discount^(tokens until the next use - 1), by temporal difference (Sutton 1988) from the layer's own next estimate: 1
 * where the next token uses the expert, else discount x that estimate. With discount 0 it is the probability that the next
 * token uses it. Weights are shared by all rows of a batch; each row has its own inputs. Nothing is fitted beforehand: weights
 * start at 0 but for the frequencies', which start as a decayed LFU.
 *
 * State: 4 x contexts x experts bytes an expert for the tables (768 at 32 experts), some 180 an expert and row.
 */
#ifndef NEOTIER_PLACEMENT_EXPERT_REUSE_H
#define NEOTIER_PLACEMENT_EXPERT_REUSE_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	NT_REUSE_CONTEXTS = 6,
	NT_REUSE_AVERAGES = 4,
	NT_REUSE_VECTOR = 16, /* floats in the widest vector register */
	NT_REUSE_RANKS = 8, /* ranks past this one count as it */
};

/* Signals that can be switched off, to see what they bring. */
enum nt_reuse_signal {
	NT_REUSE_RANK = 1 << 0,
	NT_REUSE_TRANSITION = 1 << 1,
	NT_REUSE_FREQUENCY = 1 << 2,
	NT_REUSE_LAYERS = 1 << 3,
};

struct nt_reuse {
	uint32_t groups, experts, width, top_k, batch; /* width: experts rounded up to whole vectors */
	uint32_t signals;
	float discount, rate;
	float *table;     /* [groups][NT_REUSE_CONTEXTS][experts][width] */
	float *bias;      /* [groups][width] */
	float *gain;      /* [groups][NT_REUSE_AVERAGES + NT_REUSE_RANKS] */
	float *average;   /* [batch][groups][NT_REUSE_AVERAGES][width] */
	float *input;     /* [batch][groups][NT_REUSE_AVERAGES][width]: their logarithms at the last visit */
	float *logit;     /* [batch][groups][width]: the estimate of the last visit, before the logistic function */
	float *estimate;  /* [batch][groups][width] */
	uint32_t *rows;   /* [batch][groups][NT_REUSE_CONTEXTS x top_k]: offsets in `table` of the rows behind the estimate */
	uint16_t *nr_rows; /* [batch][groups] */
	uint8_t *last;    /* [batch][groups][top_k]: experts of the last visit, in the router's order */
	uint8_t *nr_last; /* [batch][groups]: 0 before the first visit */
};

static inline uint32_t nt_reuse_width(uint32_t experts)
{
	return (experts + NT_REUSE_VECTOR - 1) / NT_REUSE_VECTOR * NT_REUSE_VECTOR;
}

void nt_reuse_carve(struct nt_reuse *r, void *block, size_t *offset, const struct neotier_placement_config *config);
void nt_reuse_start(struct nt_reuse *r, const struct neotier_placement_config *config, float discount, float rate,
		    uint32_t signals);
/* One row's `nr` (1 .. top_k) distinct choices in layer `group`: learns from them, then estimates anew. */
void nt_reuse_visit(struct nt_reuse *r, uint32_t group, uint32_t row, const uint8_t *choice, uint32_t nr);

static inline float *nt_reuse_estimate(const struct nt_reuse *r, uint32_t group, uint32_t row)
{
	return r->estimate + ((size_t)row * r->groups + group) * r->width;
}

static inline float *nt_reuse_logit(const struct nt_reuse *r, uint32_t group, uint32_t row)
{
	return r->logit + ((size_t)row * r->groups + group) * r->width;
}

/* The choices of one row: access[*at] on, while the row stays the same; returns how many, at most `most`. */
static inline uint32_t nt_reuse_choices(const struct neotier_event *event, uint32_t experts, uint32_t *at, uint8_t *choice,
					uint32_t most)
{
	uint32_t row = event->access[*at].row, nr = 0;

	for (; *at < event->nr && event->access[*at].row == row; (*at)++) {
		if (nr < most)
			choice[nr++] = (uint8_t)(event->access[*at].object % experts);
	}
	return nr;
}

#ifdef __cplusplus
}
#endif
#endif
