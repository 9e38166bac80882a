// SPDX-License-Identifier: GPL-2.0-only
/*
 * Promotion quota: a token bucket over all devices. It holds at most NEOTIER_QUOTA_BURST_NS of the rate, so that a burst
 * after a quiet time stays short, and at least one page, so that the smallest quota still moves something.
 */
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/spinlock.h>
#include "neotier.h"

#define NEOTIER_QUOTA_BURST_NS (100 * NSEC_PER_MSEC)
#define NEOTIER_PAGES_PER_MB (1UL << (20 - PAGE_SHIFT))

/* Tokens are pages x 10^9: at the largest quota (2^28 pages/s) a second of them is 2^58. */
static struct {
	spinlock_t lock;
	u64 tokens;
	u64 filled_ns;
} neotier_bucket = { .lock = __SPIN_LOCK_UNLOCKED(neotier_bucket.lock) };

static u64 neotier_quota_rate(void)
{
	return (u64)READ_ONCE(neotier_knobs.quota_mb_per_s) * NEOTIER_PAGES_PER_MB;
}

void neotier_quota_init(void)
{
	neotier_bucket.tokens = 0;
	neotier_bucket.filled_ns = ktime_get_ns();
}

unsigned int neotier_quota_take(unsigned int pages)
{
	u64 rate = neotier_quota_rate(), cap, now = ktime_get_ns(), granted;

	cap = max_t(u64, rate * NEOTIER_QUOTA_BURST_NS, rate ? NSEC_PER_SEC : 0);
	spin_lock(&neotier_bucket.lock);
	if (now > neotier_bucket.filled_ns) {
		neotier_bucket.tokens += rate * min_t(u64, now - neotier_bucket.filled_ns, NSEC_PER_SEC);
		neotier_bucket.filled_ns = now;
	}
	neotier_bucket.tokens = min(neotier_bucket.tokens, cap);
	granted = min_t(u64, pages, div_u64(neotier_bucket.tokens, NSEC_PER_SEC));
	neotier_bucket.tokens -= granted * NSEC_PER_SEC;
	spin_unlock(&neotier_bucket.lock);
	return granted;
}

void neotier_quota_return(unsigned int pages)
{
	spin_lock(&neotier_bucket.lock);
	neotier_bucket.tokens += (u64)pages * NSEC_PER_SEC;
	spin_unlock(&neotier_bucket.lock);
}

u64 neotier_quota_pages(u64 interval_ns)
{
	return mul_u64_u64_div_u64(neotier_quota_rate(), interval_ns, NSEC_PER_SEC);
}
