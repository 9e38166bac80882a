/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps a few KV blocks in a running neotierd, and reads one back: client [SOCKET]. Build: see userspace/libneotier/README.md. */
#include <stdio.h>
#include <string.h>

#include "neotier_client.h"

static int check(int64_t code, const char *what)
{
	if (code < 0) fprintf(stderr, "client: %s: %s\n", what, neotier_error());
	return code < 0;
}

int main(int argc, char **argv)
{
	struct neotier_client_options options = { .struct_bytes = sizeof(options), .name = "client.c" };
	struct neotier_put_options kv = { .struct_bytes = sizeof(kv), .kind = NEOTIER_OBJECT_KV, .recompute_ns = 50000000, .replace = 1 };
	struct neotier_object_info info = { .struct_bytes = sizeof(info) };
	static unsigned char block[1 << 20], back[sizeof(block)];
	struct neotier_object_key keys[24] = { { { 0 } } };
	int bad = 0;

	/* NULL: $NEOTIERD_SOCKET, or where the service listens. */
	neotier_client *client = neotier_client_connect(argc > 1 ? argv[1] : NULL, &options);
	if (!client) return check(-1, "connect");
	for (int n = 0; n < 24; n++) {
		keys[n].bytes[0] = (unsigned char)n;
		memset(block, n, sizeof(block));
		bad |= check(neotier_client_put(client, &keys[n], block, sizeof(block), &kv), "put");
	}
	int64_t found = neotier_client_lookup_prefix(client, keys, 24);
	bad |= check(found, "lookup") | check(neotier_client_lookup(client, &keys[23], &info), "lookup");
	bad |= check(neotier_client_get(client, &keys[23], 0, back, sizeof(back)), "get") | (memcmp(block, back, sizeof(back)) != 0);
	printf("%d blocks of 24 are there; the last one came back whole from %s\n", (int)found, info.tier);
	neotier_client_close(client);
	return bad;
}
