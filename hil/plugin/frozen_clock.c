// SPDX-License-Identifier: Apache-2.0
/*
 * Loaded before QEMU's own libraries: the host's wall clock stands still for it. QEMU shrinks its TLB when 100 ms of wall
 * clock have passed with few entries in use. Which pages are in that TLB decides when a page table's Accessed bit is set
 * again after the guest's kernel has cleared it, and so what kswapd demotes: the one way found in which the host's speed
 * reached the guest's figures. Nothing else of a machine whose real-time clock follows virtual time asks for the wall clock.
 */
#include <sys/time.h>

__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	(void)zone;
	now->tv_sec = 1767225600; /* 2026-01-01, as the guest's clock starts */
	now->tv_usec = 0;
	return 0;
}
