// SPDX-License-Identifier: Apache-2.0
// Replays recorded expert choices against a cache of expert weights a layer, with or without fetching ahead over one
// link.
//
// Rules. A step decodes one token of each active row (sequence) of the batch; its layers come in order, and one layer
// of one step is an event. An event is atomic: its uses are counted against the cache as the layer begins, and none of
// its experts makes way for another of them. Each distinct expert is loaded once an event; where every slot holds an
// expert of the event, the rest are streamed: used, and not kept. Rows take the trace's sequences in order, each the
// next one as soon as its own has ended.
//
// Time. A layer begins when its predecessor's compute has ended; then its router has chosen. Experts that are missing
// are loaded one after the other in router order; a transfer that was fetching ahead pauses for them, and one that is
// fetching an expert of this event goes on as demand. The layer computes for layer_ns once all its experts are there.
// Meanwhile the link resumes what it paused, then fetches ahead what the planner below chooses, one expert at a time.
// An expert that is fetched ahead takes its slot when its transfer starts and can be used when it ends. A use is
// stall-free if its expert was there, in full, when its layer began. Other link traffic, launch overheads and
// attention's share of the compute are not modelled.
//
// With expert_ms the experts of a layer are computed one after the other as they are there, those first that were there
// when it began; layer_ns follows once all have been.
//
// Planner. Each time the link is free: what placement/expert_slots.h says. What would arrive after the next layer's
// begin is not started for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "placement/expert_slots.h"
#include "replay/routing_trace.h"

namespace neotier::replay {

using placement::PlannerOptions;

struct MoeOptions {
  uint32_t experts_per_layer = 8;  // slots, 1 .. shape.experts
  uint32_t batch = 1;              // rows, 1 .. 4096
  double layer_ms = 1;             // compute of a layer, >= 0
  double expert_ms = 0;            // compute of one expert for one row besides, as the expert comes, >= 0
  double link_gb_s = 25;           // 1e9 bytes a second, > 0
  double link_us = 0;              // besides, for the first of the experts that a layer waits for, >= 0
  double expert_bytes = 13.2e6;    // > 0; the default is gpt-oss-20b's in MXFP4
  uint32_t lookahead = 6;          // layers, 1 .. layers - 1
  PlannerOptions planner;
  uint64_t oracle_steps = UINT64_MAX;  // uses further away than this are never, to a bound that looks ahead
  uint64_t seed = 1;
  bool keep_steps = false;  // fill in MoeResult::step_ns
  std::map<std::string, double> policy_params, predictor_params;
  const std::atomic<bool>* cancel = nullptr;  // polled once a step; then std::runtime_error("interrupted")
  std::atomic<uint64_t>* progress = nullptr;  // tokens done
};

struct MoeResult {
  std::string policy, predictor;  // predictor: "none" where nothing is fetched ahead
  uint64_t tokens = 0, events = 0;
  uint64_t uses = 0;                    // of an expert by a row
  uint64_t hits = 0;                    // uses whose expert held a slot when its layer began, arrived or on its way
  uint64_t stall_free = 0;              // of those, arrived
  uint64_t loads = 0;                   // experts loaded on demand, streamed ones included
  uint64_t streamed = 0, bypassed = 0;  // loads not kept: no slot; the policy's wish
  uint64_t prefetches = 0;              // transfers started ahead of demand
  uint64_t prefetches_used = 0;         // of those, used at least once before they left
  double bytes = 0;                     // over the link, parts of cancelled transfers included
  double modelled_ns = 0, stall_ns = 0;
  size_t policy_state_bytes = 0, predictor_state_bytes = 0;
  uint64_t objects = 0;  // experts of the model
  double seconds = 0;    // of the replay, CPU time
  std::vector<uint64_t> layer_uses, layer_stall_free;
  std::vector<double> step_ns;  // modelled, of each step

  double hit_rate() const { return ratio(hits, uses); }
  double stall_free_rate() const { return ratio(stall_free, uses); }
  double prefetch_accuracy() const { return ratio(prefetches_used, prefetches); }

 private:
  static double ratio(uint64_t part, uint64_t whole) {
    return whole ? static_cast<double>(part) / static_cast<double>(whole) : 0;
  }
};

// predictor: nullptr for none. Throws std::runtime_error: an option out of range, a policy that refuses or breaks the
// rules of its ABI (named), cancelled.
MoeResult replay(const RoutingTrace& trace, const placement::PolicyRef& policy, const placement::PolicyRef& predictor,
                 const MoeOptions& options);

}  // namespace neotier::replay
