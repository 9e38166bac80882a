// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/quota.h"

#define SECOND_NS 1000000000ULL

u32 neotier_bucket_take(struct neotier_bucket *bucket, u64 rate, u32 pages, u64 now_ns)
{
	u64 cap = rate * NEOTIER_QUOTA_BURST_NS, granted;

	if (rate && cap < SECOND_NS)
		cap = SECOND_NS;
	if (now_ns > bucket->filled_ns) {
		u64 passed = now_ns - bucket->filled_ns;

		bucket->tokens += rate * (passed < SECOND_NS ? passed : SECOND_NS);
		bucket->filled_ns = now_ns;
	}
	if (bucket->tokens > cap)
		bucket->tokens = cap;
	granted = bucket->tokens / SECOND_NS;
	if (granted > pages)
		granted = pages;
	bucket->tokens -= granted * SECOND_NS;
	return (u32)granted;
}

void neotier_bucket_return(struct neotier_bucket *bucket, u32 pages)
{
	bucket->tokens += pages * SECOND_NS;
}

u64 neotier_bucket_pages(u64 rate, u64 interval_ns)
{
	return rate * interval_ns / SECOND_NS;
}
