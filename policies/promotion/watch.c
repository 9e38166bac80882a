// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/watch.h"

void neotier_watch_forget(struct neotier_watch *watch)
{
	u32 slot;

	for (slot = 0; slot < NEOTIER_LEDGER_SLOTS; slot++)
		watch->slots[slot].since_ns = 0;
}

static bool neotier_watch_has(const struct neotier_watch_slot *slot, const struct neotier_ledger_control *control)
{
	return slot->since_ns && slot->page == control->page;
}

void neotier_watch_name(struct neotier_watch *watch, struct neotier_ledger *ledger, u64 now_ns)
{
	u32 i;

	if (!watch->nr || !neotier_ledger_bounds(ledger))
		return;
	/* Else a page that is chosen again would have been counted since it was chosen before. */
	for (i = 0; i < NEOTIER_LEDGER_SLOTS; i++)
		if (!(ledger->slots >> i & 1))
			watch->slots[i].since_ns = 0;
	for (i = 0; i < neotier_ledger_nr_watched(ledger); i++) {
		const struct neotier_ledger_control *control = neotier_ledger_watched(ledger, i);
		struct neotier_watch_slot *slot = &watch->slots[control->slot];

		if (control->slot >= watch->nr || neotier_watch_has(slot, control))
			continue;
		*slot = (struct neotier_watch_slot){ .page = control->page, .since_ns = now_ns };
		watch->ops->name(watch->owner, control->slot, control->page);
	}
}

bool neotier_watch_count(struct neotier_watch *watch, struct neotier_ledger *ledger, const struct neotier_clock *clock, u64 now_ns)
{
	u32 i, count;

	if (!watch->nr || !neotier_ledger_bounds(ledger))
		return false;
	for (i = 0; i < neotier_ledger_nr_watched(ledger); i++) {
		const struct neotier_ledger_control *control = neotier_ledger_watched(ledger, i);
		struct neotier_watch_slot *slot = &watch->slots[control->slot];

		if (!neotier_watch_has(slot, control)) {
			neotier_ledger_count(ledger, i, 0, 0, false);
			continue;
		}
		count = watch->ops->count(watch->owner, control->slot);
		neotier_ledger_count(ledger, i, count - slot->count, neotier_clock_scale(clock, now_ns - slot->since_ns),
				     watch->ops->identity(watch->owner, control->page) != control->identity);
		slot->count = count;
		slot->since_ns = now_ns;
	}
	return true;
}
