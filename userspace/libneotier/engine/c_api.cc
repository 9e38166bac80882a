// SPDX-License-Identifier: Apache-2.0
// neotier.h over engine/engine.h. No exception leaves it.
#include "engine/c_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "engine/engine.h"
#include "engine/metrics.h"
#include "engine/tiers/make_tiers.h"
#include "neotier.h"

using namespace neotier::engine;
using namespace neotier::c_api;

struct neotier_ticket {
  neotier_engine* owner;
  TicketRef ticket;
};

namespace {

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

EngineConfig engine_config(const neotier_config& c) {
  EngineConfig config;
  if (c.max_objects) config.max_objects = c.max_objects;
  config.seed = c.seed;
  config.events = c.events;
  config.discard = c.discard != 0;
  config.history = c.history;
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

const char* neotier_error(void) { return last_error().c_str(); }

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
    put.discard = own.discard != 0;
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
    copy_text(own.tier, sizeof own.tier, found->tier);
    copy_text(own.second_tier, sizeof own.second_tier, found->second_tier);
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
  return neotier_pin_device(engine, session, key, lease_ms, pin, data, nullptr);
}

int neotier_pin_device(neotier_engine* engine, neotier_session session, const struct neotier_object_key* key,
                       uint64_t lease_ms, uint64_t* pin, const void** data, const void** device) {
  return guarded([&] {
    if (!pin) return fail(NEOTIER_EINVALID, "pin: NULL, so it could not be released");
    const Result<PinResult> pinned = engine->engine.pin(session, key_of(key), lease_ms);
    if (!pinned) return answer(pinned.status());
    *pin = pinned->id;
    if (data) *data = pinned->data;
    if (device) *device = pinned->device;
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

neotier_queue* neotier_queue_open(void) {
  neotier_queue* opened = nullptr;
  (void)guarded([&] {
    opened = new neotier_queue{std::make_shared<CompletionQueue>()};
    return 0;
  });
  return opened;
}

void neotier_queue_close(neotier_queue* queue) { delete queue; }

int neotier_queue_fd(const neotier_queue* queue) { return queue->queue->fd(); }

size_t neotier_queue_take(neotier_queue* queue, uint64_t* tags, size_t max) { return queue->queue->take({tags, max}); }

int neotier_ticket_notify(neotier_ticket* ticket, neotier_queue* queue, uint64_t tag) {
  return guarded([&] {
    const auto ended = std::make_shared<CompletionTag>(queue->queue, tag);
    if (!ticket->ticket->listen(ended)) return fail(NEOTIER_EEXISTS, "the ticket has its place in a queue already");
    return 0;
  });
}

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
    if (into) copy_text(into, bytes, text);
    return 0;
  });
  return code < 0 ? code : length;
}

}  // extern "C"
