/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#include "activation_matrix.h"

/* Sequences shorter than this say too little to be matched against. */
#define LEAST_TOKENS 8

void nt_matrix_carve(struct nt_matrix *m, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	size_t library = (size_t)config->params[0];

	m->rows = nt_carve(block, offset, config->batch, sizeof(struct nt_matrix_row));
	m->own = nt_carve(block, offset, (size_t)config->batch * config->objects, sizeof(float));
	m->kept = nt_carve(block, offset, library * config->objects, sizeof(float));
	m->norm = nt_carve(block, offset, library, sizeof(float));
}

void nt_matrix_start(struct nt_matrix *m, const struct neotier_placement_config *config)
{
	uint32_t row;

	m->objects = config->objects;
	m->per_group = config->experts_per_group;
	m->batch = config->batch;
	m->library = (uint32_t)config->params[0];
	m->match_tokens = (float)config->params[1];
	for (row = 0; row < m->batch; row++)
		m->rows[row].match = NEOTIER_NO_OBJECT;
}

/* Into a free place of the library, else in the place of the one most like it: the library stays varied. */
static void store(struct nt_matrix *m, uint32_t row)
{
	struct nt_matrix_row *r = &m->rows[row];
	float *own = m->own + (size_t)row * m->objects, *kept;
	uint32_t at, i;

	if (r->tokens >= LEAST_TOKENS) {
		at = m->stored < m->library ? m->stored++ : r->match != NEOTIER_NO_OBJECT ? r->match : 0;
		kept = m->kept + (size_t)at * m->objects;
		m->norm[at] = 0;
		for (i = 0; i < m->objects; i++) {
			kept[i] = own[i] / (float)r->tokens;
			m->norm[at] += kept[i] * kept[i];
		}
	}
	for (i = 0; i < m->objects; i++)
		own[i] = 0;
	r->tokens = 0;
	r->match = NEOTIER_NO_OBJECT;
}

static void match(struct nt_matrix *m, uint32_t row)
{
	const float *own = m->own + (size_t)row * m->objects, *kept = m->kept;
	float best = -1;
	uint32_t at, i;

	for (at = 0; at < m->stored; at++, kept += m->objects) {
		float dot = 0;

		for (i = 0; i < m->objects; i++)
			dot += own[i] * kept[i];
		/* Own length is the same for all; dot is positive, so squares compare as the cosines do. */
		if (m->norm[at] > 0 && dot * dot / m->norm[at] > best) {
			best = dot * dot / m->norm[at];
			m->rows[row].match = at;
		}
	}
}

void nt_matrix_event(struct nt_matrix *m, const struct neotier_event *event)
{
	uint32_t i, row = NEOTIER_NO_OBJECT;

	for (i = 0; i < event->nr; i++) {
		const struct neotier_access *access = &event->access[i];

		if (access->row != row) {
			row = access->row;
			if (event->group == 0) {
				if (access->flags & NEOTIER_STREAM_BEGINS)
					store(m, row);
				else if (m->rows[row].tokens)
					match(m, row);
				m->rows[row].tokens++;
			}
		}
		m->own[(size_t)row * m->objects + access->object] += 1;
	}
}

float nt_matrix_estimate(const struct nt_matrix *m, uint32_t row, uint32_t object)
{
	const struct nt_matrix_row *r = &m->rows[row];
	float uses = m->own[(size_t)row * m->objects + object], tokens = (float)r->tokens;

	if (r->match != NEOTIER_NO_OBJECT) {
		uses += m->match_tokens * m->kept[(size_t)r->match * m->objects + object];
		tokens += m->match_tokens;
	}
	return tokens > 0 ? uses / tokens : 0;
}
