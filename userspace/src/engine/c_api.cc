// SPDX-License-Identifier: Apache-2.0
// include/neotier.h over engine/engine.h. No exception leaves it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "engine/engine.h"
#include "engine/metrics.h"
#include "engine/tiers/make_tiers.h"
#include "neotier.h"

using namespace neotier::engine;

static_assert(sizeof(neotier_object_key) == sizeof(Key) && alignof(neotier_object_key) == alignof(Key));

struct neotier_engine {
  Engine engine;
};

struct neotier_ticket {
  neotier_engine* owner;
  TicketRef ticket;
};

namespace {

thread_local std::string last_error;

int code_of(Code code) {
  switch (code) {
    case Code::kOk:
      return 0;
    case Code::kInvalid:
      return NEOTIER_EINVALID;
    case Code::kNotFound:
      return NEOTIER_ENOTFOUND;
    case Code::kExists:
      return NEOTIER_EEXISTS;
    case Code::kFull:
      return NEOTIER_EFULL;
    case Code::kBusy:
      return NEOTIER_EBUSY;
    case Code::kCancelled:
      return NEOTIER_ECANCELLED;
    case Code::kTimeout:
      return NEOTIER_ETIMEOUT;
    case Code::kIo:
      return NEOTIER_EIO;
    case Code::kCorrupt:
      return NEOTIER_ECORRUPT;
    case Code::kGone:
      return NEOTIER_EGONE;
    case Code::kUnsupported:
      return NEOTIER_EUNSUPPORTED;
  }
  return NEOTIER_EINVALID;
}

int fail(int code, std::string what) {
  last_error = std::move(what);
  return code;
}

int answer(const Status& status) { return status.is_ok() ? 0 : fail(code_of(status.code()), status.what()); }

const Key& key_of(const neotier_object_key* key) { return *reinterpret_cast<const Key*>(key); }

// What a program built against an older or newer header passed, as this one's struct: fields it does not know are 0.
template <typename T>
T taken(const T* given) {
  T own{};
  if (given) std::memcpy(&own, given, std::min<size_t>(given->struct_bytes, sizeof(T)));
  return own;
}

// Fills no more than the caller has room for; struct_bytes stays as it was.
template <typename T>
int give(T* into, T own) {
  if (!into || into->struct_bytes < sizeof(uint32_t))
    return fail(NEOTIER_EINVALID, "struct_bytes of the result is not set");
  own.struct_bytes = into->struct_bytes;
  std::memcpy(into, &own, std::min<size_t>(into->struct_bytes, sizeof(T)));
  return 0;
}

// Runs `body`; what it throws becomes an error of the thread.
template <typename Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(NEOTIER_ENOMEM, "out of memory");
  } catch (const std::exception& error) {
    return fail(NEOTIER_EINVALID, error.what());
  }
}

neotier_ticket* wrapped(neotier_engine* engine, TicketRef ticket) {
  return new neotier_ticket{engine, std::move(ticket)};
}

template <typename Body>
neotier_ticket* guarded_ticket(Body body) {
  neotier_ticket* ticket = nullptr;
  (void)guarded([&] {
    ticket = body();
    return 0;
  });
  return ticket;
}

template <size_t N>
void copy_name(char (&into)[N], const std::string& name) {
  std::memset(into, 0, N);
  std::memcpy(into, name.data(), std::min(name.size(), N - 1));
}

EngineConfig engine_config(const neotier_config& c) {
  EngineConfig config;
  if (c.max_objects) config.max_objects = c.max_objects;
  config.seed = c.seed;
  config.measure = !c.no_probes;
  Knobs& knobs = config.knobs;
  if (c.hysteresis_ms) knobs.hysteresis_ms = c.hysteresis_ms;
  if (c.promote_heat) knobs.promote_heat = c.promote_heat == UINT32_MAX ? 0 : c.promote_heat;
  if (c.high_watermark != 0) knobs.high_watermark = c.high_watermark;
  if (c.low_watermark != 0) knobs.low_watermark = c.low_watermark;
  if (c.background_share != 0) knobs.background_share = c.background_share;
  knobs.write_back = c.write_back != 0;
  return config;
}

}  // namespace

extern "C" {

uint32_t neotier_abi(void) { return NEOTIER_ABI; }

const char* neotier_error(void) { return last_error.c_str(); }

neotier_engine* neotier_open(const struct neotier_config* config) {
  neotier_engine* opened = nullptr;
  (void)guarded([&] {
    if (!config || config->struct_bytes < offsetof(neotier_config, max_objects))
      return fail(NEOTIER_EINVALID, "config: set struct_bytes to sizeof(struct neotier_config)");
    if (config->abi != NEOTIER_ABI)
      return fail(NEOTIER_EINVALID, fmt::format("config: ABI {}, this library's is {}; build against its neotier.h",
                                                config->abi, NEOTIER_ABI));
    const neotier_config own = taken(config);
    if (!own.tiers) return fail(NEOTIER_EINVALID, "config: tiers is NULL; write for example \"dram=1G\"");
    opened = new neotier_engine{{engine_config(own), make_tiers(own.tiers)}};
    return 0;
  });
  return opened;
}

void neotier_close(neotier_engine* engine) { delete engine; }

neotier_session neotier_session_open(neotier_engine* engine) {
  neotier_session session = 0;
  (void)guarded([&] {
    session = engine->engine.open_session();
    return 0;
  });
  return session;
}

void neotier_session_close(neotier_engine* engine, neotier_session session) { engine->engine.close_session(session); }

int neotier_put(neotier_engine* engine, const struct neotier_object_key* key, const void* data, uint64_t bytes,
                const struct neotier_put_options* options) {
  return guarded([&] {
    if (!key) return fail(NEOTIER_EINVALID, "key is NULL");
    const neotier_put_options own = taken(options);
    PutOptions put;
    if (own.kind > NEOTIER_OBJECT_PLAIN) return fail(NEOTIER_EINVALID, "no such kind of object");
    if (own.kind) put.kind = static_cast<ObjectKind>(own.kind);
    put.recompute_ns = own.recompute_ns;
    if (own.tier) put.tier = own.tier;
    put.replace = own.replace != 0;
    return answer(engine->engine.put(key_of(key), {static_cast<const std::byte*>(data), bytes}, put));
  });
}

int neotier_get(neotier_engine* engine, const struct neotier_object_key* key, uint64_t offset, void* into,
                uint64_t bytes) {
  return guarded([&] {
    return answer(engine->engine.get(key_of(key), offset, {static_cast<std::byte*>(into), bytes}));
  });
}

neotier_ticket* neotier_get_async(neotier_engine* engine, const struct neotier_object_key* key, uint64_t offset,
                                  void* into, uint64_t bytes) {
  return guarded_ticket([&] {
    neotier_ticket* ticket = wrapped(engine, std::make_shared<Ticket>());
    engine->engine.get_async(key_of(key), offset, {static_cast<std::byte*>(into), bytes}, ticket->ticket);
    return ticket;
  });
}

int neotier_lookup(neotier_engine* engine, const struct neotier_object_key* key, struct neotier_object_info* info) {
  return guarded([&] {
    const Result<ObjectInfo> found = engine->engine.lookup(key_of(key));
    if (!found) return answer(found.status());
    if (!info) return 0;
    neotier_object_info own{};
    own.kind = static_cast<uint32_t>(found->kind);
    own.bytes = found->bytes;
    own.recompute_ns = found->recompute_ns;
    own.pins = found->pins;
    own.moving = found->moving;
    own.recovered = found->recovered;
    copy_name(own.tier, found->tier);
    copy_name(own.second_tier, found->second_tier);
    return give(info, own);
  });
}

size_t neotier_lookup_prefix(neotier_engine* engine, const struct neotier_object_key* keys, size_t nr) {
  return engine->engine.lookup_prefix({reinterpret_cast<const Key*>(keys), nr});
}

int neotier_remove(neotier_engine* engine, const struct neotier_object_key* key) {
  return guarded([&] { return answer(engine->engine.remove(key_of(key))); });
}

int neotier_touch(neotier_engine* engine, const struct neotier_object_key* key) {
  return guarded([&] { return answer(engine->engine.touch(key_of(key))); });
}

int neotier_describe(neotier_engine* engine, const struct neotier_object_key* key, uint32_t kind,
                     uint64_t recompute_ns) {
  return guarded([&] {
    if (kind > NEOTIER_OBJECT_PLAIN) return fail(NEOTIER_EINVALID, "no such kind of object");
    return answer(engine->engine.describe(key_of(key), static_cast<ObjectKind>(kind), recompute_ns));
  });
}

int neotier_pin(neotier_engine* engine, neotier_session session, const struct neotier_object_key* key,
                uint64_t lease_ms, uint64_t* pin, const void** data) {
  return guarded([&] {
    if (!pin) return fail(NEOTIER_EINVALID, "pin: NULL, so it could not be released");
    const Result<PinResult> pinned = engine->engine.pin(session, key_of(key), lease_ms);
    if (!pinned) return answer(pinned.status());
    *pin = pinned->id;
    if (data) *data = pinned->data;
    return 0;
  });
}

int neotier_unpin(neotier_engine* engine, neotier_session session, uint64_t pin) {
  return guarded([&] { return answer(engine->engine.unpin(session, pin)); });
}

neotier_ticket* neotier_move(neotier_engine* engine, const struct neotier_object_key* keys, size_t nr, const char* tier,
                             uint32_t move_class) {
  return guarded_ticket([&] {
    const auto cls = static_cast<MoveClass>(std::min<uint32_t>(move_class, NEOTIER_WRITE_BACK));
    return wrapped(engine, engine->engine.move({reinterpret_cast<const Key*>(keys), nr}, tier ? tier : "", cls));
  });
}

neotier_ticket* neotier_write_back(neotier_engine* engine, const struct neotier_object_key* keys, size_t nr) {
  return guarded_ticket([&] {
    return wrapped(engine, engine->engine.write_back({reinterpret_cast<const Key*>(keys), nr}));
  });
}

int neotier_flush(neotier_engine* engine) {
  return guarded([&] { return answer(engine->engine.flush()); });
}

int neotier_ticket_poll(const neotier_ticket* ticket, struct neotier_progress* progress) {
  const Ticket::Progress now = ticket->ticket->progress();
  return give(progress, neotier_progress{0, now.pending, now.done, now.failed});
}

int neotier_ticket_wait(const neotier_ticket* ticket, uint64_t timeout_ms) {
  return guarded([&] {
    return answer(ticket->ticket->wait_ns(timeout_ms > UINT64_MAX / 1000000 ? UINT64_MAX : timeout_ms * 1000000));
  });
}

void neotier_ticket_cancel(neotier_ticket* ticket) { ticket->owner->engine.cancel(ticket->ticket); }

void neotier_ticket_free(neotier_ticket* ticket) { delete ticket; }

int neotier_decide(neotier_engine* engine, const struct neotier_object_key* key, const char* tier,
                   uint64_t compute_queue_ns, uint64_t cpu_ns, struct neotier_decision* decision) {
  return guarded([&] {
    const Result<Decision> made = engine->engine.decide(key_of(key), tier ? tier : "", compute_queue_ns, cpu_ns);
    if (!made) return answer(made.status());
    neotier_decision own{};
    own.choice = static_cast<uint32_t>(made->choice);
    own.load_ns = made->load_ns;
    own.recompute_ns = made->recompute_ns;
    own.cpu_ns = made->cpu_ns;
    return give(decision, own);
  });
}

int neotier_tier_service(neotier_engine* engine, const char* tier, uint32_t in_service) {
  return guarded([&] { return answer(engine->engine.set_in_service(tier ? tier : "", in_service != 0)); });
}

int64_t neotier_metrics(neotier_engine* engine, uint32_t format, char* into, size_t bytes) {
  int64_t length = 0;
  const int code = guarded([&] {
    if (format > NEOTIER_JSON) return fail(NEOTIER_EINVALID, "no such format of metrics");
    const EngineStatus status = engine->engine.status();
    const std::string text = format == NEOTIER_JSON ? to_json(status).dump(2) + "\n" : prometheus_text(status);
    length = static_cast<int64_t>(text.size());
    if (into && bytes > 0) {
      const size_t fits = std::min(text.size(), bytes - 1);
      std::memcpy(into, text.data(), fits);
      into[fits] = 0;
    }
    return 0;
  });
  return code < 0 ? code : length;
}

}  // extern "C"
