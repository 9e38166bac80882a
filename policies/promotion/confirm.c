// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/confirm.h"

#define NEOTIER_PART_MASK ((1U << 28) - 1)

#define NEOTIER_SEEN_MIN 4096U
#define NEOTIER_SEEN_MAX 65536U

u32 neotier_seen_sets_log2(u64 slow_pages)
{
	u64 entries = neotier_clamp_u64(slow_pages / 2, NEOTIER_SEEN_MIN, NEOTIER_SEEN_MAX);

	return 64 - (u32)__builtin_clzll((entries - 1) / NEOTIER_SEEN_WAYS);
}

static struct neotier_seen *neotier_seen_set(const struct neotier_seen_table *seen, u32 page)
{
	return &seen->entries[(page * 0x61C88647U >> (32 - seen->sets_log2)) * NEOTIER_SEEN_WAYS];
}

static u32 neotier_parts_since(u32 now, u32 then)
{
	return (now - then) & NEOTIER_PART_MASK;
}

bool neotier_confirmed(const struct neotier_seen_table *seen, u32 page, u64 now_ns, u64 epoch_ns, u32 wanted, u64 read_ppm)
{
	struct neotier_seen *set = neotier_seen_set(seen, page), *entry = set;
	u32 part = (u32)(now_ns / (epoch_ns / NEOTIER_SEEN_PARTS)) & NEOTIER_PART_MASK, passed, i;
	u64 gap = NEOTIER_SEEN_GAP * 1000000ULL / neotier_clamp_u64(read_ppm, 1000000 / NEOTIER_SEEN_RARE, 1000000);

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
	if (entry->page1 != page + 1 || passed > gap) {
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
