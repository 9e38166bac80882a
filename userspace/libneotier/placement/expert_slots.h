// SPDX-License-Identifier: Apache-2.0
// Which experts of each layer hold a slot, by a policy, and which to fetch ahead, by a predictor: the host's side of
// policies for experts (neotier_placement.h), without time and without bytes. The replay drives it in modelled time,
// the expert store with real transfers, so that both decide alike.
//
// An event (one layer of one step) is atomic: none of its experts makes way for another of them; where every slot holds
// an expert of the event, the rest are streamed: used, and not kept.
//
// Planner of fetching ahead: for each layer of the lookahead, the absent expert with the highest predicted probability
// against the resident one with the least worth (its predicted probability, plus order_weight x its place in the
// policy's order of eviction, 0 .. 1). The gain, times lead_discount for each layer past the next, must exceed
// min_gain; the best one is fetched.
//
// Invariant: the books (which expert holds a slot, how many are taken) are the host's own. A policy or a predictor that
// breaks the rules of its ABI is not followed there, and what it did is told once, by the next begin(): much of the
// rest is called where nobody could be told.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "placement/policy.h"

namespace neotier::placement {

struct PlannerOptions {
  double min_gain = 0.08;      // probability, 0 .. 1
  double lead_discount = 0.7;  // 0 .. 1
  double order_weight = 0.05;  // 0 .. 1
};

struct ExpertSlotsOptions {
  uint32_t layers = 0, experts = 0, top_k = 0;  // of the model; experts of a layer, and used of it by a token
  uint32_t slots = 0;                           // of each layer, 1 .. experts
  uint32_t wider_layers = 0;  // layers, from the first, that have one slot more; 0 where slots is experts
  uint32_t batch = 1;         // rows
  uint64_t expert_bytes = 0;
  uint32_t lookahead = 6;  // layers, 1 .. layers - 1
  PlannerOptions planner;
  uint64_t seed = 1;
  std::map<std::string, double> policy_params, predictor_params;
};

class ExpertSlots {
 public:
  // predictor: nullptr for none. Throws std::runtime_error where one of them refuses.
  ExpertSlots(const PolicyRef& policy, const PolicyRef& predictor, const ExpertSlotsOptions& options);
  ExpertSlots(const ExpertSlots&) = delete;  // the policy's state refers to the flags in here
  ExpertSlots& operator=(const ExpertSlots&) = delete;

  bool holds(uint32_t object) const { return flags_[object] & NEOTIER_RESIDENT; }
  uint32_t objects() const { return static_cast<uint32_t>(flags_.size()); }
  bool predicts() const { return predictor_.has_value(); }
  size_t policy_state_bytes() const { return policy_.state_bytes(); }
  size_t predictor_state_bytes() const { return predictor_ ? predictor_->state_bytes() : 0; }
  std::string named(uint32_t object) const;

  // Throws std::runtime_error where the policy or the predictor has broken the rules of its ABI (named) since it was
  // told last.
  void tell_breach();
  // An event begins: its experts are pinned. The accesses stay the caller's, alive until the next event. Throws as
  // tell_breach(), and then no event has begun.
  void begin(const neotier_event& event);
  // The accesses of the event that are the first of their expert, in order: each is served once.
  std::span<const uint32_t> distinct() const { return distinct_; }

  enum class How : uint8_t { kHeld, kKept, kBypassed, kStreamed };  // kKept: absent, and has a slot now
  struct Served {
    How how{};
    uint32_t removed = NEOTIER_NO_OBJECT;  // lost its slot; it may have been on its way: see fetch()
    bool fetched = false;                  // kHeld: fetched ahead, and used for the first time
  };
  Served serve(uint32_t index);
  // After all have been served: they may go again.
  void end();

  // After an event: asks the predictor.
  void predict();
  struct Fetch {
    uint32_t object = NEOTIER_NO_OBJECT, removed = NEOTIER_NO_OBJECT;
  };
  // Gives the most useful expert to fetch ahead a slot; nothing where none is worth it. It is on its way (pinned) until
  // arrived() or remove(). `next_too`: whether it would be in time for the next layer.
  std::optional<Fetch> fetch(uint64_t now_ns, bool next_too);
  // Harmless of one that is not on its way.
  void arrived(uint32_t object);
  // Gives it a free slot of its layer, if there is one, for a warm start.
  bool place(uint32_t object);
  // It is not there after all: cancelled, or its transfer failed.
  void remove(uint32_t object);

 private:
  // The best exchange for one layer of the lookahead.
  struct Candidate {
    bool current = false;
    double gain = 0;
    uint32_t object = NEOTIER_NO_OBJECT, victim = NEOTIER_NO_OBJECT;
  };
  neotier_placement_config config() const;
  uint32_t slots_of(uint32_t layer) const { return options_.slots + (layer < options_.wider_layers); }
  void broken(const Instance& by, const char* role, const std::string& what);
  void insert(const neotier_event& event, uint32_t index);
  // Whether it can be what the policy says it is.
  bool may_go(uint32_t victim, uint32_t layer);
  bool evict(uint32_t victim, uint32_t layer);
  void take_out(uint32_t object, neotier_remove_reason reason);
  uint32_t cancel_for(uint32_t layer);
  neotier_event fetch_event(uint32_t object, float probability, uint64_t now_ns);
  Candidate find_candidate(uint32_t lead, double floor, uint64_t now_ns);

  const ExpertSlotsOptions options_;
  std::vector<uint8_t> flags_, fetched_;
  std::vector<uint64_t> seen_;    // tick of the last event that uses the expert, plus 1
  std::vector<uint32_t> held_;    // slots taken, a layer
  std::vector<uint32_t> on_way_;  // fetched ahead and not arrived
  Instance policy_;
  std::optional<Instance> predictor_;
  std::string breach_;  // the first that was not told yet
  neotier_event event_ = {};
  std::vector<uint32_t> distinct_;
  neotier_access fetch_access_ = {};
  std::vector<neotier_prediction> predictions_;
  std::vector<float> chance_;  // [lookahead][experts]
  std::vector<Candidate> candidates_;
  std::vector<uint32_t> order_;
};

}  // namespace neotier::placement
