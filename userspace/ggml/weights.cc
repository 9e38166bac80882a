// SPDX-License-Identifier: Apache-2.0
#include "ggml/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include "util/host_memory.h"
#include "util/size.h"

namespace neotier::ggml {

namespace {

constexpr uint64_t kPage = 4096;
// Kernels read a little past the end of a tensor's last row.
constexpr uint64_t kPast = 64;
// Of what is free: buffers that come after the weights, and the page cache, need memory too.
constexpr double kShareOfFree = .8;

// In the order in which a layer uses them.
constexpr std::string_view kRoles[] = {"gate_up", "gate", "up", "down"};

uint32_t order_of(std::string_view role) {
  return static_cast<uint32_t>(std::find(std::begin(kRoles), std::end(kRoles), role) - std::begin(kRoles));
}

}  // namespace

bool parse_expert_name(const std::string& name, uint32_t* layer, std::string* role) {
  std::string_view rest = name;
  constexpr std::string_view kLayer = "blk.", kRole = ".ffn_", kEnd = "_exps.weight";
  if (!rest.starts_with(kLayer) || !rest.ends_with(kEnd)) return false;
  rest.remove_prefix(kLayer.size());
  rest.remove_suffix(kEnd.size());
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), *layer);
  if (error != std::errc()) return false;
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  if (!rest.starts_with(kRole)) return false;
  rest.remove_prefix(kRole.size());
  *role = rest;
  return order_of(*role) < std::size(kRoles);
}

std::shared_ptr<Weights> Weights::plan(const std::vector<Tensor*>& tensors, const Settings& settings,
                                       std::string* why) {
  std::shared_ptr<Weights> weights(new Weights(settings));
  const auto refuse = [&](const std::string& reason) {
    *why = reason;
    return nullptr;
  };
  std::map<uint32_t, std::vector<std::pair<uint32_t, size_t>>> layers;  // number: order of the role, tensor
  for (const Tensor* t : tensors) {
    One one;
    one.name = t->name;
    one.bytes = ggml_nbytes(t);
    one.at = weights->bytes_;
    uint32_t layer = 0;
    std::string role;
    const auto experts = static_cast<uint64_t>(t->ne[2]);
    if (!parse_expert_name(one.name, &layer, &role) || t->ne[3] != 1 || experts == 0 || experts > UINT16_MAX ||
        t->nb[2] * experts != one.bytes)
      return refuse(one.name + " is no tensor of experts that is known here");
    if (weights->experts_ == 0) weights->experts_ = static_cast<uint32_t>(experts);
    if (weights->experts_ != experts)
      return refuse(fmt::format("{} has {} experts, others {}", one.name, experts, weights->experts_));
    layers[layer].emplace_back(order_of(role), weights->tensors_.size());
    weights->bytes_ += (one.bytes + kPast + kPage - 1) / kPage * kPage;
    weights->tensors_.push_back(std::move(one));
  }
  weights->layers_ = static_cast<uint32_t>(layers.size());
  weights->parts_ = static_cast<uint32_t>(layers.begin()->second.size());
  uint32_t index = 0;
  for (auto& [number, parts] : layers) {
    if (parts.size() != weights->parts_)
      return refuse(
          fmt::format("layer {} has {} tensors of experts, others {}", number, parts.size(), weights->parts_));
    std::sort(parts.begin(), parts.end());
    for (uint32_t part = 0; part < parts.size(); part++)
      weights->tensors_[parts[part].second].part = {index, part, parts[part].second};
    index++;
  }
  weights->tensor_of_.resize(weights->tensors_.size());
  for (size_t i = 0; i < weights->tensors_.size(); i++) {
    const One& one = weights->tensors_[i];
    weights->by_at_[one.at] = i;
    weights->tensor_of_[one.part.layer * weights->parts_ + one.part.part] = i;
  }

  std::vector<neotier_moe_tensor> list;
  const neotier_moe_config config = weights->config(list);
  const uint64_t least = neotier_moe_least(&config);
  weights->budget_ = settings.memory_bytes;
  if (weights->budget_ == 0)
    weights->budget_ = std::max(least, static_cast<uint64_t>(kShareOfFree * static_cast<double>(free_memory_bytes())));
  if (weights->budget_ < least)
    return refuse(
        fmt::format("NEOTIER_EXPERTS_MEMORY: {} are less than one operation needs; give {} bytes ({}) or more",
                    format_size(weights->budget_), least, format_size(least)));
  weights->range_ = neotier_range_open(weights->bytes_, settings.node);
  if (!weights->range_) return refuse(neotier_error());
  return weights;
}

Weights::~Weights() {
  if (moe_) neotier_moe_close(moe_);
  if (range_) neotier_range_close(range_);
}

neotier_moe_config Weights::config(std::vector<neotier_moe_tensor>& tensors) const {
  for (const One& one : tensors_)
    tensors.push_back({one.part.layer, one.part.part, one.file, 0, one.at, one.bytes / experts_, one.offset});
  neotier_moe_config config = {};
  config.struct_bytes = sizeof config;
  config.layers = layers_;
  config.parts = parts_;
  config.experts = experts_;
  config.top_k = top_k_;
  config.memory_bytes = budget_;
  if (!settings_.policy.empty()) config.policy = settings_.policy.c_str();
  if (!settings_.predictor.empty()) config.predictor = settings_.predictor == "none" ? "" : settings_.predictor.c_str();
  config.tensors = tensors.data();
  return config;
}

std::string Weights::set(const void* address, const void* data, uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto at = static_cast<uint64_t>(static_cast<const std::byte*>(address) - static_cast<const std::byte*>(base()));
  const auto known = by_at_.find(at);
  if (known == by_at_.end()) return "a tensor that was not placed here";
  One& one = tensors_[known->second];
  if (moe_) return one.name + " is written after the model was loaded; NeoTier only reads weights";
  if (offset > one.bytes || bytes > one.bytes - offset) return one.name + " is written past its end";
  const auto found = sources_.find(one.name, one.bytes, offset, {static_cast<const std::byte*>(data), bytes});
  if (!found || (one.found && (one.file != found->file || one.offset != found->offset)))
    return one.name + " is in no GGUF file that this process has open; NeoTier reads experts from the model's own file";
  one.found = true;
  one.file = found->file;
  one.offset = found->offset;
  one.set += bytes;
  for (const One& other : tensors_)
    if (other.set < other.bytes) return {};
  return open();
}

std::string Weights::open() {
  std::vector<neotier_moe_tensor> list;
  std::vector<const char*> files;
  for (const std::string& file : sources_.files()) files.push_back(file.c_str());
  top_k_ = std::clamp<uint32_t>(sources_.experts_used(), 1, experts_);
  neotier_moe_config config = this->config(list);
  config.files = files.data();
  config.nr_files = static_cast<uint32_t>(files.size());
  if (repack_) {
    config.user = this;
    config.convert = [](void* user, uint32_t layer, uint32_t part, void* bytes) {
      auto* const own = static_cast<Weights*>(user);
      own->repack_->convert(own->tensor_of_[layer * own->parts_ + part], bytes);
    };
  }
  neotier_moe* const moe = neotier_moe_open(range_, &config);
  if (!moe) return neotier_error();
  neotier_moe_counters counters = {};
  counters.struct_bytes = sizeof counters;
  repacked_ = repack_ && neotier_moe_get_counters(moe, &counters) == 0 && counters.slots == experts_;
  moe_ = moe;
  return {};
}

const Weights::Part* Weights::find(const void* address) const {
  const auto* const first = static_cast<const std::byte*>(base());
  const auto* const at = static_cast<const std::byte*>(address);
  if (at < first || at >= first + bytes_) return nullptr;
  const auto known = by_at_.find(static_cast<uint64_t>(at - first));
  return known == by_at_.end() ? nullptr : &tensors_[known->second].part;
}

std::string Weights::summary() const {
  neotier_moe_counters c = {};
  c.struct_bytes = sizeof c;
  if (!moe_ || neotier_moe_get_counters(moe_, &c) != 0) return {};
  uint64_t all = 0;
  for (const One& one : tensors_) all += one.bytes;
  if (c.slots == experts_) return fmt::format("{} of experts, all of which fit into memory", format_size(all));
  const std::string more = c.wider_layers ? fmt::format(", and one more in {} of them", c.wider_layers) : "";
  return fmt::format("{} of experts, {} of them in memory: {} of {} in each of {} layers{}", format_size(all),
                     format_size(c.memory_limit), c.slots, experts_, layers_, more);
}

std::string Weights::stats() const {
  neotier_moe_counters c = {};
  c.struct_bytes = sizeof c;
  if (!moe_ || neotier_moe_get_counters(moe_, &c) != 0) return "{}";
  const nlohmann::ordered_json json = {
      {"policy", settings_.policy.empty() ? "learned" : settings_.policy},
      {"layers", layers_},
      {"experts", experts_},
      {"slots", c.slots},
      {"wider_layers", c.wider_layers},
      {"budget_bytes", c.memory_limit},
      {"resident_bytes", c.memory},
      {"resident_peak_bytes", c.memory_peak},
      {"events", c.steps},
      {"uses", c.uses},
      {"hits", c.hits},
      {"stall_free", c.stall_free},
      {"loads", c.loads},
      {"streamed", c.streamed},
      {"bypassed", c.bypassed},
      {"prefetches", c.prefetches},
      {"prefetches_used", c.prefetches_used},
      {"borrowed", c.borrowed},
      {"faults", c.faults},
      {"bytes_read", c.bytes_read},
      {"retries", c.retries},
      {"failures", c.failures},
      {"wait_ns", c.wait_ns},
  };
  return json.dump();
}

}  // namespace neotier::ggml
