// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/ping_pong.h"

#define NEOTIER_GOLDEN_RATIO 0x61C8864680B583EBULL
#define NEOTIER_PING_PONG_MIN 4096U
#define NEOTIER_PING_PONG_MAX (1U << 20)

u32 neotier_ping_pong_sets_log2(u64 fast_pages)
{
	u64 entries = neotier_clamp_u64(fast_pages / 4, NEOTIER_PING_PONG_MIN, NEOTIER_PING_PONG_MAX);

	return 64 - (u32)__builtin_clzll((entries - 1) / NEOTIER_PING_PONG_WAYS);
}

u64 neotier_page_identity(u64 mapping, u64 index)
{
	u64 identity = mapping * NEOTIER_GOLDEN_RATIO;

	/* The set and the signature need different bits. */
	identity = (identity ^ identity >> 29 ^ index) * NEOTIER_GOLDEN_RATIO;
	return identity ^ identity >> 32;
}

static u32 neotier_signature(u64 identity)
{
	return (u32)identity ? (u32)identity : 1;
}

static struct neotier_ping_pong_entry *neotier_ping_pong_set(const struct neotier_ping_pong *table, u64 identity)
{
	return &table->entries[(identity >> (64 - table->sets_log2)) * NEOTIER_PING_PONG_WAYS];
}

/* NULL: not there. */
static struct neotier_ping_pong_entry *neotier_ping_pong_find(const struct neotier_ping_pong *table, u64 identity)
{
	struct neotier_ping_pong_entry *set = neotier_ping_pong_set(table, identity);
	u32 i;

	for (i = 0; i < NEOTIER_PING_PONG_WAYS; i++)
		if (set[i].signature == neotier_signature(identity))
			return &set[i];
	return NULL;
}

void neotier_ping_pong_note(struct neotier_ping_pong *table, u64 identity, u64 now_ns)
{
	struct neotier_ping_pong_entry *entry = neotier_ping_pong_find(table, identity);
	u32 now = (u32)(now_ns >> 20), i;

	if (!entry) {
		struct neotier_ping_pong_entry *set = neotier_ping_pong_set(table, identity);

		entry = set;
		for (i = 0; i < NEOTIER_PING_PONG_WAYS; i++) {
			if (!set[i].signature) {
				entry = &set[i];
				break;
			}
			if (now - set[i].when > now - entry->when)
				entry = &set[i];
		}
	}
	entry->signature = neotier_signature(identity);
	entry->when = now;
}

u64 neotier_ping_pong_age(const struct neotier_ping_pong *table, u64 identity, u64 now_ns)
{
	const struct neotier_ping_pong_entry *entry = neotier_ping_pong_find(table, identity);

	return entry ? (u64)((u32)(now_ns >> 20) - entry->when) << 20 : NEOTIER_NEVER;
}

bool neotier_ping_pong_check(struct neotier_ping_pong *table, u64 identity)
{
	struct neotier_ping_pong_entry *entry = neotier_ping_pong_find(table, identity);

	if (!entry)
		return false;
	entry->signature = 0;
	return true;
}
