// SPDX-License-Identifier: GPL-2.0-only
/*
 * Page cache and shared memory. Who maps it is owner.c's; here is what the file's own page has to be like.
 *
 * Invariant: what moves is in no state that its file system keeps elsewhere. It is up to date, clean or in memory alone, without
 * buffers, and of a file system whose own way to move such a page is the kernel's plain one. A memory policy of the file, or of
 * its mount, is its owner's word: such files stay as they are.
 */
#include <linux/fs.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/shmem_fs.h>
#include "compat.h"
#include "neotier.h"

static bool neotier_mapping_is_plain(const struct address_space *mapping)
{
	neotier_migrate_fn *migrate = mapping->a_ops->migrate_folio;

	return migrate == migrate_folio || migrate == filemap_migrate_folio || neotier_migrates_buffers(migrate);
}

/* Shared memory's own, or that of its file system. */
static bool neotier_mapping_has_policy(struct address_space *mapping)
{
	const struct shmem_sb_info *shmem;

	if (!shmem_mapping(mapping))
		return false;
	shmem = mapping->host->i_sb->s_fs_info;
	return READ_ONCE(SHMEM_I(mapping->host)->policy.root.rb_node) || READ_ONCE(shmem->mpol);
}

enum neotier_skip neotier_cached_check(struct folio *folio, enum neotier_hold hold)
{
	struct address_space *mapping;

	if (!READ_ONCE(neotier_knobs.page_cache) || folio_test_large(folio) || !folio_test_uptodate(folio) || folio_has_private(folio) ||
	    (folio_test_dirty(folio) && !folio_test_swapbacked(folio)))	/* shared memory is dirty always */
		return NEOTIER_SKIP_FILE;
	/* Without the lock the file may go away meanwhile. */
	if (hold != NEOTIER_LOCKED)
		return NR_NEOTIER_SKIP;
	mapping = READ_ONCE(folio->mapping);
	if (!mapping || ((unsigned long)mapping & FOLIO_MAPPING_FLAGS))
		return NEOTIER_SKIP_BUSY;
	if (!neotier_mapping_is_plain(mapping))
		return NEOTIER_SKIP_FILE;
	return neotier_mapping_has_policy(mapping) ? NEOTIER_SKIP_MEMPOLICY : NR_NEOTIER_SKIP;
}

bool neotier_cached_accessed(struct folio *folio, bool clear)
{
	bool referenced = folio_test_referenced(folio);

	if (clear && referenced)
		folio_clear_referenced(folio);
	/* Of one that is mapped its Accessed bits say more: it may stay active until reclaim comes by. */
	return referenced || (folio_test_active(folio) && !neotier_folio_mapcount(folio));
}
