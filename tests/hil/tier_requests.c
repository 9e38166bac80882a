// SPDX-License-Identifier: Apache-2.0
/*
 * Serves requests from a tier's memory in place: each line of the file names the objects of one request, each object is
 * pinned, read word by word where it lies, and compared with what was put; what is not there is put. At the end it says
 * where the pages lie, asked of the kernel page by page, and what the engine says of itself. What is read is the
 * program's work, and who moves what it reads, the module or the engine, is the tiers'.
 *
 * usage: tier_requests TIERS TIER BYTES FILE: neotier.h's tiers; the tier that objects are put into, or - where the
 * policies are to decide; bytes of an object. Prints "ready" once the tiers are made, and a JSON object at the end; the mark `served` is at the end of the
 * last request.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "neotier.h"
#include "neotier/mark.h"

#define PAGE 4096UL
#define NODES 8
#define OBJECTS 65536

static uint64_t bytes;
static uint64_t *content;
static neotier_engine *engine;
static neotier_session session;
static unsigned char known[OBJECTS];

static void die(const char *what)
{
	fprintf(stderr, "tier_requests: %s: %s\n", what, neotier_error());
	exit(1);
}

static struct neotier_object_key key_of(uint64_t id)
{
	struct neotier_object_key key = {{0}};

	memcpy(key.bytes, &id, sizeof(id));
	return key;
}

/* An odd factor: each object and each word of it has its own value. */
static uint64_t word_of(uint64_t id, uint64_t word)
{
	return (id * (bytes / 8) + word) * 0x9e3779b97f4a7c15ULL;
}

static void put(uint64_t id, const char *tier)
{
	const struct neotier_object_key key = key_of(id);
	struct neotier_put_options options = {.struct_bytes = sizeof(options), .kind = NEOTIER_OBJECT_KV, .tier = tier, .discard = 1};

	for (uint64_t i = 0; i < bytes / 8; i++)
		content[i] = word_of(id, i);
	if (neotier_put(engine, &key, content, bytes, &options))
		die("put");
	known[id] = 1;
}

/* NULL: it is not there. */
static const uint64_t *pin(uint64_t id, uint64_t *number)
{
	const struct neotier_object_key key = key_of(id);
	const void *data;
	int code = neotier_pin(engine, session, &key, 0, number, &data);

	if (code == NEOTIER_ENOTFOUND)
		return NULL;
	if (code || !data)
		die("pin");
	return data;
}

static void check(uint64_t id, const uint64_t *data)
{
	uint64_t wrong = 0;

	for (uint64_t i = 0; i < bytes / 8; i++)
		wrong |= data[i] ^ word_of(id, i);
	if (wrong) {
		fprintf(stderr, "tier_requests: object %" PRIu64 " has other bytes than were put\n", id);
		exit(1);
	}
}

static void count_pages(const uint64_t *data, uint64_t *on)
{
	for (uint64_t at = (uintptr_t)data & ~(PAGE - 1); at < (uintptr_t)data + bytes; at += PAGE) {
		void *page = (void *)at;
		int node = -1;

		if (syscall(SYS_move_pages, 0, 1UL, &page, NULL, &node, 0) || node < 0 || node >= NODES) {
			fprintf(stderr, "tier_requests: a page is on no node\n");
			exit(1);
		}
		on[node]++;
	}
}

int main(int argc, char **argv)
{
	struct neotier_marker marker = neotier_marker_open();
	struct neotier_config config = {.struct_bytes = sizeof(config), .abi = NEOTIER_ABI, .no_probes = 1, .seed = 1};
	uint64_t hits = 0, misses = 0, number, on[NODES] = {0};
	static char line[1 << 20], metrics[1 << 16];
	FILE *file;

	if (argc != 5 || (bytes = strtoull(argv[3], NULL, 10)) < 8 || bytes % 8 || !(file = fopen(argv[4], "r"))) {
		fprintf(stderr, "usage: tier_requests TIERS TIER BYTES FILE\n");
		return 2;
	}
	content = malloc(bytes);
	config.tiers = argv[1];
	engine = content ? neotier_open(&config) : NULL;
	if (!engine)
		die("open");
	session = neotier_session_open(engine);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), file)) {
		for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
			uint64_t id = strtoull(word, NULL, 10);
			const struct neotier_object_key key = key_of(id);
			const uint64_t *data = id < OBJECTS ? pin(id, &number) : NULL;

			if (data) {
				hits++;
				check(id, data);
				/* A use that is told while nobody holds the object: the engine moves none that is pinned. */
				if (neotier_unpin(engine, session, number) || neotier_touch(engine, &key))
					die("unpin");
				continue;
			}
			if (id >= OBJECTS) {
				fprintf(stderr, "tier_requests: objects are numbered to %d\n", OBJECTS - 1);
				return 1;
			}
			misses++;
			put(id, strcmp(argv[2], "-") ? argv[2] : NULL);
		}
	}
	neotier_mark_phase(&marker, "served");
	for (uint64_t id = 0; id < OBJECTS; id++) {
		const uint64_t *data = known[id] ? pin(id, &number) : NULL;

		if (!data)
			continue;
		check(id, data);
		count_pages(data, on);
		if (neotier_unpin(engine, session, number))
			die("unpin");
	}
	/* The engine's sample may be a second old. */
	usleep(1100000);
	if (neotier_metrics(engine, NEOTIER_JSON, metrics, sizeof(metrics)) >= (int64_t)sizeof(metrics))
		die("metrics");
	printf("{\"hits\": %" PRIu64 ", \"misses\": %" PRIu64 ", \"pages\": [%" PRIu64 ", %" PRIu64 "], \"engine\": %s}\n", hits, misses, on[0],
	       on[1], metrics);
	neotier_session_close(engine, session);
	neotier_close(engine);
	return 0;
}
