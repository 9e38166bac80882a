// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* prototype */
#include "base.h"
#include "bits.h"

#define BUCKETS 32
#define MOSTCLASS 2048

struct cell { float reuse, pass; };

struct sample { uint32_t object; uint16_t cls; int8_t reused; uint8_t live; float w; uint64_t at; };

struct hazard {
	struct nt_base base;
	uint32_t nclass, words, ncoarse, radix[8]; uint32_t req_gap; float req_w;
	struct nt_list *lists;   /* class x BUCKETS */
	struct nt_link *links;
	uint64_t *touched;       /* clock at last touch */
	uint16_t *cls;
	uint8_t *bucket;
	uint8_t *count, *turn; float *crf; double half;
	uint32_t *sample_of;
	struct cell *cells;      /* class x BUCKETS */
	struct cell *coarse;
	struct cell *all; float mul[8][8][4]; uint8_t *seen; double prior, walpha;
	float *value;            /* class x BUCKETS */
	uint32_t *order;         /* rank -> list */
	uint32_t *rank;          /* list -> rank */
	uint64_t *nonempty;      /* bitmap by rank */
	struct sample *ring; uint32_t ring_size; uint64_t ring_head; uint64_t cursor[BUCKETS];
	uint64_t edge[BUCKETS+1];
	uint64_t clock, refs, next_solve, last_sweep, sampled;
	uint32_t held;
	uint64_t seed;
	/* request */
	uint32_t req_turn, req_lenbin, req_n, req_known;
	/* params */
	double decay, shrink, every; int by_time, use_count, use_turn, use_len, use_end, admit, use_known;
};

static const struct neotier_placement_param hazard_params[] = {
	{ "by_time", 0, 0, 1, "" },
	{ "half", 4e4, 0, 1e9, "" },
	{ "prior", 16, 0, 1e9, "" },
	{ "walpha", 0, 0, 1, "" },
	{ "x4", 1, 0, 1, "" },
	{ "admit", 1, 0, 1, "" },
	{ "decay", 0.98, 0, 1, "" },
	{ "shrink", 16, 0, 1e6, "" },
	{ "every", 1024, 1, 1e9, "" },
	{ "x9", 0, 0, 1, "" },
	{ "count", 1, 0, 100, "" },
	{ "end", 2, 0, 100, "" },
	{ "turn", 4, 0, 100, "" },
	{ "len", 0, 0, 100, "" },
	{ "known", 0, 0, 100, "" },
	{ "gap", 0, 0, 100, "" },
	{ "crf", 0, 0, 100, "" },
	{ "pos", 0, 0, 100, "" },
};



enum { F_COUNT, F_END, F_TURN, F_LEN, F_KNOWN, F_GAP, F_CRF, F_POS, NF };
static const uint32_t full[NF] = { 6, 3, 5, 4, 4, 5, 7, 3 };
static void hazard_carve(struct hazard *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	{ uint32_t f; s->nclass = 1; for (f = 0; f < NF; f++) { uint32_t lim = (uint32_t)config->params[10 + f]; s->radix[f] = lim + 1 < full[f] ? lim + 1 : full[f]; s->nclass *= s->radix[f]; if (f == 1) s->ncoarse = s->nclass; } }
	s->words = (s->nclass * BUCKETS + 63) / 64;
	s->ring_size = 1;
	while (s->ring_size < 4u * config->capacity + 65536 ) s->ring_size *= 2;
	s->lists = nt_carve(block, offset, s->nclass * BUCKETS, sizeof(struct nt_list));
	s->links = nt_carve(block, offset, config->objects, sizeof(struct nt_link));
	s->touched = nt_carve(block, offset, config->objects, 8);
	s->cls = nt_carve(block, offset, config->objects, 2);
	s->bucket = nt_carve(block, offset, config->objects, 1);
	s->count = nt_carve(block, offset, config->objects, 1);
	s->crf = nt_carve(block, offset, config->objects, 4);
	s->turn = nt_carve(block, offset, config->objects, 1);
	s->sample_of = nt_carve(block, offset, config->objects, 4);
	s->cells = nt_carve(block, offset, s->nclass * BUCKETS, sizeof(struct cell));
	s->coarse = nt_carve(block, offset, s->nclass * BUCKETS, sizeof(struct cell));
	s->seen = nt_carve(block, offset, s->nclass, 1);
	s->all = nt_carve(block, offset, BUCKETS, sizeof(struct cell));
	s->value = nt_carve(block, offset, s->nclass * BUCKETS, 4);
	s->order = nt_carve(block, offset, s->nclass * BUCKETS, 4);
	s->rank = nt_carve(block, offset, s->nclass * BUCKETS, 4);
	s->nonempty = nt_carve(block, offset, s->words, 8);
	s->ring = nt_carve(block, offset, s->ring_size, sizeof(struct sample));
}

static void solve(struct hazard *s);

static void hazard_start(struct hazard *s, const struct neotier_placement_config *config)
{
	uint32_t i;
	for (i = 0; i < s->nclass * BUCKETS; i++) { nt_list_init(&s->lists[i]); s->order[i] = s->rank[i] = i; }
	for (i = 0; i < config->objects; i++) s->sample_of[i] = UINT32_MAX;
	s->by_time = (int)config->params[0];
	s->half = config->params[1];
	s->prior = config->params[2]; s->walpha = config->params[3]; { uint32_t x,y,z; for (x=0;x<8;x++) for(y=0;y<8;y++) for(z=0;z<4;z++) s->mul[x][y][z]=1; }
	s->use_end = (int)config->params[4];
	s->admit = (int)config->params[5];
	s->decay = config->params[6];
	s->shrink = config->params[7];
	s->every = config->params[8];
	s->use_known = (int)config->params[9];
	double e = s->by_time ? 0.5e9 : 64;
	for (i = 0; i <= BUCKETS; i++) { s->edge[i] = i ? (uint64_t)e : 0; if (i) e *= 1.4142135623730951; }
	s->seed = config->seed;
	solve(s);
}

NT_STATE(hazard, 1)

static uint32_t bucket_of(struct hazard *s, uint64_t age)
{
	uint32_t b = 0;
	/* linear from below; ages are mostly small steps */
	while (b + 1 < BUCKETS && age >= s->edge[b + 1]) b++;
	return b;
}

static void set_bit(struct hazard *s, uint32_t list) { uint32_t r = s->rank[list]; s->nonempty[r / 64] |= 1ull << (r % 64); }
static void clr_bit(struct hazard *s, uint32_t list) { uint32_t r = s->rank[list]; s->nonempty[r / 64] &= ~(1ull << (r % 64)); }

static void sift(struct hazard *s, uint32_t root, uint32_t n)
{
	uint32_t *o = s->order, v = o[root];
	for (;;) { uint32_t c = 2 * root + 1; if (c >= n) break; if (c + 1 < n && s->value[o[c + 1]] > s->value[o[c]]) c++;
		if (!(s->value[o[c]] > s->value[v])) break; o[root] = o[c]; root = c; }
	o[root] = v;
}

static void solve(struct hazard *s)
{
	uint32_t c, b, n = s->nclass * BUCKETS, i, f, it;
	float h[BUCKETS], w[BUCKETS], base[BUCKETS];
	for (b = 0; b < BUCKETS; b++) { w[b] = (float)(s->edge[b + 1] - s->edge[b]); base[b] = (s->all[b].reuse + 0.05f) / (s->all[b].reuse + s->all[b].pass + 10); }
	for (it = 0; it < 2; it++) for (f = 0; f < NF; f++) {
		float O[8][4], E[8][4]; uint32_t div = 1, g, v, A;
		if (s->radix[f] == 1) continue;
		for (g = f + 1; g < NF; g++) div *= s->radix[g];
		for (v = 0; v < 8; v++) for (A = 0; A < 4; A++) O[v][A] = E[v][A] = 0;
		for (c = 0; c < s->nclass; c++) {
			uint32_t vv = (c / div) % s->radix[f];
			float m[4] = { 1, 1, 1, 1 };
			if (!s->seen[c]) continue;
			{ uint32_t q = c; for (g = NF; g-- > 0;) { for (A = 0; A < 4; A++) m[A] *= s->mul[g][q % s->radix[g]][A]; q /= s->radix[g]; } }
			for (b = 0; b < BUCKETS; b++) { struct cell *e = &s->cells[c * BUCKETS + b]; float p = base[b] * m[b / 8]; if (p > 0.95f) p = 0.95f;
				O[vv][b / 8] += e->reuse; E[vv][b / 8] += (e->reuse + e->pass) * p; }
		}
		for (v = 0; v < s->radix[f]; v++) for (A = 0; A < 4; A++) { float r = (O[v][A] + (float)s->prior) / (E[v][A] + (float)s->prior); s->mul[f][v][A] *= r; }
	}
	for (c = 0; c < s->nclass; c++) {
		uint32_t e, A, q = c;
		float m[4] = { 1, 1, 1, 1 };
		for (f = NF; f-- > 0;) { for (A = 0; A < 4; A++) m[A] *= s->mul[f][q % s->radix[f]][A]; q /= s->radix[f]; }
		for (b = 0; b < BUCKETS; b++) {
			struct cell *z = &s->cells[c * BUCKETS + b];
			float p = base[b] * m[b / 8]; if (p > 0.95f) p = 0.95f;
			h[b] = (float)((z->reuse + s->shrink * p) / (z->reuse + z->pass + s->shrink));
		}
		for (b = 0; b < BUCKETS; b++) {
			float live = 1, gain = 0, time = 0, best = 0;
			for (e = b; e < BUCKETS; e++) {
				gain += live * h[e]; time += live * w[e] * (1 - h[e] / 2); live *= 1 - h[e];
				if (gain > best * time) best = gain / time;
			}
			s->value[c * BUCKETS + b] = best;
		}
	}
	for (i = n / 2; i-- > 0;) sift(s, i, n);
	for (i = n; i-- > 1;) { uint32_t t = s->order[0]; s->order[0] = s->order[i]; s->order[i] = t; sift(s, 0, i); }
	for (i = 0; i < n; i++) s->rank[s->order[i]] = i;
	for (i = 0; i < s->words; i++) s->nonempty[i] = 0;
	for (i = 0; i < n; i++) if (s->lists[i].size) set_bit(s, i);
}

static void put(struct hazard *s, uint32_t object)
{
	uint32_t l = s->cls[object] * BUCKETS + s->bucket[object];
	if (s->lists[l].size == 0) set_bit(s, l);
	nt_list_push_front(&s->lists[l], s->links, object);
}
static void pull(struct hazard *s, uint32_t object)
{
	uint32_t l = s->cls[object] * BUCKETS + s->bucket[object];
	nt_list_unlink(&s->lists[l], s->links, object);
	if (s->lists[l].size == 0) clr_bit(s, l);
}

/* move what has aged */
static void sweep(struct hazard *s)
{
	uint32_t c, b;
	for (c = 0; c < s->nclass; c++) for (b = BUCKETS - 1; b-- > 0;) {
		struct nt_list *l = &s->lists[c * BUCKETS + b];
		while (l->size && s->clock - s->touched[l->back] >= s->edge[b + 1]) {
			uint32_t o = l->back;
			pull(s, o);
			s->bucket[o] = (uint8_t)bucket_of(s, s->clock - s->touched[o]);
			put(s, o);
		}
	}
}

static void learn(struct hazard *s)
{
	uint32_t b;
	for (b = 0; b < BUCKETS; b++) {
		while (s->cursor[b] < s->ring_head) {
			struct sample *p;
			if (s->ring_head - s->cursor[b] > s->ring_size) { s->cursor[b] = s->ring_head - s->ring_size; }
			p = &s->ring[s->cursor[b] & (s->ring_size - 1)];
			if (s->clock - p->at < s->edge[b + 1]) break;
			s->cursor[b]++;
			if (p->reused >= 0 && p->reused < (int)b) continue;
			{
				struct cell *f = &s->cells[p->cls * BUCKETS + b], *g = &s->coarse[(p->cls / (s->nclass / s->ncoarse)) * BUCKETS + b], *a = &s->all[b];
				if (p->reused == (int)b) { f->reuse += p->w; g->reuse += p->w; a->reuse += p->w; }
				else { f->pass += p->w; g->pass += p->w; a->pass += p->w; }
			}
		}
	}
}

static void hazard_event(void *state, const struct neotier_event *event)
{
	struct hazard *s = state;
	uint32_t known = 0, t = 0, i;
	if (s->by_time) s->clock = event->now_ns;
	for (i = 0; i < event->nr; i++) { uint32_t o = event->access[i].object; if (o == NEOTIER_NO_OBJECT || s->count[o] == 0) break; known++; t = s->turn[o] + 1u; }
	s->req_known = known;
	{ uint64_t g = known > 1 ? (s->clock - s->touched[event->access[known - 1].object]) : 0; uint32_t bb = bucket_of(s, g); s->req_gap = known <= 1 ? 0 : bb < 11 ? 1 : bb < 14 ? 2 : bb < 17 ? 3 : 4; }
	s->req_turn = t > 250 ? 250 : t;
	s->req_n = event->nr; s->req_w = (float)nt_exp2(-s->walpha * nt_log2((double)event->nr));
	s->req_lenbin = event->nr <= 4 ? 0 : event->nr <= 16 ? 1 : event->nr <= 48 ? 2 : 3;
	learn(s);
	sweep(s);
	if (s->refs >= s->next_solve) { 
		uint32_t j; float d = (float)s->decay;
		for (j = 0; j < s->nclass * BUCKETS; j++) { s->cells[j].reuse *= d; s->cells[j].pass *= d; s->coarse[j].reuse *= d; s->coarse[j].pass *= d; }
		for (j = 0; j < BUCKETS; j++) { s->all[j].reuse *= d; s->all[j].pass *= d; }
		solve(s); s->next_solve = s->refs + (uint64_t)s->every; }
}

static uint32_t class_of(struct hazard *s, uint32_t object, uint32_t position)
{
	uint32_t c = s->count[object], fromend = s->req_n - 1 - position, v[NF], f, cls = 0;
	v[F_COUNT] = c <= 1 ? 0 : c == 2 ? 1 : c <= 4 ? 2 : c <= 8 ? 3 : c <= 32 ? 4 : 5;
	v[F_TURN] = s->req_turn <= 1 ? 0 : s->req_turn == 2 ? 1 : s->req_turn == 3 ? 2 : s->req_turn <= 5 ? 3 : 4;
	v[F_END] = fromend == 0 ? 0 : fromend == 1 ? 1 : 2;
	v[F_KNOWN] = s->req_known <= 1 ? 0 : position + 3 < s->req_known ? 1 : position < s->req_known ? 2 : 3;
	v[F_LEN] = s->req_lenbin;
	v[F_GAP] = s->req_gap;
	{ float q = s->crf[object]; v[F_CRF] = q <= 1.1f ? 0 : q < 1.5f ? 1 : q < 1.9f ? 2 : q < 2.5f ? 3 : q < 4 ? 4 : q < 8 ? 5 : 6; }
	v[F_POS] = position == 0 ? 0 : position < 4 ? 1 : 2;
	for (f = 0; f < NF; f++) cls = cls * s->radix[f] + (v[f] < s->radix[f] ? v[f] : s->radix[f] - 1);
	return cls;
}

/* every touch, resident or not */
static void touch(struct hazard *s, const struct neotier_event *event, uint32_t index)
{
	uint32_t o = event->access[index].object;
	if (s->sample_of[o] != UINT32_MAX) {
		struct sample *p = &s->ring[s->sample_of[o]];
		if (p->object == o && p->reused < 0) p->reused = (int8_t)bucket_of(s, s->clock - p->at);
	}
	if (s->count[o] == 0) s->turn[o] = (uint8_t)s->req_turn;
	if (s->count[o] < 255) s->count[o]++;
	s->refs++;
	if (!s->by_time) s->clock++;
	s->crf[o] = s->count[o] == 1 ? 1 : (float)(1 + s->crf[o] * nt_exp2(-(double)(s->clock - s->touched[o]) / s->half));
	s->touched[o] = s->clock;
	s->cls[o] = (uint16_t)class_of(s, o, index);
	s->bucket[o] = 0;
	{
		struct sample *p = &s->ring[s->ring_head & (s->ring_size - 1)];
		*p = (struct sample){ o, s->cls[o], -1, 1, s->req_w, s->clock }; s->seen[s->cls[o]] = 1;
		s->sample_of[o] = (uint32_t)(s->ring_head & (s->ring_size - 1));
		s->ring_head++;
	}
}

static int hazard_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct hazard *s = state;
	uint32_t object = event->access[index].object;
	if (!nt_held(&s->base, object)) return NEOTIER_REFUSED;
	pull(s, object);
	touch(s, event, index);
	put(s, object);
	return NEOTIER_OK;
}

static uint32_t lowest(struct hazard *s)
{
	uint32_t i;
	for (i = 0; i < s->words; i++) if (s->nonempty[i]) return i * 64 + (uint32_t)__builtin_ctzll(s->nonempty[i]);
	return UINT32_MAX;
}

static int hazard_admit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct hazard *s = state;
	uint32_t o = event->access[index].object;
	touch(s, event, index);
	if (!s->admit || s->held < s->base.capacity) return 1;
	return s->value[s->cls[o] * BUCKETS] >= s->value[s->order[lowest(s)]];
}

static int hazard_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct hazard *s = state;
	uint32_t object = event->access[index].object;
	if (!nt_may_insert(&s->base, object)) return NEOTIER_REFUSED;
	s->base.place[object] = NT_HELD;
	s->held++;
	put(s, object);
	return NEOTIER_OK;
}

static int hazard_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct hazard *s = state;
	if (!nt_may_remove(&s->base, object, reason)) return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN) { s->count[object] = 0; s->turn[object] = 0; s->sample_of[object] = UINT32_MAX; return NEOTIER_OK; }
	s->base.place[object] = NT_OUT;
	s->held--;
	pull(s, object);
	return NEOTIER_OK;
}

static uint32_t hazard_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	struct hazard *s = state;
	uint32_t r = lowest(s);
	(void)event, (void)index, (void)want;
	if (r == UINT32_MAX) return 0;
	out[0] = s->lists[s->order[r]].back;
	return 1;
}

const struct neotier_placement neotier_placement_hazard = {
	NT_SLOTS(hazard),
	.on_event = hazard_event,
	.admit = hazard_admit,
	.name = "hazard",
	.text = "x",
	.source = "x",
	.flags = NEOTIER_KV,
	.nr_params = 18,
	.params = hazard_params,
};
