// SPDX-License-Identifier: GPL-2.0-only
/*
 * The promotion quota of all devices together: promotion/quota.h under a lock.
 */
#include <linux/ktime.h>
#include <linux/spinlock.h>
#include "neotier.h"

static DEFINE_SPINLOCK(neotier_bucket_lock);
static struct neotier_bucket neotier_bucket;

static u64 neotier_knob_rate(void)
{
	return neotier_quota_rate(READ_ONCE(neotier_knobs.quota_mb_per_s));
}

void neotier_quota_init(void)
{
	neotier_bucket = (struct neotier_bucket){ .filled_ns = ktime_get_ns() };
}

unsigned int neotier_quota_take(unsigned int pages)
{
	u64 now = ktime_get_ns();
	u32 granted;

	spin_lock(&neotier_bucket_lock);
	granted = neotier_bucket_take(&neotier_bucket, neotier_knob_rate(), pages, now);
	spin_unlock(&neotier_bucket_lock);
	return granted;
}

void neotier_quota_return(unsigned int pages)
{
	spin_lock(&neotier_bucket_lock);
	neotier_bucket_return(&neotier_bucket, pages);
	spin_unlock(&neotier_bucket_lock);
}

u64 neotier_quota_pages(u64 interval_ns)
{
	return neotier_bucket_pages(neotier_knob_rate(), interval_ns);
}
