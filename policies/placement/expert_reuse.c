/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#include "expert_reuse.h"
#include "vector_math.h"


static const float fading[NT_REUSE_AVERAGES] = { 0.6f, 0.9f, 0.98f, 0.998f };

/* Added to an average under the logarithm: what no use at all counts as. */
#define FLOOR 0.01f
/* Added to an average each time, so that one long unused does not become a denormal number, which costs a hundred cycles to add. */
#define NORMAL 1e-20f
#define CENTRE 1.5f
#define BIAS (-2.0f)   /* logit of an eighth: 4 of 32 */
#define GAIN 0.5f      /* of the averages, at first */
/* The shared weights see every expert's error, the rows of the tables one in eight. */
#define SHARED_RATE 0.1f

void nt_reuse_carve(struct nt_reuse *r, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	size_t width = nt_reuse_width(config->experts_per_group), visits = (size_t)config->batch * config->groups;

	r->table = nt_carve(block, offset, (size_t)config->groups * NT_REUSE_CONTEXTS * config->experts_per_group * width,
			    sizeof(float));
	r->bias = nt_carve(block, offset, config->groups * width, sizeof(float));
	r->gain = nt_carve(block, offset, config->groups * (NT_REUSE_AVERAGES + NT_REUSE_RANKS), sizeof(float));
	r->average = nt_carve(block, offset, visits * NT_REUSE_AVERAGES * width, sizeof(float));
	r->input = nt_carve(block, offset, visits * NT_REUSE_AVERAGES * width, sizeof(float));
	r->logit = nt_carve(block, offset, visits * width, sizeof(float));
	r->estimate = nt_carve(block, offset, visits * width, sizeof(float));
	r->rows = nt_carve(block, offset, visits * NT_REUSE_CONTEXTS * config->top_k, sizeof(uint32_t));
	r->nr_rows = nt_carve(block, offset, visits, sizeof(uint16_t));
	r->last = nt_carve(block, offset, visits * config->top_k, 1);
	r->nr_last = nt_carve(block, offset, visits, 1);
}

void nt_reuse_start(struct nt_reuse *r, const struct neotier_placement_config *config, float discount, float rate,
		    uint32_t signals)
{
	uint32_t group, i;

	r->groups = config->groups;
	r->experts = config->experts_per_group;
	r->width = nt_reuse_width(r->experts);
	r->top_k = config->top_k;
	r->batch = config->batch;
	r->signals = signals;
	r->discount = discount;
	r->rate = rate;
	for (i = 0; i < r->groups * r->width; i++)
		r->bias[i] = BIAS;
	for (group = 0; group < r->groups && (signals & NT_REUSE_FREQUENCY); group++) {
		for (i = 0; i < NT_REUSE_AVERAGES; i++)
			r->gain[group * (NT_REUSE_AVERAGES + NT_REUSE_RANKS) + i] = GAIN;
	}
}

static uint32_t rank_slot(uint32_t rank)
{
	return NT_REUSE_AVERAGES + (rank < NT_REUSE_RANKS ? rank : NT_REUSE_RANKS - 1);
}

/* Rows of the tables for `group` that the row's choices select, as offsets in r->table. */
static uint32_t select_rows(const struct nt_reuse *r, uint32_t group, uint32_t row, const uint8_t *choice, uint32_t nr,
			    uint32_t *out)
{
	const size_t base = (size_t)row * r->groups;
	const struct {
		uint32_t context, group, wanted;
	} others[] = {
		{ 1, group, r->signals & NT_REUSE_TRANSITION },
		{ 2, group - 1, group >= 1 && (r->signals & NT_REUSE_LAYERS) },
		{ 3, group - 2, group >= 2 && (r->signals & NT_REUSE_LAYERS) },
		{ 4, group + 1, group + 1 < r->groups && (r->signals & NT_REUSE_LAYERS) },
		{ 5, 0, group >= 1 && (r->signals & NT_REUSE_LAYERS) },
	};
	uint32_t found = 0, i, k;

	for (k = 0; k < nr && (r->signals & NT_REUSE_TRANSITION); k++)
		out[found++] = (group * NT_REUSE_CONTEXTS * r->experts + choice[k]) * r->width;
	for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		if (!others[i].wanted)
			continue;
		for (k = 0; k < r->nr_last[base + others[i].group]; k++) {
			out[found++] = ((group * NT_REUSE_CONTEXTS + others[i].context) * r->experts +
					r->last[(base + others[i].group) * r->top_k + k]) *
				       r->width;
		}
	}
	return found;
}

/* What one visit works on, at one layer of one row. */
struct visit {
	const uint32_t *bits; /* the choices, as a set */
	const float *gain;    /* of the averages */
	uint32_t averages;    /* 0, or NT_REUSE_AVERAGES */
	const uint32_t *chosen, *before; /* offsets of the rows behind this estimate, and behind the last one */
	uint32_t nr_chosen, nr_before;
	float *average, *input, *logit, *estimate, *bias;
	float *by_rank; /* in: what the rank adds to the logit, by expert; out: the error, where known */
	int known;      /* there is an estimate, which now meets what came */
};

/*
 * `vectors` times eight experts from `first` on; a constant, so that they stay in registers while the rows go by. Adds to
 * of_average what the gains are to learn.
 */
NT_INLINE void visit_block(struct nt_reuse *r, const struct visit *v, uint32_t first, const uint32_t vectors, nt_vec *of_average)
{
	nt_vec next[4], used[4], input[NT_REUSE_AVERAGES];
	const uint32_t width = r->width;
	const float discount = r->discount, rate = r->rate;
	uint32_t i, j, k;

	for (j = 0; j < vectors; j++)
		next[j] = *(nt_vec *)(v->bias + first + j * NT_LANES) + *(nt_vec *)(v->by_rank + first + j * NT_LANES);
	for (k = 0; k < v->nr_chosen; k++) {
		const float *weights = r->table + v->chosen[k] + first;

		for (j = 0; j < vectors; j++)
			next[j] += *(const nt_vec *)(weights + j * NT_LANES);
	}
	for (j = 0; j < vectors; j++) {
		const uint32_t e = first + j * NT_LANES;
		nt_vec value;

		nt_from_bits(v->bits, e, &used[j]);
		for (i = 0; i < v->averages; i++) {
			nt_vec *mean = (nt_vec *)(v->average + i * width + e);

			*mean = fading[i] * *mean + (1 - fading[i]) * used[j] + NORMAL;
			input[i] = *mean + FLOOR;
			nt_log(&input[i]);
			input[i] += CENTRE;
			next[j] += v->gain[i] * input[i];
		}
		value = next[j];
		nt_logistic(&value);
		*(nt_vec *)(v->logit + e) = next[j];
		/* From here on next is the error of the last estimate. */
		next[j] = rate * (used[j] + (1 - used[j]) * discount * value - *(nt_vec *)(v->estimate + e));
		*(nt_vec *)(v->estimate + e) = value;
		for (i = 0; i < v->averages; i++) {
			nt_vec *last = (nt_vec *)(v->input + i * width + e);

			of_average[i] += next[j] * *last;
			*last = input[i];
		}
	}
	if (!v->known)
		return;
	for (j = 0; j < vectors; j++) {
		*(nt_vec *)(v->bias + first + j * NT_LANES) += next[j];
		*(nt_vec *)(v->by_rank + first + j * NT_LANES) = next[j];
	}
	for (k = 0; k < v->nr_before; k++) {
		float *weights = r->table + v->before[k] + first;

		for (j = 0; j < vectors; j++)
			*(nt_vec *)(weights + j * NT_LANES) += next[j];
	}
}

NT_VECTOR_CODE void nt_reuse_visit(struct nt_reuse *r, uint32_t group, uint32_t row, const uint8_t *choice, uint32_t nr)
{
	const size_t at = (size_t)row * r->groups + group;
	const uint32_t ranks = r->signals & NT_REUSE_RANK ? nr : 0;
	float *gain = r->gain + group * (NT_REUSE_AVERAGES + NT_REUSE_RANKS);
	uint32_t *rows = r->rows + at * NT_REUSE_CONTEXTS * r->top_k;
	float by_rank[256] __attribute__((aligned(64)));
	uint32_t chosen[NT_REUSE_CONTEXTS * 256], bits[8] = { 0 }, i, k, e;
	nt_vec of_average[NT_REUSE_AVERAGES] = { 0 };
	const struct visit v = {
		.bits = bits,
		.gain = gain,
		.averages = r->signals & NT_REUSE_FREQUENCY ? NT_REUSE_AVERAGES : 0,
		.chosen = chosen,
		.before = rows,
		.nr_chosen = select_rows(r, group, row, choice, nr, chosen),
		.nr_before = r->nr_rows[at],
		.average = r->average + at * NT_REUSE_AVERAGES * r->width,
		.input = r->input + at * NT_REUSE_AVERAGES * r->width,
		.logit = r->logit + at * r->width,
		.estimate = r->estimate + at * r->width,
		.bias = r->bias + group * r->width,
		.by_rank = by_rank,
		.known = r->nr_last[at] > 0,
	};

	for (e = 0; e < r->width; e++)
		by_rank[e] = 0;
	for (k = 0; k < ranks; k++)
		by_rank[choice[k]] = gain[rank_slot(k)];
	for (k = 0; k < nr; k++)
		bits[choice[k] / 32] |= 1u << choice[k] % 32;
	for (e = 0; e + 4 * NT_LANES <= r->width; e += 4 * NT_LANES)
		visit_block(r, &v, e, 4, of_average);
	for (; e < r->width; e += 2 * NT_LANES)
		visit_block(r, &v, e, 2, of_average);
	if (v.known) {
		for (i = 0; i < v.averages; i++)
			gain[i] += SHARED_RATE * nt_sum(&of_average[i]);
		for (k = 0; k < r->nr_last[at] && ranks; k++)
			gain[rank_slot(k)] += SHARED_RATE * by_rank[r->last[at * r->top_k + k]];
	}
	for (k = 0; k < v.nr_chosen; k++)
		rows[k] = chosen[k];
	r->nr_rows[at] = (uint16_t)v.nr_chosen;
	for (k = 0; k < nr; k++)
		r->last[at * r->top_k + k] = choice[k];
	r->nr_last[at] = (uint8_t)nr;
}
