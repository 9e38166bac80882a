/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libneotier: objects (KV blocks, experts, plain byte ranges) over tiers of memory and storage, kept where a placement policy wants
 * them, moved by one mover. docs/engine.md tells how it works; examples/engine.c and engine.py are whole programs.
 *
 * Versions: each struct begins with struct_bytes, which the caller sets to sizeof (neotier_config also `abi`). Fields are only added
 * at the end; 0 in a field means its default. NEOTIER_ABI changes when an old program would misbehave.
 *
 * Errors: functions return 0 or a negative enum neotier_code; neotier_error() tells the calling thread's last one in a line.
 * Thread safety: all calls from any thread, neotier_close() excepted. A handle may be used until it is closed or freed.
 */
#ifndef NEOTIER_H
#define NEOTIER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NEOTIER_ABI 1u
#if defined(__GNUC__)
#define NEOTIER_API __attribute__((visibility("default")))
#else
#define NEOTIER_API
#endif

enum neotier_code {
	NEOTIER_EINVALID = -1,   /* the caller's mistake; nothing was done */
	NEOTIER_ENOTFOUND = -2,  /* no such object */
	NEOTIER_EEXISTS = -3,    /* an object of this key is there already */
	NEOTIER_EFULL = -4,      /* no room, and none can be made */
	NEOTIER_EBUSY = -5,      /* pinned, or on its way elsewhere */
	NEOTIER_ECANCELLED = -6, /* as asked, or because the object changed */
	NEOTIER_ETIMEOUT = -7,   /* still under way */
	NEOTIER_EIO = -8,        /* the medium failed this transfer */
	NEOTIER_ECORRUPT = -9,   /* what was read is not what was written; it was not handed out */
	NEOTIER_EGONE = -10,     /* the tier is out of service; its objects may come back with it */
	NEOTIER_EUNSUPPORTED = -11,
	NEOTIER_ENOMEM = -12
};

/* Values of neotier_placement.h's enum of the same name without the word OBJECT. */
enum neotier_kind { NEOTIER_OBJECT_KV = 1, NEOTIER_OBJECT_EXPERT = 2, NEOTIER_OBJECT_PLAIN = 3 };

enum neotier_move_class {
	NEOTIER_DEMAND = 0,    /* somebody waits */
	NEOTIER_PREFETCH = 1,  /* somebody will */
	NEOTIER_WRITE_BACK = 2 /* nobody does */
};

typedef struct neotier_engine neotier_engine;
typedef struct neotier_ticket neotier_ticket;
typedef struct neotier_queue neotier_queue;
typedef uint64_t neotier_session; /* 0 is none */

struct neotier_object_key {
	uint8_t bytes[16];
};

struct neotier_config {
	uint32_t struct_bytes, abi;
	/*
	 * Tiers, fastest first, separated by commas: KIND=SIZE[:OPTION...], or NAME/KIND=SIZE[:OPTION...]. KIND: dram, cxl, gpu, ssd,
	 * remote. SIZE: as 512M, 8G. Options: file=PATH (ssd, required), extents=N (ssd: most objects of a new file), node=N (dram, cxl),
	 * huge=no|transparent|explicit (dram, cxl), mode=bind|kernel (cxl: kernel takes all of it on its node at once, and the kernel may
	 * then move its pages, as neotier.ko does with hot ones; objects are used in place and not copied to dram unasked; the default
	 * is bind, and of huge with kernel no), device=N (gpu), stand-in=yes|no (gpu: imitated in host memory; the default is yes
	 * where there is no GPU), policy=NAME (what it keeps; default hazard), object=SIZE (typical, for the policy), background=SIZE
	 * (cap of prefetch and write-back, bytes/s), promote=no (nothing comes here unasked; the default of gpu). Of remote, a Valkey
	 * or Redis server or cluster: url=[redis://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/DATABASE]] (required; rediss:// with
	 * TLS, unix:/PATH), password_file=PATH, ca=PATH, cert=PATH, key=PATH (TLS), cluster=yes|no (yes where there are several hosts),
	 * timeout_ms=N (2000), connections=N (2, to each server), namespace=WORDS (hosts of the same words, as model and layout, share
	 * what they store; without it all is private), ttl_s=N (86400; 0: for ever). What is in brackets is one word. Example:
	 * "dram=8G,cxl=32G:node=1,ssd=200G:file=/var/cache/neotier"
	 */
	const char *tiers;
	uint64_t max_objects;         /* 1 Mi; those remembered (`history`) included */
	uint64_t seed;                /* random */
	uint32_t hysteresis_ms;       /* 1000; an object that moved is left alone for so long, but for demand */
	uint32_t promote_heat;        /* 3; uses lately that make it worth a faster tier; UINT32_MAX: never */
	double high_watermark;        /* .95 of a tier's capacity: above it objects leave in the background ... */
	double low_watermark;         /* .90 ... until here */
	double background_share;      /* .5 of a link's bandwidth for prefetch and write-back beside demand */
	uint32_t write_back;          /* 1: copy new objects to the first durable tier in the background */
	uint32_t no_probes;           /* 1: links are not measured at start */
	uint64_t events;              /* 0; newest events kept about objects, by the engine and by each KV store of it (neotier_kv.h), 18 bytes
					 each: 65536, or more for who has to hear of all that a restart finds */
	uint32_t discard;             /* 1: as neotier_put_options.discard of every put */
	uint32_t reserved;
	uint64_t history;             /* objects remembered after they left, for the policies; 65,536, or four times those that are
					 there if that is more, and never more than max_objects has room for */
};

struct neotier_put_options {
	uint32_t struct_bytes;
	uint32_t kind;         /* enum neotier_kind; plain */
	uint64_t recompute_ns; /* to make it anew; 0: impossible, so it is never thrown away, but for `discard` */
	const char *tier;      /* NULL: the policies decide */
	uint32_t replace;      /* 1: in the place of one that is there */
	uint32_t discard;      /* 1: may be thrown away for want of room, whatever making it anew costs. A cache of objects with
				  neither this nor a cost fills, and then answers NEOTIER_EFULL */
};

struct neotier_object_info {
	uint32_t struct_bytes;
	uint32_t kind;
	uint64_t bytes, recompute_ns;
	uint32_t pins;
	uint32_t moving;      /* a move is under way */
	uint32_t recovered;   /* from a former process: kind and cost are as they were there; plain and 0 where the SSD file was
				 written by a version that did not keep them (neotier_describe) */
	uint32_t reserved;
	char tier[32];        /* where it is */
	char second_tier[32]; /* where a copy is; empty: nowhere */
};

struct neotier_progress {
	uint32_t struct_bytes;
	uint32_t pending, done, failed;
};

enum neotier_choice { NEOTIER_LOAD = 0, NEOTIER_RECOMPUTE = 1, NEOTIER_COMPUTE_ON_CPU = 2 };

struct neotier_decision {
	uint32_t struct_bytes;
	uint32_t choice; /* enum neotier_choice: what ends first */
	/* Predicted, from now, queues included; UINT64_MAX: not possible. */
	uint64_t load_ns, recompute_ns, cpu_ns;
};

/* NULL and neotier_error() on a configuration that is none. Durable tiers are read: objects of a former process are there. */
NEOTIER_API neotier_engine *neotier_open(const struct neotier_config *config);
/* Cancels what is under way. Tickets must be freed before. */
NEOTIER_API void neotier_close(neotier_engine *engine);
/* One line; of the calling thread, until its next failing call. */
NEOTIER_API const char *neotier_error(void);
NEOTIER_API uint32_t neotier_abi(void);

/* Who holds pins. Closing releases all of them: a client that dies leaks none, if its server closes its session. */
NEOTIER_API neotier_session neotier_session_open(neotier_engine *engine);
NEOTIER_API void neotier_session_close(neotier_engine *engine, neotier_session session);

/* Returns when the object is in a tier, whole. bytes: 1 .. 2^32 - 1. options may be NULL. */
NEOTIER_API int neotier_put(neotier_engine *engine, const struct neotier_object_key *key, const void *data, uint64_t bytes,
			    const struct neotier_put_options *options);
/* Copies `bytes` at `offset` out; 0 bytes are as good as any. Counts as a use. */
NEOTIER_API int neotier_get(neotier_engine *engine, const struct neotier_object_key *key, uint64_t offset, void *into, uint64_t bytes);
/* The same without waiting: `into` must stay until the ticket has ended. NULL: no memory. */
NEOTIER_API neotier_ticket *neotier_get_async(neotier_engine *engine, const struct neotier_object_key *key, uint64_t offset,
					      void *into, uint64_t bytes);
NEOTIER_API int neotier_lookup(neotier_engine *engine, const struct neotier_object_key *key, struct neotier_object_info *info);
/* How many of the first keys are there. Takes no lock: threads that ask do not hold each other up. */
NEOTIER_API size_t neotier_lookup_prefix(neotier_engine *engine, const struct neotier_object_key *keys, size_t nr);
NEOTIER_API int neotier_remove(neotier_engine *engine, const struct neotier_object_key *key);
NEOTIER_API int neotier_touch(neotier_engine *engine, const struct neotier_object_key *key);
NEOTIER_API int neotier_describe(neotier_engine *engine, const struct neotier_object_key *key, uint32_t kind, uint64_t recompute_ns);

/*
 * Holds the object where it is until unpinned, the session is closed, or lease_ms have passed (0: no lease). *data (may be NULL)
 * is where its bytes lie, or NULL where the host cannot address them; good as long as the pin. Read only.
 */
NEOTIER_API int neotier_pin(neotier_engine *engine, neotier_session session, const struct neotier_object_key *key, uint64_t lease_ms,
			    uint64_t *pin, const void **data);
/*
 * The same for who computes on a GPU. *device (may be NULL) is where the bytes lie in the GPU's address space, or NULL where they are
 * in no GPU's memory; with a stand-in for a GPU, an address of this process.
 */
NEOTIER_API int neotier_pin_device(neotier_engine *engine, neotier_session session, const struct neotier_object_key *key,
				   uint64_t lease_ms, uint64_t *pin, const void **data, const void **device);
NEOTIER_API int neotier_unpin(neotier_engine *engine, neotier_session session, uint64_t pin);

/* Brings objects to a tier. move_class: enum neotier_move_class. NULL: no memory. */
NEOTIER_API neotier_ticket *neotier_move(neotier_engine *engine, const struct neotier_object_key *keys, size_t nr, const char *tier,
					 uint32_t move_class);
/* Copies them to the first durable tier, beside where they are. */
NEOTIER_API neotier_ticket *neotier_write_back(neotier_engine *engine, const struct neotier_object_key *keys, size_t nr);
/* All that is on durable tiers now survives a crash when it returns 0. */
NEOTIER_API int neotier_flush(neotier_engine *engine);

NEOTIER_API int neotier_ticket_poll(const neotier_ticket *ticket, struct neotier_progress *progress);
/* The first error of any of its objects, once all have ended; NEOTIER_ETIMEOUT before. UINT64_MAX: for ever. */
NEOTIER_API int neotier_ticket_wait(const neotier_ticket *ticket, uint64_t timeout_ms);
/* Ends what only this ticket waits for, as early as may be: wait still tells how it ended. */
NEOTIER_API void neotier_ticket_cancel(neotier_ticket *ticket);
/*
 * For an event loop: a queue of what has ended. Its file descriptor (an eventfd: poll it, do not read it) is readable as long as there
 * is a tag to take. NULL: no memory, or no file descriptor.
 */
NEOTIER_API neotier_queue *neotier_queue_open(void);
/* Before or after what it waits for has ended. */
NEOTIER_API void neotier_queue_close(neotier_queue *queue);
NEOTIER_API int neotier_queue_fd(const neotier_queue *queue);
/* The oldest tags, as many as there are and fit; never waits. */
NEOTIER_API size_t neotier_queue_take(neotier_queue *queue, uint64_t *tags, size_t max);
/* Puts `tag` (any number) into the queue when the ticket has ended, at once if it has. NEOTIER_EEXISTS: it was asked already. */
NEOTIER_API int neotier_ticket_notify(neotier_ticket *ticket, neotier_queue *queue, uint64_t tag);
/* Work that is under way goes on; but a ticket of neotier_get_async() must have ended. */
NEOTIER_API void neotier_ticket_free(neotier_ticket *ticket);

/*
 * What ends first: loading to `tier` (NULL: the caller's memory), making anew behind compute_queue_ns of other work, or computing on
 * the CPU where the object lies (cpu_ns out of DRAM; 0: not possible), by the links as they are measured.
 */
NEOTIER_API int neotier_decide(neotier_engine *engine, const struct neotier_object_key *key, const char *tier, uint64_t compute_queue_ns,
			       uint64_t cpu_ns, struct neotier_decision *decision);
/*
 * Takes a tier out of service before its memory is withdrawn (its objects stay known), or tries to bring it back. Out: returns when
 * nothing reads or writes its memory any more. NEOTIER_EBUSY: it is out of service, but pins hold objects there, whose owners may
 * still read them: ask again when they were released. NEOTIER_ECANCELLED: it was brought back meanwhile.
 */
NEOTIER_API int neotier_tier_service(neotier_engine *engine, const char *tier, uint32_t in_service);

enum neotier_metrics_format { NEOTIER_PROMETHEUS = 0, NEOTIER_JSON = 1 };
/* Writes text with a final 0 to `into`, cut off at `bytes`; returns its full length without the 0, or an error. */
NEOTIER_API int64_t neotier_metrics(neotier_engine *engine, uint32_t format, char *into, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
