// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * hazard: ours. Keeps the blocks with the highest rate of hits to come per unit of room, as learned from the traffic itself.
 *
 * Metric. A block touched `a` ago comes back in the next instant with hazard h(a). Holding it until some later age and then
 * giving up earns P(comes back by then) hits for E[time held]; its worth is the best such ratio over all ages to give up at: the
 * Gittins index, the optimal order for independent objects that compete for room. Time is block references, so that the order
 * does not depend on clocks or on load.
 *
 * What h is made of. Signals seen at the block's last touch put it in a class; ages are cut in buckets of a ratio of sqrt 2.
 * h(class, bucket) = h(bucket) x a factor for each signal's value, the factors for four ranges of age apart: a proportional
 * hazards model, fitted by iterative proportional fitting to counts of returns and survivals. So a class that was seen once is
 * judged by its signals, not by its luck. Signals:
 *   end      distance to the end of its request: the last block is cut short, so it is a different one in the next turn
 *   count    touches so far        own  time between the last two touches: what comes often comes again
 *   turn     turns of the session so far: a block remembers the turn that made it, the next turn ends on that block
 *   fresh    new blocks in the request, in all: a short question after a long history, or a document pasted in
 *
 * Learning. A few blocks of each request, the same number whatever its length (the blocks of a request come back together: they
 * are one observation), enter a ring with their class; for every bucket a cursor follows the ring at that bucket's distance and
 * counts whether the block came back within the bucket or outlived it. That needs no residency: what was evicted teaches as much as
 * what was kept, so there is no feedback from the policy's own choices. Counts fade by `keep` at every fit.
 *
 * Admission: a block whose worth is below the lowest held passes by.
 *
 * Trades and failures. Blocks are judged one by one, not as chains. It needs handles of evicted blocks (history) for as long as
 * returns take; nothing is assumed at the start but that hazards fall with age, so the first returns are served by LRU.
 * State: 26 bytes an object, 16 a ring entry (65,536 or the capacity), 60 a cell.
 *
 * Source: age-based hit density is LHD (Beckmann et al., NSDI 2018); the index is Gittins (J. R. Stat. Soc. B 41(2), 1979); the
 * rest is from here.
 */
#include "base.h"
#include "bits.h"
#include <string.h>

enum { BUCKETS = 32, RANGES = 4, MOST_VALUES = 8, SAMPLES = 8, NO_BUCKET = 255 };
enum signal { END, COUNT, TURN, FRESH, OWN, SIGNALS };

/* Distinct values of each signal when it is on. */
static const uint32_t signal_values[SIGNALS] = { [END] = 3, [COUNT] = 4, [TURN] = 5, [FRESH] = 6, [OWN] = 5 };

static const struct neotier_placement_param hazard_params[] = {
	{ "end", 1, 0, 1, "signal: distance to the request's end (0: off)" },
	{ "count", 1, 0, 1, "signal: touches so far" },
	{ "turn", 1, 0, 1, "signal: turns of the session" },
	{ "fresh", 1, 0, 1, "signal: new blocks in the request" },
	{ "own", 1, 0, 1, "signal: time between the last two touches" },
	{ "admission", 1, 0, 1, "0: everything is let in" },
	{ "learn", 1, 0, 1, "0: hazards stay what is assumed at the start" },
	{ "keep", 0.98, 0.1, 1, "share of the counts that a fit leaves to the next" },
	{ "fit_every", 8192, 64, 1e9, "references between fits" },
	{ "prior", 16, 0.01, 1e6, "returns' worth of doubt in each factor" },
};
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

static void hazard_carve(struct hazard *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	uint32_t signal, cells;

	s->classes = 1;
	for (signal = 0; signal < SIGNALS; signal++) {
		s->radix[signal] = config->params[signal] > 0 ? signal_values[signal] : 1;
		s->classes *= s->radix[signal];
	}
	s->class_words = s->classes / 64 + 1;
	cells = s->classes * BUCKETS;
	/* Long enough that an observation lives through buckets of many capacities. */
	s->ring_size = 1u << 16;
	while (s->ring_size < config->capacity && s->ring_size < 1u << 24)
		s->ring_size *= 2;
	s->links = nt_carve(block, offset, config->objects, sizeof(*s->links));
	s->touched = nt_carve(block, offset, config->objects, sizeof(*s->touched));
	s->observed = nt_carve(block, offset, config->objects, sizeof(*s->observed));
	s->class = nt_carve(block, offset, config->objects, sizeof(*s->class));
	s->bucket = nt_carve(block, offset, config->objects, 1);
	s->count = nt_carve(block, offset, config->objects, 1);
	s->turn = nt_carve(block, offset, config->objects, 1);
	s->lists = nt_carve(block, offset, cells, sizeof(*s->lists));
	s->outcomes = nt_carve(block, offset, cells, sizeof(*s->outcomes));
	s->worth = nt_carve(block, offset, cells, sizeof(*s->worth));
	s->by_worth = nt_carve(block, offset, cells, sizeof(*s->by_worth));
	s->rank = nt_carve(block, offset, cells, sizeof(*s->rank));
	s->used = nt_carve(block, offset, s->classes, 1);
	s->scratch = nt_carve(block, offset, cells, sizeof(*s->scratch));
	s->totals = nt_carve(block, offset, s->classes, sizeof(*s->totals));
	s->young = nt_carve(block, offset, (size_t)BUCKETS * s->class_words, sizeof(*s->young));
	s->occupied = nt_carve(block, offset, cells / 64 + 1, sizeof(*s->occupied));
	s->ring = nt_carve(block, offset, s->ring_size, sizeof(*s->ring));
}

static void hazard_count(struct hazard *s);
static void hazard_rank(struct hazard *s);

static void hazard_start(struct hazard *s, const struct neotier_placement_config *config)
{
	uint32_t i, signal, value, range;
	double edge;

	s->params = config->params;
	s->fit_every = (uint64_t)config->params[P_FIT_EVERY];
	/* Ages matter in terms of how long the room lasts: 64th parts of it up to some 700 times. */
	s->shift = nt_bits(config->capacity / 64);
	if (s->shift < 4)
		s->shift = 4;
	edge = (double)(1ull << s->shift);
	for (i = 1; i <= BUCKETS; i++, edge *= 1.4142135623730951)
		s->edge[i] = (uint64_t)edge;
	for (i = 0; i < s->classes * BUCKETS; i++) {
		nt_list_init(&s->lists[i]);
		s->by_worth[i] = i;
	}
	for (i = 0; i < config->objects; i++)
		s->observed[i] = NEOTIER_NO_OBJECT;
	for (signal = 0; signal < SIGNALS; signal++)
		for (value = 0; value < MOST_VALUES; value++)
			for (range = 0; range < RANGES; range++)
				s->factor[signal][value][range] = 1;
	hazard_count(s);
	hazard_rank(s);
}

NT_STATE(hazard, base, 1)

static uint8_t hazard_bucket(const struct hazard *s, uint64_t age)
{
	/* edge[b] = 2^shift x 2^((b - 1) / 2) */
	uint32_t bits = nt_bits(age >> s->shift), bucket = bits ? 2 * bits - 1 : 0;

	if (bucket >= BUCKETS)
		return BUCKETS - 1;
	return (uint8_t)(bucket + 1 < BUCKETS && age >= s->edge[bucket + 1] ? bucket + 1 : bucket);
}

/* 0 for 0, else 1 + floor(2 log2 x), about. */
static uint32_t hazard_half_octave(uint64_t x)
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

/* Notes whether a cell has blocks, in both bitmaps. */
static void hazard_mark(struct hazard *s, uint32_t class, uint32_t bucket, int occupied)
{
	uint32_t rank = s->rank[class * BUCKETS + bucket];
	uint64_t *young = &s->young[bucket * s->class_words + class / 64];

	if (occupied) {
		s->occupied[rank / 64] |= 1ull << (rank % 64);
		*young |= 1ull << (class % 64);
		if (rank / 64 < s->first)
			s->first = rank / 64;
	} else {
		s->occupied[rank / 64] &= ~(1ull << (rank % 64));
		*young &= ~(1ull << (class % 64));
	}
}

static void hazard_add(struct hazard *s, uint32_t object)
{
	struct nt_list *list = &s->lists[s->class[object] * BUCKETS + s->bucket[object]];

	if (list->size == 0)
		hazard_mark(s, s->class[object], s->bucket[object], 1);
	nt_list_push_front(list, s->links, object);
}

static void hazard_drop(struct hazard *s, uint32_t object)
{
	struct nt_list *list = &s->lists[s->class[object] * BUCKETS + s->bucket[object]];

	nt_list_unlink(list, s->links, object);
	if (list->size == 0)
		hazard_mark(s, s->class[object], s->bucket[object], 0);
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
static void hazard_worth(struct hazard *s, uint32_t class)
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
	for (i = 0; i < cells; i++) {
		s->rank[s->by_worth[i]] = i;
		if (s->lists[s->by_worth[i]].size > 0)
			s->occupied[i / 64] |= 1ull << (i % 64);
	}
}

/* Moves blocks that have outgrown their bucket; a bucket's lists are looked at four times in its width. */
static void hazard_age(struct hazard *s)
{
	uint32_t bucket, word, class;
	uint64_t young;

	for (bucket = 0; bucket + 1 < BUCKETS; bucket++) {
		if (s->clock - s->swept[bucket] < (s->edge[bucket + 1] - s->edge[bucket]) / 4)
			continue;
		s->swept[bucket] = s->clock;
		for (word = 0; word < s->class_words; word++) {
			for (young = s->young[bucket * s->class_words + word]; young; young &= young - 1) {
				struct nt_list *list;

				class = word * 64 + (uint32_t)__builtin_ctzll(young);
				list = &s->lists[class * BUCKETS + bucket];
				while (list->size > 0 && s->clock - s->touched[list->back] >= s->edge[bucket + 1]) {
					uint32_t object = list->back;

					hazard_drop(s, object);
					s->bucket[object]++;
					hazard_add(s, object);
				}
			}
		}
	}
}

/* Counts what the observations that have left a bucket did in it. */
static void hazard_learn(struct hazard *s)
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

static void hazard_event(void *state, const struct neotier_event *event)
{
	struct hazard *s = state;
	uint32_t known = 0, turn = 0, i;

	for (i = 0; i < event->nr; i++) {
		uint32_t object = event->access[i].object;

		if (object == NEOTIER_NO_OBJECT || s->count[object] == 0)
			break;
		known++;
		turn = s->turn[object] + 1u;
	}
	s->request_blocks = event->nr;
	s->request_turn = turn < 255 ? turn : 255;
	s->request_fresh = event->nr - known;
	s->sample_every = (event->nr + SAMPLES - 1) / SAMPLES;
	s->fresh.seen[hazard_half_octave(s->request_fresh)] += 1;
	hazard_learn(s);
	hazard_age(s);
	if (s->clock >= s->next_fit && s->params[P_LEARN] > 0) {
		hazard_cut(&s->fresh, signal_values[FRESH], (float)s->params[P_KEEP]);
		hazard_cut(&s->own, signal_values[OWN] - 1, (float)s->params[P_KEEP]);
		hazard_count(s);
		hazard_fit(s);
		hazard_rank(s);
		/* More often at the start, when each fit changes much. */
		s->next_fit = s->clock + (s->clock / 8 < s->fit_every ? s->clock / 8 : s->fit_every) + 64;
	}
}

static uint32_t hazard_class(const struct hazard *s, uint32_t object, uint32_t position, uint64_t own)
{
	uint32_t end = s->request_blocks - 1 - position, count = s->count[object], turn = s->request_turn;
	uint32_t signal, class = 0, value[SIGNALS];

	value[END] = end < 2 ? end : 2;
	value[COUNT] = count <= 2 ? count - 1 : count <= 6 ? 2 : 3;
	value[TURN] = turn <= 1 ? 0 : turn <= 3 ? turn - 1 : turn <= 5 ? 3 : 4;
	value[FRESH] = s->fresh.value[hazard_half_octave(s->request_fresh)];
	value[OWN] = own == 0 ? 0 : 1 + s->own.value[hazard_half_octave(own)];
	for (signal = 0; signal < SIGNALS; signal++)
		class = class * s->radix[signal] + (s->radix[signal] > 1 ? value[signal] : 0);
	return class;
}

/* Every use of a block, held or not. */
static void hazard_touch(struct hazard *s, const struct neotier_event *event, uint32_t index)
{
	uint32_t object = event->access[index].object, at = s->observed[object];
	uint64_t own = s->count[object] ? s->clock - s->touched[object] : 0;
	struct observation *next;

	if (at != NEOTIER_NO_OBJECT && s->ring[at].object == object && s->ring[at].returned == NO_BUCKET)
		s->ring[at].returned = hazard_bucket(s, own);
	s->observed[object] = NEOTIER_NO_OBJECT;
	if (s->count[object] == 0)
		s->turn[object] = (uint8_t)s->request_turn;
	if (s->count[object] < 255)
		s->count[object]++;
	s->class[object] = (uint16_t)hazard_class(s, object, index, own);
	if (!s->used[s->class[object]]) {
		s->used[s->class[object]] = 1;
		hazard_worth(s, s->class[object]);
	}
	s->bucket[object] = 0;
	s->touched[object] = s->clock++;
	/* Counted from the end, which is where the blocks differ. */
	if ((event->nr - 1 - index) % s->sample_every)
		return;
	if (own > 0)
		s->own.seen[hazard_half_octave(own)] += 1;
	at = (uint32_t)(s->ring_head++ & (s->ring_size - 1));
	next = &s->ring[at];
	next->at = s->touched[object];
	next->object = object;
	next->class = s->class[object];
	next->returned = NO_BUCKET;
	s->observed[object] = at;
}

static int hazard_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct hazard *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->base, object))
		return NEOTIER_REFUSED;
	hazard_drop(s, object);
	hazard_touch(s, event, index);
	hazard_add(s, object);
	return NEOTIER_OK;
}

/* The lowest ranked cell that has a block in it, or NEOTIER_NO_OBJECT. */
static uint32_t hazard_lowest(struct hazard *s)
{
	uint32_t words = s->classes * BUCKETS / 64 + 1;

	while (s->first < words && s->occupied[s->first] == 0)
		s->first++;
	if (s->first == words)
		return NEOTIER_NO_OBJECT;
	return s->by_worth[s->first * 64 + (uint32_t)__builtin_ctzll(s->occupied[s->first])];
}

static int hazard_admit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct hazard *s = state;
	uint32_t object = event->access[index].object;

	hazard_touch(s, event, index);
	if (s->held < s->base.capacity || s->params[P_ADMISSION] == 0)
		return 1;
	return s->worth[s->class[object] * BUCKETS] >= s->worth[hazard_lowest(s)];
}

static int hazard_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct hazard *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	s->base.place[object] = NT_HELD;
	s->held++;
	hazard_add(s, object);
	return NEOTIER_OK;
}

static int hazard_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct hazard *s = state;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN) {
		s->count[object] = 0;
		s->observed[object] = NEOTIER_NO_OBJECT;
		return NEOTIER_OK;
	}
	s->base.place[object] = NT_OUT;
	s->held--;
	hazard_drop(s, object);
	return NEOTIER_OK;
}

static uint32_t hazard_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct hazard *s = state;
	uint32_t rank, cells = s->classes * BUCKETS, found = 0, cell = hazard_lowest(s);

	(void)event, (void)index;
	for (rank = cell == NEOTIER_NO_OBJECT ? cells : s->rank[cell]; rank < cells && found < want; rank++)
		found += nt_list_take(&s->lists[s->by_worth[rank]], s->links, s->base.flags, want - found, out + found);
	return found;
}

const struct neotier_placement neotier_placement_hazard = {
	NT_SLOTS(hazard),
	.on_event = hazard_event,
	.admit = hazard_admit,
	.name = "hazard",
	.text = "ours: hits to come per unit of room, learned online from age, count, turn, position and size of the request",
	.source = "here; after LHD (Beckmann et al., NSDI 2018) and Gittins' index",
	.flags = NEOTIER_KV,
	.nr_params = NR_PARAMS,
	.params = hazard_params,
};
