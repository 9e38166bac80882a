// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * payback: promote what pays for its own move.
 *
 * Metric. Time after which a promotion has paid back what it cost, if the page stays as hot as it was in the epoch:
 *
 *	cost	ns to promote a page, and to demote the one that makes room: each measured on this machine, move by move. As long as
 *		the latter is not known (kswapd demotes), it is taken for the same. Being preempted only ever adds to a cost, so
 *		it falls faster than it rises.
 *	saved	ns that a request is served sooner by the fast tier, after what the core overlaps (parameter saved_ns).
 *	theta = pressure * cost * epoch / (saved * payback)		requests in an epoch
 *
 * A page below theta would have to stay hot for longer than payback_ms before anybody gains. A fixed threshold does not
 * know that: ten requests in 50 ms never repay a move that costs 10 us each way within it, and a machine with
 * slower copies, faster memory or a longer epoch wants another number. The operator states two figures that do not depend on
 * any of those.
 *
 * payback is payback_ms, or a LASTED_SHARE-th of the time for which heat has lasted, if that is longer: what has been hot for
 * seconds will not be cold in the next, and a lukewarm page repays its move too.
 *
 * pressure, 1 .. 256, is for a hot set larger than the fast tier. Then every promotion throws out a page as hot as itself,
 * which comes back: while more than one in PING_PONG_SHARE promotions had been here before, pressure grows by a quarter with
 * each decision, so only ever hotter pages compete; otherwise it falls back by a sixteenth. Where one was demoted for each, it
 * is known what was for nothing: a demoted page that is hot again within payback_ms, and a promoted one that is idle within it.
 * (NeoMem's law squares the ratio into the share of hot pages; here the price of moving rises instead, and the histogram is not
 * needed.)
 *
 * What it gives up. For how long heat lasts is only known of pages above theta: where none is, a page that is lukewarm for hours
 * stays, though it would repay its move. Raise payback_ms. And little is known about the page that makes room: this policy only sees
 * it come back.
 *
 * Where it fails: heat that comes in bursts shorter than payback_ms looks steady, so each burst costs a move
 * (confirm_epochs is the guard). Where the device's counter_max is below theta, pages at counter_max count as hot.
 *
 * Source: ours; the comparison of benefit with migration cost is as old as page replacement on NUMA machines.
 */
#include "neotier_policy.h"

/* Until the first promotions are measured, and the range within which a measurement is believed. */
#define COST_START_NS 10000U
#define COST_MIN_NS 500U
#define COST_MAX_NS 1000000U
/* Fewer promotions in an interval say little about the cost of one, or about the share that comes back. */
#define COST_SAMPLES 16U
#define PING_PONG_SHARE 8U
#define LASTED_SHARE 4U
#define PRESSURE_ONE 256U
#define PRESSURE_MAX (256U * PRESSURE_ONE)
/* A device's epoch ends within a minute; a longer one is not believed, so that products stay within 64 bits. */
#define EPOCH_MAX_NS 60000000000ULL

struct payback_state {
	u64 cost_ns;		/* of a promotion: COST_MIN_NS .. COST_MAX_NS */
	u64 room_ns;		/* of the demotion that makes room: the same; 0: not known */
	u64 saved_ns;		/* 1 .. 100000 */
	u64 payback_ns;		/* 10^6 .. 6 * 10^10 */
	u64 pressure;		/* PRESSURE_ONE .. PRESSURE_MAX */
};

_Static_assert(sizeof(struct payback_state) <= NEOTIER_POLICY_STATE_BYTES, "payback: state");

static void payback_init(void *state, const struct neotier_policy_params *params)
{
	struct payback_state *s = state;

	s->cost_ns = COST_START_NS;
	s->saved_ns = neotier_clamp_u64(params->saved_ns, 1, 100000);
	s->payback_ns = neotier_clamp_u64(params->payback_ms, 1, 60000) * 1000000;
	s->pressure = PRESSURE_ONE;
}

static u64 payback_within(const struct payback_state *s, u64 lasted_ns)
{
	return neotier_clamp_u64(lasted_ns / LASTED_SHARE, s->payback_ns, 60000ULL * 1000000);
}

/* What is believed after so many moves more that took so long together. */
static u64 payback_cost(u64 cost_ns, u64 moves, u64 took_ns)
{
	u64 measured;

	if (moves < COST_SAMPLES)
		return cost_ns;
	measured = neotier_clamp_u64(took_ns / moves, COST_MIN_NS, COST_MAX_NS);
	return measured < cost_ns ? (cost_ns + measured) / 2 : cost_ns + (measured - cost_ns) / 32;
}

static void payback_decide(void *state, const struct neotier_snapshot *snapshot, struct neotier_plan *plan)
{
	struct payback_state *s = state;
	u64 epoch_ns = neotier_clamp_u64(snapshot->epoch_ns, 1, EPOCH_MAX_NS);
	u64 too_soon = snapshot->regrets + snapshot->short_stays;
	u64 back = snapshot->demoted || too_soon ? too_soon : snapshot->ping_pong;
	u64 theta;

	s->cost_ns = payback_cost(s->cost_ns, snapshot->promoted, snapshot->promote_ns);
	if (snapshot->demoted)
		s->room_ns = payback_cost(s->room_ns ? s->room_ns : s->cost_ns, snapshot->demoted, snapshot->demote_ns);
	if (snapshot->promoted >= COST_SAMPLES && back > snapshot->promoted / PING_PONG_SHARE)
		s->pressure = neotier_clamp_u64(s->pressure + s->pressure / 4, PRESSURE_ONE, PRESSURE_MAX);
	else
		s->pressure = neotier_clamp_u64(s->pressure - s->pressure / 16, PRESSURE_ONE, PRESSURE_MAX);

	theta = (s->cost_ns + (s->room_ns ? s->room_ns : s->cost_ns)) * epoch_ns /
		(s->saved_ns * payback_within(s, snapshot->lasted_ns));	/* <= 1.2 * 10^17 / 10^6 */
	theta = theta * s->pressure / PRESSURE_ONE;
	if (snapshot->downsampling > 1)
		theta /= snapshot->downsampling;
	plan->threshold = neotier_threshold_clamp((u32)neotier_clamp_u64(theta, 1, 0xffffffffU), snapshot->counter_max);
	plan->promote_max = NEOTIER_NO_LIMIT;
}

const struct neotier_policy neotier_policy_payback = {
	.name = "payback",
	.text = "pages hot enough to repay their move within payback_ms, by the cost measured here",
	.init = payback_init,
	.decide = payback_decide,
};
