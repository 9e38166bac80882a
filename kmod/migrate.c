// SPDX-License-Identifier: GPL-2.0-only
/*
 * Moving pages, by PFN alone and with exported functions alone: migrate_device_range() isolates, locks and unmaps a page
 * wherever it is mapped, migrate_device_pages() hands its identity to the new page, migrate_device_finalize() maps that
 * (or the old page again) and frees whichever is left over. The only file that calls the kernel's migration.
 *
 * Not here: large folios, page cache, KSM (see neotier_page_check()). The mempolicy and the cpuset of a page's users
 * cannot be seen from a PFN, so a page bound to the slow node by its owner is moved all the same; the owner excludes
 * itself by mlock() or exclude_cgroups. Moves made here do not count in pgmigrate_success or pgpromote_success.
 */
#include <linux/ktime.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include "compat.h"
#include "neotier.h"
#include "trace.h"

int neotier_migrate_batch(struct neotier_device *dev, unsigned int nr)
{
	unsigned int got, used = 0, moved = 0, n = 0, i;
	struct neotier_hot *hot = dev->batch;
	unsigned long pfn;
	u64 start = ktime_get_ns(), end;

	for (got = 0; got < nr; got++) {
		dev->pool[got] = neotier_room_take(dev);
		if (!dev->pool[got])
			break;
	}
	if (got < nr)
		neotier_hotlist_untake(dev, hot + got, nr - got);
	if (!got)
		return -ENOMEM;
	neotier_hotlist_done(dev, hot, got);

	/* From here until migrate_device_finalize() whoever touches one of these pages sleeps: no allocation in between. */
	for (i = 0; i < got; i++) {
		enum neotier_skip reason;
		struct page *from, *to = dev->pool[used];

		pfn = neotier_hot_pfn(dev, &hot[i]);
		dev->src[n] = 0;
		dev->dst[n] = 0;
		if (migrate_device_range(&dev->src[n], pfn, 1) || !(dev->src[n] & MIGRATE_PFN_MIGRATE)) {
			neotier_skip(dev, pfn, NEOTIER_SKIP_BUSY);
			continue;
		}
		from = migrate_pfn_to_page(dev->src[n]);
		reason = neotier_page_check(dev, from, true);
		if (reason == NR_NEOTIER_SKIP) {
			/* Before the page is published: its users must never see an unfinished copy. */
			if (neotier_copy_page(to, from)) {
				reason = NEOTIER_SKIP_BUSY;
			} else {
				lock_page(to);
				dev->dst[n] = migrate_pfn(page_to_pfn(to));
				used++;
			}
		}
		if (reason != NR_NEOTIER_SKIP)
			neotier_skip(dev, pfn, reason);
		/* Without a destination finalize maps the page where it was. */
		hot[n++] = hot[i];
	}

	migrate_device_pages(dev->src, dev->dst, n);
	end = ktime_get_ns();
	for (i = 0; i < n; i++) {
		struct page *to = migrate_pfn_to_page(dev->dst[i]);

		if (!to)
			continue;
		pfn = neotier_hot_pfn(dev, &hot[i]);
		if (!(dev->src[i] & MIGRATE_PFN_MIGRATE)) {
			neotier_skip(dev, pfn, NEOTIER_SKIP_BUSY);
			continue;
		}
		/*
		 * A page that was demoted comes without a sign of use, and would be among the first to be demoted again:
		 * the device's report is that sign.
		 */
		folio_set_active(page_folio(to));
		neotier_ping_pong_note(dev, to);
		trace_neotier_promote_page(pfn, page_to_pfn(to), end - hot[i].drained_ns);
		moved++;
	}
	migrate_device_finalize(dev->src, dev->dst, n);
	for (i = used; i < got; i++)
		__free_page(dev->pool[i]);

	end = ktime_get_ns();
	neotier_stat_add(dev, NEOTIER_STAT_TRIED, got);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTED, moved);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTE_FAILED, got - moved);
	neotier_stat_add(dev, NEOTIER_STAT_BATCHES, 1);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTE_NS, end - start);
	trace_neotier_promote(got, moved, end - start);
	return moved;
}
