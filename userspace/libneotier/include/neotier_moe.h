/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NeoTier for a host that computes with a mixture of experts in weight tensors of its own: of all experts a budget's worth is in memory,
 * at the tensors' own addresses, by a placement policy; the others lie in the model's files, which are only read. docs/moe.md.
 *
 * The host gets addresses without memory (neotier_range), puts its tensors there, and says where each lies in which file. Then, for each
 * layer of each batch, it says which experts it is about to use, waits for them, and computes. What it touches without saying so comes by
 * a page fault: slowly, and never as zeros.
 *
 * Errors and versions are those of neotier.h. Thread safety: all calls from any thread; a step by one at a time; neotier_moe_close() when
 * no step is open, neotier_range_close() after it.
 */
#ifndef NEOTIER_MOE_H
#define NEOTIER_MOE_H

#include "neotier.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct neotier_range neotier_range;
typedef struct neotier_moe neotier_moe;
typedef struct neotier_moe_step neotier_moe_step;

/*
 * `bytes` of addresses; node: whose memory is to be there, preferred; -1: the system's choice. Until neotier_moe_open() what is touched
 * is zeros. NULL: NEOTIER_EUNSUPPORTED where the process may have no userfaultfd, NEOTIER_ENOMEM, NEOTIER_EINVALID.
 */
NEOTIER_API neotier_range *neotier_range_open(uint64_t bytes, int32_t node);
NEOTIER_API void *neotier_range_address(const neotier_range *range);
NEOTIER_API void neotier_range_close(neotier_range *range);

/* All experts of a layer's part: expert e at `at` + e * expert_bytes of the range, and at `offset` + e * expert_bytes of the file. */
struct neotier_moe_tensor {
	uint32_t layer, part; /* 0 .. config.layers - 1, 0 .. config.parts - 1 */
	uint32_t file;        /* of config.files */
	uint32_t reserved;
	uint64_t at;           /* a multiple of 4096; no page has bytes of two tensors */
	uint64_t expert_bytes; /* 1 .. */
	uint64_t offset;
};

struct neotier_moe_config {
	uint32_t struct_bytes;
	uint32_t layers, parts, experts; /* parts of an expert, in the order in which a layer uses them; experts of a layer */
	uint32_t top_k;                  /* experts that a token uses, 1 .. experts */
	uint32_t rows;                   /* tokens of a step that a policy is told one by one; 512 */
	uint64_t memory_bytes;           /* of experts in memory, and of what reads go through; all that there are */
	const char *policy;              /* learned; or another of docs/policies.md, or a shared library's path */
	const char *predictor;           /* the policy's own, where it has one; "": none */
	uint64_t seed;
	const char *const *files;
	const struct neotier_moe_tensor *tensors; /* layers * parts */
	uint32_t nr_files;
	uint32_t reserved;
	/*
	 * Where all experts have room (counters.slots is all of them): called with each expert's part that was read and is whole pages,
	 * before anybody can see it, by one thread at a time; to lay its bytes out in another way, in place. NULL: as in the file.
	 */
	void (*convert)(void *user, uint32_t layer, uint32_t part, void *bytes);
	void *user;
};

struct neotier_moe_counters {
	uint32_t struct_bytes;
	uint32_t slots, wider_layers; /* experts of each layer that have room; the first layers have one more */
	uint32_t reserved;
	uint64_t memory_limit, memory, memory_peak; /* bytes of experts, and of what reads go through */
	uint64_t steps, uses;       /* uses: of an expert by a row */
	uint64_t hits, stall_free;  /* of those: had a slot when the step began; and had arrived there */
	uint64_t loads;             /* experts of a step that had no slot */
	uint64_t streamed, bypassed; /* of those: not kept, as all slots were the step's; as the policy wished */
	uint64_t prefetches, prefetches_used;
	uint64_t borrowed;          /* experts that lost their slot to a step that needed more room than was left */
	uint64_t faults;            /* touches of what was not there */
	uint64_t bytes_read, retries, failures;
	uint64_t wait_ns;           /* in neotier_moe_wait() */
};

/*
 * Where all experts have room, they have been read when this returns; one whose read failed is asked for anew by its first step.
 * NULL: NEOTIER_EFULL where the memory is less than one operation needs; the error says how much that is.
 */
NEOTIER_API neotier_moe *neotier_moe_open(neotier_range *range, const struct neotier_moe_config *config);
/* The least memory_bytes that it takes: of the config only layers, parts, experts, and the tensors' expert_bytes matter. 0: invalid. */
NEOTIER_API uint64_t neotier_moe_least(const struct neotier_moe_config *config);
NEOTIER_API void neotier_moe_close(neotier_moe *moe);
NEOTIER_API int neotier_moe_get_counters(neotier_moe *moe, struct neotier_moe_counters *counters);

/*
 * A layer of a batch is about to be computed: ids[rows][used], 0 .. experts - 1, by the router's choice; others are ignored. What is
 * missing is on its way when this returns. NULL: NEOTIER_EINVALID.
 */
NEOTIER_API neotier_moe_step *neotier_moe_begin(neotier_moe *moe, uint32_t layer, const int32_t *ids, size_t rows, size_t used);
/* Until this part of all of the step's experts is there. NEOTIER_EIO: file and offset; a later step asks for it anew. */
NEOTIER_API int neotier_moe_wait(neotier_moe_step *step, uint32_t part);
/* The host has computed with it: what is not to be kept makes room for the next part. */
NEOTIER_API void neotier_moe_done(neotier_moe_step *step, uint32_t part);
NEOTIER_API void neotier_moe_end(neotier_moe_step *step);

#ifdef __cplusplus
}
#endif
#endif
