/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV blocks on libneotier: what the connector of a serving engine calls. A block is named by a key that hashes its whole prefix; its
 * layers come and go one by one, so that loading overlaps computing. docs/kv.md; examples/kv.py is a whole program.
 *
 * Errors, versions and thread safety are those of neotier.h. A neotier_kv_load or neotier_kv_save belongs to one thread.
 */
#ifndef NEOTIER_KV_H
#define NEOTIER_KV_H

#include "neotier.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct neotier_kv neotier_kv;
typedef struct neotier_kv_load neotier_kv_load;
typedef struct neotier_kv_gpu neotier_kv_gpu;
typedef struct neotier_kv_save neotier_kv_save;

/* SHA256_CBOR: the hashes that vLLM has with --prefix-caching-hash-algo sha256_cbor. XXH3: faster, where tenants trust one another. */
enum neotier_kv_hash { NEOTIER_KV_SHA256_CBOR = 0, NEOTIER_KV_XXH3 = 1 };

/* When a copy goes to the durable tier: when the block leaves the faster ones; once it has been used write_after times; at once. */
enum neotier_kv_write { NEOTIER_KV_WRITE_BACK = 0, NEOTIER_KV_WRITE_SELECTIVE = 1, NEOTIER_KV_WRITE_THROUGH = 2 };

struct neotier_kv_config {
	uint32_t struct_bytes;
	uint32_t block_tokens; /* 16 */
	uint32_t layers;       /* required */
	uint32_t hash;         /* enum neotier_kv_hash */
	uint64_t layer_bytes;  /* of one block in one layer, K and V together; 0 where piece_bytes has them */
	const char *seed;      /* as vLLM's PYTHONHASHSEED: processes that share it share blocks. NULL: random */
	const char *space;     /* model, data type, layout, KV group: keeps apart what must not be mixed. May be NULL */
	uint32_t write;        /* enum neotier_kv_write */
	uint32_t write_after;  /* 2 */
	uint32_t store_after;  /* 1; a block is stored when it is offered for the so-many-th time */
	uint32_t reserved;
	uint64_t recompute_ns, recompute_per_position_ns; /* to make a block anew, of which so much for each block before it */
	uint64_t lease_ms;     /* 60000; the pins of a load end then, whatever became of its owner */
	/*
	 * Another layout of a block: layers in several pieces, each with a place of its own in the caller's memory (K and V apart), or of
	 * sizes of their own. piece_bytes[pieces], layer by layer; layer_pieces[layers], how many each layer has, or NULL: all as many.
	 * Without it a layer is one piece. What several processes share has to have one layout: it belongs into `space`.
	 */
	const uint64_t *piece_bytes;
	const uint32_t *layer_pieces;
	uint32_t pieces;
	uint32_t reserved2;
};

struct neotier_kv_stored {
	uint32_t struct_bytes;
	uint32_t stored, present, filtered; /* blocks; the rest was not tried */
	uint32_t passed;                    /* the policies would rather keep what they have */
};

/* What is known of a request besides its blocks. */
struct neotier_kv_request_info {
	uint32_t struct_bytes;
	uint32_t category;       /* kind of request (chat, search, ...), numbered from 1 as the caller likes; 0: not known */
	const uint64_t *cost_ns; /* [nr], to make each block anew; NULL: as neotier_kv_config has it */
};

/* Load or recompute: how many of a request's leading blocks are worth loading, so that its first token comes soonest. */
struct neotier_kv_plan {
	uint32_t struct_bytes;
	uint32_t overlap;          /* in; 1: the caller computes layer by layer while later layers come */
	uint64_t compute_queue_ns; /* in: what its processor has to do before */
	uint64_t after_ns;         /* in: computing what comes after these blocks, the end of the prompt */
	uint64_t found, load;      /* out: leading blocks that are there, and how many of those to load, from the first one on */
	/* out, predicted: loading them; the first token by this plan, with all of them loaded, with none. UINT64_MAX: not possible */
	uint64_t load_ns, ttft_ns, load_all_ns, compute_all_ns;
};

enum neotier_kv_event_kind { NEOTIER_KV_COPIED = 0, NEOTIER_KV_LEFT = 1, NEOTIER_KV_FORGOTTEN = 2 };

struct neotier_kv_event {
	struct neotier_object_key key;
	uint32_t kind; /* enum neotier_kv_event_kind: a copy is in `tier`; that copy is gone; the block is gone */
	char tier[28];
};

/* The engine must outlive it, and have been opened with events > 0. NULL and neotier_error() where the config is none. */
NEOTIER_API neotier_kv *neotier_kv_open(neotier_engine *engine, const struct neotier_kv_config *config);
/* Loads must be freed before. The blocks stay in the engine. */
NEOTIER_API void neotier_kv_close(neotier_kv *kv);

/*
 * Keys of the whole blocks of a prompt. lora and salt may be NULL: the adapter's name, and what keeps a tenant's prefixes apart.
 * Returns how many there are; writes the first `max`.
 */
NEOTIER_API int64_t neotier_kv_keys(neotier_kv *kv, const uint32_t *tokens, size_t nr, const char *lora, const char *salt,
				    struct neotier_object_key *keys, size_t max);

/*
 * Keys of blocks that the caller has hashed: digests[nr] of digest_bytes each (16 .. 256), a cryptographic hash that names the
 * block's whole prefix, with what else tells its bytes apart (the KV group). The configuration's `space` goes into the keys; its
 * block_tokens and seed do not matter.
 */
NEOTIER_API int neotier_kv_digest_keys(neotier_kv *kv, const void *digests, size_t digest_bytes, size_t nr,
				       struct neotier_object_key *keys);

/* The tenant of that name, made or given a new quota in bytes (0: none). Its number, or an error. */
NEOTIER_API int64_t neotier_kv_tenant(neotier_kv *kv, const char *name, uint64_t quota_bytes);
/*
 * A conversation: its blocks are kept for ttl_ms after its last use (0: until it is closed); then those that no other session holds are
 * the tenant's first to go, or are removed at once where remove_expired. A number > 0, or an error.
 */
NEOTIER_API int64_t neotier_kv_session_open(neotier_kv *kv, uint32_t tenant, uint64_t ttl_ms, uint32_t remove_expired);
NEOTIER_API int neotier_kv_session_close(neotier_kv *kv, uint64_t session);

/*
 * A request begins. How many of its leading blocks are there, or an error. The load and the store of the same blocks in the session belong
 * to it; the policies are told of it whole when they are stored, when all of them are loaded, or at the latest when the session's next
 * request begins or the session ends. Until then the same again is the same request. `info` may be NULL.
 */
NEOTIER_API int64_t neotier_kv_request(neotier_kv *kv, uint64_t session, const struct neotier_object_key *keys, size_t nr,
				       const struct neotier_kv_request_info *info);
/* The same of which nothing more is known. */
NEOTIER_API int64_t neotier_kv_lookup(neotier_kv *kv, uint64_t session, const struct neotier_object_key *keys, size_t nr);

/*
 * Loads the leading blocks that are there; layer 0 of all of them first. into[piece * nr + block], where a layer that is not in pieces is
 * one: as many bytes each as the piece has, which must stay until the load is freed. NULL: neotier_error().
 */
NEOTIER_API neotier_kv_load *neotier_kv_load_start(neotier_kv *kv, uint64_t session, const struct neotier_object_key *keys, size_t nr,
						   void *const *into);
/* The same of blocks that first_position others come before in their prefix. */
NEOTIER_API neotier_kv_load *neotier_kv_load_start_at(neotier_kv *kv, uint64_t session, const struct neotier_object_key *keys, size_t nr,
						      void *const *into, uint32_t first_position);
/*
 * The same of no more blocks than are worth loading: `plan` says for whom (in) and what was decided (out); the caller computes the others.
 * What was there and is not loaded is counted in neotier_kv_stats(), by tier.
 */
NEOTIER_API neotier_kv_load *neotier_kv_load_start_planned(neotier_kv *kv, uint64_t session, const struct neotier_object_key *keys,
							   size_t nr, void *const *into, uint32_t first_position,
							   struct neotier_kv_plan *plan);
/*
 * Only says it. By what the tiers have to do now, and by the cost of computing a block: that of the session's request, else what
 * neotier_kv_computed() has seen, else the configuration's. A block of cost 0 (none is known) is loaded if it is there.
 */
NEOTIER_API int neotier_kv_plan_load(neotier_kv *kv, uint64_t session, const struct neotier_object_key *keys, size_t nr, uint32_t first_position,
				struct neotier_kv_plan *plan);
/* So many blocks were computed, from first_position on, in ns; without what the processor did before. */
NEOTIER_API int neotier_kv_computed(neotier_kv *kv, uint32_t first_position, uint32_t blocks, uint64_t ns);
NEOTIER_API size_t neotier_kv_load_blocks(const neotier_kv_load *load);
/* NEOTIER_ETIMEOUT: still under way. Another error: blocks from neotier_kv_load_good() on must be computed. UINT64_MAX: for ever. */
NEOTIER_API int neotier_kv_load_wait_layer(neotier_kv_load *load, uint32_t layer, uint64_t timeout_ms);
NEOTIER_API int neotier_kv_load_wait(neotier_kv_load *load, uint64_t timeout_ms);
/*
 * Leading blocks of which all layers have come that were waited for. Before that it is all of them; after neotier_kv_load_cancel() none,
 * until all layers have been waited for. So a load that is given up never counts a block that has not come.
 */
NEOTIER_API size_t neotier_kv_load_good(const neotier_kv_load *load);
/* As neotier_ticket_notify(), when all of it has ended: then neotier_kv_load_wait() does not wait. */
NEOTIER_API int neotier_kv_load_notify(neotier_kv_load *load, neotier_queue *queue, uint64_t tag);
/* The same for each layer of all blocks by itself: tag + layer. EEXISTS: of a load either this or the other one is asked for, once. */
NEOTIER_API int neotier_kv_load_notify_layers(neotier_kv_load *load, neotier_queue *queue, uint64_t tag);
NEOTIER_API void neotier_kv_load_cancel(neotier_kv_load *load);
/* Waits for what is at a tier just now, and releases the pins. */
NEOTIER_API void neotier_kv_load_free(neotier_kv_load *load);

/* Stores blocks; from: as `into` above. first_position: how many blocks of the prefix come before the first. `stored` may be NULL. */
NEOTIER_API int neotier_kv_store(neotier_kv *kv, uint64_t session, const struct neotier_object_key *keys, size_t nr,
				 const void *const *from, uint32_t first_position, struct neotier_kv_stored *stored);

/*
 * A GPU's memory, that blocks are loaded into and saved from: for who computes there. Addresses are that device's, a stream is a
 * cudaStream_t of it, NULL its default stream. The calling thread keeps its current device. No stream may be in the middle of being
 * captured into a graph (NEOTIER_EINVALID); captures of other streams are not disturbed. docs/engine.md, "A GPU's memory".
 *
 * Opening pins the engine's DRAM tiers and `staging_bytes` of memory besides (0: 1 GiB; at least one block's, and one block more, for
 * loads alone), which takes some .3 s a GiB. The engine and the store must outlive it. NULL: no such device, no driver (NEOTIER_EGONE), no memory, or built without CUDA.
 */
NEOTIER_API neotier_kv_gpu *neotier_kv_gpu_open(neotier_kv *kv, uint32_t device, uint64_t staging_bytes);
/* Its loads and saves must be freed before. */
NEOTIER_API void neotier_kv_gpu_close(neotier_kv_gpu *gpu);
/*
 * As neotier_kv_load_start_planned(); `plan` may be NULL. The copies come after what `stream` has now. Blocks in DRAM are copied from
 * where they lie, others go through staging. They may be more than that has room for: a thread of the library fills it again, layer by
 * layer, as the device has read it. Loads at once share it in turns, and none waits for a save.
 */
NEOTIER_API neotier_kv_load *neotier_kv_gpu_load_start(neotier_kv_gpu *gpu, uint64_t session, const struct neotier_object_key *keys,
						       size_t nr, void *const *into, uint32_t first_position, struct neotier_kv_plan *plan,
						       void *stream);
/*
 * What `stream` gets later comes after the layer's arrival. Waits only until the layer of all blocks has come to where the GPU reads
 * it: from a disk or a server, and, where staging is full, behind copies of what came before. Otherwise as neotier_kv_load_wait_layer().
 */
NEOTIER_API int neotier_kv_load_let_wait(neotier_kv_load *load, uint32_t layer, void *stream, uint64_t timeout_ms);
/* Begins to save blocks, layer by layer; from: as `into` above. NULL: neotier_error(). */
NEOTIER_API neotier_kv_save *neotier_kv_gpu_save_start(neotier_kv_gpu *gpu, uint64_t session, const struct neotier_object_key *keys,
						       size_t nr, const void *const *from, uint32_t first_position);
/* Leading blocks that there is staging for; the others are not saved. */
NEOTIER_API size_t neotier_kv_save_blocks(const neotier_kv_save *save);
/* What `stream` has now writes that layer of all blocks: it is copied when that has passed. Each layer once. */
NEOTIER_API int neotier_kv_save_layer(neotier_kv_save *save, uint32_t layer, void *stream);
/* What `stream` gets later comes after the copies started so far: the blocks may be overwritten. Does not wait. */
NEOTIER_API int neotier_kv_save_behind(neotier_kv_save *save, void *stream);
/* Waits for the copies of all layers and stores the blocks, as neotier_kv_store(). Once. */
NEOTIER_API int neotier_kv_save_finish(neotier_kv_save *save, struct neotier_kv_stored *stored);
/* What is not finished is not stored. */
NEOTIER_API void neotier_kv_save_free(neotier_kv_save *save);

/* Events since the last call, oldest first: their number, or an error. *lost (may be NULL): how many came in between and are lost. */
NEOTIER_API int64_t neotier_kv_events(neotier_kv *kv, struct neotier_kv_event *events, size_t max, uint64_t *lost);
/* Counters, tenants, and each tier's policy and room, as JSON; as neotier_metrics(). */
NEOTIER_API int64_t neotier_kv_stats(neotier_kv *kv, char *into, size_t bytes);
/* The counters and tenants in one of neotier_metrics()' formats; what the tiers and loads take is in that one. */
NEOTIER_API int64_t neotier_kv_metrics(neotier_kv *kv, uint32_t format, char *into, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
