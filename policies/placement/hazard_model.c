// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * What hazard learns: outcomes of observations, the proportional hazards model fitted to them, Gittins' index of every class and age, and
 * the order of the cells. The essay is in hazard.c.
 */
#include <string.h>

#include "hazard.h"

uint8_t hazard_bucket(const struct hazard *s, uint64_t age)
{
	/* edge[b] = 2^shift x 2^((b - 1) / 2) */
	uint32_t bits = nt_bits(age >> s->shift), bucket = bits ? 2 * bits - 1 : 0;

	if (bucket >= BUCKETS)
		return BUCKETS - 1;
	return (uint8_t)(bucket + 1 < BUCKETS && age >= s->edge[bucket + 1] ? bucket + 1 : bucket);
}

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

/* The product of a class's factors, by range of age. */
static void hazard_factors(const struct hazard *s, uint32_t class, float *product)
{
	uint32_t signal, range;

	for (range = 0; range < RANGES; range++)
		product[range] = 1;
	for (signal = SIGNALS; signal-- > 0; class /= s->radix[signal])
		for (range = 0; range < RANGES; range++)
			product[range] *= s->factor[signal][class % s->radix[signal]][range];
}

/* Fades the counts; takes the hazard of each bucket over all classes from them, and each class's returns beside what those expect. */
static void hazard_count(struct hazard *s)
{
	struct outcome sum[BUCKETS] = { { 0, 0 } };
	float keep = (float)s->params[P_KEEP];
	uint32_t class, bucket;

	for (class = 0; class < s->classes; class++) {
		struct outcome *outcome = &s->outcomes[class * BUCKETS];

		/* What was observed at all has an outcome in the first bucket, and only then in others. */
		if (outcome->returned + outcome->outlived <= 0)
			continue;
		for (bucket = 0; bucket < BUCKETS; bucket++, outcome++) {
			outcome->returned *= keep;
			outcome->outlived *= keep;
			sum[bucket].returned += outcome->returned;
			sum[bucket].outlived += outcome->outlived;
		}
	}
	/* Assumed at the start: one return in 200 passages of a bucket, whose widths grow, so that hazards fall with age. */
	for (bucket = 0; bucket < BUCKETS; bucket++)
		s->base_rate[bucket] = (sum[bucket].returned + 0.05f) / (sum[bucket].returned + sum[bucket].outlived + 10);
	for (class = 0; class < s->classes; class++) {
		const struct outcome *outcome = &s->outcomes[class * BUCKETS];
		struct outcome *total = s->totals[class];

		memset(total, 0, sizeof(s->totals[class]));
		if (outcome->returned + outcome->outlived <= 0)
			continue;
		for (bucket = 0; bucket < BUCKETS; bucket++, outcome++) {
			total[hazard_range(bucket)].returned += outcome->returned;
			total[hazard_range(bucket)].outlived +=
				(outcome->returned + outcome->outlived) * s->base_rate[bucket];
		}
	}
}

/* One pass of iterative proportional fitting over every signal that is on. */
static void hazard_fit(struct hazard *s)
{
	float seen[MOST_VALUES][RANGES], expected[MOST_VALUES][RANGES], factors[RANGES];
	float prior = (float)s->params[P_PRIOR];
	uint32_t signal, below = s->classes, class, value, range;

	for (signal = 0; signal < SIGNALS; signal++) {
		below /= s->radix[signal];
		if (s->radix[signal] == 1)
			continue;
		for (value = 0; value < s->radix[signal]; value++)
			for (range = 0; range < RANGES; range++)
				seen[value][range] = expected[value][range] = prior;
		for (class = 0; class < s->classes; class++) {
			if (s->totals[class][0].outlived <= 0)
				continue;
			hazard_factors(s, class, factors);
			value = class / below % s->radix[signal];
			for (range = 0; range < RANGES; range++) {
				seen[value][range] += s->totals[class][range].returned;
				expected[value][range] += s->totals[class][range].outlived * factors[range];
			}
		}
		for (value = 0; value < s->radix[signal]; value++)
			for (range = 0; range < RANGES; range++)
				s->factor[signal][value][range] *= seen[value][range] / expected[value][range];
	}
}

/*
 * Gittins' index of every bucket of a class: the best ratio of hits to room over the ages to give up at. With both summed from
 * age 0 on that is the steepest line from a bucket's point to a later one, so the later points' upper hull suffices.
 */
void hazard_worth(struct hazard *s, uint32_t class)
{
	float factors[RANGES], hits[BUCKETS + 1], room[BUCKETS + 1], alive = 1, p;
	uint32_t hull[BUCKETS + 1], top = 0, bucket;

	hazard_factors(s, class, factors);
	hits[0] = room[0] = 0;
	for (bucket = 0; bucket < BUCKETS; bucket++) {
		p = s->base_rate[bucket] * factors[hazard_range(bucket)];
		p = p < 0.95f ? p : 0.95f;
		hits[bucket + 1] = hits[bucket] + alive * p;
		room[bucket + 1] = room[bucket] + alive * (float)(s->edge[bucket + 1] - s->edge[bucket]) * (1 - p / 2);
		alive *= 1 - p;
	}
	hull[0] = BUCKETS;
	for (bucket = BUCKETS; bucket-- > 0;) {
		float slope = (hits[hull[top]] - hits[bucket]) / (room[hull[top]] - room[bucket]);

		while (top > 0) {
			float next = (hits[hull[top - 1]] - hits[bucket]) / (room[hull[top - 1]] - room[bucket]);

			if (next < slope)
				break;
			slope = next;
			top--;
		}
		s->worth[class * BUCKETS + bucket] = slope;
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

/*
 * Worths from the model, and cells in their order; ties: the older bucket first. Classes that no block was ever in come last, which
 * saves most of the work; one that comes into use meanwhile is not evicted from before the next fit.
 */
static void hazard_rank(struct hazard *s)
{
	uint32_t cells = s->classes * BUCKETS, used = 0, rest = 0, i, class, bucket;

	for (class = 0; class < s->classes; class++) {
		if (!s->used[class])
			continue;
		hazard_worth(s, class);
		rest += BUCKETS;
	}
	for (bucket = BUCKETS; bucket-- > 0;)
		for (class = s->classes; class-- > 0;)
			s->by_worth[s->used[class] ? used++ : rest++] = class * BUCKETS + bucket;
	hazard_sort_pass(s, s->by_worth, s->scratch, used, 0);
	hazard_sort_pass(s, s->scratch, s->by_worth, used, 8);
	memset(s->occupied, 0, (cells / 64 + 1) * sizeof(*s->occupied));
	s->first = 0; /* ranks have changed */
	for (i = 0; i < cells; i++) {
		s->rank[s->by_worth[i]] = i;
		if (s->lists[s->by_worth[i]].size > 0)
			s->occupied[i / 64] |= 1ull << (i % 64);
	}
}

void hazard_learn(struct hazard *s)
{
	uint32_t bucket;

	for (bucket = 0; bucket < BUCKETS; bucket++) {
		if (s->ring_head - s->cursor[bucket] > s->ring_size)
			s->cursor[bucket] = s->ring_head - s->ring_size;
		for (; s->cursor[bucket] < s->ring_head; s->cursor[bucket]++) {
			const struct observation *seen = &s->ring[s->cursor[bucket] & (s->ring_size - 1)];
			struct outcome *outcome = &s->outcomes[seen->class * BUCKETS + bucket];

			if (s->clock - seen->at < s->edge[bucket + 1])
				break;
			if (seen->returned == bucket)
				outcome->returned += 1;
			else if (seen->returned > bucket)
				outcome->outlived += 1;
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
