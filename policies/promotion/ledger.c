// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/ledger.h"

/* Until one was measured, and the range within which a measurement is believed. */
#define NEOTIER_EXCHANGE_START_NS 14000U
#define NEOTIER_EXCHANGE_MIN_NS 1000U
#define NEOTIER_EXCHANGE_MAX_NS 10000000U
/* As many pages at that price are counted with those that were measured, and of those so many at most, the last ones. */
#define NEOTIER_EXCHANGE_START_PAGES 128U
#define NEOTIER_EXCHANGE_PAGES 1024U
/* Bounds within which products stay below 2^63. */
#define NEOTIER_LEDGER_US_MAX 60000000ULL
#define NEOTIER_LEDGER_REQUESTS_MAX (1ULL << 26)
#define NEOTIER_LEDGER_REPORTS_MAX (1ULL << 32)
#define NEOTIER_LEDGER_PAGES_MAX (1ULL << 24)
#define NEOTIER_LEDGER_NS_MAX (1ULL << 60)
/* Nothing is paid back for ever. */
#define NEOTIER_LEDGER_DEBT_NS 60000000000LL
/* Requests to a page, in parts of one. */
#define NEOTIER_LEDGER_FINE 256U
#define NEOTIER_LEDGER_PPM 1000000ULL
/* Fewer reports of controls than that were to be expected say nothing. */
#define NEOTIER_LEDGER_EXPECTED 2U
/* Of its first rate, that a control is cold below; and settlements, after which one that is cold is dropped. */
#define NEOTIER_LEDGER_COOLED 4U
#define NEOTIER_LEDGER_COLD 3U
/* Of the median rate, to which one counts at most. */
#define NEOTIER_LEDGER_MEDIANS 4U

static u64 neotier_ledger_min(u64 a, u64 b)
{
	return a < b ? a : b;
}

static u64 neotier_ledger_max(u64 a, u64 b)
{
	return a > b ? a : b;
}

void neotier_ledger_start(struct neotier_ledger *ledger, const struct neotier_ledger_terms *terms)
{
	*ledger = (struct neotier_ledger){
		.terms = {
			.base_ns = neotier_ledger_min(terms->base_ns, NEOTIER_LEDGER_BASE_MAX_NS),
			.loss_ppm = (u32)neotier_ledger_min(terms->loss_ppm, NEOTIER_LEDGER_NO_BOUND),
			.saved_ns = (u32)neotier_clamp_u64(terms->saved_ns, 1, 100000),
		},
		.exchange_ns = NEOTIER_EXCHANGE_START_NS,
	};
	ledger->balance_ns = (s64)ledger->terms.base_ns;
}

static u32 neotier_ledger_hash(u32 value, u32 salt)
{
	u32 hash = (value + 1) * 0x9E3779B1U ^ (salt + 1) * 0x85EBCA77U;

	hash = (hash ^ hash >> 15) * 0xC2B2AE3DU;
	return hash ^ hash >> 13;
}

/* One in NEOTIER_LEDGER_ONE_IN, others in each part of a horizon. */
static bool neotier_ledger_drawn(const struct neotier_ledger *ledger, u32 page)
{
	return neotier_ledger_hash(page, ledger->salt) < (1ULL << 32) / NEOTIER_LEDGER_ONE_IN;
}

void neotier_ledger_regret(struct neotier_ledger *ledger, u32 count)
{
	ledger->regret_requests = neotier_ledger_min(ledger->regret_requests + count, NEOTIER_LEDGER_REQUESTS_MAX);
	ledger->regrets = neotier_ledger_min(ledger->regrets + 1, NEOTIER_LEDGER_REQUESTS_MAX);
}

static u32 neotier_ledger_bit(u32 page)
{
	return neotier_ledger_hash(page, 0) % (NEOTIER_LEDGER_FILTER * 64);
}

static u32 neotier_ledger_slot(struct neotier_ledger *ledger)
{
	u32 slot = 0;

	while (ledger->slots >> slot & 1)
		slot++;
	ledger->slots |= 1ULL << slot;
	return slot;
}

static void neotier_ledger_add(struct neotier_ledger *ledger, u32 i, const struct neotier_ledger_page *page)
{
	u32 bit = neotier_ledger_bit(page->page);
	u32 slot = i < ledger->nr_controls ? ledger->controls[i].slot : neotier_ledger_slot(ledger);

	ledger->filter[bit / 64] |= 1ULL << bit % 64;
	ledger->nr_controls += i == ledger->nr_controls;
	ledger->controls[i] = (struct neotier_ledger_control){
		.page = page->page, .slot = slot, .count = ledger->hot ? ledger->hot : page->count, .seen_ns = ledger->watched_ns,
		.identity = page->identity(page->owner, page->page),
	};
}

/* With its share of the pages that controls are drawn from. */
static void neotier_ledger_remove(struct neotier_ledger *ledger, u32 i)
{
	ledger->drawn -= ledger->drawn / ledger->nr_controls;
	ledger->slots &= ~(1ULL << ledger->controls[i].slot);
	ledger->controls[i] = ledger->controls[--ledger->nr_controls];
}

static void neotier_ledger_refilter(struct neotier_ledger *ledger)
{
	u32 i, bit;

	for (i = 0; i < NEOTIER_LEDGER_FILTER; i++)
		ledger->filter[i] = 0;
	for (i = 0; i < ledger->nr_controls; i++) {
		bit = neotier_ledger_bit(ledger->controls[i].page);
		ledger->filter[bit / 64] |= 1ULL << bit % 64;
	}
}

bool neotier_ledger_report(struct neotier_ledger *ledger, const struct neotier_ledger_page *page)
{
	u32 i, bit = neotier_ledger_bit(page->page);

	if (!(ledger->filter[bit / 64] >> bit % 64 & 1))
		return false;
	for (i = 0; i < ledger->nr_controls; i++) {
		struct neotier_ledger_control *control = &ledger->controls[i];

		if (control->page != page->page || control->identity != page->identity(page->owner, page->page))
			continue;
		/* Where it is for the histogram to tell, that was when it was chosen: of what has been promoted since it tells nothing. */
		if (!ledger->hot)
			control->count = (3 * control->count + page->count) / 4;
		ledger->reported += control->seen_ns != ledger->watched_ns;
		control->seen_ns = ledger->watched_ns;
		return true;
	}
	return false;
}

bool neotier_ledger_pilot(struct neotier_ledger *ledger, const struct neotier_ledger_page *page)
{
	if (!neotier_ledger_wants_pilots(ledger))
		return false;
	ledger->drawn++;
	neotier_ledger_add(ledger, ledger->nr_controls, page);
	return true;
}

/* When all places are taken each page drawn in this horizon has the same chance to be among them: Vitter's algorithm R (1985). */
bool neotier_ledger_choose(struct neotier_ledger *ledger, const struct neotier_ledger_page *page)
{
	u32 i;

	if (!neotier_ledger_bounds(ledger) || !neotier_ledger_drawn(ledger, page->page))
		return false;
	ledger->drawn++;
	i = ledger->nr_controls;
	if (i == NEOTIER_LEDGER_CONTROLS)
		i = neotier_ledger_hash(ledger->drawn, ledger->salt) % ledger->drawn;
	if (i >= NEOTIER_LEDGER_CONTROLS)
		return false;
	neotier_ledger_add(ledger, i, page);
	return true;
}

/* With its share of the pages that witnesses are drawn from. */
static void neotier_ledger_dismiss(struct neotier_ledger *ledger, u32 i)
{
	ledger->cast -= ledger->cast / ledger->nr_witnesses;
	ledger->slots &= ~(1ULL << ledger->witnesses[i].slot);
	ledger->witnesses[i] = ledger->witnesses[--ledger->nr_witnesses];
}

/* Each that was demoted in this horizon has the same chance to be among them, as with controls. */
void neotier_ledger_demoted(struct neotier_ledger *ledger, const struct neotier_ledger_page *page)
{
	u32 i = ledger->nr_witnesses, slot;

	if (!neotier_ledger_bounds(ledger))
		return;
	ledger->demoted[ledger->part]++;
	ledger->cast++;
	if (i == NEOTIER_LEDGER_WITNESSES)
		i = neotier_ledger_hash(ledger->cast, ~ledger->salt) % ledger->cast;
	if (i >= NEOTIER_LEDGER_WITNESSES)
		return;
	slot = i < ledger->nr_witnesses ? ledger->witnesses[i].slot : neotier_ledger_slot(ledger);
	ledger->nr_witnesses += i == ledger->nr_witnesses;
	ledger->witnesses[i] = (struct neotier_ledger_control){
		.page = page->page, .slot = slot, .identity = page->identity(page->owner, page->page),
	};
}

/* What all reports would have told, by those that were read. */
static u64 neotier_ledger_all(u64 requests, const struct neotier_ledger_period *period)
{
	u64 reports = neotier_clamp_u64(period->reports, 1, NEOTIER_LEDGER_REPORTS_MAX);
	u64 missed = neotier_ledger_min(period->missed, NEOTIER_LEDGER_REPORTS_MAX);

	return neotier_ledger_min(requests, NEOTIER_LEDGER_REQUESTS_MAX) * (reports + missed) / reports;
}

/*
 * Where not all reports are read, a page that is as hot as before is seen again after 1 / seen epochs, on average. A control that
 * was not seen for twice as long is cold.
 */
static u64 neotier_ledger_patience(const struct neotier_ledger *ledger, u64 epoch_ns)
{
	return 2 * epoch_ns + 2 * epoch_ns * NEOTIER_LEDGER_PPM /
			      neotier_clamp_u64(ledger->seen_ppm, NEOTIER_LEDGER_PPM / 100, NEOTIER_LEDGER_PPM);
}

/* Those that were not seen for so long, or were cold as often. As many of the promoted pages as one stands for are cold too. */
static void neotier_ledger_bury(struct neotier_ledger *ledger, u64 patience_ns)
{
	u32 before = ledger->nr_controls, i = 0, part;

	while (i < ledger->nr_controls) {
		if (ledger->watched_ns - ledger->controls[i].seen_ns <= patience_ns && ledger->controls[i].cold < NEOTIER_LEDGER_COLD) {
			i++;
			continue;
		}
		for (part = 0; part < NEOTIER_LEDGER_PARTS; part++)
			ledger->promoted[part] -= ledger->promoted[part] / ledger->nr_controls;
		neotier_ledger_remove(ledger, i);
	}
	if (ledger->nr_controls != before)
		neotier_ledger_refilter(ledger);
	/* Of most of them what was known says nothing about those that stay. */
	if (4 * ledger->nr_controls < before) {
		ledger->warmed = false;
		ledger->expected_ppm = ledger->reported = 0;
	}
	if (before && !ledger->nr_controls)
		ledger->heat = ledger->average = ledger->steady_ns = ledger->lasted_ns = ledger->unknown_ns = 0;
}

/* Of the controls those that are still hot, by those that were reported, of those that would have been. */
static void neotier_ledger_count_warm(struct neotier_ledger *ledger, u64 seen_ppm, u64 interval_ns, u64 epoch_ns)
{
	u64 each_ppm = neotier_ledger_min(seen_ppm * (interval_ns / 1000) / (epoch_ns / 1000), NEOTIER_LEDGER_PPM);
	u64 warm;

	ledger->expected_ppm += each_ppm * ledger->known;
	if (ledger->expected_ppm < NEOTIER_LEDGER_EXPECTED * NEOTIER_LEDGER_PPM)
		return;
	warm = neotier_ledger_min(ledger->reported * NEOTIER_LEDGER_PPM * NEOTIER_LEDGER_PPM / ledger->expected_ppm, NEOTIER_LEDGER_PPM);
	ledger->warm_ppm = ledger->warmed ? (ledger->warm_ppm + warm) / 2 : warm;
	ledger->warmed = true;
	ledger->expected_ppm = ledger->reported = 0;
}

/*
 * The longer as many stay hot, the longer they are expected to. Where fewer than a third do, heat does not last, however steady
 * that third is: what was hot in one epoch is not in the next. Until that is known time does not count, and then it all does.
 */
static void neotier_ledger_lasts(struct neotier_ledger *ledger, u64 interval_ns)
{
	u64 warm_ppm = ledger->warm_ppm;

	ledger->unknown_ns = neotier_ledger_min(ledger->unknown_ns + interval_ns, NEOTIER_LEDGER_STEADY_NS);
	if (!ledger->warmed)
		return;
	interval_ns = ledger->unknown_ns;
	ledger->unknown_ns = 0;
	ledger->warm_peak_ppm = neotier_ledger_max(ledger->warm_peak_ppm - ledger->warm_peak_ppm / 16, NEOTIER_LEDGER_PPM * 2 / 3);
	if (warm_ppm < ledger->warm_peak_ppm / 2) {
		ledger->steady_ns = ledger->steady_ns * warm_ppm / ledger->warm_peak_ppm;
		ledger->lasted_ns = ledger->lasted_ns * warm_ppm / ledger->warm_peak_ppm;
		ledger->warm_peak_ppm = warm_ppm;
		return;
	}
	ledger->steady_ns = neotier_ledger_min(ledger->steady_ns + interval_ns, NEOTIER_LEDGER_STEADY_NS);
	ledger->lasted_ns = neotier_ledger_min(ledger->lasted_ns + interval_ns, NEOTIER_LEDGER_LASTED_NS);
	if (warm_ppm > ledger->warm_peak_ppm)
		ledger->warm_peak_ppm = warm_ppm;
}

/*
 * Requests to a hot page in an epoch, of a device that reports at the threshold. Its histogram counts with a page what shares the
 * page's counters. That is several times the page's own, where many are hot for the size of the table. So no more than all
 * requests are for each report, of those that are hot.
 */
static u32 neotier_ledger_hot(const struct neotier_ledger *ledger, const struct neotier_ledger_period *period)
{
	u64 requests = neotier_ledger_min(period->reads, 1ULL << 40) + neotier_ledger_min(period->writes, 1ULL << 40);
	u64 reports = neotier_ledger_min(period->reports, NEOTIER_LEDGER_REPORTS_MAX) +
		      neotier_ledger_min(period->missed, NEOTIER_LEDGER_REPORTS_MAX);
	u64 warm_ppm = ledger->warmed ? neotier_ledger_max(ledger->warm_ppm, NEOTIER_LEDGER_PPM / 64) : NEOTIER_LEDGER_PPM, most;

	most = requests / neotier_clamp_u64(period->downsampling, 1, 32768) / neotier_ledger_max(reports, 1);
	most = neotier_ledger_min(most, 1ULL << 32) * NEOTIER_LEDGER_PPM / warm_ppm;
	return (u32)neotier_ledger_min(period->hot, neotier_ledger_max(most, 1));
}

/* What the pages promoted so far will win if all goes on for as long as it has so far. */
static s64 neotier_ledger_line(const struct neotier_ledger *ledger)
{
	return ledger->gain_ppm > 0 ? (s64)(ledger->steady_ns / 1000) * ledger->gain_ppm / 1000 : 0;
}

/* Of so many pages that count for one horizon. */
static u64 neotier_ledger_sum(const u64 pages[NEOTIER_LEDGER_PARTS])
{
	u64 sum = 0;
	u32 i;

	for (i = 0; i < NEOTIER_LEDGER_PARTS; i++)
		sum += pages[i];
	return neotier_ledger_min(sum, NEOTIER_LEDGER_PAGES_MAX);
}

static u64 neotier_ledger_alive(const struct neotier_ledger *ledger)
{
	return neotier_ledger_sum(ledger->promoted);
}

/* It rises at once, and falls slowly: a program may rest. */
static void neotier_ledger_hope(struct neotier_ledger *ledger, const struct neotier_ledger_period *period, u64 interval_ns)
{
	u64 saved_ns = neotier_ledger_min(period->reads, 1ULL << 40) * ledger->terms.saved_ns, hope_ppm;

	if (interval_ns < 1000)
		return;
	hope_ppm = neotier_ledger_min(saved_ns / (interval_ns / 1000), 1ULL << 32) * 1000;
	ledger->hope_ppm = ledger->hoped ? neotier_ledger_max((3 * ledger->hope_ppm + hope_ppm) / 4, hope_ppm) : hope_ppm;
	ledger->hoped = true;
}

/* Of the base, what may be risked. */
static u64 neotier_ledger_stake(const struct neotier_ledger *ledger)
{
	u64 base_ns = ledger->terms.base_ns;

	if (!ledger->hoped)
		return base_ns;
	return neotier_clamp_u64(NEOTIER_LEDGER_HOPE_NS / 1000 * ledger->hope_ppm / 1000, base_ns / 4, base_ns);
}

/* Of the time that has passed, what may be lost. */
static u64 neotier_ledger_share(const struct neotier_ledger *ledger, const struct neotier_ledger_period *period, u64 interval_ns)
{
	u64 us = interval_ns / 1000;

	return neotier_ledger_min(us * ledger->terms.loss_ppm / 1000 * neotier_clamp_u64(period->cpus, 1, 65536),
				  us * (ledger->hope_ppm / NEOTIER_LEDGER_HOPE_PART) / 1000);
}

/* What may be spent now; below 0: not even looking is worth it. */
static s64 neotier_ledger_purse(const struct neotier_ledger *ledger)
{
	return ledger->balance_ns - (s64)(ledger->terms.base_ns - neotier_ledger_stake(ledger)) + neotier_ledger_line(ledger);
}

static void neotier_ledger_kinds(struct neotier_ledger *ledger, const struct neotier_ledger_period *period)
{
	u64 reads = neotier_ledger_min(period->reads, 1ULL << 40), all = reads + neotier_ledger_min(period->writes, 1ULL << 40);

	if (all)
		ledger->reads_ppm = reads * 1000000 / all;
}

/* That so many requests would have waited for the slow tier, those that wait. */
static u64 neotier_ledger_worth(const struct neotier_ledger *ledger, u64 requests, const struct neotier_ledger_period *period)
{
	requests = neotier_ledger_min(requests, 1ULL << 40) * neotier_clamp_u64(period->downsampling, 1, 32768);
	requests = neotier_ledger_min(requests, 1ULL << 43) * ledger->reads_ppm / 1000000;
	return requests * ledger->terms.saved_ns;
}

/* Of so many pages of that heat, for so long. */
static u64 neotier_ledger_won(const struct neotier_ledger *ledger, u64 pages, u64 heat, u64 us,
			      const struct neotier_ledger_period *period)
{
	u64 epoch_us = neotier_clamp_u64(period->epoch_ns / 1000, 1, NEOTIER_LEDGER_US_MAX);
	u64 each = neotier_ledger_min(heat, 1ULL << 24) * us / epoch_us;

	return neotier_ledger_worth(ledger, neotier_ledger_min(each, 1ULL << 32) * pages / NEOTIER_LEDGER_FINE, period);
}

/* What the reports tell of the controls. */
static void neotier_ledger_by_reports(struct neotier_ledger *ledger, const struct neotier_ledger_period *period, u64 seen_ppm,
				      u64 interval_ns, u64 epoch_ns)
{
	u64 count = 0;
	u32 i;

	neotier_ledger_count_warm(ledger, seen_ppm, interval_ns, epoch_ns);
	neotier_ledger_bury(ledger, neotier_ledger_patience(ledger, epoch_ns));
	ledger->known = ledger->nr_controls;
	if (!ledger->nr_controls)
		return;
	for (i = 0; i < ledger->nr_controls; i++)
		count += ledger->controls[i].count;
	count /= ledger->nr_controls;
	ledger->heat = (period->hot ? neotier_ledger_min(count, period->hot) : count) * NEOTIER_LEDGER_FINE;
	ledger->average = ledger->warmed ? ledger->heat * ledger->warm_ppm / NEOTIER_LEDGER_PPM : ledger->heat;
	neotier_ledger_lasts(ledger, interval_ns);
}

void neotier_ledger_count(struct neotier_ledger *ledger, u32 i, u32 requests, u64 ns, bool gone)
{
	bool control = i < ledger->nr_controls;
	struct neotier_ledger_control *watched = neotier_ledger_watched(ledger, i);

	/* A control that is gone needs nothing, whatever lies there now. */
	watched->requests = control && gone ? 0 : requests;
	watched->counted_ns = neotier_ledger_min(ns, NEOTIER_LEDGER_US_MAX * 1000);
	watched->gone = gone;
}

/* Whether one is too cold to repay a move, for as long as any heat is expected to last, or has cooled. */
static bool neotier_ledger_is_cold(const struct neotier_ledger *ledger, const struct neotier_ledger_control *control,
				   const struct neotier_ledger_period *period)
{
	return NEOTIER_LEDGER_COOLED * control->rate < control->first ||
	       neotier_ledger_won(ledger, 1, control->rate, NEOTIER_LEDGER_STEADY_NS / 1000, period) < ledger->exchange_ns;
}

/* Return: whether it was counted for long enough to tell. Else nothing is known of it, and it has no rate. */
static bool neotier_ledger_rate(struct neotier_ledger_control *watched, const struct neotier_ledger_period *period, u64 epoch_ns)
{
	u64 requests = neotier_ledger_min(watched->requests, NEOTIER_LEDGER_REQUESTS_MAX) * NEOTIER_LEDGER_FINE;
	u64 ns = watched->counted_ns;

	watched->rate = 0;
	watched->counted_ns = ns < epoch_ns / 4 * 3 ? 0 : ns;
	if (!watched->counted_ns)
		return false;
	requests /= neotier_clamp_u64(period->downsampling, 1, 32768);
	watched->rate = requests * (epoch_ns / 1000) / neotier_ledger_max(ns / 1000, 1);
	return true;
}

/* Return: whether anything is known. */
static bool neotier_ledger_rates(struct neotier_ledger *ledger, const struct neotier_ledger_period *period, u64 epoch_ns)
{
	bool any = false;
	u32 i;

	for (i = 0; i < ledger->nr_controls; i++) {
		struct neotier_ledger_control *control = &ledger->controls[i];

		if (!neotier_ledger_rate(control, period, epoch_ns))
			continue;
		if (!control->first)
			control->first = neotier_ledger_max(control->rate, 1);
		control->cold = neotier_ledger_is_cold(ledger, control, period) ? control->cold + 1 : 0;
		any = true;
	}
	return any;
}

/* Of the controls that are hot; 0: none is. */
static u64 neotier_ledger_median(const struct neotier_ledger *ledger)
{
	const struct neotier_ledger_control *controls = ledger->controls;
	u32 i, j, hot = 0, below;
	u64 median = 0;

	for (i = 0; i < ledger->nr_controls; i++)
		hot += controls[i].counted_ns && !controls[i].cold;
	for (i = 0; i < ledger->nr_controls; i++) {
		if (!controls[i].counted_ns || controls[i].cold)
			continue;
		below = 0;
		for (j = 0; j < ledger->nr_controls; j++)
			below += controls[j].counted_ns && !controls[j].cold && controls[j].rate < controls[i].rate;
		if (2 * below <= hot)
			median = neotier_ledger_max(median, controls[i].rate);
	}
	return median;
}

/*
 * What their counts tell. Heat is that of those that have not cooled, whether they ever were hot or were only taken for it: the
 * next page to move is one of these. Once all have cooled at once, it is what it was.
 */
static void neotier_ledger_by_counts(struct neotier_ledger *ledger, const struct neotier_ledger_period *period, u64 interval_ns,
				     u64 epoch_ns)
{
	u64 most, all = 0, fresh = 0, first = 0, left = 0, warm;
	u32 i, nr = 0, nr_fresh = 0;

	if (!neotier_ledger_rates(ledger, period, epoch_ns))
		return;
	most = neotier_ledger_median(ledger) * NEOTIER_LEDGER_MEDIANS;
	for (i = 0; i < ledger->nr_controls; i++) {
		struct neotier_ledger_control *control = &ledger->controls[i];
		u64 rate = most ? neotier_ledger_min(control->rate, most) : control->rate;

		if (!control->counted_ns)
			continue;
		nr++;
		all += rate;
		first += control->first;
		left += neotier_ledger_min(control->rate, control->first);
		if (NEOTIER_LEDGER_COOLED * control->rate >= control->first) {
			nr_fresh++;
			fresh += rate;
		}
	}
	ledger->average = all / nr;
	if (nr_fresh)
		ledger->heat = fresh / nr_fresh;
	warm = left * NEOTIER_LEDGER_PPM / first;
	ledger->warm_ppm = ledger->warmed ? (ledger->warm_ppm + warm) / 2 : warm;
	ledger->warmed = true;
	neotier_ledger_bury(ledger, NEOTIER_LEDGER_NS_MAX);
	if (ledger->nr_controls)
		neotier_ledger_lasts(ledger, interval_ns);
}

/* A demoted page that comes up again, or is freed, is missed no more: so are as many as it stands for. */
static void neotier_ledger_dismiss_gone(struct neotier_ledger *ledger)
{
	u32 i, part;

	for (i = ledger->nr_witnesses; i-- > 0;) {
		if (!ledger->witnesses[i].gone)
			continue;
		for (part = 0; part < NEOTIER_LEDGER_PARTS; part++)
			ledger->demoted[part] -= ledger->demoted[part] / ledger->nr_witnesses;
		neotier_ledger_dismiss(ledger, i);
	}
}

/*
 * What demoted pages were asked for. One that is gone counts once more: it may have come up because it was asked for. Then what
 * came to lie in its place is counted with it.
 */
static void neotier_ledger_by_witnesses(struct neotier_ledger *ledger, const struct neotier_ledger_period *period, u64 epoch_ns)
{
	u64 most = neotier_ledger_median(ledger) * NEOTIER_LEDGER_MEDIANS, all = 0;
	u32 i, nr = 0;

	for (i = 0; i < ledger->nr_witnesses; i++) {
		struct neotier_ledger_control *witness = &ledger->witnesses[i];

		if (!neotier_ledger_rate(witness, period, epoch_ns))
			continue;
		all += most ? neotier_ledger_min(witness->rate, most) : witness->rate;
		nr++;
	}
	if (nr)
		ledger->demoted_heat = all / nr;
	ledger->witnessed = nr || (ledger->witnessed && ledger->nr_witnesses);
	neotier_ledger_dismiss_gone(ledger);
}

static void neotier_ledger_read(struct neotier_ledger *ledger, const struct neotier_ledger_period *period, u64 seen_ppm,
				u64 interval_ns)
{
	u32 i, before = ledger->hot;

	ledger->hot = neotier_ledger_hot(ledger, period);
	for (i = 0; ledger->hot && !before && i < ledger->nr_controls; i++)
		ledger->controls[i].count = ledger->hot;
	ledger->seen_ppm = ledger->watched_ns ? (3 * ledger->seen_ppm + seen_ppm) / 4 : seen_ppm;
	ledger->watched_ns += interval_ns;
}

/* Who has not looked has seen nothing: what was known is taken to go on. */
static void neotier_ledger_watch(struct neotier_ledger *ledger, const struct neotier_ledger_period *period, u64 interval_ns)
{
	u64 reports = neotier_ledger_min(period->reports, NEOTIER_LEDGER_REPORTS_MAX);
	u64 missed = neotier_ledger_min(period->missed, NEOTIER_LEDGER_REPORTS_MAX);
	u64 seen_ppm = reports * NEOTIER_LEDGER_PPM / neotier_ledger_max(reports + missed, 1);
	u64 epoch_ns = neotier_clamp_u64(period->epoch_ns, 1000, NEOTIER_LEDGER_US_MAX * 1000);

	if (ledger->stopped)
		return;
	neotier_ledger_kinds(ledger, period);
	if (reports)
		neotier_ledger_read(ledger, period, seen_ppm, interval_ns);
	if (period->counted) {
		neotier_ledger_by_counts(ledger, period, interval_ns, epoch_ns);
		neotier_ledger_by_witnesses(ledger, period, epoch_ns);
	} else if (reports) {
		neotier_ledger_by_reports(ledger, period, seen_ppm, interval_ns, epoch_ns);
	}
}

/* What the thread's own time does not have of what it does to programs. */
static u64 neotier_ledger_beside(const struct neotier_ledger_period *period)
{
	return neotier_ledger_min(period->wakes, NEOTIER_LEDGER_NS_MAX / NEOTIER_LEDGER_WAKE_NS / 2) * NEOTIER_LEDGER_WAKE_NS +
	       neotier_ledger_min(period->promoted, NEOTIER_LEDGER_PAGES_MAX) * NEOTIER_LEDGER_MOVE_NS;
}

/*
 * By pages, not by periods: a search for victims that brings few of them would make moves dear, so that none is made, and none
 * measured again.
 */
static void neotier_ledger_measure(struct neotier_ledger *ledger, const struct neotier_ledger_period *period)
{
	u64 pages = neotier_ledger_min(period->promoted, NEOTIER_LEDGER_PAGES_MAX);
	u64 old = pages < NEOTIER_EXCHANGE_PAGES ? NEOTIER_EXCHANGE_PAGES - pages : 0;

	if (ledger->priced_pages > old) {
		ledger->priced_ns = ledger->priced_ns / ledger->priced_pages * old;
		ledger->priced_pages = old;
	}
	ledger->priced_pages += pages;
	ledger->priced_ns += neotier_clamp_u64(period->moves_ns, pages * NEOTIER_EXCHANGE_MIN_NS, pages * NEOTIER_EXCHANGE_MAX_NS) +
			     pages * NEOTIER_LEDGER_MOVE_NS;
	ledger->exchange_ns = (ledger->priced_ns + NEOTIER_EXCHANGE_START_PAGES * NEOTIER_EXCHANGE_START_NS) /
			      (ledger->priced_pages + NEOTIER_EXCHANGE_START_PAGES);
}

/*
 * Another part of the horizon for each part of its length; true: a whole one has passed. With each part some controls are let go,
 * drawn by lot: one stays for a horizon on average.
 */
static bool neotier_ledger_pass(struct neotier_ledger *ledger, u64 interval_ns)
{
	bool horizon = false;
	u32 i;

	ledger->part_ns += interval_ns;
	while (ledger->part_ns >= NEOTIER_LEDGER_HORIZON_NS / NEOTIER_LEDGER_PARTS) {
		ledger->part_ns -= NEOTIER_LEDGER_HORIZON_NS / NEOTIER_LEDGER_PARTS;
		ledger->part = (ledger->part + 1) % NEOTIER_LEDGER_PARTS;
		ledger->promoted[ledger->part] = 0;
		ledger->demoted[ledger->part] = 0;
		horizon |= ledger->part == 0;
		ledger->priced_pages = ledger->priced_pages * 7 / 8;
		ledger->priced_ns = ledger->priced_ns * 7 / 8;
		for (i = ledger->nr_controls; i-- > 0;)
			if (neotier_ledger_hash(ledger->controls[i].page, ~ledger->part) % NEOTIER_LEDGER_PARTS == 0)
				neotier_ledger_remove(ledger, i);
		for (i = ledger->nr_witnesses; i-- > 0;)
			if (neotier_ledger_hash(ledger->witnesses[i].page, ~ledger->part) % NEOTIER_LEDGER_PARTS == 0)
				neotier_ledger_dismiss(ledger, i);
		neotier_ledger_refilter(ledger);
		/* Else those that are let go would be drawn again. */
		ledger->salt++;
	}
	return horizon;
}

/*
 * Pilots of a hot set of few pages are too large a part of it to stay. Not while others wait, or were reported and not read: who
 * is let go before all have moved is missed where it is asked how many stay hot.
 */
static void neotier_ledger_let_go(struct neotier_ledger *ledger, const struct neotier_ledger_period *period)
{
	u64 alive = neotier_ledger_alive(ledger), most = neotier_ledger_max(alive / NEOTIER_LEDGER_ONE_IN, NEOTIER_LEDGER_FEW);

	if (!alive || ledger->nr_controls <= most || ledger->stopped || period->waiting >= ledger->nr_controls)
		return;
	if (period->missed > period->reports || ledger->seen_ppm < NEOTIER_LEDGER_PPM / 2)
		return;
	while (ledger->nr_controls > most)
		neotier_ledger_remove(ledger, neotier_ledger_hash(ledger->nr_controls, ledger->salt) % ledger->nr_controls);
	neotier_ledger_refilter(ledger);
	ledger->known = ledger->nr_controls;
}

static void neotier_ledger_forget_returned(struct neotier_ledger *ledger, u64 returned)
{
	u32 i;

	for (i = 0; i < NEOTIER_LEDGER_PARTS && returned; i++) {
		u64 *promoted = &ledger->promoted[(ledger->part + NEOTIER_LEDGER_PARTS - i) % NEOTIER_LEDGER_PARTS];
		u64 gone = neotier_ledger_min(*promoted, returned);

		*promoted -= gone;
		returned -= gone;
	}
}

/* Of the pages that are promoted now: those that have just moved have had no time to win, and what went cold wins no more. */
static void neotier_ledger_gain(struct neotier_ledger *ledger, const struct neotier_ledger_period *period, u64 interval_ns,
				u64 regret)
{
	u64 won = neotier_ledger_won(ledger, neotier_ledger_alive(ledger), ledger->average, interval_ns / 1000, period);

	if (interval_ns >= 1000)
		ledger->gain_ppm = (s64)neotier_ledger_min(won * 1000 / (interval_ns / 1000), 1ULL << 32) -
				   (s64)neotier_ledger_min(regret * 1000 / (interval_ns / 1000), 1ULL << 32);
}

/* Return: whether it does not look until the next settlement, because it looked in vain. */
static bool neotier_ledger_pause(struct neotier_ledger *ledger, const struct neotier_ledger_period *period)
{
	if (ledger->paused) {
		ledger->paused = --ledger->vain > 0;
		if (!ledger->paused)
			ledger->vain = NEOTIER_LEDGER_PATIENCE - NEOTIER_LEDGER_LOOK;
		return ledger->paused;
	}
	if (ledger->stopped)
		return false;
	if (!period->reports || ledger->hope_ppm < NEOTIER_LEDGER_MUCH_PPM || neotier_ledger_alive(ledger) ||
	    neotier_ledger_pages(ledger, 1)) {
		ledger->vain = 0;
	} else if (++ledger->vain == NEOTIER_LEDGER_PATIENCE) {
		ledger->vain = NEOTIER_LEDGER_PAUSE;
		ledger->paused = true;
	}
	return ledger->paused;
}

/*
 * While nobody looks nothing is regretted, as nothing is seen: or what was lost at the last look would never be paid off. Where
 * controls are counted, a page that is reported is taken for as hot as they are: what the report says is too much by what others
 * brought to its counters.
 */
static u64 neotier_ledger_regretted(const struct neotier_ledger *ledger, const struct neotier_ledger_period *period,
				    u64 interval_ns)
{
	u64 requests = neotier_ledger_max(ledger->regret_requests, ledger->regrets * ledger->hot);
	u64 down = ledger->stopped ? 0 : neotier_ledger_sum(ledger->demoted);

	if (period->counted && ledger->witnessed)
		return neotier_ledger_won(ledger, down, ledger->demoted_heat, interval_ns / 1000, period);
	if (period->counted && ledger->heat)
		requests = ledger->regrets * ledger->heat / NEOTIER_LEDGER_FINE;
	return neotier_ledger_worth(ledger, neotier_ledger_all(requests, period), period);
}

/* Of the next page that comes up, less what is missed of those that went down for it. */
static u64 neotier_ledger_net(const struct neotier_ledger *ledger)
{
	u64 up = neotier_ledger_alive(ledger), down = neotier_ledger_sum(ledger->demoted), missed;

	if (!ledger->witnessed || !up)
		return ledger->heat;
	missed = neotier_ledger_min(ledger->demoted_heat, 1ULL << 36) * neotier_ledger_min(down, up) / up;
	return ledger->heat - neotier_ledger_min(ledger->heat, missed);
}

bool neotier_ledger_settle(struct neotier_ledger *ledger, const struct neotier_ledger_period *period)
{
	u64 interval_ns = neotier_ledger_min(period->interval_ns, NEOTIER_LEDGER_US_MAX * 1000), won, regret, spent, share;
	u64 fresh = neotier_ledger_min(period->promoted, NEOTIER_LEDGER_PAGES_MAX);
	s64 most = (s64)(ledger->terms.base_ns * NEOTIER_LEDGER_CAP), worth;
	bool horizon;

	neotier_ledger_hope(ledger, period, interval_ns);
	neotier_ledger_watch(ledger, period, interval_ns);
	won = neotier_ledger_won(ledger, neotier_ledger_alive(ledger), ledger->average, interval_ns / 1000, period);
	regret = neotier_ledger_regretted(ledger, period, interval_ns);
	spent = neotier_ledger_min(period->moves_ns, NEOTIER_LEDGER_NS_MAX) + neotier_ledger_min(period->looking_ns, NEOTIER_LEDGER_NS_MAX) +
		neotier_ledger_beside(period);
	share = neotier_ledger_share(ledger, period, interval_ns);
	ledger->won_ns += won;
	ledger->regret_ns += regret;
	ledger->spent_ns += spent;
	/* To rest makes no debts, though totals are read: after a long one nothing would be looked at again. */
	if (!ledger->stopped || won + share > regret + spent)
		ledger->balance_ns += (s64)(won + share) - (s64)regret - (s64)spent;
	if (ledger->balance_ns > most)
		ledger->balance_ns = most;
	if (ledger->balance_ns < -NEOTIER_LEDGER_DEBT_NS)
		ledger->balance_ns = -NEOTIER_LEDGER_DEBT_NS;
	ledger->regret_requests = ledger->regrets = 0;

	neotier_ledger_measure(ledger, period);
	horizon = neotier_ledger_pass(ledger, interval_ns);
	neotier_ledger_forget_returned(ledger, period->returned);
	ledger->promoted[ledger->part] += fresh;
	neotier_ledger_gain(ledger, period, interval_ns, regret);
	neotier_ledger_let_go(ledger, period);

	if (!ledger->stopped)
		ledger->page_ns = neotier_ledger_won(ledger, 1, neotier_ledger_net(ledger), ledger->steady_ns / 1000, period);
	/* Once stopped, until a look of some length can be paid for. */
	worth = neotier_ledger_purse(ledger);
	if (neotier_ledger_pause(ledger, period))
		ledger->stopped = true;
	else if (worth < 0)
		ledger->stopped = neotier_ledger_bounds(ledger);
	else if (worth >= (s64)(neotier_ledger_stake(ledger) / 4))
		ledger->stopped = false;
	return horizon;
}

u64 neotier_ledger_pages(const struct neotier_ledger *ledger, u32 least)
{
	u64 pages;
	s64 worth;

	if (!neotier_ledger_bounds(ledger))
		return NEOTIER_NO_LIMIT;
	if (ledger->steady_ns < NEOTIER_LEDGER_PROOF_NS || 3 * ledger->page_ns < 2 * ledger->exchange_ns)
		return 0;
	worth = neotier_ledger_purse(ledger);
	pages = worth > 0 ? (u64)worth / ledger->exchange_ns : 0;
	return pages < least ? 0 : pages;
}
