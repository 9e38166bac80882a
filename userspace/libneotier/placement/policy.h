// SPDX-License-Identifier: Apache-2.0
// Placement policies as a C++ host sees them: by name or from a shared library, each with a state block of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "neotier_placement.h"

namespace neotier::placement {

// What is recommended, and the default wherever a policy can be chosen (docs/policies.md).
inline constexpr const char* kRecommendedKvPolicy = "hazard";
inline constexpr const char* kRecommendedExpertPolicy = "learned";

// Keeps the library that a policy came from loaded.
using PolicyRef = std::shared_ptr<const neotier_placement>;

// A policy of this build by name, or, where the name holds a '/' or ends in ".so", the one that the shared library
// exports. It must have all of `flags` (enum neotier_placement_flags); predictors are found only with
// NEOTIER_PREDICTOR, and may share a policy's name. Throws std::runtime_error with one line: unknown name (and which
// there are), no such symbol, wrong version, slots missing, not meant for this.
PolicyRef find_policy(const std::string& name_or_path, uint32_t flags = 0);

// The policies of this build that have all of these enum neotier_placement_flags, in the order to list them.
std::vector<const neotier_placement*> policies(uint32_t flags);

// Parameters given by name; throws std::runtime_error (unknown name, out of range). The policy's defaults elsewhere.
std::vector<double> resolve_params(const neotier_placement& policy, const std::map<std::string, double>& given);

// One state block. Movable, not copyable. Thread safety: one caller at a time.
class Instance {
 public:
  // config: abi, struct_bytes and params are filled in here; its arrays must outlive the instance.
  // Throws std::runtime_error where the policy refuses the config, std::bad_alloc.
  Instance(PolicyRef policy, neotier_placement_config config, const std::map<std::string, double>& params = {});

  const neotier_placement& policy() const { return *policy_; }
  size_t state_bytes() const { return bytes_; }

  void on_event(const neotier_event& event) {
    if (policy_->on_event) policy_->on_event(state_, &event);
  }
  int on_hit(const neotier_event& event, uint32_t index) { return policy_->on_hit(state_, &event, index); }
  int on_insert(const neotier_event& event, uint32_t index) { return policy_->on_insert(state_, &event, index); }
  int on_remove(uint32_t object, neotier_remove_reason reason) { return policy_->on_remove(state_, object, reason); }
  uint32_t victims(const neotier_event& event, uint32_t index, uint32_t want, uint32_t* out) {
    return policy_->victims(state_, &event, index, want, out);
  }
  bool admit(const neotier_event& event, uint32_t index) {
    return !policy_->admit || policy_->admit(state_, &event, index) != 0;
  }
  bool can_prefetch() const { return policy_->prefetch != nullptr; }
  uint32_t prefetch(const neotier_event& event, const neotier_prefetch_request& request, neotier_prediction* out) {
    return policy_->prefetch ? policy_->prefetch(state_, &event, &request, out) : 0;
  }

 private:
  PolicyRef policy_;
  std::unique_ptr<neotier_placement_config> config_;
  std::vector<double> params_;
  size_t bytes_ = 0;
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> memory_;
  void* state_ = nullptr;  // in it, aligned
};

}  // namespace neotier::placement
