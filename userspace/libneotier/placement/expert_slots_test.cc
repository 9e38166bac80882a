// SPDX-License-Identifier: Apache-2.0
#include "placement/expert_slots.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace neotier::placement {
namespace {

using How = ExpertSlots::How;
constexpr uint32_t kNone = NEOTIER_NO_OBJECT, kExperts = 4;

// Two layers of four experts; LRU, and popularity as predictor.
class Slots : public ::testing::Test {
 protected:
  static ExpertSlotsOptions options(uint32_t slots) {
    ExpertSlotsOptions o;
    o.layers = 2;
    o.experts = kExperts;
    o.top_k = 2;
    o.slots = slots;
    o.expert_bytes = 100;
    o.lookahead = 1;
    return o;
  }
  static uint32_t object(uint32_t layer, uint32_t expert) { return layer * kExperts + expert; }

  std::vector<ExpertSlots::Served> step(ExpertSlots& slots, uint32_t layer, const std::vector<uint32_t>& experts) {
    accesses_.assign(experts.size(), {});
    for (size_t i = 0; i < experts.size(); i++) accesses_[i].object = object(layer, experts[i]);
    neotier_event event = {};
    event.tick = tick_++;
    event.kind = NEOTIER_EVENT_DEMAND;
    event.group = layer;
    event.nr = static_cast<uint32_t>(experts.size());
    event.access = accesses_.data();
    slots.begin(event);
    std::vector<ExpertSlots::Served> served;
    for (const uint32_t i : slots.distinct()) served.push_back(slots.serve(i));
    slots.end();
    slots.predict();
    return served;
  }

  // One slot a layer. Layer 1 has used expert 0 twice and 1 once, which holds the slot; then 0 is fetched ahead.
  std::unique_ptr<ExpertSlots> fetching() {
    auto made = std::make_unique<ExpertSlots>(find_policy("lru", NEOTIER_EXPERTS),
                                              find_policy("popularity", NEOTIER_PREDICTOR), options(1));
    ExpertSlots& slots = *made;
    for (const uint32_t expert : {0u, 0u, 1u}) step(slots, 1, {expert});
    step(slots, 0, {3});
    EXPECT_FALSE(slots.fetch(0, false)) << "the next layer is the only one, and is too near";
    const auto fetch = slots.fetch(0, true);
    EXPECT_TRUE(fetch);
    EXPECT_EQ(fetch->object, object(1, 0));
    EXPECT_EQ(fetch->removed, object(1, 1)) << "used 1 time in 3, against 2";
    EXPECT_TRUE(slots.holds(object(1, 0)));
    EXPECT_FALSE(slots.fetch(0, true)) << "what is on its way does not make way for another fetch";
    return made;
  }

  std::vector<neotier_access> accesses_;
  uint64_t tick_ = 0;
};

TEST_F(Slots, AnEventIsAtomic) {
  ExpertSlots slots(find_policy("lru", NEOTIER_EXPERTS), nullptr, options(1));
  const auto served = step(slots, 0, {2, 3, 2});
  ASSERT_EQ(served.size(), 2u) << "each expert once";
  EXPECT_EQ(served[0].how, How::kKept);
  EXPECT_EQ(served[1].how, How::kStreamed) << "the only slot holds an expert of this event";
  const auto next = step(slots, 0, {3});
  EXPECT_EQ(next[0].how, How::kKept);
  EXPECT_EQ(next[0].removed, object(0, 2)) << "the event before has let go of it";
}

TEST_F(Slots, WhatIsOnItsWayAndUsedIsHeld) {
  const auto made = fetching();
  ExpertSlots& slots = *made;
  const auto served = step(slots, 1, {2, 0});
  EXPECT_EQ(served[0].how, How::kStreamed) << "expert 0 is of this event, on its way or not";
  EXPECT_EQ(served[1].how, How::kHeld);
  EXPECT_TRUE(served[1].fetched);
  EXPECT_FALSE(step(slots, 1, {0})[0].fetched) << "counted once";
}

TEST_F(Slots, DemandTakesTheSlotOfWhatIsOnItsWay) {
  const auto made = fetching();
  ExpertSlots& slots = *made;
  const auto served = step(slots, 1, {2});
  EXPECT_EQ(served[0].how, How::kKept);
  EXPECT_EQ(served[0].removed, object(1, 0));
  EXPECT_FALSE(slots.holds(object(1, 0)));
}

TEST_F(Slots, WhatHasArrivedIsAVictimLikeAnother) {
  const auto made = fetching();
  ExpertSlots& slots = *made;
  slots.arrived(object(1, 0));
  const auto served = step(slots, 1, {2});
  EXPECT_EQ(served[0].how, How::kKept);
  EXPECT_EQ(served[0].removed, object(1, 0));
}

TEST_F(Slots, ATransferThatFailedLeavesAFreeSlot) {
  const auto made = fetching();
  ExpertSlots& slots = *made;
  slots.remove(object(1, 0));
  EXPECT_FALSE(slots.holds(object(1, 0)));
  const auto served = step(slots, 1, {2});
  EXPECT_EQ(served[0].how, How::kKept);
  EXPECT_EQ(served[0].removed, kNone);
}

TEST_F(Slots, TheFirstLayersMayHaveOneSlotMore) {
  ExpertSlotsOptions o = options(1);
  o.wider_layers = 1;
  ExpertSlots slots(find_policy("lru", NEOTIER_EXPERTS), nullptr, o);
  step(slots, 0, {1});
  EXPECT_EQ(step(slots, 0, {2})[0].removed, kNone) << "it has two";
  EXPECT_TRUE(slots.holds(object(0, 1)));
  EXPECT_EQ(step(slots, 0, {3})[0].removed, object(0, 1));
  step(slots, 1, {1});
  EXPECT_EQ(step(slots, 1, {2})[0].removed, object(1, 1)) << "the second layer has one";
}

TEST_F(Slots, WhatWasRemovedIsNobodysVictim) {
  ExpertSlotsOptions o = options(1);
  o.layers = 3;
  o.lookahead = 2;
  ExpertSlots slots(find_policy("lru", NEOTIER_EXPERTS), find_policy("popularity", NEOTIER_PREDICTOR), o);
  for (const uint32_t layer : {1u, 2u})
    for (const uint32_t expert : {0u, 0u, 1u}) step(slots, layer, {expert});
  step(slots, 0, {3});
  // Both layers have a candidate now, each with its victim; one is fetched.
  const auto first = slots.fetch(0, true);
  ASSERT_TRUE(first);
  const uint32_t other = first->object / kExperts == 1 ? 2 : 1;
  slots.remove(object(other, 1));
  const auto second = slots.fetch(0, true);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->object, object(other, 0));
  EXPECT_EQ(second->removed, kNone) << "the slot is free";
}

TEST_F(Slots, PlacedOnlyWhereASlotIsFree) {
  ExpertSlots slots(find_policy("lru", NEOTIER_EXPERTS), nullptr, options(1));
  EXPECT_TRUE(slots.place(object(0, 1)));
  EXPECT_FALSE(slots.place(object(0, 1))) << "it is there";
  EXPECT_FALSE(slots.place(object(0, 2))) << "the layer's only slot is taken";
  EXPECT_TRUE(slots.place(object(1, 2)));
  EXPECT_EQ(step(slots, 0, {1})[0].how, How::kHeld);
}

// An LRU, and a popularity, that break a rule each as long as they are told to.
enum class Breach : uint8_t { kNo, kHit, kInsert, kRemove, kVictim, kManyVictims, kPredictions, kManyPredictions };
Breach breach;

PolicyRef breaking_policy() {
  static const PolicyRef lru = find_policy("lru", NEOTIER_EXPERTS);
  auto policy = std::make_shared<neotier_placement>(*lru);
  policy->on_hit = [](void* state, const neotier_event* event, uint32_t index) {
    const int status = lru->on_hit(state, event, index);
    return breach == Breach::kHit ? NEOTIER_REFUSED : status;
  };
  policy->on_insert = [](void* state, const neotier_event* event, uint32_t index) {
    const int status = lru->on_insert(state, event, index);
    return breach == Breach::kInsert ? NEOTIER_REFUSED : status;
  };
  policy->on_remove = [](void* state, uint32_t object, neotier_remove_reason reason) {
    const int status = lru->on_remove(state, object, reason);
    return breach == Breach::kRemove ? NEOTIER_REFUSED : status;
  };
  policy->victims = [](void* state, const neotier_event* event, uint32_t index, uint32_t want, uint32_t* out) {
    const uint32_t found = lru->victims(state, event, index, want, out);
    if (breach == Breach::kVictim && found > 0) out[0] = kNone;
    return breach == Breach::kManyVictims ? want + 1 : found;
  };
  return policy;
}

PolicyRef breaking_predictor() {
  static const PolicyRef popularity = find_policy("popularity", NEOTIER_PREDICTOR);
  auto predictor = std::make_shared<neotier_placement>(*popularity);
  predictor->prefetch = [](void* state, const neotier_event* event, const neotier_prefetch_request* request,
                           neotier_prediction* out) {
    const uint32_t found = popularity->prefetch(state, event, request, out);
    if (breach == Breach::kPredictions && found > 0) out[0].probability = 2;
    return breach == Breach::kManyPredictions ? request->max + 1 : found;
  };
  return predictor;
}

class Breaches : public Slots, public ::testing::WithParamInterface<std::pair<Breach, const char*>> {};

// Much is called where nobody could be told, as in a loader's thread: it must not throw there.
TEST_P(Breaches, IsToldOnceByTheNextBeginAndTheBooksStayRight) {
  breach = Breach::kNo;
  ExpertSlotsOptions two = options(2);
  ExpertSlots slots(breaking_policy(), breaking_predictor(), two);
  std::minstd_rand random(1);
  const auto drive = [&] {
    int told = 0;
    for (int event = 0; event < 200; event++) {
      const auto any = [&](uint32_t of) { return static_cast<uint32_t>(random() % of); };
      const uint32_t layer = any(2), expert = any(kExperts), other = any(kExperts - 1);
      try {
        step(slots, layer, {expert, (expert + 1 + other) % kExperts});
      } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find(GetParam().second), std::string::npos) << error.what();
        told++;
      }
      while (const auto fetch = slots.fetch(0, true)) {
        EXPECT_TRUE(slots.holds(fetch->object));
        EXPECT_TRUE(fetch->removed == kNone || !slots.holds(fetch->removed));
        if (random() % 2)
          slots.arrived(fetch->object);
        else
          slots.remove(fetch->object);
      }
      uint32_t held = 0;
      for (uint32_t e = 0; e < kExperts; e++) held += slots.holds(object(layer, e));
      EXPECT_LE(held, two.slots);
    }
    return told;
  };
  EXPECT_EQ(drive(), 0);
  breach = GetParam().first;
  EXPECT_GT(drive(), 0);
  breach = Breach::kNo;
  try {
    slots.tell_breach();
  } catch (const std::runtime_error&) {
  }
  EXPECT_NO_THROW(slots.tell_breach());
  EXPECT_EQ(drive(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Of, Breaches,
    ::testing::Values(
        std::pair(Breach::kHit, "policy lru breaks the rules of its ABI: it does not know that expert"),
        std::pair(Breach::kInsert, "policy lru breaks the rules of its ABI: it refuses expert"),
        std::pair(Breach::kRemove, "policy lru breaks the rules of its ABI: it does not know that expert"),
        std::pair(Breach::kVictim, "policy lru breaks the rules of its ABI: it names object 4294967295 as a victim"),
        std::pair(Breach::kManyVictims, "policy lru breaks the rules of its ABI: it names more victims than"),
        std::pair(Breach::kPredictions, "predictor popularity breaks the rules of its ABI: object"),
        std::pair(Breach::kManyPredictions, "predictor popularity breaks the rules of its ABI: it returns more")));

}  // namespace
}  // namespace neotier::placement
