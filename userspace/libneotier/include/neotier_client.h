/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neotier.h's calls on the engine of a neotierd: several processes share one budget of memory. Connect instead of neotier_open(), and
 * each call has the same name with _client. docs/neotierd.md; examples/client.py is a whole program.
 *
 * What differs: what is put may be thrown away for want of room as if with neotier_put_options.discard, unless neotierd's configuration
 * says otherwise; bytes are copied through a socket, so a pin gives no pointer, and an object, or a list of keys, is at most
 * neotier_client_limits.max_message; a connection is a session, its pins go when it ends, however it ends; moves wait for so long as they
 * are told instead of giving a ticket. NEOTIER_EGONE with "connection": it is lost, and every later call says so: close and connect again.
 *
 * Errors and versions are those of neotier.h. Thread safety: all calls from any thread, neotier_client_close() excepted; they take
 * turns, as one request is under way at a time: threads that want more connect each for itself. Not for use on both sides of a fork().
 */
#ifndef NEOTIER_CLIENT_H
#define NEOTIER_CLIENT_H

#include "neotier.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct neotier_client neotier_client;

struct neotier_client_options {
	uint32_t struct_bytes;
	uint32_t timeout_ms; /* 60000; most that any call takes, beside the waiting it is told to do. Afterwards the connection is lost */
	const char *name;    /* up to 63 printable ASCII characters, shown in `neotier top`; the program's own */
};

struct neotier_client_limits {
	uint32_t struct_bytes;
	uint32_t objects_in_flight; /* that may be on their way by neotier_client_move() */
	uint64_t client;            /* the number by which neotierd knows this connection */
	uint64_t max_message;       /* bytes of an object that is put or got at once */
	uint64_t pinned_bytes;      /* that may be pinned */
	uint32_t idle_timeout_s;    /* without a call; 0: none. neotier_client_ping() is one */
	uint32_t reserved;
};

/* path: of neotierd's socket; NULL: $NEOTIERD_SOCKET, else /run/neotier/neotierd.sock. options may be NULL. NULL: neotier_error(). */
NEOTIER_API neotier_client *neotier_client_connect(const char *path, const struct neotier_client_options *options);
/* Releases its pins. */
NEOTIER_API void neotier_client_close(neotier_client *client);
NEOTIER_API int neotier_client_get_limits(neotier_client *client, struct neotier_client_limits *limits);
NEOTIER_API int neotier_client_ping(neotier_client *client);

NEOTIER_API int neotier_client_put(neotier_client *client, const struct neotier_object_key *key, const void *data, uint64_t bytes,
				   const struct neotier_put_options *options);
NEOTIER_API int neotier_client_get(neotier_client *client, const struct neotier_object_key *key, uint64_t offset, void *into,
				   uint64_t bytes);
NEOTIER_API int neotier_client_lookup(neotier_client *client, const struct neotier_object_key *key, struct neotier_object_info *info);
/* How many of the first keys are there, or an error. */
NEOTIER_API int64_t neotier_client_lookup_prefix(neotier_client *client, const struct neotier_object_key *keys, size_t nr);
NEOTIER_API int neotier_client_remove(neotier_client *client, const struct neotier_object_key *key);
NEOTIER_API int neotier_client_touch(neotier_client *client, const struct neotier_object_key *key);
NEOTIER_API int neotier_client_describe(neotier_client *client, const struct neotier_object_key *key, uint32_t kind, uint64_t recompute_ns);
/*
 * Holds the object where it is until unpinned, lease_ms have passed, or the connection ends; in any case no longer than neotierd's
 * [client].max_lease_ms, ten minutes by default. *bytes (may be NULL): its size.
 */
NEOTIER_API int neotier_client_pin(neotier_client *client, const struct neotier_object_key *key, uint64_t lease_ms, uint64_t *pin,
				   uint64_t *bytes);
NEOTIER_API int neotier_client_unpin(neotier_client *client, uint64_t pin);

/*
 * Brings objects to a tier, and waits for it at most wait_ms (0: not at all; UINT64_MAX: for ever). NEOTIER_ETIMEOUT, or 0 where wait_ms
 * is 0: under way. progress may be NULL.
 */
NEOTIER_API int neotier_client_move(neotier_client *client, const struct neotier_object_key *keys, size_t nr, const char *tier,
				    uint32_t move_class, uint64_t wait_ms, struct neotier_progress *progress);
NEOTIER_API int neotier_client_write_back(neotier_client *client, const struct neotier_object_key *keys, size_t nr, uint64_t wait_ms,
					  struct neotier_progress *progress);
NEOTIER_API int neotier_client_flush(neotier_client *client);
NEOTIER_API int neotier_client_decide(neotier_client *client, const struct neotier_object_key *key, const char *tier,
				      uint64_t compute_queue_ns, uint64_t cpu_ns, struct neotier_decision *decision);
/* For root, and the user that neotierd runs as. */
NEOTIER_API int neotier_client_tier_service(neotier_client *client, const char *tier, uint32_t in_service);
/* As neotier_metrics(): the engine's and the daemon's; NEOTIER_JSON has every client as well. */
NEOTIER_API int64_t neotier_client_metrics(neotier_client *client, uint32_t format, char *into, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
