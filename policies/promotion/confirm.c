// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/confirm.h"

#define NEOTIER_EPOCH_MASK ((1U << 28) - 1)

static u32 neotier_seen_set(u32 page)
{
	return page * 0x61C88647U >> (32 - NEOTIER_SEEN_SETS_LOG2);
}

/* Epochs from @then to @now. */
static u32 neotier_epochs_since(u32 now, u32 then)
{
	return now - then;
}

bool neotier_confirmed(struct neotier_seen *seen, u32 page, u64 epoch_count, u32 wanted)
{
	struct neotier_seen *set = &seen[neotier_seen_set(page) * NEOTIER_SEEN_WAYS], *entry = set;
	u32 epoch = (u32)epoch_count & NEOTIER_EPOCH_MASK;
	u32 i;

	if (wanted <= 1)
		return true;
	for (i = 0; i < NEOTIER_SEEN_WAYS; i++) {
		if (set[i].page1 == page + 1) {
			entry = &set[i];
			break;
		}
		if (!set[i].page1 ||
		    (entry->page1 && neotier_epochs_since(epoch, set[i].epoch) > neotier_epochs_since(epoch, entry->epoch)))
			entry = &set[i];
	}
	if (entry->page1 != page + 1) {
		entry->page1 = page + 1;
		entry->times = 1;
	} else if (epoch != entry->epoch) {
		entry->times = neotier_epochs_since(epoch, entry->epoch) <= NEOTIER_SEEN_GAP ? (entry->times + 1U) & 15 : 1;
	}
	entry->epoch = epoch & NEOTIER_EPOCH_MASK;
	if (entry->times < wanted)
		return false;
	entry->page1 = 0;
	return true;
}
