// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Least hit density: worth = P(hit before eviction | age) / E(time held from here on | age), both from counts of hits and evictions by
 * age, per class of objects (touches while resident: 0, 1, 2 and 3, more). Lowest of 64 sampled residents goes. Learns only from
 * what it holds: a class it always evicts early never shows that it would have come back. Counts fade at every refit. 18 bytes an
 * object.
 */
#include "sampled.h"

enum { LHD_AGES = 64, LHD_CLASSES = 4 };

struct lhd {
	struct nt_sampled sampled;
	uint8_t *touches; /* [objects]: while resident, up to 255 */
	float hits[LHD_CLASSES][LHD_AGES], evictions[LHD_CLASSES][LHD_AGES], density[LHD_CLASSES][LHD_AGES];
	uint64_t next_fit;
};

static void lhd_carve(struct lhd *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	nt_sampled_carve(&s->sampled, block, offset, config);
	s->touches = nt_carve(block, offset, config->objects, 1);
}

/* Ages by half-octave. */
static uint32_t lhd_age(const struct lhd *s, uint32_t object)
{
	uint64_t age = s->sampled.clock - s->sampled.touched[object] + 1;
	uint32_t bits = nt_bits(age), half = 2 * (bits - 1) + (bits > 1 ? (uint32_t)(age >> (bits - 2) & 1) : 0);

	return half < LHD_AGES ? half : LHD_AGES - 1;
}

static double lhd_age_begins(uint32_t age)
{
	return nt_exp2(age / 2) * (age & 1 ? 1.5 : 1); /* age / 2 rounds down */
}

static uint32_t lhd_class(const struct lhd *s, uint32_t object)
{
	uint32_t touches = s->touches[object];

	return touches <= 1 ? touches : touches <= 3 ? 2 : 3;
}

static void lhd_fit(struct lhd *s)
{
	uint32_t class, age;

	for (class = 0; class < LHD_CLASSES; class++) {
		double hits = 0, ends = 0, held = 0;

		for (age = LHD_AGES; age-- > 0;) {
			double width = lhd_age_begins(age + 1) - lhd_age_begins(age), here;

			s->hits[class][age] *= 0.9f;
			s->evictions[class][age] *= 0.9f;
			here = (double)(s->hits[class][age] + s->evictions[class][age]);
			held += width * (ends + here / 2);
			hits += (double)s->hits[class][age];
			ends += here;
			s->density[class][age] = (float)((hits + 0.01 / lhd_age_begins(age)) / (held + 1));
		}
	}
}

static void lhd_start(struct lhd *s, const struct neotier_placement_config *config)
{
	nt_sampled_start(&s->sampled, config);
	lhd_fit(s);
}

NT_STATE(lhd, sampled.base, 1)

static void lhd_tick(struct lhd *s, uint32_t object)
{
	s->sampled.touched[object] = s->sampled.clock++;
	if (s->sampled.clock < s->next_fit)
		return;
	lhd_fit(s);
	s->next_fit = s->sampled.clock + s->sampled.base.capacity / 2 + 1;
}

static int lhd_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct lhd *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->sampled.base, object))
		return NEOTIER_REFUSED;
	s->hits[lhd_class(s, object)][lhd_age(s, object)] += 1;
	if (s->touches[object] < 255)
		s->touches[object]++;
	lhd_tick(s, object);
	return NEOTIER_OK;
}

static int lhd_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct lhd *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->sampled.base, object))
		return NEOTIER_REFUSED;
	nt_sampled_add(&s->sampled, object);
	s->touches[object] = 0;
	lhd_tick(s, object);
	return NEOTIER_OK;
}

static int lhd_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct lhd *s = state;

	if (!nt_may_remove(&s->sampled.base, object, reason))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN)
		return NEOTIER_OK;
	if (reason == NEOTIER_EVICTED)
		s->evictions[lhd_class(s, object)][lhd_age(s, object)] += 1;
	nt_sampled_drop(&s->sampled, object);
	return NEOTIER_OK;
}

static double lhd_worth(void *state, uint32_t object)
{
	struct lhd *s = state;

	return (double)s->density[lhd_class(s, object)][lhd_age(s, object)];
}

static uint32_t lhd_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	(void)event, (void)index, (void)want;
	return nt_sampled_take(state, lhd_worth, out);
}

const struct neotier_placement neotier_placement_lhd = {
	NT_SLOTS(lhd),
	.name = "lhd",
	.text = "least hit density: hits to come / time held, by age and touches, lowest of a sample goes",
	.source = "Beckmann, Chen, Cidon, LHD, NSDI 2018",
	.flags = NEOTIER_KV,
};
