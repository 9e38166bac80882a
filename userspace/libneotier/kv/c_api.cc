// SPDX-License-Identifier: Apache-2.0
// neotier_kv.h over kv/kv_store.h. No exception leaves it.
#include "engine/c_api.h"

#include <fmt/format.h>

#include <climits>
#include <nlohmann/json.hpp>

#include "kv/block_key.h"
#include "kv/gpu_memory.h"
#include "kv/kv_store.h"
#include "neotier_kv.h"
#include "util/prometheus.h"

using namespace neotier::c_api;
using neotier::engine::Key;

struct neotier_kv {
  neotier::kv::KeyChain chain;
  neotier::kv::KvStore store;
};

struct neotier_kv_gpu {
  neotier_kv* kv;
  std::unique_ptr<neotier::kv::GpuMemory> memory;
};

struct neotier_kv_save {
  std::unique_ptr<neotier::kv::Save> save;
};

struct neotier_kv_load {
  std::unique_ptr<neotier::kv::Loading> load;
};

namespace {

std::span<const Key> keys_of(const neotier_object_key* keys, size_t nr) {
  return {reinterpret_cast<const Key*>(keys), nr};
}

neotier::kv::KeyOptions key_options(const neotier_kv_config& c) {
  neotier::kv::KeyOptions options;
  if (c.block_tokens) options.block_tokens = c.block_tokens;
  options.hash = c.hash == NEOTIER_KV_XXH3 ? neotier::kv::HashKind::kXxh3 : neotier::kv::HashKind::kSha256Cbor;
  if (c.seed) options.seed = c.seed;
  if (c.space) options.space = c.space;
  return options;
}

neotier::kv::StoreOptions store_options(const neotier_kv_config& c) {
  neotier::kv::StoreOptions options;
  options.layers = c.layers;
  options.layer_bytes = c.layer_bytes;
  if (c.piece_bytes) options.piece_bytes.assign(c.piece_bytes, c.piece_bytes + c.pieces);
  if (c.layer_pieces) options.layer_pieces.assign(c.layer_pieces, c.layer_pieces + c.layers);
  options.write = static_cast<neotier::kv::WritePolicy>(c.write);
  if (c.write_after) options.write_after = c.write_after;
  if (c.store_after) options.store_after = c.store_after;
  options.recompute_ns = c.recompute_ns;
  options.recompute_per_position_ns = c.recompute_per_position_ns;
  if (c.lease_ms) options.lease_ms = c.lease_ms;
  return options;
}

nlohmann::json to_json(const neotier::kv::KvStore& store) {
  const neotier::kv::StoreCounters c = store.counters();
  nlohmann::json json = {{"tiers", nlohmann::json::array()}, {"tenants", nlohmann::json::array()}};
#define NEOTIER_COUNTER(name, help) json[#name] = c.name;
  NEOTIER_KV_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
  for (const neotier::engine::TierStatus& tier : store.tiers()) {
    json["tiers"].push_back({{"name", tier.info.name},
                             {"policy", tier.policy},
                             {"capacity_bytes", tier.info.capacity_bytes},
                             {"used_bytes", tier.usage.used_bytes},
                             {"objects", tier.objects},
                             {"bypassed_blocks", c.bypassed_of_tier[json["tiers"].size()]}});
  }
  for (const neotier::kv::TenantStatus& tenant : store.tenants()) {
    json["tenants"].push_back({{"name", tenant.name},
                               {"quota_bytes", tenant.quota_bytes},
                               {"used_bytes", tenant.used_bytes},
                               {"blocks", tenant.blocks}});
  }
  return json;
}

std::string prometheus_text(const neotier::kv::KvStore& store) {
  const neotier::kv::StoreCounters c = store.counters();
  neotier::PrometheusText text;
#define NEOTIER_COUNTER(name, help) text.one("kv_" #name "_total", "counter", help, c.name);
  NEOTIER_KV_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
  const auto label = [](const char* name, const std::string& value) {
    return fmt::format("{}=\"{}\"", name, neotier::PrometheusText::escaped(value));
  };
  text.head("kv_tier_bypassed_blocks_total", "counter", "kv_bypassed_blocks by the tier that had them");
  const auto tiers = store.tiers();
  for (size_t i = 0; i < tiers.size(); i++)
    text.value("kv_tier_bypassed_blocks_total", label("tier", tiers[i].info.name), c.bypassed_of_tier[i]);
  const auto tenants = store.tenants();
  const auto each = [&](const char* name, const char* help, uint64_t neotier::kv::TenantStatus::*which) {
    text.head(name, "gauge", help);
    for (const neotier::kv::TenantStatus& tenant : tenants)
      text.value(name, label("tenant", tenant.name), tenant.*which);
  };
  each("kv_tenant_used_bytes", "bytes of the tenant's blocks", &neotier::kv::TenantStatus::used_bytes);
  each("kv_tenant_quota_bytes", "bytes that it may have; 0: no limit", &neotier::kv::TenantStatus::quota_bytes);
  each("kv_tenant_blocks", "its blocks", &neotier::kv::TenantStatus::blocks);
  return text.take();
}

// `plan` is taken and given by as many bytes as the caller knows of.
neotier::kv::PlanOptions options_of(const struct neotier_kv_plan* plan) {
  const struct neotier_kv_plan own = taken(plan);
  return {own.overlap != 0, own.compute_queue_ns, own.after_ns};
}

int give_plan(struct neotier_kv_plan* plan, const neotier::kv::LoadPlan& made) {
  struct neotier_kv_plan own = taken(plan);
  own.found = made.found;
  own.load = made.load;
  own.load_ns = made.load_ns;
  own.ttft_ns = made.ttft_ns;
  own.load_all_ns = made.load_all_ns;
  own.compute_all_ns = made.compute_all_ns;
  return give(plan, own);
}

int give_stored(neotier_kv_stored* stored, const neotier::kv::StoreResult& result) {
  if (stored) {
    const int code = give(stored, neotier_kv_stored{0, result.stored, result.present, result.filtered, result.passed});
    if (code < 0) return code;
  }
  return answer(result.status);
}

// start: KvStore::load() or GpuMemory::load().
template <typename Start>
neotier_kv_load* start_load(neotier_kv* kv, size_t nr, void* const* into, struct neotier_kv_plan* plan, Start start) {
  neotier_kv_load* started = nullptr;
  (void)guarded([&] {
    if (nr > SIZE_MAX / kv->store.layout().nr_pieces()) return fail(NEOTIER_EINVALID, "so many blocks cannot be");
    std::vector<std::byte*> places(nr * kv->store.layout().nr_pieces());
    for (size_t i = 0; i < places.size(); i++) places[i] = static_cast<std::byte*>(into[i]);
    const neotier::kv::PlanOptions decide = plan ? options_of(plan) : neotier::kv::PlanOptions{};
    auto load = start(std::span<std::byte* const>(places), plan ? &decide : nullptr);
    if (!load) return answer(load.status());
    if (const int code = plan ? give_plan(plan, (*load)->plan()) : 0; code < 0) return code;
    started = new neotier_kv_load{std::move(*load)};
    return 0;
  });
  return started;
}

}  // namespace

extern "C" {

neotier_kv* neotier_kv_open(neotier_engine* engine, const struct neotier_kv_config* config) {
  neotier_kv* opened = nullptr;
  (void)guarded([&] {
    if (!config || config->struct_bytes < offsetof(neotier_kv_config, seed))
      return fail(NEOTIER_EINVALID, "config: set struct_bytes to sizeof(struct neotier_kv_config)");
    const neotier_kv_config own = taken(config);
    if (own.hash > NEOTIER_KV_XXH3) return fail(NEOTIER_EINVALID, "config: no such hash");
    if (own.write > NEOTIER_KV_WRITE_THROUGH) return fail(NEOTIER_EINVALID, "config: no such write policy");
    if ((own.piece_bytes == nullptr) != (own.pieces == 0))
      return fail(NEOTIER_EINVALID, "config: piece_bytes and pieces: the one without the other");
    if (engine->engine.events() == 0)
      return fail(NEOTIER_EINVALID, "the engine keeps no events; open it with events = 65536");
    neotier::kv::StoreOptions options = store_options(own);
    options.events = engine->engine.events();
    opened = new neotier_kv{neotier::kv::KeyChain(key_options(own)), {engine->engine, options}};
    return 0;
  });
  return opened;
}

void neotier_kv_close(neotier_kv* kv) { delete kv; }

int64_t neotier_kv_keys(neotier_kv* kv, const uint32_t* tokens, size_t nr, const char* lora, const char* salt,
                        struct neotier_object_key* keys, size_t max) {
  int64_t found = 0;
  const int code = guarded([&] {
    const auto made = kv->chain.keys({tokens, nr}, {.lora = lora ? lora : "", .salt = salt ? salt : ""});
    std::memcpy(keys, made.data(), std::min(max, made.size()) * sizeof *keys);
    found = static_cast<int64_t>(made.size());
    return 0;
  });
  return code < 0 ? code : found;
}

int neotier_kv_digest_keys(neotier_kv* kv, const void* digests, size_t digest_bytes, size_t nr,
                           struct neotier_object_key* keys) {
  return guarded([&] {
    if (digest_bytes < 16 || digest_bytes > 256) return fail(NEOTIER_EINVALID, "a digest has 16 to 256 bytes");
    const auto* at = static_cast<const uint8_t*>(digests);
    for (size_t i = 0; i < nr; i++) {
      const Key key = kv->chain.key_of_digest({at + i * digest_bytes, digest_bytes});
      std::memcpy(keys[i].bytes, key.bytes, sizeof key.bytes);
    }
    return 0;
  });
}

int64_t neotier_kv_tenant(neotier_kv* kv, const char* name, uint64_t quota_bytes) {
  int64_t tenant = 0;
  const int code = guarded([&] {
    if (!name) return fail(NEOTIER_EINVALID, "name is NULL");
    tenant = kv->store.tenant(name, quota_bytes);
    return 0;
  });
  return code < 0 ? code : tenant;
}

int64_t neotier_kv_session_open(neotier_kv* kv, uint32_t tenant, uint64_t ttl_ms, uint32_t remove_expired) {
  int64_t session = 0;
  const int code = guarded([&] {
    const auto opened = kv->store.open_session(tenant, ttl_ms, remove_expired != 0);
    if (!opened) return answer(opened.status());
    session = static_cast<int64_t>(*opened);
    return 0;
  });
  return code < 0 ? code : session;
}

int neotier_kv_session_close(neotier_kv* kv, uint64_t session) {
  return guarded([&] { return answer(kv->store.close_session(session)); });
}

int64_t neotier_kv_lookup(neotier_kv* kv, uint64_t session, const struct neotier_object_key* keys, size_t nr) {
  return neotier_kv_request(kv, session, keys, nr, nullptr);
}

int64_t neotier_kv_request(neotier_kv* kv, uint64_t session, const struct neotier_object_key* keys, size_t nr,
                           const struct neotier_kv_request_info* info) {
  int64_t blocks = 0;
  const int code = guarded([&] {
    neotier::kv::RequestTraits traits;
    if (info) {
      const neotier_kv_request_info own = taken(info);
      traits.category = own.category;
      if (own.cost_ns) traits.cost_ns = {own.cost_ns, nr};
    }
    const auto found = kv->store.lookup(session, keys_of(keys, nr), traits);
    if (!found) return answer(found.status());
    blocks = static_cast<int64_t>(*found);
    return 0;
  });
  return code < 0 ? code : blocks;
}

neotier_kv_load* neotier_kv_load_start(neotier_kv* kv, uint64_t session, const struct neotier_object_key* keys,
                                       size_t nr, void* const* into) {
  return neotier_kv_load_start_at(kv, session, keys, nr, into, 0);
}

neotier_kv_load* neotier_kv_load_start_at(neotier_kv* kv, uint64_t session, const struct neotier_object_key* keys,
                                          size_t nr, void* const* into, uint32_t first_position) {
  return start_load(kv, nr, into, nullptr, [&](auto places, const auto* decide) {
    return kv->store.load(session, keys_of(keys, nr), places, first_position, decide);
  });
}

neotier_kv_load* neotier_kv_load_start_planned(neotier_kv* kv, uint64_t session, const struct neotier_object_key* keys,
                                               size_t nr, void* const* into, uint32_t first_position,
                                               struct neotier_kv_plan* plan) {
  if (!plan) {
    (void)fail(NEOTIER_EINVALID, "plan is NULL");
    return nullptr;
  }
  return start_load(kv, nr, into, plan, [&](auto places, const auto* decide) {
    return kv->store.load(session, keys_of(keys, nr), places, first_position, decide);
  });
}

int neotier_kv_plan_load(neotier_kv* kv, uint64_t session, const struct neotier_object_key* keys, size_t nr,
                         uint32_t first_position, struct neotier_kv_plan* plan) {
  return guarded([&] {
    if (!plan) return fail(NEOTIER_EINVALID, "plan is NULL");
    const auto made = kv->store.plan(session, keys_of(keys, nr), options_of(plan), first_position);
    return made ? give_plan(plan, *made) : answer(made.status());
  });
}

int neotier_kv_computed(neotier_kv* kv, uint32_t first_position, uint32_t blocks, uint64_t ns) {
  return guarded([&] { return answer(kv->store.computed(first_position, blocks, ns)); });
}

size_t neotier_kv_load_blocks(const neotier_kv_load* load) { return load->load->blocks(); }

int neotier_kv_load_wait_layer(neotier_kv_load* load, uint32_t layer, uint64_t timeout_ms) {
  return guarded([&] { return answer(load->load->wait_layer(layer, timeout_ms)); });
}

int neotier_kv_load_wait(neotier_kv_load* load, uint64_t timeout_ms) {
  return guarded([&] { return answer(load->load->wait(timeout_ms)); });
}

size_t neotier_kv_load_good(const neotier_kv_load* load) { return load->load->good_blocks(); }

int neotier_kv_load_notify(neotier_kv_load* load, neotier_queue* queue, uint64_t tag) {
  return guarded([&] { return answer(load->load->notify(queue->queue, tag)); });
}

int neotier_kv_load_notify_layers(neotier_kv_load* load, neotier_queue* queue, uint64_t tag) {
  return guarded([&] { return answer(load->load->notify_layers(queue->queue, tag)); });
}

void neotier_kv_load_cancel(neotier_kv_load* load) { load->load->cancel(); }

void neotier_kv_load_free(neotier_kv_load* load) { delete load; }

int neotier_kv_store(neotier_kv* kv, uint64_t session, const struct neotier_object_key* keys, size_t nr,
                     const void* const* from, uint32_t first_position, struct neotier_kv_stored* stored) {
  return guarded([&] {
    if (nr > SIZE_MAX / kv->store.layout().nr_pieces()) return fail(NEOTIER_EINVALID, "so many blocks cannot be");
    std::vector<const std::byte*> places(nr * kv->store.layout().nr_pieces());
    for (size_t i = 0; i < places.size(); i++) places[i] = static_cast<const std::byte*>(from[i]);
    return give_stored(stored, kv->store.store(session, keys_of(keys, nr), places, first_position));
  });
}

neotier_kv_gpu* neotier_kv_gpu_open(neotier_kv* kv, uint32_t device, uint64_t staging_bytes) {
  neotier_kv_gpu* opened = nullptr;
  (void)guarded([&] {
    if (device > INT_MAX) return fail(NEOTIER_EINVALID, "no device has such a number");
    auto memory = neotier::kv::GpuMemory::open(kv->store, static_cast<int>(device),
                                               staging_bytes ? staging_bytes : uint64_t{1} << 30);
    if (!memory) return answer(memory.status());
    opened = new neotier_kv_gpu{kv, std::move(*memory)};
    return 0;
  });
  return opened;
}

void neotier_kv_gpu_close(neotier_kv_gpu* gpu) { delete gpu; }

neotier_kv_load* neotier_kv_gpu_load_start(neotier_kv_gpu* gpu, uint64_t session, const struct neotier_object_key* keys,
                                           size_t nr, void* const* into, uint32_t first_position,
                                           struct neotier_kv_plan* plan, void* stream) {
  return start_load(gpu->kv, nr, into, plan, [&](auto places, const auto* decide) {
    return gpu->memory->load(session, keys_of(keys, nr), places, first_position, decide, stream);
  });
}

int neotier_kv_load_let_wait(neotier_kv_load* load, uint32_t layer, void* stream, uint64_t timeout_ms) {
  return guarded([&] { return answer(load->load->let_wait(stream, layer, timeout_ms)); });
}

neotier_kv_save* neotier_kv_gpu_save_start(neotier_kv_gpu* gpu, uint64_t session, const struct neotier_object_key* keys,
                                           size_t nr, const void* const* from, uint32_t first_position) {
  neotier_kv_save* started = nullptr;
  (void)guarded([&] {
    if (nr > SIZE_MAX / gpu->kv->store.layout().nr_pieces()) return fail(NEOTIER_EINVALID, "so many blocks cannot be");
    std::vector<const std::byte*> places(nr * gpu->kv->store.layout().nr_pieces());
    for (size_t i = 0; i < places.size(); i++) places[i] = static_cast<const std::byte*>(from[i]);
    auto save = gpu->memory->save(session, keys_of(keys, nr), places, first_position);
    if (!save) return answer(save.status());
    started = new neotier_kv_save{std::move(*save)};
    return 0;
  });
  return started;
}

size_t neotier_kv_save_blocks(const neotier_kv_save* save) { return save->save->blocks(); }

int neotier_kv_save_layer(neotier_kv_save* save, uint32_t layer, void* stream) {
  return guarded([&] { return answer(save->save->layer(layer, stream)); });
}

int neotier_kv_save_behind(neotier_kv_save* save, void* stream) {
  return guarded([&] { return answer(save->save->behind(stream)); });
}

int neotier_kv_save_finish(neotier_kv_save* save, struct neotier_kv_stored* stored) {
  return guarded([&] { return give_stored(stored, save->save->finish()); });
}

void neotier_kv_save_free(neotier_kv_save* save) { delete save; }

int64_t neotier_kv_events(neotier_kv* kv, struct neotier_kv_event* events, size_t max, uint64_t* lost) {
  int64_t taken_events = 0;
  const int code = guarded([&] {
    std::vector<neotier::kv::StoreEvent> all;
    const uint64_t gone = kv->store.take_events(max, all);
    for (size_t i = 0; i < all.size(); i++) {
      neotier_kv_event& event = events[i];
      event = {};
      std::memcpy(event.key.bytes, all[i].key.bytes, sizeof event.key.bytes);
      event.kind = static_cast<uint32_t>(all[i].kind);
      copy_text(event.tier, sizeof event.tier, all[i].tier);
    }
    if (lost) *lost = gone;
    taken_events = static_cast<int64_t>(all.size());
    return 0;
  });
  return code < 0 ? code : taken_events;
}

int64_t neotier_kv_stats(neotier_kv* kv, char* into, size_t bytes) {
  return neotier_kv_metrics(kv, NEOTIER_JSON, into, bytes);
}

int64_t neotier_kv_metrics(neotier_kv* kv, uint32_t format, char* into, size_t bytes) {
  int64_t length = 0;
  const int code = guarded([&] {
    if (format > NEOTIER_JSON) return fail(NEOTIER_EINVALID, "no such format of metrics");
    const std::string text = format == NEOTIER_JSON ? to_json(kv->store).dump(2) + "\n" : prometheus_text(kv->store);
    length = static_cast<int64_t>(text.size());
    if (into) copy_text(into, bytes, text);
    return 0;
  });
  return code < 0 ? code : length;
}

}  // extern "C"
