// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * What hazard learns: outcomes of observations, the proportional hazards model fitted to them, Gittins' index of every class and age, and
 * the order of the cells. The essay is in hazard.c.
 */
#include <string.h>

#include "hazard.h"

uint32_t hazard_half_octave(uint64_t x)
{
	uint32_t bits = nt_bits(x);

	if (bits == 0)
		return 0;
	return 2 * bits - 1 + (bits > 1 && (x >> (bits - 2) & 1)) < 64 ? 2 * bits - 1 + (bits > 1 && (x >> (bits - 2) & 1)) : 63;
}

static void hazard_cut(struct quantiles *q, uint32_t values, float keep)
{
	float sum = 0, below = 0;
	uint32_t i;

	for (i = 0; i < 64; i++)
		sum += q->seen[i] *= keep;
	for (i = 0; i < 64; i++) {
		/* By the middle of the half-octave's own share. */
		float at = sum > 0 ? (below + q->seen[i] / 2) / sum * (float)values : 0;

		q->value[i] = (uint8_t)(at < (float)(values - 1) ? at : (float)(values - 1));
		below += q->seen[i];
	}
}

static uint32_t hazard_range(uint32_t bucket)
{
	return bucket * RANGES / BUCKETS;
}

/* The product of the factors of a slot's class, by range of age. */
static void hazard_factors(const struct hazard *s, uint32_t slot, float *product)
{
	uint32_t signal, range, class = s->class_of[slot];

	for (range = 0; range < RANGES; range++)
		product[range] = 1;
	for (signal = SIGNALS; signal-- > 0; class /= s->radix[signal])
		for (range = 0; range < RANGES; range++)
			product[range] *= s->factor[signal][class % s->radix[signal]][range];
}

/* A bucket's rate, half of it from the two beside it: the index takes the best of many, and would pick the luckiest. */
static float hazard_base(const struct hazard *s, const struct outcome *sum, uint32_t bucket)
{
	uint32_t first = bucket > 0 ? bucket - 1 : 0, last = bucket + 1 < BUCKETS ? bucket + 1 : bucket, i;
	/* Assumed at the start: one return in 200 passages of a bucket, whose widths grow, so that rates fall with age. */
	float returned = 0.05f, exposure = 10 * (float)(s->edge[bucket + 1] - s->edge[bucket]);

	for (i = first; i <= last; i++) {
		float weight = i == bucket ? 1 : 0.5f;

		returned += weight * sum[i].returned;
		exposure += weight * sum[i].exposure;
	}
	return returned / exposure;
}

/*
 * Fades the counts; takes from them the base rate of each bucket, given the factors, and each class's returns beside what base rates
 * alone expect. Given the factors: else the base would fall with age for no better reason than that popular classes are back early.
 */
static void hazard_count(struct hazard *s)
{
	struct outcome sum[BUCKETS] = { { 0, 0 } };
	float keep = (float)s->params[P_KEEP], clock = (float)s->clock + 1, factors[RANGES];
	uint32_t slot, bucket;

	for (slot = 0; slot < s->nr_slots; slot++) {
		struct outcome *outcome = &s->outcomes[slot * BUCKETS];

		/* What was observed at all has an outcome in the first bucket, and only then in others. */
		if (outcome->exposure <= 0)
			continue;
		hazard_factors(s, slot, factors);
		for (bucket = 0; bucket < BUCKETS; bucket++, outcome++) {
			outcome->returned *= keep;
			outcome->exposure *= keep;
			sum[bucket].returned += outcome->returned;
			sum[bucket].exposure += outcome->exposure * clock * factors[hazard_range(bucket)];
		}
	}
	for (bucket = 0; bucket < BUCKETS; bucket++)
		s->base_rate[bucket] = hazard_base(s, sum, bucket);
	for (slot = 0; slot < s->nr_slots; slot++) {
		const struct outcome *outcome = &s->outcomes[slot * BUCKETS];
		struct outcome *total = s->totals[slot];

		memset(total, 0, sizeof(s->totals[slot]));
		if (outcome->exposure <= 0)
			continue;
		for (bucket = 0; bucket < BUCKETS; bucket++, outcome++) {
			total[hazard_range(bucket)].returned += outcome->returned;
			total[hazard_range(bucket)].exposure += outcome->exposure * clock * s->base_rate[bucket];
		}
	}
}

/* One pass of iterative proportional fitting over every signal that is on; the base rates were the first margin. */
static void hazard_fit(struct hazard *s)
{
	float seen[MOST_VALUES][RANGES], expected[MOST_VALUES][RANGES], factors[RANGES];
	float prior = (float)s->params[P_PRIOR];
	uint32_t signal, below = s->classes, slot, value, range;

	for (signal = 0; signal < SIGNALS; signal++) {
		below /= s->radix[signal];
		if (s->radix[signal] == 1)
			continue;
		for (value = 0; value < s->radix[signal]; value++)
			for (range = 0; range < RANGES; range++)
				seen[value][range] = expected[value][range] = prior;
		for (slot = 0; slot < s->nr_slots; slot++) {
			if (s->totals[slot][0].exposure <= 0)
				continue;
			hazard_factors(s, slot, factors);
			value = s->class_of[slot] / below % s->radix[signal];
			for (range = 0; range < RANGES; range++) {
				seen[value][range] += s->totals[slot][range].returned;
				expected[value][range] += s->totals[slot][range].exposure * factors[range];
			}
		}
		for (value = 0; value < s->radix[signal]; value++)
			for (range = 0; range < RANGES; range++)
				s->factor[signal][value][range] *= seen[value][range] / expected[value][range];
	}
}

/*
 * Gittins' index of every bucket of a slot's class: the best ratio of hits to room over the ages to give up at. With both summed from
 * age 0 on that is the steepest line from a bucket's point to a later one, so the later points' upper hull suffices.
 */
static void hazard_worth(struct hazard *s, uint32_t slot)
{
	float factors[RANGES];
	double hits[BUCKETS + 1], room[BUCKETS + 1], alive = 1;
	uint32_t hull[BUCKETS + 1], top = 0, bucket;

	hazard_factors(s, slot, factors);
	hits[0] = room[0] = 0;
	for (bucket = 0; bucket < BUCKETS; bucket++) {
		double rate = (double)s->base_rate[bucket] * (double)factors[hazard_range(bucket)];
		double expected = rate * (double)(s->edge[bucket + 1] - s->edge[bucket]);
		double p = expected > 1e-4 ? 1 - nt_exp2(-1.4426950408889634 * expected) : expected;

		hits[bucket + 1] = hits[bucket] + alive * p;
		room[bucket + 1] = room[bucket] + alive * p / rate;
		/* Not below what keeps every line's ends apart. */
		alive = alive * (1 - p) > 1e-6 ? alive * (1 - p) : 1e-6;
	}
	hull[0] = BUCKETS;
	for (bucket = BUCKETS; bucket-- > 0;) {
		double slope = (hits[hull[top]] - hits[bucket]) / (room[hull[top]] - room[bucket]);

		while (top > 0) {
			double next = (hits[hull[top - 1]] - hits[bucket]) / (room[hull[top - 1]] - room[bucket]);

			if (next < slope)
				break;
			slope = next;
			top--;
		}
		s->worth[slot * BUCKETS + bucket] = (float)slope;
		hull[++top] = bucket;
	}
}

/* Order-preserving 16 bits of a worth: exponent and 8 bits of mantissa; what differs by less is a tie. */
static uint32_t hazard_key(float worth)
{
	union {
		float f;
		uint32_t u;
	} v = { .f = worth };

	return worth > 0 ? v.u >> 15 : 0;
}

/* Sorts `from` into `to` by 8 bits of the key; stable. */
static void hazard_sort_pass(const struct hazard *s, const uint32_t *from, uint32_t *to, uint32_t cells, uint32_t shift)
{
	uint32_t start[257] = { 0 }, i;

	for (i = 0; i < cells; i++)
		start[(hazard_key(s->worth[from[i]]) >> shift & 255) + 1]++;
	for (i = 0; i < 256; i++)
		start[i + 1] += start[i];
	for (i = 0; i < cells; i++)
		to[start[hazard_key(s->worth[from[i]]) >> shift & 255]++] = from[i];
}

/* Worths from the model, and cells in their order; ties: the older bucket first. */
void hazard_rank(struct hazard *s)
{
	uint32_t cells = s->nr_slots * BUCKETS, nr = 0, i, slot, bucket;

	for (slot = 0; slot < s->nr_slots; slot++)
		hazard_worth(s, slot);
	for (bucket = BUCKETS; bucket-- > 0;)
		for (slot = s->nr_slots; slot-- > 0;)
			s->by_worth[nr++] = slot * BUCKETS + bucket;
	hazard_sort_pass(s, s->by_worth, s->scratch, cells, 0);
	hazard_sort_pass(s, s->scratch, s->by_worth, cells, 8);
	memset(s->occupied, 0, (cells / 64 + 1) * sizeof(*s->occupied));
	s->nr_ranked = s->nr_slots;
	s->first = 0; /* ranks have changed */
	for (i = 0; i < cells; i++) {
		s->rank[s->by_worth[i]] = i;
		if (s->lists[s->by_worth[i]].size > 0)
			s->occupied[i / 64] |= 1ull << (i % 64);
	}
}

uint32_t hazard_slot(struct hazard *s, uint32_t class)
{
	uint32_t slot = s->slot_of[class], bucket;

	if (slot > 0)
		return slot - 1;
	slot = s->nr_slots++;
	s->slot_of[class] = (uint16_t)(slot + 1);
	s->class_of[slot] = (uint16_t)class;
	hazard_worth(s, slot);
	for (bucket = 0; bucket < BUCKETS; bucket++) {
		uint32_t cell = slot * BUCKETS + bucket, rank = slot * BUCKETS + BUCKETS - 1 - bucket;

		nt_list_init(&s->lists[cell]);
		s->by_worth[rank] = cell;
		s->rank[cell] = rank;
	}
	return slot;
}

void hazard_learn(struct hazard *s)
{
	uint32_t bucket;

	for (bucket = 0; bucket < BUCKETS; bucket++) {
		if (s->ring_head - s->cursor[bucket] > s->ring_size)
			s->cursor[bucket] = s->ring_head - s->ring_size;
		for (; s->cursor[bucket] < s->ring_head; s->cursor[bucket]++) {
			const struct observation *seen = &s->ring[s->cursor[bucket] & (s->ring_size - 1)];
			struct outcome *outcome = &s->outcomes[seen->slot * BUCKETS + bucket];
			float clock = (float)(seen->at + s->edge[bucket] + 1);

			if (s->clock - seen->at < s->edge[bucket + 1])
				break;
			if (seen->age == 0 || seen->age >= s->edge[bucket + 1]) {
				outcome->exposure += (float)(s->edge[bucket + 1] - s->edge[bucket]) / clock;
			} else if (seen->age >= s->edge[bucket]) {
				outcome->returned += 1;
				outcome->exposure += (float)(seen->age - s->edge[bucket]) / clock;
			}
		}
	}
}

void hazard_assume(struct hazard *s)
{
	hazard_count(s);
	hazard_rank(s);
}

void hazard_refit(struct hazard *s)
{
	float keep = (float)s->params[P_KEEP];

	hazard_cut(&s->fresh, hazard_values[FRESH], keep);
	hazard_cut(&s->own, hazard_values[OWN] - 1, keep);
	hazard_count(s);
	hazard_fit(s);
	hazard_rank(s);
}
