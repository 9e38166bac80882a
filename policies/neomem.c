// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * neomem: NeoMem's dynamic threshold (Zhou et al., MICRO 2024, as its authors released it), in the kernel.
 *
 * Metric. p, the share of the device's pages that ought to be called hot, and the threshold theta that makes it so.
 *
 *	B = (reads + writes) / peak_lines		how loaded the device is: 0 .. 1
 *	P = ping_pong / (promoted + 1)			how many promotions were of pages that had been demoted again
 *	p <- p * (1 + B) / (1 + P)^2			while promotions stay under the quota
 *	p <- p / 2					once they reach it
 *	p <- p_min .. p_max				0.01 % .. 1.56 %, from 0.10 % at the start
 *	theta = the top-p quantile of the page histogram, at least 1
 *
 * A loaded device means that hot pages are still on it, so look further down; pages that come back were not worth
 * moving, so look further up, and twice as strongly.
 *
 * Of which pages is p a share? As released, of the cells of the sketch (524,288), the untouched ones included: a
 * constant, whatever the epoch saw. Here, of the pages of the slow tier (slow_total_pages), seen or not: a constant as
 * well, with a meaning that does not depend on the sketch's size. A share of the pages *seen* would not do: a shorter
 * epoch sees fewer pages, so it would call fewer hot, and on an idle device it would make some page hot however cold.
 * p_max thus bounds what one epoch is meant to name (1.56 % of a 1 GiB device: 4,090 pages). A larger hot set is
 * promoted over several epochs, and every promotion takes a page out of the histogram's top.
 *
 * Differs from the released one:
 * - B is that of the interval. Theirs is a ratio of counters that run from the start, so it stops moving with time.
 * - The histogram counts pages, each once, by estimate; theirs counts cells, where colliding pages add up.
 * - It is that of the last complete epoch; theirs is taken every 5 s at an arbitrary moment after a wipe.
 * - A new threshold wipes nothing, neither the sketch nor undrained reports; theirs wipes both on each write, which is
 *   each second.
 * - p keeps 16 fractional bits, so a lightly loaded device still moves it.
 * - No page seen in the epoch: the threshold stays as it is. Theirs falls to 1, which calls the next page touched hot.
 * Kept as released: the histogram's error is not corrected for (error_bound is not used), and the interval's quota alone
 * limits how many pages move.
 *
 * Where it fails: theta is the lower edge of a bin, 64 in all, the last from 1,912 requests up. Hotter pages than that in
 * one epoch are not told apart: shorten the epoch. A quota of 0 reads as "quota reached" and takes p to p_min.
 *
 * Arithmetic is unsigned fixed point with 16 fractional bits ("q16"), rounded down; ranges stand beside each value.
 */
#include "neotier_policy.h"

#define ONE_Q16 65536ULL
#define PPM 1000000U
/* (1 + P)^2 at this P is over PPM, the largest ratio p_max / p_min can have: a larger P could change nothing. */
#define PING_PONG_MAX 1023U
/* Keeps (units / PPM) * p_q16 in 64 bits for every p. */
#define UNITS_MAX (1ULL << 47)

struct neomem_state {
	u64 p_q16;	/* ppm: p_min_q16 .. p_max_q16 */
	u64 p_min_q16;	/* 2^16 .. 2^36 */
	u64 p_max_q16;	/* 2^16 .. 2^36 */
	u32 threshold;	/* the last one planned */
};

_Static_assert(sizeof(struct neomem_state) <= NEOTIER_POLICY_STATE_BYTES, "neomem: state");

static void neomem_init(void *state, const struct neotier_policy_params *params)
{
	struct neomem_state *s = state;
	u64 min = neotier_clamp_u64(params->p_min_ppm, 1, PPM);
	u64 max = neotier_clamp_u64(params->p_max_ppm, min, PPM);

	s->p_min_q16 = min * ONE_Q16;
	s->p_max_q16 = max * ONE_Q16;
	s->p_q16 = neotier_clamp_u64(params->p_start_ppm, min, max) * ONE_Q16;
	s->threshold = params->threshold;
}

/* B, 0 .. 2^16. A peak not known is no evidence of load: 0. */
static u64 bandwidth_q16(u64 reads, u64 writes, u64 peak)
{
	u64 lines = reads + writes;

	if (peak == 0)
		return 0;
	if (lines < reads || lines >= peak)
		return ONE_Q16;
	while (peak >= 1ULL << 48) {
		peak >>= 1;
		lines >>= 1;
	}
	return lines * ONE_Q16 / peak;
}

/* P, 0 .. PING_PONG_MAX * 2^16. */
static u64 ping_pong_q16(u64 ping_pong, u64 promoted)
{
	u64 moved = promoted == ~0ULL ? promoted : promoted + 1;

	if (ping_pong / moved >= PING_PONG_MAX)
		return PING_PONG_MAX * ONE_Q16;
	while (moved >= 1ULL << 37) {
		moved >>= 1;
		ping_pong >>= 1;
	}
	return ping_pong * ONE_Q16 / moved;	/* ping_pong < 2^47 */
}

static void neomem_decide(void *state, const struct neotier_snapshot *snapshot, struct neotier_plan *plan)
{
	struct neomem_state *s = state;
	u64 p = s->p_q16;	/* <= 2^36 */
	u64 units, target_q16;
	u32 theta;

	if (snapshot->promoted < snapshot->quota_pages) {
		u64 up = ONE_Q16 + bandwidth_q16(snapshot->reads, snapshot->writes, snapshot->peak_lines);
		u64 down = ONE_Q16 + ping_pong_q16(snapshot->ping_pong, snapshot->promoted);

		p = p * up / ONE_Q16;		/* product <= 2^53 */
		p = p * ONE_Q16 / down;		/* product <= 2^53 */
		p = p * ONE_Q16 / down;
	} else {
		p /= 2;
	}
	s->p_q16 = neotier_clamp_u64(p, s->p_min_q16, s->p_max_q16);

	units = snapshot->slow_total_pages >> (snapshot->unit_pages_log2 & 31);
	units = neotier_clamp_u64(units, 1, UNITS_MAX);
	/* <= 2^63, and the remainder's product <= 2^56. Rounded up to whole units: p > 0 asks for one at least. */
	target_q16 = units / PPM * s->p_q16 + units % PPM * s->p_q16 / PPM;
	theta = neotier_histogram_top(snapshot->histogram, (target_q16 + ONE_Q16 - 1) / ONE_Q16);
	if (theta > 0)
		s->threshold = theta;

	plan->threshold = neotier_threshold_clamp(s->threshold, snapshot->counter_max);
	plan->promote_max = NEOTIER_NO_LIMIT;
}

const struct neotier_policy neotier_policy_neomem = {
	.name = "neomem",
	.text = "NeoMem's dynamic threshold: quota, bandwidth and ping-pong set the share of pages called hot",
	.histogram = true,
	.init = neomem_init,
	.decide = neomem_decide,
};
