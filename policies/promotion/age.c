// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/age.h"

#define PASSES 15U
#define WINDOW_REQUESTS 8U
/* Pages armed: fewer say nothing of the window. */
#define ADAPT_LEAST 64U
#define WINDOW_MIN_NS 1000000ULL
/* Long enough for anything that is to be called in use. */
#define WINDOW_MAX_NS 100000000ULL

static u32 neotier_age_of(const struct neotier_ages *ages, u32 frame)
{
	return ages->frames[frame] & NEOTIER_AGE_MASK;
}

static void neotier_ages_set(struct neotier_ages *ages, u32 frame, u32 age)
{
	ages->frames[frame] = (u8)(ages->pass << NEOTIER_AGE_PASS_SHIFT | (ages->frames[frame] & NEOTIER_AGE_CAME) | age);
}

static void neotier_age_found_add(struct neotier_age_found *found, u32 frame)
{
	found->frames[(found->first + found->nr) % NEOTIER_AGE_FOUND] = frame;
	if (found->nr < NEOTIER_AGE_FOUND)
		found->nr++;
	else
		found->first++;
}

static void neotier_age_found_turn(struct neotier_age_found *found)
{
	u32 end = found->first + found->nr;

	/* None of those before the turn is left where the first is behind it. Numbers wrap. */
	if (found->turned - found->first <= found->nr) {
		found->nr = end - found->turned;
		found->first = found->turned;
	}
	found->turned = end;
}

/* A frame that 14 passes in a row did not arm may be left out once. */
void neotier_ages_begin(struct neotier_ages *ages)
{
	ages->pass = ages->pass % PASSES + 1;
}

/* What a page is looked at as. */
enum neotier_age_kind { NEOTIER_AGE_MAPPED, NEOTIER_AGE_HUGE, NEOTIER_AGE_CACHED };

static void neotier_ages_arm(struct neotier_ages *ages, u32 frame, bool accessed, enum neotier_age_kind kind)
{
	u32 age = neotier_age_of(ages, frame);
	bool again = ages->frames[frame] >> NEOTIER_AGE_PASS_SHIFT == ages->pass;

	ages->armed += !again;
	/* Whoever makes a page that is mapped accesses it. */
	if (accessed || (age == NEOTIER_AGE_UNKNOWN && kind != NEOTIER_AGE_CACHED)) {
		age = NEOTIER_AGE_IN_USE;
	} else if (!again) {
		age = NEOTIER_AGE_OLD;
		ages->found++;
		if (kind != NEOTIER_AGE_HUGE)
			neotier_age_found_add(&ages->old, frame);
	}
	neotier_ages_set(ages, frame, age | NEOTIER_AGE_ARMED);
}

static void neotier_ages_check(struct neotier_ages *ages, u32 frame, bool accessed, enum neotier_age_kind kind)
{
	u32 age = neotier_age_of(ages, frame);

	if (accessed) {
		age = NEOTIER_AGE_IN_USE;
	} else if (!neotier_ages_due(ages, frame, NEOTIER_AGE_LOOK_CHECK)) {
		return;
	} else if (age == NEOTIER_AGE_IN_USE) {
		age = kind == NEOTIER_AGE_CACHED ? NEOTIER_AGE_OLD : NEOTIER_AGE_IDLE;
		if (age == NEOTIER_AGE_OLD || !(ages->frames[frame] & NEOTIER_AGE_CAME)) {
			ages->found++;
			if (kind != NEOTIER_AGE_HUGE)
				neotier_age_found_add(kind == NEOTIER_AGE_CACHED ? &ages->old : &ages->idle, frame);
		}
	}
	neotier_ages_set(ages, frame, age);
}

u32 neotier_ages_came_max(u32 nr)
{
	u64 least = neotier_clamp_u64(nr / NEOTIER_AGE_CAME_SHARE, NEOTIER_AGE_CAME_MIN, NEOTIER_AGE_CAME_MAX);

	return 1U << (63 - (u32)__builtin_clzll(least));
}

/* The first one of those that came up. Another one that came to its frame since settles with it. */
static void neotier_ages_came_drop(struct neotier_ages *ages)
{
	u32 frame = ages->came[ages->first_came & (neotier_ages_came_max(ages->nr) - 1)].frame;

	ages->frames[frame] &= (u8)~NEOTIER_AGE_CAME;
	ages->first_came++;
	ages->nr_came--;
}

void neotier_ages_came(struct neotier_ages *ages, u32 frame, u64 now_ns)
{
	u32 most = neotier_ages_came_max(ages->nr);

	if (ages->nr_came == most)
		neotier_ages_came_drop(ages);
	ages->came[(ages->first_came + ages->nr_came++) & (most - 1)] =
		(struct neotier_age_came){ .frame = frame, .when = (u32)(now_ns >> 20) };
	neotier_ages_set(ages, frame, NEOTIER_AGE_IN_USE);
	ages->frames[frame] |= NEOTIER_AGE_CAME;
}

void neotier_ages_settle(struct neotier_ages *ages, u64 after_ns, u64 now_ns)
{
	u32 most = neotier_ages_came_max(ages->nr);

	while (ages->nr_came && (u64)((u32)(now_ns >> 20) - ages->came[ages->first_came & (most - 1)].when) << 20 >= after_ns)
		neotier_ages_came_drop(ages);
}

static void neotier_ages_seen(struct neotier_ages *ages, u32 frame, enum neotier_age_look look, bool accessed,
			      enum neotier_age_kind kind)
{
	if (look == NEOTIER_AGE_LOOK_ARM)
		neotier_ages_arm(ages, frame, accessed, kind);
	else
		neotier_ages_check(ages, frame, accessed, kind);
}

void neotier_ages_see(struct neotier_ages *ages, u32 frame, enum neotier_age_look look, bool accessed)
{
	neotier_ages_seen(ages, frame, look, accessed, NEOTIER_AGE_MAPPED);
}

void neotier_ages_see_huge(struct neotier_ages *ages, u32 frame, enum neotier_age_look look, bool accessed)
{
	neotier_ages_seen(ages, frame, look, accessed, NEOTIER_AGE_HUGE);
}

void neotier_ages_see_cached(struct neotier_ages *ages, u32 frame, enum neotier_age_look look, bool accessed)
{
	neotier_ages_seen(ages, frame, look, accessed, NEOTIER_AGE_CACHED);
}

void neotier_ages_pieces(struct neotier_ages *ages, u32 frame)
{
	u32 end = frame + NEOTIER_AGE_HUGE_PAGES;

	for (; frame < end; frame++) {
		neotier_ages_set(ages, frame, NEOTIER_AGE_IDLE);
		neotier_age_found_add(&ages->idle, frame);
	}
	ages->found += NEOTIER_AGE_HUGE_PAGES;
}

void neotier_ages_again(struct neotier_ages *ages, u32 frame)
{
	neotier_ages_set(ages, frame, NEOTIER_AGE_IDLE);
	neotier_age_found_add(&ages->idle, frame);
}

void neotier_ages_stale(struct neotier_ages *ages)
{
	neotier_ages_turn(ages);
	neotier_ages_turn(ages);
}

void neotier_ages_turn(struct neotier_ages *ages)
{
	neotier_age_found_turn(&ages->idle);
	neotier_age_found_turn(&ages->old);
}

/* What is idle may be old by now: then it has been found again. */
static u32 neotier_age_found_take(struct neotier_ages *ages, struct neotier_age_found *found, u32 age)
{
	while (found->nr) {
		u32 frame = found->frames[found->first++ % NEOTIER_AGE_FOUND];

		found->nr--;
		if (neotier_age_of(ages, frame) == age) {
			neotier_ages_forget(ages, frame);
			return frame;
		}
	}
	return NEOTIER_NO_FRAME;
}

u32 neotier_ages_victim(struct neotier_ages *ages)
{
	u32 frame = neotier_age_found_take(ages, &ages->old, NEOTIER_AGE_OLD);

	return frame != NEOTIER_NO_FRAME ? frame : neotier_age_found_take(ages, &ages->idle, NEOTIER_AGE_IDLE);
}

u64 neotier_age_window(u64 epoch_ns, u32 threshold)
{
	return neotier_clamp_u64(WINDOW_REQUESTS * (epoch_ns / (threshold ? threshold : 1)), WINDOW_MIN_NS, WINDOW_MAX_NS);
}

static void neotier_age_gain(struct neotier_age_pace *pace, u64 gained_ns)
{
	u64 paid = gained_ns < pace->owed_ns ? gained_ns : pace->owed_ns;

	pace->owed_ns -= paid;
	pace->left_ns = neotier_clamp_u64(pace->left_ns + gained_ns - paid, 0, NEOTIER_AGE_SAVED_NS);
}

static void neotier_age_fill(struct neotier_age_pace *pace, u64 now_ns)
{
	u64 gained_ns = pace->filled_ns ? (now_ns - pace->filled_ns) / NEOTIER_AGE_SHARE : NEOTIER_AGE_SAVED_NS;

	/* What is less than a nanosecond is not lost. */
	if (!gained_ns)
		return;
	pace->filled_ns = now_ns;
	neotier_age_gain(pace, gained_ns);
}

void neotier_age_earn(struct neotier_age_pace *pace, u32 victims)
{
	neotier_age_gain(pace, victims * (u64)NEOTIER_AGE_VICTIM_NS);
}

static void neotier_age_turn(struct neotier_age_pace *pace, struct neotier_ages *ages, u64 now_ns)
{
	if (now_ns - pace->turned_ns < NEOTIER_AGE_KEPT_NS / 2)
		return;
	if (now_ns - pace->turned_ns < NEOTIER_AGE_KEPT_NS)
		neotier_ages_turn(ages);
	else
		neotier_ages_stale(ages);
	pace->turned_ns = now_ns;
}

/* More than is paid for would be owed, and nothing be looked at until then. */
static u32 neotier_age_groups_paid(const struct neotier_age_pace *pace)
{
	return (u32)neotier_clamp_u64(pace->group_ns ? pace->left_ns / pace->group_ns : 1, 1, NEOTIER_AGE_GROUPS);
}

static void neotier_age_use(struct neotier_age_pace *pace, u64 now_ns, u64 took_ns)
{
	u64 used;

	neotier_age_fill(pace, now_ns);
	used = took_ns < pace->left_ns ? took_ns : pace->left_ns;
	pace->left_ns -= used;
	pace->owed_ns += took_ns - used;
}

static u64 neotier_age_lacking(const struct neotier_age_pace *pace, const struct neotier_ages *ages)
{
	u64 stock = NEOTIER_AGE_STOCK * (u64)pace->wanted, victims = neotier_ages_victims(ages);

	return stock > victims ? stock - victims : 0;
}

static u64 neotier_age_split_ns(const struct neotier_age_pace *pace)
{
	return pace->split_ns ? pace->split_ns : NEOTIER_AGE_SPLIT_NS;
}

/* So many victims for that time, than what looks bring. */
static bool neotier_age_better(const struct neotier_age_pace *pace, u64 ns, u64 victims)
{
	return pace->lacked >= NEOTIER_AGE_SPLIT_LOOKS || !pace->yield || ns * pace->yield < pace->group_ns * victims;
}

static bool neotier_age_splits_bring_enough(const struct neotier_age_pace *pace)
{
	u64 yield = pace->split_yield ? pace->split_yield : NEOTIER_AGE_SPLIT_YIELD;

	return neotier_age_split_ns(pace) <= yield * NEOTIER_AGE_SPLIT_VICTIM_NS;
}

bool neotier_age_split(const struct neotier_age_pace *pace, const struct neotier_ages *ages, bool idle, u64 now_ns)
{
	u64 yield = pace->split_yield ? pace->split_yield : NEOTIER_AGE_SPLIT_YIELD, ns = neotier_age_split_ns(pace), lacking;

	lacking = neotier_age_lacking(pace, ages);
	/* What the others, which are armed, will bring. */
	lacking -= lacking < pace->splits * yield ? lacking : pace->splits * yield;
	if (idle)
		return lacking && neotier_age_better(pace, ns, NEOTIER_AGE_HUGE_PAGES);
	if (lacking < NEOTIER_AGE_SPLIT_LEAST || pace->splits >= NEOTIER_AGE_SPLITS || pace->splits * ns > pace->left_ns)
		return false;
	if (!neotier_age_splits_bring_enough(pace))
		return !pace->splits && now_ns - pace->tried_ns >= pace->retry_ns;
	return neotier_age_better(pace, ns, yield);
}

void neotier_age_split_done(struct neotier_age_pace *pace, const struct neotier_ages *ages, bool idle, u64 now_ns, u64 took_ns)
{
	neotier_age_use(pace, now_ns, took_ns);
	pace->split_ns = (3 * neotier_age_split_ns(pace) + took_ns) / 4;
	if (idle)
		return;
	if (!pace->splits++)
		pace->found = ages->found;
	pace->tried_ns = now_ns;
	pace->armed_ns = now_ns;
}

void neotier_age_split_failed(struct neotier_age_pace *pace, bool idle, u64 now_ns, u64 took_ns)
{
	neotier_age_use(pace, now_ns, took_ns);
	if (!idle)
		pace->tried_ns = now_ns;
}

/* Of all that were split in use, together: what their pages were like. */
static void neotier_age_split_adapt(struct neotier_age_pace *pace, const struct neotier_ages *ages)
{
	u64 found = ages->found - pace->found, yield = pace->split_yield ? pace->split_yield : NEOTIER_AGE_SPLIT_YIELD;

	/* Each counts for a quarter; 0 would be: not known. */
	for (found /= pace->splits; pace->splits; pace->splits--)
		yield = (3 * yield + found) / 4;
	pace->split_yield = yield ? (u32)yield : 1;
	if (neotier_age_splits_bring_enough(pace))
		pace->retry_ns = 0;
	else
		pace->retry_ns = neotier_clamp_u64(2 * pace->retry_ns, NEOTIER_AGE_SPLIT_RETRY_NS, NEOTIER_AGE_SPLIT_RETRY_MAX_NS);
}

enum neotier_age_look neotier_age_next(struct neotier_age_pace *pace, struct neotier_ages *ages, u32 wanted, u64 least_ns,
				       u64 now_ns)
{
	u64 lacking;

	pace->wanted = wanted;
	neotier_age_fill(pace, now_ns);
	neotier_age_turn(pace, ages, now_ns);
	/* What is armed is checked whoever wants victims by then: else arming it was for nothing. */
	if (pace->armed_ns)
		return now_ns - pace->armed_ns >= pace->window_ns ? NEOTIER_AGE_LOOK_CHECK : NEOTIER_AGE_LOOK_NONE;
	lacking = neotier_age_lacking(pace, ages);
	if (!lacking || pace->owed_ns)
		return NEOTIER_AGE_LOOK_NONE;
	if (!ages->pass || pace->end >= ages->nr) {
		neotier_ages_begin(ages);
		pace->end = 0;
	}
	pace->first = pace->end;
	pace->groups = pace->yield ? (u32)neotier_clamp_u64(lacking / pace->yield, 1, neotier_age_groups_paid(pace)) : 1;
	pace->took_ns = 0;
	pace->window_ns = neotier_clamp_u64(pace->window_ns, least_ns, WINDOW_MAX_NS);
	pace->armed = ages->armed;
	pace->found = ages->found;
	return NEOTIER_AGE_LOOK_ARM;
}

/* What the group was like. Old ones are among what was found: they were idle for long. */
static void neotier_age_adapt(struct neotier_age_pace *pace, const struct neotier_ages *ages)
{
	u64 armed = ages->armed - pace->armed, found = ages->found - pace->found;

	pace->lacked = neotier_age_lacking(pace, ages) < NEOTIER_AGE_SPLIT_LEAST ? 0 : pace->lacked + 1;
	pace->yield = (u32)(found / (pace->groups ? pace->groups : 1));
	pace->group_ns = pace->took_ns / (pace->groups ? pace->groups : 1);
	if (armed < ADAPT_LEAST)
		return;
	if (found * 8 < armed)
		pace->window_ns /= 2;
	else if (found * 2 > armed)
		pace->window_ns *= 2;
}

void neotier_age_done(struct neotier_age_pace *pace, const struct neotier_ages *ages, enum neotier_age_look look, u32 end,
		      u64 now_ns, u64 took_ns)
{
	neotier_age_use(pace, now_ns, took_ns);
	pace->took_ns += took_ns;
	pace->armed_ns = 0;
	if (look == NEOTIER_AGE_LOOK_ARM) {
		pace->end = end;
		/* Nothing to check: on to the next group. */
		pace->armed_ns = ages->armed != pace->armed ? now_ns : 0;
	} else if (pace->splits) {
		neotier_age_split_adapt(pace, ages);
	} else {
		neotier_age_adapt(pace, ages);
	}
}
