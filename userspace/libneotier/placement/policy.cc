// SPDX-License-Identifier: Apache-2.0
#include "placement/policy.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "registry.h"

namespace neotier::placement {

namespace {

constexpr size_t kAlignment = 64;

bool meant_for(const neotier_placement& policy, uint32_t flags) {
  return (policy.flags & flags) == flags && (policy.flags & NEOTIER_PREDICTOR) == (flags & NEOTIER_PREDICTOR);
}

const char* role(uint32_t flags) { return flags & NEOTIER_PREDICTOR ? "predictor" : "policy"; }

std::string names(uint32_t flags) {
  std::string all;
  for (auto p = neotier_placements; *p; p++) {
    if (meant_for(**p, flags)) all += fmt::format("{}{}", all.empty() ? "" : ", ", (*p)->name);
  }
  return all;
}

// A library's descriptor may be of an older, shorter version: the slots it lacks are NULL.
std::unique_ptr<neotier_placement> checked_copy(const neotier_placement* entry, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return std::runtime_error(fmt::format("policy {}: {}; rebuild it against neotier_placement.h", path, why));
  };
  if (entry->abi != NEOTIER_PLACEMENT_ABI)
    throw refuse(fmt::format("its ABI is version {}, this build's is {}", entry->abi, NEOTIER_PLACEMENT_ABI));
  constexpr size_t kRequired = offsetof(neotier_placement, victims) + sizeof(neotier_placement::victims);
  if (entry->struct_bytes > sizeof(neotier_placement) || entry->struct_bytes < kRequired) {
    throw refuse(
        fmt::format("its descriptor has {} bytes, this build's {}", entry->struct_bytes, sizeof(neotier_placement)));
  }
  auto copy = std::make_unique<neotier_placement>();
  std::memcpy(copy.get(), entry, entry->struct_bytes);
  const bool predicts = copy->flags & NEOTIER_PREDICTOR;
  if (!copy->name || !*copy->name || !copy->text || !copy->source || !copy->state_bytes || !copy->init ||
      (copy->nr_params > 0 && !copy->params) ||
      (predicts ? !copy->prefetch : !copy->on_hit || !copy->on_insert || !copy->on_remove || !copy->victims)) {
    throw refuse("a name or a slot that is not optional is NULL");
  }
  return copy;
}

PolicyRef load(const std::string& path) {
  // dlopen looks in the system's folders for a name without '/'.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* raw = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!raw) throw std::runtime_error(fmt::format("cannot load policy: {}", dlerror()));
  std::shared_ptr<void> library(raw, dlclose);
  const auto* entry = static_cast<const neotier_placement*>(dlsym(raw, NEOTIER_PLACEMENT_ENTRY));
  if (!entry)
    throw std::runtime_error(fmt::format("policy {}: it exports no symbol {}", path, NEOTIER_PLACEMENT_ENTRY));
  auto copy = checked_copy(entry, path);
  const neotier_placement* descriptor = copy.release();
  return PolicyRef(descriptor, [library](const neotier_placement* p) { delete p; });
}

}  // namespace

PolicyRef find_policy(const std::string& name_or_path, uint32_t flags) {
  if (name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".so")) {
    PolicyRef loaded = load(name_or_path);
    if (meant_for(*loaded, flags)) return loaded;
    throw std::runtime_error(fmt::format("policy {}: it is no {} for {}; see the flags of its descriptor", name_or_path,
                                         role(flags),
                                         flags & NEOTIER_EXPERTS ? "experts"
                                         : flags & NEOTIER_KV    ? "KV blocks"
                                                                 : "this"));
  }
  for (auto p = neotier_placements; *p; p++) {
    if (name_or_path == (*p)->name && meant_for(**p, flags)) return PolicyRef(*p, [](const neotier_placement*) {});
  }
  throw std::runtime_error(
      fmt::format("unknown {} '{}'; known: {}, or a shared library's path", role(flags), name_or_path, names(flags)));
}

std::vector<const neotier_placement*> policies(uint32_t flags) {
  std::vector<const neotier_placement*> found;
  for (auto p = neotier_placements; *p; p++) {
    if (((*p)->flags & flags) == flags) found.push_back(*p);
  }
  return found;
}

std::vector<double> resolve_params(const neotier_placement& policy, const std::map<std::string, double>& given) {
  std::vector<double> values;
  std::string known;
  for (uint32_t i = 0; i < policy.nr_params; i++) {
    values.push_back(policy.params[i].value);
    known += fmt::format("{}{}", i ? ", " : "", policy.params[i].name);
  }
  for (const auto& [name, value] : given) {
    const auto* end = policy.params + policy.nr_params;
    const auto* param = std::find_if(policy.params, end,
                                     [&wanted = name](const neotier_placement_param& p) { return wanted == p.name; });
    if (param == end) {
      throw std::runtime_error(
          fmt::format("policy {} has no parameter '{}'; it has {}", policy.name, name, known.empty() ? "none" : known));
    }
    if (!(value >= param->min && value <= param->max)) {
      throw std::runtime_error(
          fmt::format("policy {}: {}={} is not in {} .. {}", policy.name, name, value, param->min, param->max));
    }
    values[static_cast<size_t>(param - policy.params)] = value;
  }
  return values;
}

void Instance::Free::operator()(void* p) const { std::free(p); }

Instance::Instance(PolicyRef policy, neotier_placement_config config, const std::map<std::string, double>& params)
    : policy_(std::move(policy)),
      config_(std::make_unique<neotier_placement_config>(config)),
      params_(resolve_params(*policy_, params)) {
  config_->struct_bytes = sizeof(neotier_placement_config);
  config_->abi = NEOTIER_PLACEMENT_ABI;
  config_->params = params_.data();
  bytes_ = policy_->state_bytes(config_.get());
  if (bytes_ == 0) throw std::runtime_error(fmt::format("policy {} refuses this configuration", policy_->name));
  // Not written to here: of a large one the pages come as the policy touches them.
  memory_.reset(std::calloc(1, bytes_ + kAlignment));
  if (!memory_) throw std::bad_alloc();
  size_t room = bytes_ + kAlignment;
  state_ = memory_.get();
  std::align(kAlignment, bytes_, state_, room);
  if (policy_->init(state_, config_.get()) != NEOTIER_OK)
    throw std::runtime_error(fmt::format("policy {} refuses this configuration", policy_->name));
}

}  // namespace neotier::placement
