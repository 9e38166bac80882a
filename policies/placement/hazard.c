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
 * h(class, bucket) = base(bucket) x a factor for each signal's value, the factors for four ranges of age apart: a proportional
 * hazards model in pieces (Friedman 1982), fitted by iterative proportional fitting to returns and exposures. So a class that was
 * seen once is judged by its signals, not by its luck. Signals:
 *   end      distance to the end of its request: the last block is cut short, so it is a different one in the next turn
 *   count    touches so far, in half-octaves        own  mean time between touches: what comes often comes again
 *   turn     turns of the session so far: a block remembers the turn that made it, the next turn ends on that block
 *   fresh    new blocks in the request, in all: a short question after a long history, or a document pasted in
 *
 * Learning. A few blocks of each request, the same number whatever its length (the blocks of a request come back together: they
 * are one observation), enter a ring with their class; for every bucket a cursor follows the ring at that bucket's distance and
 * counts whether the block came back within the bucket, and for how long it was in it. That needs no residency: what was evicted
 * teaches as much as what was kept, so there is no feedback from the policy's own choices. Counts fade by `keep` at every fit.
 *
 * Exposure in log time. Where popularity lasts, a block touched n times in t references comes back n times in the next t: its rate
 * is n / t, and falls as the clock goes on, for all blocks alike. Late ages are seen at late clocks only; so rates a reference,
 * pooled over all clocks, would fall with age for no better reason, and a block just touched be kept for one touched more often. A
 * reference at clock t counts 1 / t, and the rate is n again at any clock. Where rates stay as they are instead, the fading keeps
 * the clocks that are pooled within a factor of two.
 *
 * Admission: a block whose worth is below the lowest held passes by.
 *
 * Trades and failures. Blocks are judged one by one, not as chains. It needs handles of evicted blocks (history) for as long as
 * returns take. Assumed at the start: hazards fall with age and grow in proportion to the count. Where blocks are drawn at random
 * from a popularity that never changes, LFU knows all there is to know, and classes are coarser than its counts.
 * State: 30 bytes an object, 24 a ring entry (65,536 or the capacity); 36 a cell, of which only those in use are ever written.
 *
 * Source: age-based hit density is LHD (Beckmann et al., NSDI 2018); the index is Gittins (J. R. Stat. Soc. B 41(2), 1979);
 * piecewise exponential hazards: Friedman (Ann. Statist. 10(1), 1982); the rest is from here.
 */
#include "hazard.h"

static const struct neotier_placement_param hazard_params[] = {
	{ "end", 1, 0, 1, "signal: distance to the request's end (0: off)" },
	{ "count", 1, 0, 1, "signal: touches so far" },
	{ "turn", 1, 0, 1, "signal: turns of the session" },
	{ "fresh", 1, 0, 1, "signal: new blocks in the request" },
	{ "own", 1, 0, 1, "signal: mean time between touches" },
	{ "admission", 1, 0, 1, "0: everything is let in" },
	{ "learn", 1, 0, 1, "0: hazards stay what is assumed at the start" },
	{ "keep", 0.8, 0.1, 1, "share of the counts that a fit leaves to the next" },
	{ "fit_every", 32768, 64, 1e9, "references between fits, or four capacities if that is more" },
	{ "prior", 64, 0.01, 1e6, "returns' worth of doubt in each factor" },
};

static void hazard_carve(struct hazard *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	uint32_t signal, cells;

	s->classes = 1;
	for (signal = 0; signal < SIGNALS; signal++) {
		s->radix[signal] = config->params[signal] > 0 ? hazard_values[signal] : 1;
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
	s->slot = nt_carve(block, offset, config->objects, sizeof(*s->slot));
	s->mean = nt_carve(block, offset, config->objects, sizeof(*s->mean));
	s->bucket = nt_carve(block, offset, config->objects, 1);
	s->count = nt_carve(block, offset, config->objects, 1);
	s->turn = nt_carve(block, offset, config->objects, 1);
	s->lists = nt_carve(block, offset, cells, sizeof(*s->lists));
	s->outcomes = nt_carve(block, offset, cells, sizeof(*s->outcomes));
	s->worth = nt_carve(block, offset, cells, sizeof(*s->worth));
	s->by_worth = nt_carve(block, offset, cells, sizeof(*s->by_worth));
	s->rank = nt_carve(block, offset, cells, sizeof(*s->rank));
	s->slot_of = nt_carve(block, offset, s->classes, sizeof(*s->slot_of));
	s->class_of = nt_carve(block, offset, s->classes, sizeof(*s->class_of));
	s->scratch = nt_carve(block, offset, cells, sizeof(*s->scratch));
	s->totals = nt_carve(block, offset, s->classes, sizeof(*s->totals));
	s->young = nt_carve(block, offset, (size_t)BUCKETS * s->class_words, sizeof(*s->young));
	s->occupied = nt_carve(block, offset, cells / 64 + 1, sizeof(*s->occupied));
	s->ring = nt_carve(block, offset, s->ring_size, sizeof(*s->ring));
}

static void hazard_start(struct hazard *s, const struct neotier_placement_config *config)
{
	uint32_t i, signal, value, range;
	double edge;

	s->params = config->params;
	s->fit_every = (uint64_t)config->params[P_FIT_EVERY];
	if (s->fit_every < 4 * (uint64_t)config->capacity)
		s->fit_every = 4 * (uint64_t)config->capacity;
	/* Ages matter in terms of how long the room lasts: 64th parts of it up to some 700 times. */
	s->shift = nt_bits(config->capacity / 64);
	if (s->shift < 4)
		s->shift = 4;
	edge = (double)(1ull << s->shift);
	for (i = 1; i <= BUCKETS; i++, edge *= 1.4142135623730951)
		s->edge[i] = (uint64_t)edge;
	for (i = 0; i < config->objects; i++)
		s->observed[i] = NEOTIER_NO_OBJECT;
	for (signal = 0; signal < SIGNALS; signal++)
		for (value = 0; value < MOST_VALUES; value++)
			for (range = 0; range < RANGES; range++)
				s->factor[signal][value][range] = signal == COUNT ? (float)nt_exp2(0.5 * value) : 1;
	hazard_assume(s);
}

NT_STATE(hazard, base, 1)

/* Notes whether a cell has blocks, in both bitmaps. */
static void hazard_mark(struct hazard *s, uint32_t slot, uint32_t bucket, int occupied)
{
	uint32_t rank = s->rank[slot * BUCKETS + bucket];
	uint64_t *young = &s->young[bucket * s->class_words + slot / 64];

	if (occupied) {
		s->occupied[rank / 64] |= 1ull << (rank % 64);
		*young |= 1ull << (slot % 64);
		if (rank / 64 < s->first)
			s->first = rank / 64;
	} else {
		s->occupied[rank / 64] &= ~(1ull << (rank % 64));
		*young &= ~(1ull << (slot % 64));
	}
}

static void hazard_add(struct hazard *s, uint32_t object)
{
	struct nt_list *list = &s->lists[s->slot[object] * BUCKETS + s->bucket[object]];

	if (list->size == 0)
		hazard_mark(s, s->slot[object], s->bucket[object], 1);
	nt_list_push_front(list, s->links, object);
}

static void hazard_drop(struct hazard *s, uint32_t object)
{
	struct nt_list *list = &s->lists[s->slot[object] * BUCKETS + s->bucket[object]];

	nt_list_unlink(list, s->links, object);
	if (list->size == 0)
		hazard_mark(s, s->slot[object], s->bucket[object], 0);
}

/* Moves blocks that have outgrown their bucket; a bucket's lists are looked at four times in its width. */
static void hazard_age(struct hazard *s)
{
	uint32_t bucket, word, slot, words = (s->nr_slots + 63) / 64;
	uint64_t young;

	for (bucket = 0; bucket + 1 < BUCKETS; bucket++) {
		if (s->clock - s->swept[bucket] < (s->edge[bucket + 1] - s->edge[bucket]) / 4)
			continue;
		s->swept[bucket] = s->clock;
		for (word = 0; word < words; word++) {
			for (young = s->young[bucket * s->class_words + word]; young; young &= young - 1) {
				struct nt_list *list;

				slot = word * 64 + (uint32_t)__builtin_ctzll(young);
				list = &s->lists[slot * BUCKETS + bucket];
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
		hazard_refit(s);
		/* More often at the start, when each fit changes much. */
		s->next_fit = s->clock + (s->clock / 8 < s->fit_every ? s->clock / 8 : s->fit_every) + 64;
	} else if (s->nr_slots - s->nr_ranked > s->nr_slots / 16) {
		hazard_rank(s);
	}
}

static uint32_t hazard_class_of(const struct hazard *s, const uint32_t *value)
{
	uint32_t signal, class = 0;

	for (signal = 0; signal < SIGNALS; signal++)
		class = class * s->radix[signal] + (s->radix[signal] > 1 ? value[signal] : 0);
	return class;
}

static uint32_t hazard_class(const struct hazard *s, uint32_t object, uint32_t position, uint64_t own)
{
	uint32_t end = s->request_blocks - 1 - position, count = s->count[object], turn = s->request_turn, value[SIGNALS];

	value[END] = end < 2 ? end : 2;
	value[COUNT] = count <= 2 ? count - 1 : hazard_half_octave(count - 1) - 1; /* 255, the most, gives 15 */
	value[TURN] = turn <= 1 ? 0 : turn <= 3 ? turn - 1 : turn <= 5 ? 3 : 4;
	value[FRESH] = s->fresh.value[hazard_half_octave(s->request_fresh)];
	value[OWN] = own == 0 ? 0 : 1 + s->own.value[(uint32_t)s->mean[object]];
	return hazard_class_of(s, value);
}

/* What no request here has used, and another tier or a former process brings: as a block in a request's middle, used once, now. */
static void hazard_meet(struct hazard *s, uint32_t object)
{
	uint32_t value[SIGNALS] = { [END] = 2 };

	s->count[object] = 1;
	s->turn[object] = 0;
	s->mean[object] = 0;
	s->slot[object] = (uint16_t)hazard_slot(s, hazard_class_of(s, value));
	s->touched[object] = s->clock;
}

/* The bucket of a block that is not held: those that are go on by hazard_age(). */
static uint32_t hazard_bucket(const struct hazard *s, uint32_t object)
{
	uint32_t bucket = 0;

	while (bucket + 1 < BUCKETS && s->clock - s->touched[object] >= s->edge[bucket + 1])
		bucket++;
	return bucket;
}

/* `own`: references since the block's last touch; 0: there was none. */
static void hazard_note_interval(struct hazard *s, uint32_t object, uint64_t own)
{
	float interval, touches = (float)(s->count[object] < 16 ? s->count[object] : 16);

	if (own == 0) {
		s->mean[object] = 0;
		return;
	}
	interval = 2 * (float)nt_log2((double)own);
	s->mean[object] += ((interval < 63 ? interval : 63) - s->mean[object]) / touches;
}

/* Every use of a block, held or not. */
static void hazard_touch(struct hazard *s, const struct neotier_event *event, uint32_t index)
{
	uint32_t object = event->access[index].object, at = s->observed[object];
	uint64_t own = s->count[object] ? s->clock - s->touched[object] : 0;
	struct observation *next;

	hazard_note_interval(s, object, own);

	if (at != NEOTIER_NO_OBJECT && s->ring[at].object == object && s->ring[at].age == 0)
		s->ring[at].age = own < UINT32_MAX ? (uint32_t)own : UINT32_MAX;
	s->observed[object] = NEOTIER_NO_OBJECT;
	if (s->count[object] == 0)
		s->turn[object] = (uint8_t)s->request_turn;
	if (s->count[object] < 255)
		s->count[object]++;
	s->slot[object] = (uint16_t)hazard_slot(s, hazard_class(s, object, index, own));
	s->bucket[object] = 0;
	s->touched[object] = s->clock++;
	/* Counted from the end, which is where the blocks differ. */
	if ((event->nr - 1 - index) % s->sample_every)
		return;
	if (own > 0)
		s->own.seen[(uint32_t)s->mean[object]] += 1;
	at = (uint32_t)(s->ring_head++ & (s->ring_size - 1));
	next = &s->ring[at];
	next->at = s->touched[object];
	next->object = object;
	next->slot = s->slot[object];
	next->age = 0;
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
	uint32_t words = s->nr_slots * BUCKETS / 64 + 1;

	while (s->first < words && s->occupied[s->first] == 0)
		s->first++;
	if (s->first == words)
		return NEOTIER_NO_OBJECT;
	return s->by_worth[s->first * 64 + (uint32_t)__builtin_ctzll(s->occupied[s->first])];
}

static int hazard_admit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct hazard *s = state;
	uint32_t object = event->access[index].object, bucket = 0, lowest;

	if (event->kind == NEOTIER_EVENT_DEMAND)
		hazard_touch(s, event, index);
	else if (s->count[object] == 0)
		return 1;
	else
		bucket = hazard_bucket(s, object);
	if (s->held < s->base.capacity || s->params[P_ADMISSION] == 0)
		return 1;
	lowest = hazard_lowest(s);
	return lowest == NEOTIER_NO_OBJECT || s->worth[s->slot[object] * BUCKETS + bucket] >= s->worth[lowest];
}

static int hazard_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct hazard *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	s->base.place[object] = NT_HELD;
	s->held++;
	if (event->kind != NEOTIER_EVENT_DEMAND) {
		if (s->count[object] == 0)
			hazard_meet(s, object);
		s->bucket[object] = (uint8_t)hazard_bucket(s, object);
	}
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
	uint32_t rank, cells = s->nr_slots * BUCKETS, found = 0, cell = hazard_lowest(s);

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
