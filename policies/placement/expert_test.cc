// SPDX-License-Identifier: Apache-2.0
// Every expert policy and predictor against the rules of neotier_placement.h, called directly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "expert_reuse.h"
#include "registry.h"
#include "vector_math.h"

namespace {

constexpr uint32_t kLayers = 3, kExperts = 40, kTopK = 3, kSlots = 7, kBatch = 2;

// A host small enough to see through: flags, one state block, guard bytes behind it.
class Host {
 public:
  explicit Host(const neotier_placement& policy, uint32_t batch = kBatch)
      : policy_(policy), flags_(size_t{kLayers} * kExperts) {
    for (uint32_t i = 0; i < policy.nr_params; i++) params_.push_back(policy.params[i].value);
    config_.struct_bytes = sizeof(config_);
    config_.abi = NEOTIER_PLACEMENT_ABI;
    config_.kind = NEOTIER_KIND_EXPERT;
    config_.objects = kLayers * kExperts;
    config_.groups = kLayers;
    config_.experts_per_group = kExperts;
    config_.top_k = kTopK;
    config_.batch = batch;
    config_.max_event = kTopK * batch;
    config_.capacity = kSlots;
    config_.capacity_bytes = kSlots;
    config_.seed = 1;
    config_.flags = flags_.data();
    config_.params = params_.data();
    bytes_ = policy.state_bytes(&config_);
    block_.reset(static_cast<unsigned char*>(std::aligned_alloc(64, (bytes_ + kGuard + 63) / 64 * 64)));
    std::memset(block_.get(), 0, bytes_);
    std::memset(block_.get() + bytes_, 0xa5, kGuard);
    initialised_ = policy.init(block_.get(), &config_);
  }
  ~Host() {
    for (size_t i = 0; i < kGuard; i++)
      EXPECT_EQ(block_.get()[bytes_ + i], 0xa5) << policy_.name << ": wrote past its state";
  }

  void* state() { return block_.get(); }
  neotier_placement_config& config() { return config_; }
  int initialised() const { return initialised_; }
  std::vector<uint8_t>& flags() { return flags_; }

  // The choices of each row of one layer; objects are the layer's.
  neotier_event event(uint64_t tick, uint32_t layer, const std::vector<std::vector<uint32_t>>& rows) {
    accesses_.clear();
    for (uint32_t row = 0; row < rows.size(); row++) {
      for (uint32_t k = 0; k < rows[row].size(); k++) {
        neotier_access a = {};
        a.object = layer * kExperts + rows[row][k];
        a.position = k;
        a.row = row;
        a.bytes = 1;
        a.flags = tick < kLayers && layer == 0 ? NEOTIER_STREAM_BEGINS : 0;
        a.next_use = tick + kLayers * (1 + rows[row][k] % 5);
        accesses_.push_back(a);
      }
    }
    neotier_event e = {};
    e.tick = tick;
    e.now_ns = tick;
    e.group = layer;
    e.nr = static_cast<uint32_t>(accesses_.size());
    e.access = accesses_.data();
    return e;
  }

  uint32_t held(uint32_t layer) const {
    const auto begin = flags_.begin() + layer * kExperts;
    return static_cast<uint32_t>(
        std::count_if(begin, begin + kExperts, [](uint8_t f) { return f & NEOTIER_RESIDENT; }));
  }

  // Serves an event as the replay does; checks every answer.
  void serve(const neotier_event& e) {
    if (policy_.on_event) policy_.on_event(state(), &e);
    std::vector<uint32_t> first;
    for (uint32_t i = 0; i < e.nr; i++) {
      if (std::none_of(first.begin(), first.end(),
                       [&](uint32_t j) { return e.access[j].object == e.access[i].object; }))
        first.push_back(i);
    }
    for (uint32_t i : first) flags_[e.access[i].object] |= NEOTIER_PINNED;
    for (uint32_t i : first) {
      const uint32_t object = e.access[i].object;
      if (flags_[object] & NEOTIER_RESIDENT) {
        ASSERT_EQ(policy_.on_hit(state(), &e, i), NEOTIER_OK);
        continue;
      }
      ASSERT_EQ(policy_.on_hit(state(), &e, i), NEOTIER_REFUSED);
      ASSERT_EQ(policy_.on_remove(state(), object, NEOTIER_EVICTED), NEOTIER_REFUSED);
      if (policy_.admit && !policy_.admit(state(), &e, i)) continue;
      if (held(e.group) == kSlots) {
        uint32_t victims[kSlots + 1] = {};
        const uint32_t nr = policy_.victims(state(), &e, i, kSlots, victims);
        ASSERT_LE(nr, kSlots);
        for (uint32_t v = 0; v < nr; v++) {
          ASSERT_EQ(victims[v] / kExperts, e.group);
          ASSERT_EQ(flags_[victims[v]], NEOTIER_RESIDENT);
          ASSERT_EQ(std::count(victims, victims + nr, victims[v]), 1);
        }
        uint32_t one = NEOTIER_NO_OBJECT;
        ASSERT_EQ(policy_.victims(state(), &e, i, 1, &one), nr > 0 ? 1u : 0u);
        if (nr == 0) continue;
        ASSERT_EQ(one, victims[0]);  // best first, and asking changes nothing
        ASSERT_EQ(policy_.on_remove(state(), one, NEOTIER_EVICTED), NEOTIER_OK);
        flags_[one] = 0;
        log_.push_back(one);
      }
      flags_[object] |= NEOTIER_RESIDENT;
      ASSERT_EQ(policy_.on_insert(state(), &e, i), NEOTIER_OK);
      ASSERT_EQ(policy_.on_insert(state(), &e, i), NEOTIER_REFUSED);
      ASSERT_EQ(policy_.on_remove(state(), object, NEOTIER_FORGOTTEN), NEOTIER_REFUSED);
    }
    for (uint32_t i : first) flags_[e.access[i].object] &= static_cast<uint8_t>(~NEOTIER_PINNED);
  }

  const std::vector<uint32_t>& evictions() const { return log_; }

 private:
  struct Free {
    void operator()(unsigned char* p) const { std::free(p); }
  };
  static constexpr size_t kGuard = 256;
  const neotier_placement& policy_;
  neotier_placement_config config_ = {};
  std::vector<double> params_;
  std::vector<uint8_t> flags_;
  size_t bytes_ = 0;
  std::unique_ptr<unsigned char, Free> block_;
  int initialised_ = NEOTIER_REFUSED;
  std::vector<neotier_access> accesses_;
  std::vector<uint32_t> log_;
};

std::vector<const neotier_placement*> with_flags(bool predictors) {
  std::vector<const neotier_placement*> found;
  for (auto p = neotier_placements; *p; p++) {
    if (((*p)->flags & NEOTIER_EXPERTS) && ((*p)->flags & NEOTIER_PREDICTOR ? predictors : !predictors))
      found.push_back(*p);
  }
  return found;
}

// Skewed, repeating choices, different in each row.
class Router {
 public:
  explicit Router(uint64_t seed) : random_(seed) {}
  std::vector<std::vector<uint32_t>> next(uint32_t rows) {
    std::vector<std::vector<uint32_t>> all(rows);
    for (auto& row : all) {
      while (row.size() < kTopK) {
        const auto e = static_cast<uint32_t>(random_() % 4 ? random_() % 6 : random_() % kExperts);
        if (std::find(row.begin(), row.end(), e) == row.end()) row.push_back(e);
      }
    }
    return all;
  }

 private:
  std::mt19937_64 random_;
};

std::string name_of(const testing::TestParamInfo<const neotier_placement*>& info) {
  std::string name = info.param->name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class ExpertPolicy : public testing::TestWithParam<const neotier_placement*> {};

TEST_P(ExpertPolicy, KeepsTheRulesAndRepeats) {
  Host host(*GetParam()), twin(*GetParam());
  ASSERT_EQ(host.initialised(), NEOTIER_OK);
  ASSERT_EQ(twin.initialised(), NEOTIER_OK);
  Router router(7);
  for (uint32_t tick = 0; tick < 3000; tick++) {
    const auto rows = router.next(kBatch);
    for (Host* h : {&host, &twin}) {
      h->serve(h->event(tick, tick % kLayers, rows));
      if (HasFatalFailure()) return;
      ASSERT_LE(h->held(tick % kLayers), kSlots);
    }
  }
  EXPECT_EQ(host.evictions(), twin.evictions());
  // The static one settles; it still has filled its slots by evicting while it counted.
  EXPECT_FALSE(host.evictions().empty());
}

TEST_P(ExpertPolicy, NamesNoPinnedVictim) {
  Host host(*GetParam());
  const auto fill = [&] {
    for (uint32_t tick = 0; tick < 30; tick += kLayers) host.serve(host.event(tick, 0, {{tick / kLayers % 8, 10, 11}}));
  };
  fill();
  for (uint8_t& f : host.flags()) f |= f & NEOTIER_RESIDENT ? NEOTIER_PINNED : 0;
  const neotier_event e = host.event(33, 0, {{20, 21, 22}});
  if (GetParam()->on_event) GetParam()->on_event(host.state(), &e);
  uint32_t out[kExperts];
  EXPECT_EQ(GetParam()->victims(host.state(), &e, 0, kExperts, out), 0u);
}

TEST_P(ExpertPolicy, RefusesAConfigItCannotServe) {
  Host host(*GetParam());
  neotier_placement_config bad = host.config();
  bad.abi = NEOTIER_PLACEMENT_ABI + 1;
  EXPECT_EQ(GetParam()->state_bytes(&bad), 0u);
  bad = host.config();
  bad.capacity = 0;
  EXPECT_EQ(GetParam()->state_bytes(&bad), 0u);
  EXPECT_EQ(GetParam()->init(host.state(), &bad), NEOTIER_REFUSED);
}

INSTANTIATE_TEST_SUITE_P(All, ExpertPolicy, testing::ValuesIn(with_flags(false)), name_of);

class ExpertPredictor : public testing::TestWithParam<const neotier_placement*> {};

TEST_P(ExpertPredictor, ProbabilitiesOfTheLayersAskedForAndRepeats) {
  Host host(*GetParam()), twin(*GetParam());
  ASSERT_EQ(host.initialised(), NEOTIER_OK);
  Router router(11);
  std::vector<neotier_prediction> a(2 * kExperts), b(2 * kExperts);
  for (uint32_t tick = 0; tick < 2000; tick++) {
    const uint32_t layer = tick % kLayers;
    const auto rows = router.next(kBatch);
    const neotier_event e = host.event(tick, layer, rows), f = twin.event(tick, layer, rows);
    GetParam()->on_event(host.state(), &e);
    GetParam()->on_event(twin.state(), &f);
    neotier_prefetch_request request = {};
    request.group_first = (layer + 1) % kLayers;
    request.groups = 2;
    request.max = static_cast<uint32_t>(a.size());
    const uint32_t nr = GetParam()->prefetch(host.state(), &e, &request, a.data());
    ASSERT_LE(nr, request.max);
    ASSERT_EQ(GetParam()->prefetch(twin.state(), &f, &request, b.data()), nr);
    std::vector<bool> seen(size_t{kLayers} * kExperts);
    for (uint32_t i = 0; i < nr; i++) {
      ASSERT_LT(a[i].object, kLayers * kExperts);
      ASSERT_EQ(a[i].object / kExperts, a[i].group);
      ASSERT_NE(a[i].group, layer);
      ASSERT_FALSE(seen[a[i].object]);
      seen[a[i].object] = true;
      ASSERT_GE(a[i].probability, 0);
      ASSERT_LE(a[i].probability, 1);
      ASSERT_EQ(a[i].object, b[i].object);
      ASSERT_EQ(a[i].probability, b[i].probability);
    }
    if (tick > 100) {
      ASSERT_GT(nr, 0u);
    }
    // Less room than there is to say: no more is written.
    request.max = 5;
    a[5].object = 12345;
    ASSERT_LE(GetParam()->prefetch(host.state(), &e, &request, a.data()), 5u);
    ASSERT_EQ(a[5].object, 12345u);
    GetParam()->prefetch(twin.state(), &f, &request, b.data());
  }
}

// The layer's two favourites come every time, the third by turns: what every predictor must see.
TEST_P(ExpertPredictor, FavouritesAreMoreProbableThanTheRest) {
  Host host(*GetParam(), 1);
  std::vector<neotier_prediction> out(kExperts);
  double favourites = 0, rest = 0;
  for (uint32_t tick = 0; tick < 600; tick++) {
    const uint32_t layer = tick % kLayers, turn = 10 + tick / kLayers % 8;
    const neotier_event e = host.event(tick, layer, {{1 + layer, 5, turn}});
    GetParam()->on_event(host.state(), &e);
    neotier_prefetch_request request = {};
    request.group_first = (layer + 1) % kLayers;
    request.groups = 1;
    request.max = kExperts;
    const uint32_t nr = GetParam()->prefetch(host.state(), &e, &request, out.data());
    if (tick < 300) continue;
    for (uint32_t i = 0; i < nr; i++) {
      const uint32_t expert = out[i].object % kExperts;
      (expert == 1 + request.group_first || expert == 5 ? favourites : rest) += static_cast<double>(out[i].probability);
    }
  }
  EXPECT_GT(favourites / 600, 0.7) << "mean over 2 favourites x 300 events";
  EXPECT_GT(favourites, rest);
}

INSTANTIATE_TEST_SUITE_P(All, ExpertPredictor, testing::ValuesIn(with_flags(true)), name_of);

// What expert_reuse.h keeps for one layer of `experts`, with room for the whole state.
class Reuse {
 public:
  explicit Reuse(uint32_t experts) {
    config_.groups = 1;
    config_.experts_per_group = experts;
    config_.top_k = 2;
    config_.batch = 1;
    size_t bytes = 0;
    nt_reuse_carve(&reuse_, nullptr, &bytes, &config_);
    block_.reset(static_cast<unsigned char*>(std::aligned_alloc(64, bytes)));
    std::memset(block_.get(), 0, bytes);
    bytes = 0;
    nt_reuse_carve(&reuse_, block_.get(), &bytes, &config_);
    nt_reuse_start(&reuse_, &config_, 0.85f, 0.02f, ~0u);
  }
  void visit(uint8_t first, uint8_t second) {
    const uint8_t choice[] = {first, second};
    nt_reuse_visit(&reuse_, 0, 0, choice, 2);
  }
  float estimate(uint32_t expert) const { return nt_reuse_estimate(&reuse_, 0, 0)[expert]; }
  const nt_reuse& state() const { return reuse_; }

 private:
  struct Free {
    void operator()(unsigned char* p) const { std::free(p); }
  };
  neotier_placement_config config_ = {};
  nt_reuse reuse_ = {};
  std::unique_ptr<unsigned char, Free> block_;
};

TEST(ExpertReuse, AnExpertIsJudgedAlikeWhereverItLies) {
  // Two patterns that nothing but the expert's number tells apart, in the wide and the narrow part of a layer of 48.
  Reuse reuse(48);
  for (int i = 0; i < 400; i++) {
    reuse.visit(3, 35);
    reuse.visit(i % 2 ? 20 : 21, i % 2 ? 40 : 41);
  }
  for (const auto& [a, b] : {std::pair{3, 35}, {20, 40}, {21, 41}, {7, 47}})
    EXPECT_NEAR(reuse.estimate(a), reuse.estimate(b), 0.02) << a << " and " << b;
  EXPECT_GT(reuse.estimate(3), reuse.estimate(20));
  EXPECT_GT(reuse.estimate(20), reuse.estimate(7) + 0.1f);
}

// A number too small to be normal costs a hundred times the time of another in every operation.
TEST(ExpertReuse, AveragesOfWhatIsLongUnusedStayNormal) {
  Reuse reuse(32);
  reuse.visit(0, 1);
  for (int i = 0; i < 5000; i++) reuse.visit(2, 3);
  const nt_reuse& state = reuse.state();
  for (uint32_t i = 0; i < NT_REUSE_AVERAGES * state.width; i++)
    EXPECT_NE(std::fpclassify(state.average[i]), FP_SUBNORMAL) << i;
}

TEST(VectorMath, NearTheLibrarysFunctions) {
  for (float x = 1e-4f; x < 1e4f; x *= 1.001f) {
    nt_vec v = {x, x, x, x, x, x, x, x};
    nt_log(&v);
    ASSERT_NEAR(v[3], std::log(x), 2e-5 + 1e-6 * std::abs(std::log(x))) << x;
  }
  for (float x = -30; x < 30; x += 0.01f) {
    nt_vec v = {x, x, x, x, x, x, x, x};
    nt_logistic(&v);
    ASSERT_NEAR(v[5], 1 / (1 + std::exp(-x)), 1e-4) << x;
    ASSERT_GE(v[5], 0);
    ASSERT_LE(v[5], 1);
  }
  for (float x : {-1e9f, 1e9f}) {
    nt_vec v = {x, x, x, x, x, x, x, x};
    nt_logistic(&v);
    ASSERT_NEAR(v[0], x > 0 ? 1 : 0, 1e-4);
  }
}

TEST(VectorMath, BitsToOnes) {
  const uint32_t bits[2] = {0x80000001u, 0x0000ff02u};
  for (uint32_t first = 0; first < 64; first += NT_LANES) {
    nt_vec v;
    nt_from_bits(bits, first, &v);
    for (uint32_t lane = 0; lane < NT_LANES; lane++)
      ASSERT_EQ(v[lane], static_cast<float>(bits[(first + lane) / 32] >> (first + lane) % 32 & 1));
  }
}

}  // namespace
