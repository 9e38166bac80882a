// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whose memory a page is, and whether its owner lets it move. A page is found from its PFN, so everything that its owner
 * said about it (mempolicy, cpuset, mlock) has to be found from there too: the page's anon_vma knows each VMA that may map
 * it, the VMA its policy and its mm, the mm its process.
 *
 * Invariant: no page moves unless each process that may map it was seen to allow that, and the mmap_lock of each is held,
 * read, from the look until the page is mapped again. mbind(), mlock(), fork(), munmap() need it for writing: they come
 * before the look, which then obeys them, or find the page where it will be, mapped. set_mempolicy() and the cpuset's files
 * take no such lock: a page on its way when they are written, one at a time and for some 20 microseconds, moves as if it had
 * moved before. Where any lock is not to be had at once the page stays.
 *
 * Conservative in one way: after fork() a page that one process alone maps may still be looked for in both. The rules of
 * both hold then.
 */
#include <linux/cpuset.h>
#include <linux/interval_tree_generic.h>
#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/rcupdate.h>
#include <linux/rmap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include "compat.h"
#include "neotier.h"

static inline unsigned long neotier_avc_first(struct anon_vma_chain *avc)
{
	return neotier_vma_anon_pgoff(avc->vma);
}

static inline unsigned long neotier_avc_last(struct anon_vma_chain *avc)
{
	return neotier_vma_anon_pgoff(avc->vma) + vma_pages(avc->vma) - 1;
}

/* To read the kernel's own tree only: keys and augmentation are those of mm/interval_tree.c. */
INTERVAL_TREE_DEFINE(struct anon_vma_chain, rb, unsigned long, rb_subtree_last, neotier_avc_first, neotier_avc_last,
		     static inline __maybe_unused, neotier_avc)

static inline unsigned long neotier_file_first(struct vm_area_struct *vma)
{
	return vma->vm_pgoff;
}

static inline unsigned long neotier_file_last(struct vm_area_struct *vma)
{
	return vma->vm_pgoff + vma_pages(vma) - 1;
}

/* So here, of a file's mappings. */
INTERVAL_TREE_DEFINE(struct vm_area_struct, shared.rb, unsigned long, shared.rb_subtree_last, neotier_file_first, neotier_file_last,
		     static inline __maybe_unused, neotier_file)

static unsigned long neotier_file_address(const struct vm_area_struct *vma, unsigned long index)
{
	return vma->vm_start + ((index - vma->vm_pgoff) << PAGE_SHIFT);
}

/*
 * Interleaving counts as a choice of the slow node: its owner wants the bandwidth of both tiers, and a page that leaves
 * takes its share of it away. A page that lies on the slow node by no choice (a fall-back, MPOL_LOCAL) may move.
 */
static bool neotier_policy_allows(const struct mempolicy *policy, struct neotier_way way)
{
	if (!policy)
		return true;
	switch (policy->mode) {
	case MPOL_DEFAULT:
	case MPOL_LOCAL:
		return true;
	case MPOL_BIND:
		return node_isset(way.to, policy->nodes);
	case MPOL_PREFERRED:
	case MPOL_PREFERRED_MANY:
		return node_isset(way.to, policy->nodes) || !node_isset(way.from, policy->nodes);
	case MPOL_INTERLEAVE:
	NEOTIER_CASE_WEIGHTED_INTERLEAVE
		return !node_isset(way.from, policy->nodes);
	default:
		return false;
	}
}

/* All threads: which of them touched the page first is not known. Under RCU. */
static enum neotier_skip neotier_process_check(struct neotier_way way, struct task_struct *process, bool by_process_policy)
{
	struct task_struct *thread;

	if (!neotier_rules_process(process))
		return NEOTIER_SKIP_PROCESS;
	for_each_thread(process, thread) {
		bool allowed = true;

#ifdef CONFIG_CPUSETS
		if (!node_isset(way.to, thread->mems_allowed))
			return NEOTIER_SKIP_CPUSET;
#endif
		if (!by_process_policy || !READ_ONCE(thread->mempolicy))
			continue;
		/* The thread may change or free its policy, under this lock. */
		task_lock(thread);
		allowed = neotier_policy_allows(thread->mempolicy, way);
		task_unlock(thread);
		if (!allowed)
			return NEOTIER_SKIP_MEMPOLICY;
	}
	return NR_NEOTIER_SKIP;
}

/* Under the mmap_lock of vma->vm_mm. */
static enum neotier_skip neotier_vma_check(struct neotier_way way, struct vm_area_struct *vma, unsigned long address)
{
	struct mempolicy *policy, *shared = NULL;
	struct task_struct *process;
	bool allowed, by_process;
	enum neotier_skip reason;

	if (vma->vm_flags & VM_LOCKED)
		return NEOTIER_SKIP_UNEVICTABLE;
	if (way.down && mm_has_notifiers(vma->vm_mm))
		return NEOTIER_SKIP_GUEST;
	if (vma->vm_ops && vma->vm_ops->get_policy)
		policy = shared = neotier_shared_policy(vma, address);
	else
		policy = vma->vm_policy;
	by_process = !policy;
	allowed = neotier_policy_allows(policy, way);
	/*
	 * The file's tree has a reference of its own. If it has dropped that meanwhile, ours is the last one, and mpol_put() is
	 * not for modules: then the policy's few bytes are lost.
	 */
	if (shared && shared->flags & MPOL_F_SHARED)
		atomic_add_unless(&shared->refcnt, -1, 1);
	if (!allowed)
		return NEOTIER_SKIP_MEMPOLICY;
	rcu_read_lock();
	process = rcu_dereference(vma->vm_mm->owner);
	reason = process ? neotier_process_check(way, process, by_process) : NEOTIER_SKIP_OWNER;
	rcu_read_unlock();
	return reason;
}

void neotier_owner_release(struct neotier_owner *owner)
{
	while (owner->nr) {
		struct mm_struct *mm = owner->mms[--owner->nr];

		mmap_read_unlock(mm);
		mmdrop(mm);
	}
}

static enum neotier_skip neotier_owner_add(struct neotier_owner *owner, struct mm_struct *mm, unsigned long page,
					   unsigned long address)
{
	unsigned int i;

	for (i = 0; i < owner->nr; i++)
		if (owner->mms[i] == mm)
			return NR_NEOTIER_SKIP;
	if (owner->nr == NEOTIER_OWNERS_MAX)
		return NEOTIER_SKIP_OWNER;
	/* Tried only: mmap_lock comes before the anon_vma's lock everywhere else. */
	if (!mmap_read_trylock(mm))
		return NEOTIER_SKIP_CONTENDED;
	mmgrab(mm);
	owner->pages[owner->nr] = page;
	owner->addresses[owner->nr] = address;
	owner->mms[owner->nr++] = mm;
	return NR_NEOTIER_SKIP;
}

/* With the anon_vma's lock held each VMA in its tree stays, and so does its mm. */
static enum neotier_skip neotier_owner_walk(struct neotier_way way, struct anon_vma *anon_vma, struct folio *folio,
					    struct neotier_owner *owner)
{
	unsigned long first = folio->index, last = first + folio_nr_pages(folio) - 1;
	enum neotier_skip reason = NEOTIER_SKIP_OWNER;
	struct anon_vma_chain *avc;

	for (avc = neotier_avc_iter_first(&anon_vma->rb_root, first, last); avc; avc = neotier_avc_iter_next(avc, first, last)) {
		struct vm_area_struct *vma = avc->vma;
		unsigned long begin = neotier_vma_anon_pgoff(vma), index = max(first, begin);
		unsigned long address = vma->vm_start + ((index - begin) << PAGE_SHIFT);

		reason = neotier_owner_add(owner, vma->vm_mm, index - first, address);
		if (reason == NR_NEOTIER_SKIP)
			reason = neotier_vma_check(way, vma, address);
		if (reason != NR_NEOTIER_SKIP)
			return reason;
	}
	return reason;
}

/*
 * Locks the root of the tree of VMAs that may map the folio, read. An anon_vma's memory stays one under RCU, but may be another
 * page's by now: locked, and then looked at again. NULL: @why, since nobody maps it, or since it is locked.
 */
static struct anon_vma *neotier_anon_vma_lock(struct folio *folio, struct anon_vma **root, enum neotier_skip *why)
{
	struct anon_vma *anon_vma;

	*why = NEOTIER_SKIP_OWNER;
	rcu_read_lock();
	anon_vma = neotier_folio_anon_vma(folio);
	if (!anon_vma || !folio_mapped(folio))
		goto none;
	*root = READ_ONCE(anon_vma->root);
	if (!down_read_trylock(&(*root)->rwsem)) {
		*why = NEOTIER_SKIP_CONTENDED;
		goto none;
	}
	if (neotier_folio_anon_vma(folio) != anon_vma || !folio_mapped(folio)) {
		up_read(&(*root)->rwsem);
		goto none;
	}
	rcu_read_unlock();
	return anon_vma;

none:
	rcu_read_unlock();
	return NULL;
}

/* Its mappings and their mms stay then. Return: its file, or NULL: @why. */
static struct address_space *neotier_file_lock(struct folio *folio, enum neotier_hold hold, enum neotier_skip *why)
{
	struct address_space *mapping;

	*why = NEOTIER_SKIP_BUSY;
	/* A file may go away while none of its pages is locked. */
	if (hold != NEOTIER_LOCKED && !folio_trylock(folio))
		return NULL;
	mapping = READ_ONCE(folio->mapping);
	if (mapping && !((unsigned long)mapping & FOLIO_MAPPING_FLAGS)) {
		if (i_mmap_trylock_read(mapping))
			return mapping;
		*why = NEOTIER_SKIP_CONTENDED;
	}
	if (hold != NEOTIER_LOCKED)
		folio_unlock(folio);
	return NULL;
}

static void neotier_file_unlock(struct address_space *mapping, struct folio *folio, enum neotier_hold hold)
{
	i_mmap_unlock_read(mapping);
	if (hold != NEOTIER_LOCKED)
		folio_unlock(folio);
}

static enum neotier_skip neotier_sharer_check(struct neotier_way way, struct vm_area_struct *vma, unsigned long address)
{
	enum neotier_skip reason;

	/* It ends, and wants nothing any more. */
	if (!atomic_read(&vma->vm_mm->mm_users))
		return NR_NEOTIER_SKIP;
	/* A program's code is fetched by a TLB that may remember it for long: that it is not in use cannot be told. */
	if (way.down && (vma->vm_flags & VM_EXEC))
		return NEOTIER_SKIP_FILE;
	/* Tried only: mmap_lock comes before the file's lock everywhere else. */
	if (!mmap_read_trylock(vma->vm_mm))
		return NEOTIER_SKIP_CONTENDED;
	reason = neotier_vma_check(way, vma, address);
	mmap_read_unlock(vma->vm_mm);
	return reason;
}

static enum neotier_skip neotier_sharers_walk(struct neotier_way way, struct address_space *mapping, unsigned long index)
{
	struct vm_area_struct *vma = neotier_file_iter_first(&mapping->i_mmap, index, index);
	unsigned int nr = 0;

	if (!vma)
		return way.down || neotier_rules_nobody() ? NR_NEOTIER_SKIP : NEOTIER_SKIP_PROCESS;
	for (; vma; vma = neotier_file_iter_next(vma, index, index)) {
		enum neotier_skip reason;

		if (++nr > NEOTIER_SHARERS_MAX)
			return NEOTIER_SKIP_OWNER;
		reason = neotier_sharer_check(way, vma, neotier_file_address(vma, index));
		if (reason != NR_NEOTIER_SKIP)
			return reason;
	}
	return NR_NEOTIER_SKIP;
}

enum neotier_skip neotier_sharers_check(struct neotier_way way, struct folio *folio, enum neotier_hold hold)
{
	enum neotier_skip reason;
	struct address_space *mapping = neotier_file_lock(folio, hold, &reason);

	if (!mapping)
		return reason;
	reason = neotier_sharers_walk(way, mapping, folio->index);
	neotier_file_unlock(mapping, folio, hold);
	return reason;
}

/* Else what one of them does not show would be taken for idle. */
static bool neotier_sharers_show(struct address_space *mapping, unsigned long index)
{
	struct vm_area_struct *vma;
	unsigned int nr = 0;

	for (vma = neotier_file_iter_first(&mapping->i_mmap, index, index); vma; vma = neotier_file_iter_next(vma, index, index))
		if (++nr > NEOTIER_SHARERS_MAX || (vma->vm_flags & (VM_EXEC | VM_LOCKED)) || mm_has_notifiers(vma->vm_mm))
			return false;
	return true;
}

static void neotier_sharers_each(struct folio *folio, bool (*visit)(struct vm_area_struct *vma, unsigned long address, void *arg),
				 void *arg)
{
	enum neotier_skip why;
	struct address_space *mapping = neotier_file_lock(folio, NEOTIER_REFERENCED, &why);
	unsigned long index = folio->index;
	struct vm_area_struct *vma;

	if (!mapping)
		return;
	if (neotier_sharers_show(mapping, index))
		for (vma = neotier_file_iter_first(&mapping->i_mmap, index, index); vma; vma = neotier_file_iter_next(vma, index, index))
			if (!visit(vma, neotier_file_address(vma, index), arg))
				break;
	neotier_file_unlock(mapping, folio, NEOTIER_REFERENCED);
}

static void neotier_anon_each(struct folio *folio, bool (*visit)(struct vm_area_struct *vma, unsigned long address, void *arg), void *arg)
{
	enum neotier_skip why;
	struct anon_vma *root, *anon_vma = neotier_anon_vma_lock(folio, &root, &why);
	unsigned long index = folio->index;
	struct anon_vma_chain *avc;

	if (!anon_vma)
		return;
	for (avc = neotier_avc_iter_first(&anon_vma->rb_root, index, index); avc; avc = neotier_avc_iter_next(avc, index, index)) {
		struct vm_area_struct *vma = avc->vma;

		if (!visit(vma, vma->vm_start + ((index - neotier_vma_anon_pgoff(vma)) << PAGE_SHIFT), arg))
			break;
	}
	up_read(&root->rwsem);
}

void neotier_owner_each(struct folio *folio, bool (*visit)(struct vm_area_struct *vma, unsigned long address, void *arg), void *arg)
{
	if (folio_test_anon(folio))
		neotier_anon_each(folio, visit, arg);
	else
		neotier_sharers_each(folio, visit, arg);
}

enum neotier_skip neotier_owner_hold(struct neotier_way way, struct folio *folio, struct neotier_owner *owner)
{
	enum neotier_skip reason;
	struct anon_vma *root, *anon_vma;

	owner->nr = 0;
	if (!folio_test_anon(folio))
		return neotier_sharers_check(way, folio, NEOTIER_REFERENCED);
	anon_vma = neotier_anon_vma_lock(folio, &root, &reason);
	if (!anon_vma)
		return reason;
	reason = neotier_owner_walk(way, anon_vma, folio, owner);
	up_read(&root->rwsem);
	if (reason != NR_NEOTIER_SKIP)
		neotier_owner_release(owner);
	return reason;
}
