/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Placement policies: which objects (KV blocks, experts, plain ranges) a tier keeps, lets in, and fetches ahead. Freestanding
 * C; the same object serves the replay simulator, the engine and the tests, and may come from a shared library.
 *
 * Who does what. The host owns identity, residency and bytes: it maps 16-byte keys to handles (dense 32-bit numbers), keeps
 * the flags, counts hits, moves data. A policy owns only its state block, which the host allocates once (state_bytes) and
 * which no call ever grows. A handle outlives residency: the host keeps handles of evicted objects as history, so a policy
 * needs no ghost directory of its own, until it says NEOTIER_FORGOTTEN; then the handle may come back as another object.
 *
 * One event is one request (KV: its blocks from the first of the prefix on) or one layer-step (experts: every use, batch
 * row by batch row, in router order). Calls for an event, in this order:
 *   on_event                        once, before anything of it is served: the whole event is known
 *   per object, in event order:     on_hit                                              where it is resident
 *                                   admit, [victims, on_remove(EVICTED)...,] on_insert   where it is not
 *   prefetch                        once, where the host can fetch ahead; what it fetches comes back through
 *                                   [victims, on_remove...,] on_insert with an event of kind NEOTIER_EVENT_PREFETCH,
 *                                   and so does what moves here from another tier; either may come within an event
 * An object that occurs again in the event is a hit of its own, unless the event's own inserts have evicted it meanwhile. Experts
 * are event-atomic: the host pins (NEOTIER_PINNED) what the event uses; each distinct expert is touched once, at its first use.
 *
 * Rules for a policy: no allocation, no I/O, no libc but memcpy, memset, memmove, memcmp; equal calls and equal seed give
 * equal answers; no call touches memory outside the state block, the config's arrays and its arguments. Floating point is
 * allowed. Cost: amortised O(log objects) a call; O(layers x experts) for prefetch.
 *
 * Thread safety: an instance (state block) belongs to one caller at a time; instances share nothing.
 * Versions: fields are only added at the end; `abi` changes when an old policy would misbehave. Both sides compare abi and
 * struct_bytes: a host takes a descriptor that is shorter than its own (missing slots are NULL), and refuses a longer one.
 */
#ifndef NEOTIER_PLACEMENT_H
#define NEOTIER_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NEOTIER_PLACEMENT_ABI 1u
/* The symbol a shared library exports: `const struct neotier_placement neotier_placement_entry`. */
#define NEOTIER_PLACEMENT_ENTRY "neotier_placement_entry"
#define NEOTIER_NO_OBJECT UINT32_MAX
#define NEOTIER_NEVER UINT64_MAX /* next_use of an object that is not used again */

/* What calls return besides counts. */
enum neotier_placement_result {
	NEOTIER_OK = 0,
	NEOTIER_REFUSED = -1 /* out of range, already resident, not resident; the state is unchanged */
};

enum neotier_object_kind { NEOTIER_KIND_KV = 1, NEOTIER_KIND_EXPERT = 2, NEOTIER_KIND_PLAIN = 3 };

/* Host-owned, one byte an object, current at every call. */
enum neotier_object_flags {
	NEOTIER_RESIDENT = 1 << 0,
	NEOTIER_PINNED = 1 << 1 /* in use or in flight: victims() must not name it */
};

enum neotier_event_kind { NEOTIER_EVENT_DEMAND = 0, NEOTIER_EVENT_PREFETCH = 1 };

enum neotier_event_flags {
	NEOTIER_STREAM_BEGINS = 1 << 0 /* first event of the access's stream (experts: of the batch row's sequence) */
};

enum neotier_remove_reason {
	NEOTIER_EVICTED = 0,   /* to make room, as victims() said */
	NEOTIER_REMOVED = 1,   /* invalid now, or moved by the host's own decision */
	NEOTIER_FORGOTTEN = 2  /* not resident, and its handle will be reused: drop what is known of it */
};

struct neotier_key {
	uint8_t bytes[16];
};

/* One use of one object. A fact that the host does not know is 0. */
struct neotier_access {
	uint32_t object;   /* handle, 0 .. config.objects - 1 */
	uint32_t position; /* KV: index of the block in its prefix, from 0; experts: rank in the router's choice, from 0 */
	uint32_t row;      /* experts: batch row, 0 .. config.batch - 1; KV: 0 */
	uint32_t flags;    /* enum neotier_event_flags, of this row's stream */
	uint64_t bytes;    /* size of the object, > 0 */
	uint64_t cost_ns;  /* time to make the object anew (KV: prefill of the block after its prefix) */
	uint64_t next_use; /* ordinal of the next use, or NEOTIER_NEVER; only where NEOTIER_NEEDS_ORACLE, else 0 */
	float weight;      /* experts: router weight; prefetch: the prediction's probability; 0 .. 1 */
	float reserved;
};

struct neotier_event {
	uint64_t tick;   /* ordinal of the event, from 0, increasing by 1 per demand event */
	uint64_t now_ns; /* never decreases; since the host's start */
	uint32_t kind;   /* enum neotier_event_kind */
	uint32_t group;  /* cache the event goes to: 0 for KV, the layer for experts */
	uint32_t nr;     /* accesses, 1 .. config.max_event */
	uint32_t category; /* the host's kind of request (KV: chat, search, image, ... as the trace numbers them); 0: not known */
	const struct neotier_access *access;
};

struct neotier_prefetch_request {
	uint32_t group_first; /* first layer to predict for; layers wrap at config.groups into the next token */
	uint32_t groups;      /* how many layers from there, >= 1 */
	uint32_t max;         /* entries in `out` */
	uint32_t reserved;
};

struct neotier_prediction {
	uint32_t object;
	uint32_t group;
	float probability; /* that the object is used in the group's next event, 0 .. 1 */
	float reserved;
};

/* The host's word at start; lives as long as the instance, arrays included. */
struct neotier_placement_config {
	uint32_t struct_bytes;           /* sizeof of the host's version of this struct */
	uint32_t abi;                    /* NEOTIER_PLACEMENT_ABI */
	uint32_t kind;                   /* enum neotier_object_kind */
	uint32_t objects;                /* handles, >= 1: resident ones and history */
	uint32_t groups;                 /* independent caches: 1 for KV, layers for experts. An expert's handle is
					  * layer x experts_per_group + expert; KV handles have no structure */
	uint32_t experts_per_group;      /* experts: of a layer; else 0 */
	uint32_t top_k;                  /* experts: the router's choices a token; else 0 */
	uint32_t batch;                  /* experts: rows in an event; else 1 */
	uint32_t max_event;              /* accesses in an event, at most */
	uint32_t capacity;               /* objects a group holds: exact for equal sizes, else the host's estimate. >= 1 */
	uint64_t capacity_bytes;         /* bytes a group holds */
	uint64_t seed;
	const uint8_t *flags;            /* [objects], enum neotier_object_flags */
	const struct neotier_key *keys;  /* [objects], or NULL */
	const double *params;            /* [policy's nr_params], within their ranges */
};

struct neotier_placement_param {
	const char *name; /* lower_snake, unit in the name where there is one */
	double value;     /* default */
	double min, max;
	const char *text; /* one line */
};

enum neotier_placement_flags {
	NEOTIER_NEEDS_ORACLE = 1 << 0, /* a bound, not a policy: reads next_use */
	NEOTIER_KV = 1 << 1,           /* meant for these kinds; a host lists it there */
	NEOTIER_EXPERTS = 1 << 2,
	NEOTIER_PREDICTOR = 1 << 3     /* only predicts: victims and admit are NULL, on_hit .. on_remove may be */
};

/* All slots may be called from init to the end of the instance. Slots marked optional may be NULL. */
struct neotier_placement {
	uint32_t abi;          /* NEOTIER_PLACEMENT_ABI */
	uint32_t struct_bytes; /* sizeof(struct neotier_placement) */
	const char *name;      /* lower case, digits, '-' */
	const char *text;      /* one line for people */
	const char *source;    /* paper or project it follows */
	uint32_t flags;        /* enum neotier_placement_flags */
	uint32_t nr_params;
	const struct neotier_placement_param *params;

	/* Bytes of state for this config; 0: the config is refused. No side effect. */
	size_t (*state_bytes)(const struct neotier_placement_config *config);
	/* state: zeroed, 64-byte aligned, state_bytes(config) long. NEOTIER_OK, or NEOTIER_REFUSED as state_bytes would say. */
	int (*init)(void *state, const struct neotier_placement_config *config);
	/* Optional. The event is about to be served. An object that has no handle yet is NEOTIER_NO_OBJECT here. */
	void (*on_event)(void *state, const struct neotier_event *event);
	/* event->access[index] is resident and used. REFUSED where the policy does not hold it. */
	int (*on_hit)(void *state, const struct neotier_event *event, uint32_t index);
	/* event->access[index] becomes resident now. REFUSED where it already is. The host has made room before. */
	int (*on_insert)(void *state, const struct neotier_event *event, uint32_t index);
	/* REFUSED for a handle out of range, a resident one FORGOTTEN, and one that is not resident EVICTED or REMOVED. */
	int (*on_remove)(void *state, uint32_t object, enum neotier_remove_reason reason);
	/*
	 * Names up to `want` distinct resident objects of the group, none pinned, best to evict first, for the sake of
	 * event->access[index]. Writes them to `out`, returns how many: 0 only where nothing may go, or, for a prefetch, where
	 * all is worth more than what it is fetched for; fewer than `want`: the host may ask again after evicting those.
	 * Changes no residency: on_remove follows for those that the host does evict.
	 */
	uint32_t (*victims)(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out);
	/*
	 * Optional (NULL: everything is let in). Asked once per miss. 1: insert event->access[index], 0: serve without keeping. A 1 may
	 * come to nothing: the host has no room, or not the bytes. With an event of kind NEOTIER_EVENT_PREFETCH, which on_event has
	 * not seen: whether to take in what another tier gives up; that is no use of it.
	 */
	int (*admit)(void *state, const struct neotier_event *event, uint32_t index);
	/*
	 * Optional. After the event was served: which objects the groups asked for are probable to use, in any order, each once;
	 * what is left out counts as improbable. Returns entries written to `out`.
	 */
	uint32_t (*prefetch)(void *state, const struct neotier_event *event, const struct neotier_prefetch_request *request,
			     struct neotier_prediction *out);
};

#ifdef __cplusplus
}
#endif
#endif
