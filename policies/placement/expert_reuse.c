/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#include "expert_reuse.h"
#include "vector_math.h"


static const float fading[NT_REUSE_AVERAGES] = { 0.6f, 0.9f, 0.98f, 0.998f };

/* Added to an average under the logarithm: what no use at all counts as. */
#define FLOOR 0.01f
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

/* Rows of the tables for `group` that the row's choices select. */
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
		out[found++] = (group * NT_REUSE_CONTEXTS) * r->experts + choice[k];
	for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		if (!others[i].wanted)
			continue;
		for (k = 0; k < r->nr_last[base + others[i].group]; k++) {
			out[found++] = (group * NT_REUSE_CONTEXTS + others[i].context) * r->experts +
				       r->last[(base + others[i].group) * r->top_k + k];
		}
	}
	return found;
}

/* The weights of the rows, eight experts from `first` on, added up. */
NT_INLINE void add_rows(const float *table, const uint32_t *rows, uint32_t nr, uint32_t first, const uint32_t width, nt_vec *sum)
{
	uint32_t k;

	for (k = 0; k < nr; k++)
		*sum += *(const nt_vec *)(table + (size_t)rows[k] * width + first);
}

/* `width` is a constant where it is known, so that the loops unroll. */
NT_INLINE void visit(struct nt_reuse *r, uint32_t group, uint32_t row, const uint8_t *choice, uint32_t nr, const uint32_t width)
{
	const size_t at = (size_t)row * r->groups + group;
	const uint32_t averages = r->signals & NT_REUSE_FREQUENCY ? NT_REUSE_AVERAGES : 0;
	const uint32_t ranks = r->signals & NT_REUSE_RANK ? nr : 0;
	float *average = r->average + at * NT_REUSE_AVERAGES * width, *input = r->input + at * NT_REUSE_AVERAGES * width;
	float *logit = r->logit + at * width, *estimate = r->estimate + at * width, *bias = r->bias + group * width;
	float *gain = r->gain + group * (NT_REUSE_AVERAGES + NT_REUSE_RANKS);
	uint32_t *rows = r->rows + at * NT_REUSE_CONTEXTS * r->top_k;
	float by_rank[256] __attribute__((aligned(64)));
	uint32_t chosen[NT_REUSE_CONTEXTS * 256], bits[8] = { 0 }, nr_chosen, i, k, e;
	nt_vec of_average[NT_REUSE_AVERAGES] = { 0 };
	const int known = r->nr_last[at] > 0; /* there is an estimate, which now meets what came */

	for (e = 0; e < width; e++)
		by_rank[e] = 0;
	for (k = 0; k < ranks; k++)
		by_rank[choice[k]] = gain[rank_slot(k)];
	for (k = 0; k < nr; k++)
		bits[choice[k] / 32] |= 1u << choice[k] % 32;
	nr_chosen = select_rows(r, group, row, choice, nr, chosen);
	for (e = 0; e < width; e += NT_LANES) {
		nt_vec used, fresh[NT_REUSE_AVERAGES], next, value, error;

		nt_from_bits(bits, e, &used);
		next = *(nt_vec *)(bias + e);
		for (i = 0; i < averages; i++) {
			nt_vec *mean = (nt_vec *)(average + i * width + e);

			*mean = fading[i] * *mean + (1 - fading[i]) * used;
			fresh[i] = *mean + FLOOR;
			nt_log(&fresh[i]);
			fresh[i] += CENTRE;
			next += gain[i] * fresh[i];
		}
		add_rows(r->table, chosen, nr_chosen, e, width, &next);
		next += *(nt_vec *)(by_rank + e);
		value = next;
		nt_logistic(&value);
		if (known) {
			error = r->rate * (used + (1 - used) * r->discount * value - *(nt_vec *)(estimate + e));
			for (k = 0; k < r->nr_rows[at]; k++)
				*(nt_vec *)(r->table + (size_t)rows[k] * width + e) += error;
			*(nt_vec *)(bias + e) += error;
			for (i = 0; i < averages; i++)
				of_average[i] += error * *(nt_vec *)(input + i * width + e);
			*(nt_vec *)(by_rank + e) = error;
		}
		for (i = 0; i < averages; i++)
			*(nt_vec *)(input + i * width + e) = fresh[i];
		*(nt_vec *)(logit + e) = next;
		*(nt_vec *)(estimate + e) = value;
	}
	if (known) {
		for (i = 0; i < averages; i++)
			gain[i] += SHARED_RATE * nt_sum(&of_average[i]);
		for (k = 0; k < r->nr_last[at] && ranks; k++)
			gain[rank_slot(k)] += SHARED_RATE * by_rank[r->last[at * r->top_k + k]];
	}
	for (k = 0; k < nr_chosen; k++)
		rows[k] = chosen[k];
	r->nr_rows[at] = (uint16_t)nr_chosen;
	for (k = 0; k < nr; k++)
		r->last[at * r->top_k + k] = choice[k];
	r->nr_last[at] = (uint8_t)nr;
}

NT_VECTOR_CODE void nt_reuse_visit(struct nt_reuse *r, uint32_t group, uint32_t row, const uint8_t *choice, uint32_t nr)
{
	if (r->width == 32)
		visit(r, group, row, choice, nr, 32);
	else
		visit(r, group, row, choice, nr, r->width);
}
