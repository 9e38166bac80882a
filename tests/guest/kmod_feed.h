/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between kmod_device, which plays a NeoProf device, and the test programs, which tell it what is hot: a file that both
 * map. Test programs only; a real device finds out for itself.
 */
#ifndef KMOD_FEED_H
#define KMOD_FEED_H

#include <stdint.h>

#define KMOD_FEED_PATH "/tmp/neotier-feed"
#define KMOD_FEED_MAX 131072

struct kmod_feed {
	volatile uint32_t count;	/* pages in pfn[]; written last */
	volatile uint32_t rounds;	/* written by kmod_device: times it has reported all of them */
	uint64_t pfn[KMOD_FEED_MAX];
};

#endif
