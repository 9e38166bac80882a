// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * S3-FIFO: a small FIFO (10 %) that most newcomers leave at once, a main FIFO where a touched object gets another round, and a
 * memory of what the small one dropped, which enters main on return. Right for one-hit wonders at little cost a hit; wrong where
 * nothing returns within the small queue's life. 10 bytes an object.
 */
#include "base.h"

enum { S3_GHOST = 1, S3_SMALL = NT_HELD, S3_MAIN };

struct s3fifo {
	struct nt_base base;
	struct nt_list small, main, ghost;
	struct nt_link *links;
	uint8_t *touches; /* [objects], 0 .. 3 */
	uint32_t small_max, ghost_max;
};

static const struct neotier_placement_param s3fifo_params[] = {
	{ "small_share", 0.1, 0.001, 0.999, "FIFO of newcomers, share of the capacity; the memory is as long as the rest" },
};

static void s3fifo_carve(struct s3fifo *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	s->links = nt_carve(block, offset, config->objects, sizeof(struct nt_link));
	s->touches = nt_carve(block, offset, config->objects, 1);
}

static void s3fifo_start(struct s3fifo *s, const struct neotier_placement_config *config)
{
	nt_list_init(&s->small);
	nt_list_init(&s->main);
	nt_list_init(&s->ghost);
	s->small_max = (uint32_t)(config->params[0] * (double)config->capacity);
	s->ghost_max = config->capacity - s->small_max;
}

NT_STATE(s3fifo, base, 1)

static int s3fifo_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct s3fifo *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->base, object))
		return NEOTIER_REFUSED;
	if (s->touches[object] < 3)
		s->touches[object]++;
	return NEOTIER_OK;
}

static int s3fifo_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct s3fifo *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	s->touches[object] = 0;
	if (s->base.place[object] == S3_GHOST) {
		nt_list_unlink(&s->ghost, s->links, object);
		s->base.place[object] = S3_MAIN;
		nt_list_push_front(&s->main, s->links, object);
	} else {
		s->base.place[object] = S3_SMALL;
		nt_list_push_front(&s->small, s->links, object);
	}
	return NEOTIER_OK;
}

static int s3fifo_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct s3fifo *s = state;
	uint8_t place;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	place = s->base.place[object];
	if (place == NT_OUT)
		return NEOTIER_OK;
	s->base.place[object] = NT_OUT;
	nt_list_unlink(place == S3_GHOST ? &s->ghost : place == S3_SMALL ? &s->small : &s->main, s->links, object);
	if (place != S3_SMALL || reason != NEOTIER_EVICTED)
		return NEOTIER_OK;
	s->base.place[object] = S3_GHOST;
	nt_list_push_front(&s->ghost, s->links, object);
	if (s->ghost.size > s->ghost_max) {
		s->base.place[s->ghost.back] = NT_OUT;
		nt_list_unlink(&s->ghost, s->links, s->ghost.back);
	}
	return NEOTIER_OK;
}

static void s3fifo_to_main(struct s3fifo *s, struct nt_list *from, uint32_t object)
{
	nt_list_unlink(from, s->links, object);
	s->base.place[object] = S3_MAIN;
	nt_list_push_front(&s->main, s->links, object);
}

static uint32_t s3fifo_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct s3fifo *s = state;
	/* An object counts at most 3 touches and main's rounds take one off each: more steps mean that all left are pinned. */
	uint32_t steps = 5 * (s->small.size + s->main.size) + 1, object;

	(void)event, (void)index, (void)want;
	while (steps-- > 0) {
		if (s->small.size > s->small_max || s->main.size == 0) {
			object = s->small.back;
			if (object == NEOTIER_NO_OBJECT)
				return 0;
			if (s->touches[object] > 1 || (s->base.flags[object] & NEOTIER_PINNED)) {
				s->touches[object] = 0;
				s3fifo_to_main(s, &s->small, object);
				continue;
			}
		} else {
			object = s->main.back;
			if (s->touches[object] > 0 || (s->base.flags[object] & NEOTIER_PINNED)) {
				s->touches[object] = s->touches[object] > 0 ? s->touches[object] - 1 : 0;
				s3fifo_to_main(s, &s->main, object);
				continue;
			}
		}
		out[0] = object;
		return 1;
	}
	/* All of the queue whose turn it was are pinned. */
	return nt_list_take(&s->small, s->links, s->base.flags, 1, out) ||
	       nt_list_take(&s->main, s->links, s->base.flags, 1, out);
}

const struct neotier_placement neotier_placement_s3fifo = {
	NT_SLOTS(s3fifo),
	.name = "s3-fifo",
	.text = "a small FIFO that filters newcomers, a main FIFO with second chances",
	.source = "Yang et al., FIFO queues are all you need, SOSP 2023",
	.flags = NEOTIER_KV,
	.nr_params = 1,
	.params = s3fifo_params,
};
