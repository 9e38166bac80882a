/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps a few KV blocks in DRAM and CXL memory, moves one, asks whether loading it is worth it. Build: see docs/engine.md. */
#include <stdio.h>
#include <string.h>

#include "neotier.h"

static int check(int code, const char *what)
{
	if (code < 0) fprintf(stderr, "engine: %s: %s\n", what, neotier_error());
	return code < 0;
}

int main(int argc, char **argv)
{
	struct neotier_config config = { .struct_bytes = sizeof(config), .abi = NEOTIER_ABI };
	struct neotier_put_options kv = { .struct_bytes = sizeof(kv), .kind = NEOTIER_OBJECT_KV, .recompute_ns = 50000000, .replace = 1 };
	struct neotier_object_info info = { .struct_bytes = sizeof(info) };
	struct neotier_decision decision = { .struct_bytes = sizeof(decision) };
	static unsigned char block[2 << 20], back[sizeof(block)];
	struct neotier_object_key key = { { 0 } };
	int bad = 0;

	config.tiers = argc > 1 ? argv[1] : "dram=32M,cxl=64M";
	neotier_engine *engine = neotier_open(&config);
	if (!engine) return check(-1, "open");
	for (key.bytes[0] = 0; key.bytes[0] < 24; key.bytes[0]++) {
		memset(block, key.bytes[0], sizeof(block));
		bad |= check(neotier_put(engine, &key, block, sizeof(block), &kv), "put");
	}
	key.bytes[0] = 23;
	neotier_ticket *ticket = neotier_move(engine, &key, 1, "cxl", NEOTIER_DEMAND);
	bad |= check(neotier_ticket_wait(ticket, 10000), "move");
	neotier_ticket_free(ticket);
	bad |= check(neotier_lookup(engine, &key, &info), "lookup") | check(neotier_decide(engine, &key, "dram", 0, 0, &decision), "decide");
	bad |= check(neotier_get(engine, &key, 0, back, sizeof(back)), "get") | (memcmp(block, back, sizeof(back)) != 0);
	printf("block 23 is in %s: %.2f ms to load, %.2f ms to compute\n", info.tier, decision.load_ns / 1e6, decision.recompute_ns / 1e6);
	neotier_close(engine);
	return bad;
}
