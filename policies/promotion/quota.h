/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Promotion quota: a token bucket. It holds at most NEOTIER_QUOTA_BURST_NS of the rate, so that a burst after a quiet time
 * stays short, and at least one page, so that the smallest quota still moves something.
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_QUOTA_H
#define NEOTIER_QUOTA_H

#include "neotier_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NEOTIER_QUOTA_BURST_NS 100000000ULL
/* The largest rate, 1 TiB/s: then a minute of it is less than 2^64 tokens. */
#define NEOTIER_QUOTA_RATE_MAX (1ULL << 28)

/* Tokens are pages x 10^9. Empty when zeroed. */
struct neotier_bucket {
	u64 tokens;
	u64 filled_ns;
};

/* Pages a second at so many MiB a second. */
static inline u64 neotier_quota_rate(u64 mb_per_s)
{
	return mb_per_s * 256;
}

/**
 * neotier_bucket_take() - take pages from the quota
 * @bucket: bucket
 * @rate: pages a second, 0 .. NEOTIER_QUOTA_RATE_MAX
 * @pages: wanted
 * @now_ns: now
 *
 * Return: pages granted, 0 .. @pages.
 */
u32 neotier_bucket_take(struct neotier_bucket *bucket, u64 rate, u32 pages, u64 now_ns);
/* Pages granted and not used. */
void neotier_bucket_return(struct neotier_bucket *bucket, u32 pages);

/* What a rate of up to NEOTIER_QUOTA_RATE_MAX allows in a time of up to a minute. */
u64 neotier_bucket_pages(u64 rate, u64 interval_ns);

#ifdef __cplusplus
}
#endif
#endif
