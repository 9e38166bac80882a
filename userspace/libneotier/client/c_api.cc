// SPDX-License-Identifier: Apache-2.0
// neotier_client.h over client/connection.h. No exception leaves it.
#include "engine/c_api.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "client/connection.h"
#include "neotier_client.h"

using namespace neotier::c_api;
using neotier::client::Connection;
using neotier::client::Failure;
using neotier::daemon::kKeyBytes;
using neotier::daemon::Operation;
using neotier::daemon::Reader;
using neotier::daemon::Writer;

struct neotier_client {
  std::mutex mutex;
  Connection connection;
};

namespace {

std::span<const std::byte> keys_of(const neotier_object_key* keys, size_t nr) {
  return {reinterpret_cast<const std::byte*>(keys), nr * kKeyBytes};
}

// One request: `write` makes its fixed part, `read` takes what comes back.
template <typename Write, typename Read>
int request(neotier_client* client, Operation operation, Write write, Read read, std::span<const std::byte> bulk = {},
            std::span<std::byte> into = {}, uint64_t extra_ms = 0) {
  return guarded([&] {
    try {
      std::vector<std::byte> fixed;
      Writer out(fixed);
      write(out);
      std::vector<std::byte> answer;
      {
        std::lock_guard lock(client->mutex);
        answer = client->connection.call(operation, fixed, bulk, into, extra_ms);
      }
      Reader in(answer);
      const int code = read(in);
      if (!in.done()) return fail(NEOTIER_EIO, "neotierd's reply is not understood");
      return code;
    } catch (const Failure& failure) {
      return fail(failure.code, failure.text);
    }
  });
}

int nothing(Reader&) { return 0; }

void write_key(Writer& out, const neotier_object_key* key) { out.bytes(key->bytes, sizeof key->bytes); }

int with_key(neotier_client* client, Operation operation, const neotier_object_key* key) {
  return request(
      client, operation, [&](Writer& out) { write_key(out, key); }, nothing);
}

int read_progress(Reader& in, uint64_t wait_ms, neotier_progress* progress) {
  neotier_progress own{};
  own.pending = in.number<uint32_t>();
  own.done = in.number<uint32_t>();
  own.failed = in.number<uint32_t>();
  if (progress) {
    if (const int code = give(progress, own)) return code;
  }
  return own.pending && wait_ms ? fail(NEOTIER_ETIMEOUT, "still under way") : 0;
}

}  // namespace

extern "C" {

neotier_client* neotier_client_connect(const char* path, const struct neotier_client_options* options) {
  neotier_client* connected = nullptr;
  (void)guarded([&] {
    try {
      const neotier_client_options own = taken(options);
      if (!path) path = std::getenv("NEOTIERD_SOCKET");
      connected = new neotier_client{
          {},
          {path ? path : neotier::client::kDefaultSocket, own.name ? own.name : program_invocation_short_name,
           own.timeout_ms ? own.timeout_ms : 60000}};
      return 0;
    } catch (const Failure& failure) {
      return fail(failure.code, failure.text);
    }
  });
  return connected;
}

void neotier_client_close(neotier_client* client) { delete client; }

int neotier_client_get_limits(neotier_client* client, struct neotier_client_limits* limits) {
  const neotier::daemon::Welcome& welcome = client->connection.welcome();
  neotier_client_limits own{};
  own.objects_in_flight = welcome.objects_in_flight;
  own.client = welcome.client;
  own.max_message = welcome.max_message;
  own.pinned_bytes = welcome.pinned_bytes;
  own.idle_timeout_s = welcome.idle_timeout_s;
  return give(limits, own);
}

int neotier_client_ping(neotier_client* client) {
  return request(
      client, Operation::kPing, [](Writer&) {}, nothing);
}

int neotier_client_put(neotier_client* client, const struct neotier_object_key* key, const void* data, uint64_t bytes,
                       const struct neotier_put_options* options) {
  const neotier_put_options own = taken(options);
  return request(
      client, Operation::kPut,
      [&](Writer& out) {
        write_key(out, key);
        out.number(own.kind);
        out.number(own.recompute_ns);
        out.number((own.replace ? neotier::daemon::kReplace : 0) | (own.discard ? neotier::daemon::kDiscard : 0));
        out.text(own.tier ? own.tier : "");
      },
      nothing, {static_cast<const std::byte*>(data), bytes});
}

int neotier_client_get(neotier_client* client, const struct neotier_object_key* key, uint64_t offset, void* into,
                       uint64_t bytes) {
  return request(client, Operation::kGet,
                 [&](Writer& out) {
                   write_key(out, key);
                   out.number(offset);
                   out.number(bytes);
                 },
                 nothing, {}, {static_cast<std::byte*>(into), bytes});
}

int neotier_client_lookup(neotier_client* client, const struct neotier_object_key* key,
                          struct neotier_object_info* info) {
  return request(
      client, Operation::kLookup, [&](Writer& out) { write_key(out, key); },
      [&](Reader& in) {
        neotier_object_info own{};
        own.kind = in.number<uint32_t>();
        own.bytes = in.number<uint64_t>();
        own.recompute_ns = in.number<uint64_t>();
        own.pins = in.number<uint32_t>();
        own.moving = in.number<uint32_t>();
        own.recovered = in.number<uint32_t>();
        copy_text(own.tier, sizeof own.tier, in.text(neotier::daemon::kMaxName));
        copy_text(own.second_tier, sizeof own.second_tier, in.text(neotier::daemon::kMaxName));
        return info ? give(info, own) : 0;
      });
}

int64_t neotier_client_lookup_prefix(neotier_client* client, const struct neotier_object_key* keys, size_t nr) {
  uint32_t found = 0;
  const int code = request(
      client, Operation::kLookupPrefix, [&](Writer& out) { out.number(static_cast<uint32_t>(nr)); },
      [&](Reader& in) {
        found = in.number<uint32_t>();
        return 0;
      },
      keys_of(keys, nr));
  return code ? code : int64_t{found};
}

int neotier_client_remove(neotier_client* client, const struct neotier_object_key* key) {
  return with_key(client, Operation::kRemove, key);
}

int neotier_client_touch(neotier_client* client, const struct neotier_object_key* key) {
  return with_key(client, Operation::kTouch, key);
}

int neotier_client_describe(neotier_client* client, const struct neotier_object_key* key, uint32_t kind,
                            uint64_t recompute_ns) {
  return request(
      client, Operation::kDescribe,
      [&](Writer& out) {
        write_key(out, key);
        out.number(kind);
        out.number(recompute_ns);
      },
      nothing);
}

int neotier_client_pin(neotier_client* client, const struct neotier_object_key* key, uint64_t lease_ms, uint64_t* pin,
                       uint64_t* bytes) {
  if (!pin) return fail(NEOTIER_EINVALID, "pin: NULL, so it could not be released");
  return request(
      client, Operation::kPin,
      [&](Writer& out) {
        write_key(out, key);
        out.number(lease_ms);
      },
      [&](Reader& in) {
        *pin = in.number<uint64_t>();
        const auto size = in.number<uint64_t>();
        if (bytes) *bytes = size;
        return 0;
      });
}

int neotier_client_unpin(neotier_client* client, uint64_t pin) {
  return request(
      client, Operation::kUnpin, [&](Writer& out) { out.number(pin); }, nothing);
}

int neotier_client_move(neotier_client* client, const struct neotier_object_key* keys, size_t nr, const char* tier,
                        uint32_t move_class, uint64_t wait_ms, struct neotier_progress* progress) {
  return request(
      client, Operation::kMove,
      [&](Writer& out) {
        out.number(move_class);
        out.number(wait_ms);
        out.text(tier ? tier : "");
        out.number(static_cast<uint32_t>(nr));
      },
      [&](Reader& in) { return read_progress(in, wait_ms, progress); }, keys_of(keys, nr), {}, wait_ms);
}

int neotier_client_write_back(neotier_client* client, const struct neotier_object_key* keys, size_t nr,
                              uint64_t wait_ms, struct neotier_progress* progress) {
  return request(
      client, Operation::kWriteBack,
      [&](Writer& out) {
        out.number(wait_ms);
        out.number(static_cast<uint32_t>(nr));
      },
      [&](Reader& in) { return read_progress(in, wait_ms, progress); }, keys_of(keys, nr), {}, wait_ms);
}

int neotier_client_flush(neotier_client* client) {
  return request(
      client, Operation::kFlush, [](Writer&) {}, nothing);
}

int neotier_client_decide(neotier_client* client, const struct neotier_object_key* key, const char* tier,
                          uint64_t compute_queue_ns, uint64_t cpu_ns, struct neotier_decision* decision) {
  return request(
      client, Operation::kDecide,
      [&](Writer& out) {
        write_key(out, key);
        out.number(compute_queue_ns);
        out.number(cpu_ns);
        out.text(tier ? tier : "");
      },
      [&](Reader& in) {
        neotier_decision own{};
        own.choice = in.number<uint32_t>();
        own.load_ns = in.number<uint64_t>();
        own.recompute_ns = in.number<uint64_t>();
        own.cpu_ns = in.number<uint64_t>();
        return give(decision, own);
      });
}

int neotier_client_tier_service(neotier_client* client, const char* tier, uint32_t in_service) {
  return request(
      client, Operation::kTierService,
      [&](Writer& out) {
        out.text(tier ? tier : "");
        out.number(uint32_t{in_service != 0});
      },
      nothing);
}

int64_t neotier_client_metrics(neotier_client* client, uint32_t format, char* into, size_t bytes) {
  int64_t length = 0;
  const int code = request(
      client, Operation::kMetrics, [&](Writer& out) { out.number(format); },
      [&](Reader& in) {
        const std::span<const std::byte> raw = in.rest();
        length = static_cast<int64_t>(raw.size());
        if (into) copy_text(into, bytes, {reinterpret_cast<const char*>(raw.data()), raw.size()});
        return 0;
      });
  return code ? code : length;
}

}  // extern "C"
