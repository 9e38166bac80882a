/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Ours: all signals in one logistic model a layer and lead, learned online. For the layer `lead` steps ahead it adds
 *   what expert_reuse.h says of that layer from its own past (discount 0: the probability at the next visit), scaled;
 *   a row of weights for each expert chosen in the last `depth` layers, in the first two layers of the token (which nearly name
 *   the token), and by the layer after the target at the last token;
 *   how often the experts of the target were used by the earlier tokens whose path through the layers was most like this one's
 *   (the idea of activation matrices, a token at a time; `paths` of them are kept).
 * State: 4 x lookahead x (depth + 3) x experts bytes an expert, 4 x groups a path, and expert_reuse.h's.
 */
#include "expert_reuse.h"
#include "predict.h"
#include "vector_math.h"

/* Contexts past the `depth` last layers. */
enum { FIRST_LAYER, SECOND_LAYER, LAYER_AFTER, NR_EXTRA };

#define SHARED_RATE 0.03f /* of scales, against the rate of rows: they see every expert's error */
#define BIAS_RATE 0.3f
#define PATH_FLOOR 0.02f
#define PATH_CENTRE 1.5f
#define PATH_SCALE 0.3f /* at first */
#define PATH_FADING 0.8f /* of a path's likeness, a layer */
#define PATH_REACH 4.0f  /* paths less alike than the best by more than this do not count */

struct learned {
	struct nt_reuse reuse;
	uint32_t groups, experts, width, batch, top_k, lookahead, depth, contexts, path_words;
	uint32_t nr_paths, paths, path_next;
	uint32_t transition, layers, token;
	float rate;
	float *table;  /* [lookahead][groups][contexts][experts][width] */
	float *bias;   /* [lookahead][groups][width] */
	float *scale;  /* [lookahead][groups][2]: of the reuse logit, of the path signal */
	/* a prediction that is out, [batch][lookahead][groups] */
	uint32_t *made; /* rows behind it plus 1; 0: none is out */
	uint32_t *rows; /* ... [contexts x top_k]: of `table` */
	float *chance;  /* ... [width] */
	float *signal;  /* ... [width]: the path signal */
	/* paths: sets of experts, as bits */
	uint32_t *path;  /* [groups][path_words][paths] */
	uint32_t *own;   /* [batch][groups][path_words]: of the token at hand */
	float *likeness; /* [batch][paths] */
	float *weight;   /* [batch][paths]: of the last event */
};

static const struct neotier_placement_param learned_params[] = {
	{ "lookahead", 6, 1, 64, "layers ahead that are predicted" },
	{ "depth", 4, 1, 16, "last layers whose choices are signals" },
	{ "rate", 0.03, 0, 1, "learning rate of the tables" },
	{ "paths", 256, 8, 65536, "earlier tokens whose paths are kept to compare" },
	{ "history", 1, 0, 1, "1: the target layer's own past is a signal" },
	{ "layers", 1, 0, 1, "1: the choices of the last layers are signals" },
	{ "token", 1, 0, 1, "1: the choices of the token's first layers, and of the layer after, are signals" },
	{ "path", 1, 0, 1, "1: what earlier tokens with a like path used is a signal" },
};

/* Paths to keep, in whole vectors; 0 where the signal is off. */
static uint32_t paths_of(const double *params)
{
	return params[7] != 0 ? ((uint32_t)params[3] + NT_LANES - 1) / NT_LANES * NT_LANES : 0;
}

static void learned_carve(struct learned *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	const size_t lookahead = (size_t)config->params[0], contexts = (size_t)config->params[1] + NR_EXTRA;
	const size_t paths = paths_of(config->params), words = (config->experts_per_group + 31) / 32;
	size_t width, heads = lookahead * config->groups, out = heads * config->batch;

	nt_reuse_carve(&s->reuse, block, offset, config);
	width = nt_reuse_width(config->experts_per_group);
	s->table = nt_carve(block, offset, heads * contexts * config->experts_per_group * width, sizeof(float));
	s->bias = nt_carve(block, offset, heads * width, sizeof(float));
	s->scale = nt_carve(block, offset, heads * 2, sizeof(float));
	s->made = nt_carve(block, offset, out, sizeof(uint32_t));
	s->rows = nt_carve(block, offset, out * contexts * config->top_k, sizeof(uint32_t));
	s->chance = nt_carve(block, offset, out * width, sizeof(float));
	s->signal = nt_carve(block, offset, out * width, sizeof(float));
	s->path = nt_carve(block, offset, paths * config->groups * words, sizeof(uint32_t));
	s->own = nt_carve(block, offset, (size_t)config->batch * config->groups * words, sizeof(uint32_t));
	s->likeness = nt_carve(block, offset, config->batch * paths, sizeof(float));
	s->weight = nt_carve(block, offset, config->batch * paths, sizeof(float));
}

static void learned_start(struct learned *s, const struct neotier_placement_config *config)
{
	const double *p = config->params;
	uint32_t i;

	s->groups = config->groups;
	s->experts = config->experts_per_group;
	s->batch = config->batch;
	s->top_k = config->top_k;
	s->lookahead = (uint32_t)p[0];
	s->depth = (uint32_t)p[1];
	s->contexts = s->depth + NR_EXTRA;
	s->path_words = (s->experts + 31) / 32;
	s->rate = (float)p[2];
	s->paths = paths_of(p);
	s->transition = p[4] != 0;
	s->layers = p[5] != 0;
	s->token = p[6] != 0;
	nt_reuse_start(&s->reuse, config, 0, (float)p[2],
		       s->transition ? NT_REUSE_RANK | NT_REUSE_TRANSITION | NT_REUSE_FREQUENCY | NT_REUSE_LAYERS : 0);
	s->width = s->reuse.width;
	for (i = 0; i < s->lookahead * s->groups; i++) {
		s->scale[2 * i] = 1;
		s->scale[2 * i + 1] = PATH_SCALE;
	}
}

NT_PREDICTOR_STATE(learned)

NT_INLINE void correct(struct learned *s, uint32_t group, uint32_t row, const uint32_t *bits, const uint32_t width)
{
	const float *logit = nt_reuse_logit(&s->reuse, group, row);
	uint32_t lead, i, e;

	for (lead = 0; lead < s->lookahead; lead++) {
		const size_t head = (size_t)lead * s->groups + group;
		const size_t out = (size_t)row * s->lookahead * s->groups + head;
		const float *chance = s->chance + out * width, *signal = s->signal + out * width;
		const uint32_t *rows = s->rows + out * s->contexts * s->top_k;
		float *bias = s->bias + head * width;
		nt_vec of_logit = { 0 }, of_signal = { 0 };

		if (!s->made[out])
			continue;
		for (e = 0; e < width; e += NT_LANES) {
			nt_vec error;

			nt_from_bits(bits, e, &error);
			error = s->rate * (error - *(const nt_vec *)(chance + e));
			for (i = 1; i < s->made[out]; i++)
				*(nt_vec *)(s->table + (size_t)rows[i - 1] * width + e) += error;
			*(nt_vec *)(bias + e) += BIAS_RATE * error;
			of_logit += error * *(const nt_vec *)(logit + e);
			of_signal += error * *(const nt_vec *)(signal + e);
		}
		s->scale[2 * head] += SHARED_RATE * nt_sum(&of_logit);
		s->scale[2 * head + 1] += SHARED_RATE * nt_sum(&of_signal);
		s->made[out] = 0;
	}
}

/* Bits set in a word, in steps that a loop over words can take eight at a time. */
NT_INLINE uint32_t ones(uint32_t x)
{
	x -= x >> 1 & 0x55555555;
	x = (x & 0x33333333) + (x >> 2 & 0x33333333);
	x = (x + (x >> 4)) & 0x0f0f0f0f;
	x += x >> 8;
	return (x + (x >> 16)) & 0x3f;
}

/* The row's token has chosen in `group`: how alike are the paths kept; a finished path is kept itself. */
NT_INLINE void follow_path(struct learned *s, uint32_t group, uint32_t row, const uint32_t *bits)
{
	const size_t words = (size_t)s->groups * s->path_words;
	uint32_t *own = s->own + (size_t)row * words;
	const uint32_t *path = s->path + (size_t)group * s->path_words * s->paths;
	float *likeness = s->likeness + (size_t)row * s->paths, fading = group ? PATH_FADING : 0;
	uint32_t i, k;

	for (i = 0; i < s->nr_paths; i++)
		likeness[i] *= fading;
	for (k = 0; k < s->path_words; k++, path += s->paths) {
		own[group * s->path_words + k] = bits[k];
		for (i = 0; i < s->nr_paths; i++)
			likeness[i] += (float)(int32_t)ones(path[i] & bits[k]);
	}
	if (group + 1 < s->groups)
		return;
	for (i = 0; i < words; i++)
		s->path[i * s->paths + s->path_next] = own[i];
	s->path_next = (s->path_next + 1) % s->paths;
	if (s->nr_paths < s->paths)
		s->nr_paths++;
}

/* Weighs the row's paths by likeness, those out of reach by 0; they sum to 1, or are all 0 where nothing is like. */
NT_INLINE void weigh_paths(struct learned *s, uint32_t row)
{
	const float *likeness = s->likeness + (size_t)row * s->paths;
	float *weight = s->weight + (size_t)row * s->paths, best = 0, sum = 0;
	uint32_t i;

	for (i = 0; i < s->nr_paths; i++)
		best = likeness[i] > best ? likeness[i] : best;
	for (i = 0; i < s->nr_paths; i += NT_LANES) {
		nt_vec *out = (nt_vec *)(weight + i);

		*out = *(const nt_vec *)(likeness + i) - best;
		nt_exp(out);
	}
	for (i = 0; i < s->nr_paths; i++) {
		weight[i] = best > 0 && likeness[i] >= best - PATH_REACH ? weight[i] : 0;
		sum += weight[i];
	}
	for (i = 0; i < s->nr_paths; i++)
		weight[i] *= sum > 0 ? 1 / sum : 0;
}

/* Logarithm of the share of like paths that used each expert of the target. */
NT_INLINE void path_signal(const struct learned *s, uint32_t target, uint32_t row, float *signal)
{
	const float *weight = s->weight + (size_t)row * s->paths;
	const uint32_t *path = s->path + (size_t)target * s->path_words * s->paths;
	float share[256] __attribute__((aligned(64))) = { 0 };
	uint32_t i, k, e;

	for (i = 0; i < s->nr_paths; i++) {
		if (!(weight[i] > 0))
			continue;
		for (k = 0; k < s->path_words; k++) {
			for (uint32_t bits = path[k * s->paths + i]; bits; bits &= bits - 1)
				share[32 * k + (uint32_t)__builtin_ctz(bits)] += weight[i];
		}
	}
	for (e = 0; e < s->width; e += NT_LANES) {
		nt_vec *out = (nt_vec *)(signal + e);

		*out = *(nt_vec *)(share + e) + PATH_FLOOR;
		nt_log(out);
		*out += PATH_CENTRE;
	}
}

NT_VECTOR_CODE static void learned_event(void *state, const struct neotier_event *event)
{
	struct learned *s = state;
	uint8_t choice[256];
	uint32_t at = 0, nr, row, k;

	while (at < event->nr) {
		uint32_t bits[8] = { 0 };

		row = event->access[at].row;
		nr = nt_reuse_choices(event, s->experts, &at, choice, s->top_k);
		for (k = 0; k < nr; k++)
			bits[choice[k] / 32] |= 1u << choice[k] % 32;
		if (s->width == 32)
			correct(s, event->group, row, bits, 32);
		else
			correct(s, event->group, row, bits, s->width);
		nt_reuse_visit(&s->reuse, event->group, row, choice, nr);
		if (s->paths)
			follow_path(s, event->group, row, bits);
	}
}

static uint32_t add_rows(const struct learned *s, uint32_t lead, uint32_t target, uint32_t context, uint32_t source,
			 uint32_t row, uint32_t *rows, uint32_t nr)
{
	const size_t from = (size_t)row * s->groups + source;
	uint32_t k;

	for (k = 0; k < s->reuse.nr_last[from]; k++) {
		rows[nr++] = (((lead - 1) * s->groups + target) * s->contexts + context) * s->experts +
			     s->reuse.last[from * s->top_k + k];
	}
	return nr;
}

/* The rows of `table` that speak for the target, `lead` layers after `group`; returns how many. */
static uint32_t select_rows(const struct learned *s, uint32_t group, uint32_t lead, uint32_t row, uint32_t *rows)
{
	const uint32_t target = (group + lead) % s->groups;
	uint32_t nr = 0, j;

	for (j = 0; j < s->depth && j < s->groups && s->layers; j++)
		nr = add_rows(s, lead, target, j, (group + s->groups - j) % s->groups, row, rows, nr);
	if (!s->token)
		return nr;
	if (target > group && group >= s->depth)
		nr = add_rows(s, lead, target, s->depth + FIRST_LAYER, 0, row, rows, nr);
	if (target > group && group >= s->depth + 1)
		nr = add_rows(s, lead, target, s->depth + SECOND_LAYER, 1, row, rows, nr);
	if (target + 1 < s->groups)
		nr = add_rows(s, lead, target, s->depth + LAYER_AFTER, target + 1, row, rows, nr);
	return nr;
}

NT_INLINE void estimate(struct learned *s, uint32_t group, uint32_t lead, uint32_t row, float *not_used, const uint32_t width)
{
	const uint32_t target = (group + lead) % s->groups;
	const size_t head = (size_t)(lead - 1) * s->groups + target;
	const size_t out = (size_t)row * s->lookahead * s->groups + head;
	const float *logit = nt_reuse_logit(&s->reuse, target, row), *bias = s->bias + head * width;
	uint32_t *rows = s->rows + out * s->contexts * s->top_k, nr, i, e;
	float *chance = s->chance + out * width, *signal = s->signal + out * width;

	if (!s->reuse.nr_last[(size_t)row * s->groups + target])
		return;
	nr = select_rows(s, group, lead, row, rows);
	if (s->nr_paths && target > group) {
		path_signal(s, target, row, signal);
	} else {
		for (e = 0; e < width; e++)
			signal[e] = 0;
	}
	for (e = 0; e < width; e += NT_LANES) {
		nt_vec sum = *(const nt_vec *)(bias + e) + s->scale[2 * head] * *(const nt_vec *)(logit + e);

		sum += s->scale[2 * head + 1] * *(nt_vec *)(signal + e);
		for (i = 0; i < nr; i++)
			sum += *(const nt_vec *)(s->table + (size_t)rows[i] * width + e);
		nt_logistic(&sum);
		*(nt_vec *)(chance + e) = sum;
		*(nt_vec *)(not_used + e) *= 1 - sum;
	}
	s->made[out] = nr + 1;
}

NT_VECTOR_CODE static uint32_t learned_prefetch(void *state, const struct neotier_event *event,
				 const struct neotier_prefetch_request *request, struct neotier_prediction *out)
{
	struct learned *s = state;
	struct nt_predictions p = { out, 0, request->max };
	uint32_t row;

	for (row = 0; row < s->batch && s->nr_paths; row++)
		weigh_paths(s, row);
	NT_FOR_TARGETS(event, request, s->groups, lead, target)
	{
		float not_used[256] __attribute__((aligned(64)));
		uint32_t e;

		if (lead > s->lookahead)
			break;
		for (e = 0; e < s->width; e++)
			not_used[e] = 1;
		for (row = 0; row < s->batch; row++) {
			if (s->width == 32)
				estimate(s, event->group, lead, row, not_used, 32);
			else
				estimate(s, event->group, lead, row, not_used, s->width);
		}
		for (e = 0; e < s->experts; e++)
			nt_predict(&p, target, target * s->experts + e, 1 - not_used[e]);
	}
	return p.nr;
}

const struct neotier_placement neotier_predictor_learned = {
	NT_PREDICTOR_SLOTS(learned),
	.name = "learned",
	.text = "history, transitions, layers and paths in one model learned online; recommended",
	.source = "NeoTier; online logistic regression",
	.nr_params = sizeof(learned_params) / sizeof(learned_params[0]),
	.params = learned_params,
};
