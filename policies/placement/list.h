/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Doubly linked lists over object handles, in arrays of the policy's state: 8 bytes an object for all lists it is never on twice. */
#ifndef NEOTIER_PLACEMENT_LIST_H
#define NEOTIER_PLACEMENT_LIST_H

#include <stdint.h>

#include "neotier_placement.h"

struct nt_link {
	uint32_t prev, next;
};

/* Front: most recent. Empty: both NEOTIER_NO_OBJECT. */
struct nt_list {
	uint32_t front, back, size;
};

static inline void nt_list_init(struct nt_list *list)
{
	list->front = list->back = NEOTIER_NO_OBJECT;
	list->size = 0;
}

static inline void nt_list_push_front(struct nt_list *list, struct nt_link *links, uint32_t object)
{
	links[object].prev = NEOTIER_NO_OBJECT;
	links[object].next = list->front;
	if (list->front != NEOTIER_NO_OBJECT)
		links[list->front].prev = object;
	else
		list->back = object;
	list->front = object;
	list->size++;
}

/* Next to `neighbour`, which is in the list, on its older side. */
static inline void nt_list_insert_behind(struct nt_list *list, struct nt_link *links, uint32_t neighbour, uint32_t object)
{
	uint32_t next = links[neighbour].next;

	links[object].prev = neighbour;
	links[object].next = next;
	links[neighbour].next = object;
	if (next != NEOTIER_NO_OBJECT)
		links[next].prev = object;
	else
		list->back = object;
	list->size++;
}

static inline void nt_list_unlink(struct nt_list *list, struct nt_link *links, uint32_t object)
{
	uint32_t prev = links[object].prev, next = links[object].next;

	if (prev != NEOTIER_NO_OBJECT)
		links[prev].next = next;
	else
		list->front = next;
	if (next != NEOTIER_NO_OBJECT)
		links[next].prev = prev;
	else
		list->back = prev;
	list->size--;
}

/* Writes up to `want` unpinned objects to `out`, from the back; returns how many. */
static inline uint32_t nt_list_take(const struct nt_list *list, const struct nt_link *links, const uint8_t *flags,
				    uint32_t want, uint32_t *out)
{
	uint32_t found = 0, object;

	for (object = list->back; object != NEOTIER_NO_OBJECT && found < want; object = links[object].prev) {
		if (!(flags[object] & NEOTIER_PINNED))
			out[found++] = object;
	}
	return found;
}

#endif
