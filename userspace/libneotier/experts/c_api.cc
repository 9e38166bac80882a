// SPDX-License-Identifier: Apache-2.0
// neotier_moe.h over experts/mapped_experts.h. No exception leaves it.
#include "engine/c_api.h"

#include <filesystem>

#include "experts/mapped_experts.h"
#include "neotier_moe.h"

using namespace neotier::c_api;
using neotier::engine::Status;
namespace experts = neotier::experts;
namespace placement = neotier::placement;

struct neotier_range {
  std::unique_ptr<experts::EmptyRange> range;
};

struct neotier_moe {
  std::unique_ptr<experts::MappedExperts> experts;
  uint32_t of_layer = 0;
};

struct neotier_moe_step {
  std::unique_ptr<experts::MappedStep> step;
};

namespace {

// The policy's own predictor, where none is named.
placement::PolicyRef predictor_of(const neotier_moe_config& config, const placement::PolicyRef& policy) {
  constexpr uint32_t kFlags = NEOTIER_EXPERTS | NEOTIER_PREDICTOR;
  if (config.predictor) return *config.predictor ? placement::find_policy(config.predictor, kFlags) : nullptr;
  for (const neotier_placement* p : placement::policies(kFlags))
    if (std::string_view(p->name) == policy->name) return placement::find_policy(p->name, kFlags);
  return nullptr;
}

neotier::engine::Result<std::vector<experts::MappedLayer>> layers_of(const neotier_moe_config& config) {
  const auto invalid = [](const char* what) { return Status(neotier::engine::Code::kInvalid, what); };
  if (config.struct_bytes < offsetof(neotier_moe_config, reserved))
    return invalid("config: set struct_bytes to sizeof(struct neotier_moe_config)");
  if (!config.tensors || config.layers == 0 || config.parts == 0 || config.experts == 0)
    return invalid("config: layers, parts, experts and their tensors are needed");
  std::vector<experts::MappedLayer> layers(config.layers, experts::MappedLayer(config.parts));
  for (uint64_t i = 0; i < uint64_t{config.layers} * config.parts; i++) {
    const neotier_moe_tensor& t = config.tensors[i];
    if (t.layer >= config.layers || t.part >= config.parts || t.expert_bytes == 0 || layers[t.layer][t.part].bytes != 0)
      return invalid("tensors: each layer's parts once, none of 0 bytes");
    layers[t.layer][t.part] = {t.at, t.expert_bytes, t.file, t.offset};
  }
  return layers;
}

}  // namespace

extern "C" {

neotier_range* neotier_range_open(uint64_t bytes, int32_t node) {
  neotier_range* opened = nullptr;
  (void)guarded([&] {
    auto range = experts::EmptyRange::reserve(bytes, node);
    if (!range) return answer(range.status());
    opened = new neotier_range{std::move(*range)};
    return 0;
  });
  return opened;
}

void* neotier_range_address(const neotier_range* range) { return range->range->base(); }

void neotier_range_close(neotier_range* range) { delete range; }

neotier_moe* neotier_moe_open(neotier_range* range, const struct neotier_moe_config* config) {
  neotier_moe* opened = nullptr;
  (void)guarded([&] {
    const neotier_moe_config own = taken(config);
    if (!range || own.nr_files == 0 || !own.files)
      return fail(NEOTIER_EINVALID, "config: a range and files are needed");
    std::vector<neotier::model::ModelFile> files;
    for (uint32_t i = 0; i < own.nr_files; i++) {
      std::error_code error;
      const uint64_t bytes = std::filesystem::file_size(own.files[i], error);
      if (error) return fail(NEOTIER_ENOTFOUND, std::string(own.files[i]) + ": " + error.message());
      files.push_back({own.files[i], bytes});
    }
    auto layers = layers_of(own);
    if (!layers) return answer(layers.status());
    experts::MappedOptions options;
    options.policy =
        placement::find_policy(own.policy ? own.policy : placement::kRecommendedExpertPolicy, NEOTIER_EXPERTS);
    options.predictor = predictor_of(own, options.policy);
    options.experts = own.experts;
    options.top_k = own.top_k;
    if (own.rows) options.rows = own.rows;
    if (own.memory_bytes) options.budget_bytes = own.memory_bytes;
    if (own.seed) options.seed = own.seed;
    if (own.convert)
      options.convert = [convert = own.convert, user = own.user](uint32_t layer, uint32_t part, std::byte* bytes) {
        convert(user, layer, part, bytes);
      };
    auto made = experts::MappedExperts::open(*range->range, files, std::move(*layers), options);
    if (!made) return answer(made.status());
    (*made)->settle();
    opened = new neotier_moe{std::move(*made), own.experts};
    return 0;
  });
  return opened;
}

uint64_t neotier_moe_least(const struct neotier_moe_config* config) {
  uint64_t least = 0;
  (void)guarded([&] {
    const neotier_moe_config own = taken(config);
    const auto layers = layers_of(own);
    if (!layers) return answer(layers.status());
    least = experts::MappedExperts::least_bytes(*layers, own.experts);
    return 0;
  });
  return least;
}

void neotier_moe_close(neotier_moe* moe) { delete moe; }

int neotier_moe_get_counters(neotier_moe* moe, struct neotier_moe_counters* counters) {
  return guarded([&] {
    const experts::MappedCounters c = moe->experts->counters();
    neotier_moe_counters own{};
    own.slots = moe->experts->slots();
    own.wider_layers = moe->experts->wider_layers();
    own.memory_limit = moe->experts->budget_bytes();
    own.memory = c.memory;
    own.memory_peak = c.peak;
    own.steps = c.events;
    own.uses = c.uses;
    own.hits = c.hits;
    own.stall_free = c.stall_free;
    own.loads = c.loads;
    own.streamed = c.streamed;
    own.bypassed = c.bypassed;
    own.prefetches = c.prefetches;
    own.prefetches_used = c.prefetches_used;
    own.borrowed = c.borrowed;
    own.faults = c.faults;
    own.bytes_read = c.bytes;
    own.retries = c.retries;
    own.failures = c.failures;
    own.wait_ns = c.wait_ns;
    return give(counters, own);
  });
}

neotier_moe_step* neotier_moe_begin(neotier_moe* moe, uint32_t layer, const int32_t* ids, size_t rows, size_t used) {
  neotier_moe_step* begun = nullptr;
  (void)guarded([&] {
    std::vector<experts::MappedExperts::Use> uses;
    uses.reserve(rows * used);
    for (size_t row = 0; row < rows; row++)
      for (size_t rank = 0; rank < used; rank++) {
        const int32_t id = ids[row * used + rank];
        if (id < 0 || static_cast<uint32_t>(id) >= moe->of_layer) continue;
        uses.push_back({static_cast<uint32_t>(id), static_cast<uint32_t>(row), static_cast<uint32_t>(rank)});
      }
    auto step = moe->experts->begin(layer, uses);
    if (!step) return answer(step.status());
    begun = new neotier_moe_step{std::move(*step)};
    return 0;
  });
  return begun;
}

int neotier_moe_wait(neotier_moe_step* step, uint32_t part) {
  return guarded([&] { return answer(step->step->wait(part)); });
}

void neotier_moe_done(neotier_moe_step* step, uint32_t part) {
  (void)guarded([&] {
    step->step->done(part);
    return 0;
  });
}

void neotier_moe_end(neotier_moe_step* step) { delete step; }

}  // extern "C"
