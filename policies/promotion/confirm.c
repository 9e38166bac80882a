// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/confirm.h"

#define NEOTIER_PART_MASK ((1U << 28) - 1)

static u32 neotier_seen_set(u32 page)
{
	return page * 0x61C88647U >> (32 - NEOTIER_SEEN_SETS_LOG2);
}

static u32 neotier_parts_since(u32 now, u32 then)
{
	return (now - then) & NEOTIER_PART_MASK;
}

bool neotier_confirmed(struct neotier_seen *seen, u32 page, u64 now_ns, u64 epoch_ns, u32 wanted)
{
	struct neotier_seen *set = &seen[neotier_seen_set(page) * NEOTIER_SEEN_WAYS], *entry = set;
	u32 part = (u32)(now_ns / (epoch_ns / NEOTIER_SEEN_PARTS)) & NEOTIER_PART_MASK, passed, i;

	if (wanted <= 1)
		return true;
	for (i = 0; i < NEOTIER_SEEN_WAYS; i++) {
		if (set[i].page1 == page + 1) {
			entry = &set[i];
			break;
		}
		if (!set[i].page1 ||
		    (entry->page1 && neotier_parts_since(part, set[i].part) > neotier_parts_since(part, entry->part)))
			entry = &set[i];
	}
	passed = neotier_parts_since(part, entry->part);
	if (entry->page1 != page + 1 || passed > NEOTIER_SEEN_GAP) {
		entry->page1 = page + 1;
		entry->times = 1;
		entry->part = part & NEOTIER_PART_MASK;
	} else if (passed >= NEOTIER_SEEN_APART) {
		entry->times = (entry->times + 1U) & 15;
		entry->part = part & NEOTIER_PART_MASK;
	}
	if (entry->times < wanted)
		return false;
	entry->page1 = 0;
	return true;
}
