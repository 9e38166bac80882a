// SPDX-License-Identifier: Apache-2.0
// The replay of experts: its rules worked out by hand, and properties of policies and predictors in it.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "replay/moe_replay.h"
#include "replay/moe_schedule.h"

namespace neotier::replay {
namespace {

placement::PolicyRef policy(const std::string& name) { return placement::find_policy(name, NEOTIER_EXPERTS); }
placement::PolicyRef predictor(const std::string& name) {
  return placement::find_policy(name, NEOTIER_EXPERTS | NEOTIER_PREDICTOR);
}

RoutingTrace one_layer(uint32_t experts, uint32_t top_k, const std::vector<uint8_t>& routes) {
  return RoutingTrace::from({1, experts, top_k}, routes, {routes.size() / top_k});
}

MoeOptions slots(uint32_t nr) {
  MoeOptions options;
  options.experts_per_layer = nr;
  options.lookahead = 1;
  return options;
}

// ---- events are atomic

TEST(MoeEvent, HitsAreThoseBeforeIt) {
  // One access at a time, 2 would throw out 0, the oldest, and the use of 0 would miss.
  const MoeResult r = replay(one_layer(3, 2, {0, 1, 2, 0}), policy("lru"), nullptr, slots(2));
  EXPECT_EQ(r.uses, 4u);
  EXPECT_EQ(r.hits, 1u);
  EXPECT_EQ(r.loads, 3u);
}

TEST(MoeEvent, TiesGoToTheLowestId) {
  // 0 and 1 are as old as one another: 3 replaces 0, so {1, 2, 3}; then 0 misses, 1 hits.
  EXPECT_EQ(replay(one_layer(4, 2, {1, 0, 2, 3, 0, 1}), policy("lru"), nullptr, slots(3)).hits, 1u);
  EXPECT_EQ(replay(one_layer(4, 2, {1, 0, 2, 3, 0, 3}), policy("lru"), nullptr, slots(3)).hits, 1u);
  EXPECT_EQ(replay(one_layer(4, 2, {1, 0, 2, 3, 1, 3}), policy("lru"), nullptr, slots(3)).hits, 2u);
}

TEST(MoeEvent, WhatFindsNoSlotIsStreamedInRouterOrder) {
  // One slot: the first choice of an event takes it unless one of the event's has it already.
  const MoeResult r = replay(one_layer(4, 2, {1, 0, 0, 1, 2, 3, 3, 2}), policy("lru"), nullptr, slots(1));
  EXPECT_EQ(r.hits, 2u);
  EXPECT_EQ(r.loads, 6u);
  EXPECT_EQ(r.streamed, 4u);
}

TEST(MoeEvent, BoundsLookAhead) {
  // 0 1 2 0 1 2 with 2 slots: forced admission hits 0 then 2 (1 makes way); leaving 2 out hits 0 and 1.
  const RoutingTrace cycle = one_layer(3, 1, {0, 1, 2, 0, 1, 2});
  EXPECT_EQ(replay(cycle, policy("lru"), nullptr, slots(2)).hits, 0u);
  EXPECT_EQ(replay(cycle, policy("belady-forced"), nullptr, slots(2)).hits, 2u);
  EXPECT_EQ(replay(cycle, policy("belady"), nullptr, slots(2)).hits, 2u);
  // 0 2 0 3 0 1: with 1 slot only the one that may leave experts out keeps 0.
  const RoutingTrace visits = one_layer(4, 1, {0, 2, 0, 3, 0, 1});
  EXPECT_EQ(replay(visits, policy("belady-forced"), nullptr, slots(1)).hits, 0u);
  EXPECT_EQ(replay(visits, policy("belady"), nullptr, slots(1)).hits, 2u);
  MoeOptions blind = slots(2);
  blind.oracle_steps = 1;  // sees only the next event: never a reuse here
  EXPECT_LT(replay(cycle, policy("belady-forced"), nullptr, blind).hits, 2u);
}

// ---- batches

TEST(MoeBatch, RowsTakeTheNextSequence) {
  const RoutingTrace trace = RoutingTrace::from({1, 2, 1}, {0, 0, 0, 1, 1, 1}, {3, 1, 2});
  const BatchSchedule schedule(trace, 2);
  ASSERT_EQ(schedule.steps(), 3u);
  const uint64_t tokens[3][2] = {{0, 3}, {1, 4}, {2, 5}};
  const bool begins[3][2] = {{true, true}, {false, true}, {false, false}};
  for (size_t step = 0; step < 3; step++) {
    ASSERT_EQ(schedule.step(step).size(), 2u);
    for (size_t row = 0; row < 2; row++) {
      EXPECT_EQ(schedule.step(step)[row].token, tokens[step][row]);
      EXPECT_EQ(schedule.step(step)[row].row, row);
      EXPECT_EQ(schedule.step(step)[row].begins, begins[step][row]);
    }
  }
}

TEST(MoeBatch, RowsOfAStepShareALoad) {
  const RoutingTrace trace = RoutingTrace::from({1, 4, 2}, {0, 1, 2, 3, 0, 2, 2, 3}, {2, 2});
  MoeOptions options = slots(4);
  options.batch = 2;
  const MoeResult r = replay(trace, policy("lru"), nullptr, options);
  EXPECT_EQ(r.events, 2u);
  EXPECT_EQ(r.uses, 8u);
  EXPECT_EQ(r.loads, 4u);  // 0 1 2, then 3
  EXPECT_EQ(r.hits, 2u);   // both rows' 2, in the second step
}

TEST(MoeBatch, NextUseIsOfALaterStep) {
  const RoutingTrace trace = RoutingTrace::from({1, 2, 1}, {0, 1, 0, 0}, {2, 2});
  const auto next = next_uses(trace, BatchSchedule(trace, 2));
  // Steps: {0, 0}, {1, 0}.
  EXPECT_EQ(next, (std::vector<uint64_t>{1, 1, NEOTIER_NEVER, NEOTIER_NEVER}));
}

// ---- time. 1 expert a token, a layer's compute 1 ms; a transfer takes expert_bytes / link.

// Predicts, with certainty, the expert that `wanted` has for a layer (NEOTIER_NO_OBJECT: nothing).
struct Certain {
  static inline std::vector<uint32_t> wanted;
  static inline uint32_t experts = 0;

  static size_t bytes(const neotier_placement_config* config) {
    experts = config->experts_per_group;
    return 64;
  }
  static int init(void*, const neotier_placement_config*) { return NEOTIER_OK; }
  static void event(void*, const neotier_event*) {}
  static uint32_t prefetch(void*, const neotier_event* event, const neotier_prefetch_request* request,
                           neotier_prediction* out) {
    uint32_t nr = 0;
    for (uint32_t i = 0; i < request->groups && nr < request->max; i++) {
      const uint32_t layer = (request->group_first + i) % static_cast<uint32_t>(wanted.size());
      if (layer <= event->group || wanted[layer] == NEOTIER_NO_OBJECT) continue;
      out[nr++] = {layer * experts + wanted[layer], layer, 1, 0};
    }
    return nr;
  }
  static placement::PolicyRef make(std::vector<uint32_t> experts_of_layers) {
    wanted = std::move(experts_of_layers);
    static const neotier_placement descriptor = [] {
      neotier_placement d = {};
      d.abi = NEOTIER_PLACEMENT_ABI;
      d.struct_bytes = sizeof(d);
      d.name = "certain";
      d.text = d.source = "test";
      d.flags = NEOTIER_EXPERTS | NEOTIER_PREDICTOR;
      d.state_bytes = bytes;
      d.init = init;
      d.on_event = event;
      d.prefetch = prefetch;
      return d;
    }();
    return placement::PolicyRef(&descriptor, [](const neotier_placement*) {});
  }
};

MoeResult one_token(uint32_t layers, double transfer_ms, std::vector<uint32_t> wanted, uint32_t lookahead) {
  const RoutingTrace trace = RoutingTrace::from({layers, 4, 1}, std::vector<uint8_t>(layers, 1), {1});
  MoeOptions options;
  options.experts_per_layer = 2;
  options.layer_ms = 1;
  options.link_gb_s = 1;
  options.expert_bytes = transfer_ms * 1e6;
  options.lookahead = lookahead;
  return replay(trace, policy("lru"), Certain::make(std::move(wanted)), options);
}

constexpr uint32_t kNothing = NEOTIER_NO_OBJECT;

TEST(MoeTime, WithoutPrefetchEveryMissIsWaitedFor) {
  const MoeResult r = one_token(2, 0.5, {kNothing, kNothing}, 1);
  EXPECT_DOUBLE_EQ(r.modelled_ns, 2 * 1.5e6);
  EXPECT_DOUBLE_EQ(r.stall_ns, 1e6);
  EXPECT_DOUBLE_EQ(r.bytes, 1e6);
  EXPECT_EQ(r.stall_free, 0u);
}

TEST(MoeTime, ATransferWithinTheComputeIsStallFree) {
  const MoeResult r = one_token(2, 0.5, {kNothing, 1}, 1);
  EXPECT_DOUBLE_EQ(r.modelled_ns, 1.5e6 + 1e6);
  EXPECT_EQ(r.stall_free, 1u);
  EXPECT_EQ(r.prefetches, 1u);
  EXPECT_EQ(r.prefetches_used, 1u);
  EXPECT_DOUBLE_EQ(r.bytes, 1e6);
}

TEST(MoeTime, WhatWouldComeTooLateIsNotStarted) {
  const MoeResult r = one_token(2, 1.25, {kNothing, 1}, 1);
  EXPECT_EQ(r.prefetches, 0u);
  EXPECT_DOUBLE_EQ(r.modelled_ns, 2 * 2.25e6);
}

TEST(MoeTime, ATransferPausesForDemandAndGoesOn) {
  // Layer 0: wait 1.5, compute 1 with 1 of 1.5 for layer 2. Layer 1: wait 1.5 (paused), compute 1, the rest arrives.
  // Layer 2: no wait.
  const MoeResult r = one_token(3, 1.5, {kNothing, kNothing, 1}, 2);
  EXPECT_DOUBLE_EQ(r.modelled_ns, 2.5e6 + 2.5e6 + 1e6);
  EXPECT_EQ(r.stall_free, 1u);
  EXPECT_DOUBLE_EQ(r.bytes, 3 * 1.5e6);
}

TEST(MoeTime, WhatIsOnItsWayIsAHitThatStalls) {
  // Of 2.5 ms, 2 are done when layer 2 begins: it waits for the other half millisecond.
  const MoeResult r = one_token(3, 2.5, {kNothing, kNothing, 1}, 2);
  EXPECT_DOUBLE_EQ(r.modelled_ns, 3.5e6 + 3.5e6 + 1.5e6);
  EXPECT_EQ(r.hits, 1u);
  EXPECT_EQ(r.stall_free, 0u);
  EXPECT_EQ(r.prefetches_used, 1u);
  EXPECT_DOUBLE_EQ(r.bytes, 3 * 2.5e6);
}

TEST(MoeTime, WhatIsNotUsedCostsItsBytes) {
  const MoeResult r = one_token(2, 0.5, {kNothing, 3}, 1);
  EXPECT_EQ(r.prefetches, 1u);
  EXPECT_EQ(r.prefetches_used, 0u);
  EXPECT_DOUBLE_EQ(r.bytes, 3 * 0.5e6);
  EXPECT_EQ(r.stall_free, 0u);
}

TEST(MoeTime, ATransferInTheWayOfDemandIsGivenUp) {
  // One slot in layer 1, taken by a transfer of expert 3 that is half done when 1 is demanded.
  const RoutingTrace trace = RoutingTrace::from({3, 4, 1}, {1, 1, 1, 1, 1, 1}, {2});
  MoeOptions options;
  options.experts_per_layer = 1;
  options.link_gb_s = 1;
  options.expert_bytes = 1.5e6;
  options.lookahead = 2;
  const MoeResult r = replay(trace, policy("lru"), Certain::make({kNothing, kNothing, 3}), options);
  // Token 0: layer 0 waits 1.5 and fetches 1 of 1.5 of 2:3; layer 1 waits 1.5, 2:3 arrives. Layer 2 wants 1: waits 1.5,
  // evicts 3. Token 1: layers 0 and 1 hit; in layer 0's second 2:3 is fetched again (1 of 1.5), the rest in layer 1's;
  // layer 2 waits.
  EXPECT_EQ(r.prefetches, 2u);
  EXPECT_EQ(r.stall_free, 2u);
  EXPECT_DOUBLE_EQ(r.bytes, 6 * 1.5e6);
  options.expert_bytes = 4e6;  // now 2:3 is still on its way when layer 2 begins, with 2 of 4 ms done
  const MoeResult late = replay(trace, policy("lru"), Certain::make({kNothing, kNothing, 3}), options);
  EXPECT_EQ(late.prefetches, 2u);
  EXPECT_EQ(late.prefetches_used, 0u);
  EXPECT_DOUBLE_EQ(late.bytes, 4 * 4e6 + 2 * 2e6);
}

// Loads take 2 ms, an expert 1 ms: what is there is computed while the others come.
TEST(MoeTime, ExpertsAreComputedAsTheyCome) {
  MoeOptions options = slots(2);
  options.layer_ms = 0;
  options.expert_ms = 1;
  options.link_gb_s = 1;
  options.expert_bytes = 2e6;
  options.keep_steps = true;
  const MoeResult r = replay(one_layer(4, 2, {0, 1, 0, 1, 0, 2}), policy("lru"), nullptr, options);
  // Loads end at 2 and 4, so computing at 5; both are there; one is there, the other at 2.
  EXPECT_EQ(r.step_ns, (std::vector<double>{5e6, 2e6, 3e6}));
  EXPECT_DOUBLE_EQ(r.stall_ns, 4e6);
  EXPECT_DOUBLE_EQ(r.bytes, 3 * 2e6);
  // Half a millisecond more for the first that a layer waits for, and none for a layer that waits for nothing.
  options.link_us = 500;
  const MoeResult late = replay(one_layer(4, 2, {0, 1, 0, 1, 0, 2}), policy("lru"), nullptr, options);
  EXPECT_EQ(late.step_ns, (std::vector<double>{5.5e6, 2e6, 3.5e6}));
  EXPECT_DOUBLE_EQ(late.bytes, 3 * 2e6);
}

TEST(SyntheticRouting, RepeatsAsItSaysAndCanBeCut) {
  const RoutingShape shape{3, 32, 4};
  const RoutingTrace trace = synthetic_routing(shape, 1000, 5), same = synthetic_routing(shape, 1000, 5);
  ASSERT_EQ(trace.tokens(), 1000u);
  EXPECT_EQ(trace.sequences().size(), 4u);
  uint64_t repeated = 0, differs = 0;
  const RoutingTrace other = synthetic_routing(shape, 1000, 6);
  for (uint64_t t = 1; t < 300; t++) {
    const auto now = trace.experts(t, 1), before = trace.experts(t - 1, 1);
    for (const uint8_t e : now) repeated += std::find(before.begin(), before.end(), e) != before.end();
    ASSERT_TRUE(std::equal(now.begin(), now.end(), same.experts(t, 1).begin()));
    differs += !std::equal(now.begin(), now.end(), other.experts(t, 1).begin());
  }
  EXPECT_GT(differs, 250u);
  EXPECT_NEAR(static_cast<double>(repeated) / (299 * 4), 0.48, 0.08);  // chance alone: 0.13 and a little
  const RoutingTrace cut = trace.first(450);
  ASSERT_EQ(cut.sequences().size(), 2u);
  EXPECT_EQ(cut.sequences()[1].tokens, 150u);
  EXPECT_TRUE(std::equal(cut.experts(449, 2).begin(), cut.experts(449, 2).end(), trace.experts(449, 2).begin()));
}

// ---- a random model whose choices follow one another, as a stand-in where there is no recorded trace

RoutingTrace synthetic(uint64_t seed, uint64_t tokens = 2000) {
  const RoutingShape shape{4, 24, 3};
  std::mt19937_64 random(seed);
  std::vector<uint8_t> routes;
  std::vector<uint8_t> word(16);
  uint32_t at = 0;
  for (uint64_t t = 0; t < tokens; t++) {
    at = static_cast<uint32_t>(random() % 5 ? (at * 5 + 3) % 16 : random() % 16);  // mostly a cycle of 'words'
    for (uint32_t layer = 0; layer < shape.layers; layer++) {
      std::vector<uint8_t> choice;
      while (choice.size() < shape.top_k) {
        const auto k = static_cast<uint32_t>(choice.size());
        const uint8_t e = static_cast<uint8_t>(random() % 6 ? (at * 7 + layer * 5 + k * 11) % 24 : random() % 24);
        if (std::find(choice.begin(), choice.end(), e) == choice.end()) choice.push_back(e);
      }
      routes.insert(routes.end(), choice.begin(), choice.end());
    }
  }
  return RoutingTrace::from(shape, routes, {tokens / 4, tokens / 4, tokens / 2});
}

MoeOptions small_options() {
  MoeOptions options;
  options.experts_per_layer = 6;
  options.lookahead = 3;
  return options;
}

TEST(MoeProperty, NoPolicyBeatsTheBoundAndRunsRepeat) {
  const RoutingTrace trace = synthetic(3);
  const MoeOptions options = small_options();
  const uint64_t bound = replay(trace, policy("belady"), nullptr, options).hits;
  for (const neotier_placement* p : placement::policies(NEOTIER_EXPERTS)) {
    if (p->flags & NEOTIER_PREDICTOR) continue;
    const MoeResult a = replay(trace, policy(p->name), nullptr, options),
                    b = replay(trace, policy(p->name), nullptr, options);
    EXPECT_LE(a.hits, bound) << p->name;
    EXPECT_EQ(a.hits, b.hits) << p->name;
    EXPECT_EQ(a.hits, a.stall_free) << p->name;
    EXPECT_DOUBLE_EQ(a.bytes, static_cast<double>(a.loads) * options.expert_bytes) << p->name;
    EXPECT_GT(a.hit_rate(), 0.1) << p->name;
  }
}

TEST(MoeProperty, EveryPairingKeepsTheBooks) {
  const RoutingTrace trace = synthetic(4, 800);
  for (uint32_t batch : {1u, 3u}) {
    MoeOptions options = small_options();
    options.batch = batch;
    for (const neotier_placement* p : placement::policies(NEOTIER_EXPERTS)) {
      if (p->flags & NEOTIER_PREDICTOR) continue;
      for (const neotier_placement* q : placement::policies(NEOTIER_EXPERTS | NEOTIER_PREDICTOR)) {
        const MoeResult a = replay(trace, policy(p->name), predictor(q->name), options);
        const MoeResult b = replay(trace, policy(p->name), predictor(q->name), options);
        const std::string pair = std::string(p->name) + " with " + q->name;
        EXPECT_EQ(a.stall_free, b.stall_free) << pair;
        EXPECT_EQ(a.prefetches, b.prefetches) << pair;
        EXPECT_LE(a.stall_free, a.hits) << pair;
        EXPECT_LE(a.prefetches_used, a.prefetches) << pair;
        EXPECT_LE(a.bytes, static_cast<double>(a.loads + a.prefetches) * options.expert_bytes * (1 + 1e-9)) << pair;
        EXPECT_GE(a.bytes, static_cast<double>(a.loads) * options.expert_bytes * (1 - 1e-9)) << pair;
        EXPECT_NEAR(a.modelled_ns, static_cast<double>(a.events) * options.layer_ms * 1e6 + a.stall_ns,
                    1e-6 * a.modelled_ns)
            << pair;
      }
    }
  }
}

TEST(MoeProperty, OursLearnsWhatFollowsWhat) {
  const RoutingTrace trace = synthetic(5, 6000);
  const MoeOptions options = small_options();
  const double lru = replay(trace, policy("lru"), nullptr, options).hit_rate();
  const double decay = replay(trace, policy("lfu-decay"), nullptr, options).hit_rate();
  const double ours = replay(trace, policy("learned"), nullptr, options).hit_rate();
  EXPECT_GT(ours, lru + 0.05);
  EXPECT_GT(ours, decay + 0.03);
  const double ahead = replay(trace, policy("learned"), predictor("learned"), options).stall_free_rate();
  EXPECT_GT(ahead, ours + 0.1);
  EXPECT_GT(ahead, replay(trace, policy("learned"), predictor("affinity"), options).stall_free_rate());
}

TEST(MoeProperty, EachSignalIsReallySwitchedOff) {
  const RoutingTrace trace = synthetic(6, 3000);
  const auto differs = [&](const char* name, bool of_policy, const char* param) {
    MoeOptions options = small_options();
    const MoeResult all = replay(trace, policy("learned"), predictor("learned"), options);
    (of_policy ? options.policy_params : options.predictor_params)[param] = 0;
    const MoeResult without = replay(trace, policy("learned"), predictor("learned"), options);
    EXPECT_NE(all.stall_free, without.stall_free) << name << " " << param;
  };
  for (const char* param : {"rank", "transition", "frequency", "layers", "admission"}) differs("policy", true, param);
  for (const char* param : {"history", "layers", "token", "path"}) differs("predictor", false, param);
}

TEST(MoeProperty, WideModels) {
  // More experts than a vector register or a machine word has bits.
  const RoutingShape shape{3, 200, 9};
  std::mt19937_64 random(9);
  std::vector<uint8_t> routes;
  for (uint32_t event = 0; event < 300 * shape.layers; event++) {
    std::vector<uint8_t> choice;
    while (choice.size() < shape.top_k) {
      const uint8_t e = static_cast<uint8_t>(random() % 3 ? random() % 20 : random() % 200);
      if (std::find(choice.begin(), choice.end(), e) == choice.end()) choice.push_back(e);
    }
    routes.insert(routes.end(), choice.begin(), choice.end());
  }
  const RoutingTrace trace = RoutingTrace::from(shape, routes, {300});
  MoeOptions options;
  options.experts_per_layer = 24;
  options.lookahead = 2;
  const MoeResult r = replay(trace, policy("learned"), predictor("learned"), options);
  EXPECT_GT(r.stall_free_rate(), replay(trace, policy("lru"), nullptr, options).stall_free_rate());
}

}  // namespace
}  // namespace neotier::replay
