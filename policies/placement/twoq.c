// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * 2Q: newcomers in a FIFO of a quarter of the room (in); what leaves it is remembered for half a capacity (out); only what comes
 * back while remembered enters the main LRU. Right against scans and bursts of one request; wrong where reuse comes later than the
 * memory reaches. 9 bytes an object.
 */
#include "base.h"

enum { TWOQ_OUT = 1, TWOQ_IN = NT_HELD, TWOQ_MAIN };

struct twoq {
	struct nt_base base;
	struct nt_list in, out, main;
	struct nt_link *links;
	uint32_t in_max, out_max;
};

static const struct neotier_placement_param twoq_params[] = {
	{ "in_share", 0.25, 0, 1, "FIFO of newcomers, share of the capacity" },
	{ "out_share", 0.5, 0, 100, "remembered after it, share of the capacity" },
};

static void twoq_carve(struct twoq *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	s->links = nt_carve(block, offset, config->objects, sizeof(struct nt_link));
}

static void twoq_start(struct twoq *s, const struct neotier_placement_config *config)
{
	nt_list_init(&s->in);
	nt_list_init(&s->out);
	nt_list_init(&s->main);
	s->in_max = (uint32_t)(config->params[0] * (double)config->capacity);
	s->out_max = (uint32_t)(config->params[1] * (double)config->capacity);
}

NT_STATE(twoq, base, 1)

static int twoq_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct twoq *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->base, object))
		return NEOTIER_REFUSED;
	if (s->base.place[object] == TWOQ_MAIN) {
		nt_list_unlink(&s->main, s->links, object);
		nt_list_push_front(&s->main, s->links, object);
	}
	return NEOTIER_OK;
}

static int twoq_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct twoq *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	if (s->base.place[object] == TWOQ_OUT) {
		nt_list_unlink(&s->out, s->links, object);
		s->base.place[object] = TWOQ_MAIN;
		nt_list_push_front(&s->main, s->links, object);
	} else {
		s->base.place[object] = TWOQ_IN;
		nt_list_push_front(&s->in, s->links, object);
	}
	return NEOTIER_OK;
}

static int twoq_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct twoq *s = state;
	uint8_t place;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	place = s->base.place[object];
	if (place == NT_OUT)
		return NEOTIER_OK;
	s->base.place[object] = NT_OUT;
	nt_list_unlink(place == TWOQ_OUT ? &s->out : place == TWOQ_IN ? &s->in : &s->main, s->links, object);
	if (place != TWOQ_IN || reason != NEOTIER_EVICTED || s->out_max == 0)
		return NEOTIER_OK;
	s->base.place[object] = TWOQ_OUT;
	nt_list_push_front(&s->out, s->links, object);
	if (s->out.size > s->out_max) {
		s->base.place[s->out.back] = NT_OUT;
		nt_list_unlink(&s->out, s->links, s->out.back);
	}
	return NEOTIER_OK;
}

static uint32_t twoq_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct twoq *s = state;
	int in_first = s->in.size > s->in_max || s->main.size == 0;
	uint32_t found = nt_list_take(in_first ? &s->in : &s->main, s->links, s->base.flags, want, out);

	(void)event, (void)index;
	return found ? found : nt_list_take(in_first ? &s->main : &s->in, s->links, s->base.flags, want, out);
}

const struct neotier_placement neotier_placement_twoq = {
	NT_SLOTS(twoq),
	.name = "2q",
	.text = "a FIFO for newcomers, an LRU for what came back after leaving it",
	.source = "Johnson, Shasha, 2Q, VLDB 1994",
	.flags = NEOTIER_KV,
	.nr_params = 2,
	.params = twoq_params,
};
