// SPDX-License-Identifier: Apache-2.0
// Experts at addresses of the host's own, against what lies in the file: the same bytes after each wait, whatever was
// evicted, borrowed, fetched ahead, touched unannounced or cannot be read; and memory within the budget.
#include "experts/mapped_experts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>

#include "engine/testing/fake_disk.h"

namespace neotier::experts {

namespace {

using engine::ssd::FakeDisk;
using Use = MappedExperts::Use;

struct Shape {
  uint32_t layers = 4, experts = 8, parts = 3;
  uint64_t bytes = 3 * kPage;  // of an expert's first part; each further one has `more` more
  uint64_t more = 0;
};

class Mapped : public ::testing::Test {
 protected:
  void make(const Shape& shape) {
    shape_ = shape;
    std::mt19937_64 random(7);
    uint64_t at = 0, offset = 1237;
    for (uint32_t l = 0; l < shape.layers; l++) {
      MappedLayer layer;
      for (uint32_t p = 0; p < shape.parts; p++) {
        const uint64_t bytes = shape.bytes + p * shape.more;
        layer.push_back({at, bytes, 0, offset});
        at += (shape.experts * bytes + kPage - 1) / kPage * kPage + (p % 2) * kPage;
        offset += shape.experts * bytes + 64;
      }
      layers_.push_back(layer);
    }
    content_.resize(offset);
    for (std::byte& b : content_) b = static_cast<std::byte>(1 + random() % 255);
    disk_->put("model", content_);
    auto range = EmptyRange::reserve(at);
    if (!range && range.status().code() == Code::kUnsupported) GTEST_SKIP() << range.status().what();
    ASSERT_TRUE(range) << range.status().what();
    range_ = std::move(*range);
  }
  uint64_t all() const {
    uint64_t sum = 0;
    for (const MappedLayer& layer : layers_)
      for (const MappedPart& p : layer) sum += shape_.experts * p.bytes;
    return sum;
  }
  MappedOptions options(uint64_t budget, const char* policy = "lru", const char* predictor = nullptr) {
    MappedOptions o;
    o.policy = placement::find_policy(policy, NEOTIER_EXPERTS);
    if (predictor) o.predictor = placement::find_policy(predictor, NEOTIER_EXPERTS | NEOTIER_PREDICTOR);
    o.experts = shape_.experts;
    o.top_k = 2;
    o.rows = 16;
    o.lookahead = 2;
    o.budget_bytes = budget;
    o.loader.chunk_bytes = 2 * kPage;
    o.loader.demand_chunks = 3;
    o.file_system = disk_;
    return o;
  }
  Result<std::unique_ptr<MappedExperts>> open(const MappedOptions& o) {
    return MappedExperts::open(*range_, {{"model", content_.size()}}, layers_, o);
  }
  // As the refusal of a budget says.
  uint64_t least() {
    const auto refused = open(options(1));
    EXPECT_EQ(refused.status().code(), Code::kFull);
    const std::string line = refused.status().what();
    return std::stoull(line.substr(line.find(": ") + 2));
  }
  // Whether this part of an expert has the file's bytes; a touch of what is not there waits for it.
  bool right(uint32_t layer, uint32_t part, uint32_t expert) const {
    const MappedPart& p = layers_[layer][part];
    return std::memcmp(range_->base() + p.at + expert * p.bytes, content_.data() + p.offset + expert * p.bytes,
                       p.bytes) == 0;
  }
  std::vector<Use> uses(std::mt19937_64& random, uint32_t rows, uint64_t token) const {
    std::vector<Use> list;
    for (uint32_t row = 0; row < rows; row++) {
      const auto first = static_cast<uint32_t>(random() % 3 ? (token / 3 + row) : random()) % shape_.experts;
      list.push_back({first, row, 0});
      list.push_back({static_cast<uint32_t>(first + 1 + random() % 2) % shape_.experts, row, 1});
    }
    return list;
  }
  // A batch of tokens through all layers, all bytes compared.
  void pass(MappedExperts& experts, std::mt19937_64& random, uint32_t rows, uint64_t token) {
    for (uint32_t l = 0; l < shape_.layers; l++) {
      const auto list = uses(random, rows, token);
      auto step = experts.begin(l, list);
      ASSERT_TRUE(step) << step.status().what();
      for (uint32_t p = 0; p < shape_.parts; p++) {
        ASSERT_TRUE((*step)->wait(p)) << l << " " << p;
        for (const Use& use : list) ASSERT_TRUE(right(l, p, use.expert)) << l << " " << p << " " << use.expert;
        (*step)->done(p);
      }
    }
  }

  Shape shape_;
  std::shared_ptr<FakeDisk> disk_ = std::make_shared<FakeDisk>(3);
  std::vector<MappedLayer> layers_;
  std::vector<std::byte> content_;
  std::unique_ptr<EmptyRange> range_;
};

struct Case {
  const char* name;
  Shape shape;
  const char *policy, *predictor;
};

class MappedAll : public Mapped, public ::testing::WithParamInterface<std::tuple<Case, int>> {};

TEST_P(MappedAll, BytesAreTheFilesAndMemoryIsWithinTheBudget) {
  const auto& [one, share] = GetParam();
  make(one.shape);
  if (IsSkipped()) return;
  // The share, or the least that works.
  uint64_t budget = share >= 100 ? UINT64_MAX : std::max(all() * static_cast<uint64_t>(share) / 100, least());
  auto experts = open(options(budget, one.policy, one.predictor));
  ASSERT_TRUE(experts) << experts.status().what();
  std::mt19937_64 random(11);
  for (uint64_t token = 0; token < 60 && !HasFatalFailure(); token++)
    pass(**experts, random, token % 10 == 0 ? 16 : 1, token);
  const MappedCounters c = (*experts)->counters();
  EXPECT_EQ(c.faults, 0u) << "all that was touched had been announced";
  EXPECT_LE(c.peak, (*experts)->budget_bytes());
  EXPECT_LE((*experts)->budget_bytes(), budget);
  EXPECT_EQ(c.events, 60u * one.shape.layers);
  EXPECT_GT(c.hits, 0u);
  EXPECT_LE(c.stall_free, c.uses);
  if (share >= 100) {
    EXPECT_EQ((*experts)->slots(), one.shape.experts);
    EXPECT_EQ(c.hits, c.uses) << "all have room";
  } else {
    EXPECT_LT((*experts)->slots(), one.shape.experts);
    EXPECT_GT(c.loads, 0u);
  }
  if (one.predictor && share < 100) {
    EXPECT_GT(c.prefetches, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MappedAll,
    ::testing::Combine(::testing::Values(Case{"pages", {}, "lru", nullptr},
                                         Case{"odd", {4, 8, 3, 2 * kPage + 777, 0}, "lru", nullptr},
                                         Case{"unequal", {5, 8, 3, kPage + 64, 3 * kPage}, "lfu", nullptr},
                                         Case{"tiny", {4, 8, 2, 1000, 0}, "lru", nullptr},
                                         Case{"joined", {3, 6, 2, 4 * kPage, 0}, "learned", "learned"},
                                         Case{"one", {1, 8, 3, 5 * kPage, 0}, "lru", nullptr},
                                         Case{"ahead", {6, 8, 3, 2 * kPage, 0}, "learned", "learned"}),
                       ::testing::Values(40, 60, 100)),
    [](const auto& param) {
      return std::string(std::get<0>(param.param).name) + std::to_string(std::get<1>(param.param));
    });

TEST_F(Mapped, ABudgetBelowOneOperationIsRefusedWithTheLeastThatWorks) {
  make({});
  if (IsSkipped()) return;
  const uint64_t least = this->least();
  EXPECT_EQ(open(options(least - 1)).status().code(), Code::kFull);
  auto experts = open(options(least));
  ASSERT_TRUE(experts) << experts.status().what();
  // A step of all experts is what it was meant for.
  std::vector<Use> every;
  for (uint32_t e = 0; e < shape_.experts; e++) every.push_back({e, e / 2, e % 2});
  for (uint32_t round = 0; round < 3; round++)
    for (uint32_t l = 0; l < shape_.layers; l++) {
      auto step = (*experts)->begin(l, every);
      ASSERT_TRUE(step);
      for (uint32_t p = 0; p < shape_.parts; p++) {
        ASSERT_TRUE((*step)->wait(p));
        for (uint32_t e = 0; e < shape_.experts; e++) ASSERT_TRUE(right(l, p, e));
        (*step)->done(p);
      }
    }
  EXPECT_LE((*experts)->counters().peak, least);
  EXPECT_EQ((*experts)->counters().faults, 0u);
}

TEST_F(Mapped, WhatIsTouchedUnannouncedIsRightAndIsCounted) {
  make({4, 8, 3, kPage + 300, 0});
  if (IsSkipped()) return;
  auto experts = open(options(all() / 2));
  ASSERT_TRUE(experts) << experts.status().what();
  for (int round = 0; round < 3; round++)
    for (uint32_t l = 0; l < shape_.layers; l++)
      for (uint32_t p = 0; p < shape_.parts; p++)
        for (uint32_t e = 0; e < shape_.experts; e++) ASSERT_TRUE(right(l, p, e)) << l << " " << p << " " << e;
  EXPECT_GT((*experts)->counters().faults, 0u);
  EXPECT_LE((*experts)->counters().peak, all() / 2 + 4 * kPage) << "one of them may come above the budget";
  EXPECT_EQ((*experts)->counters().events, 0u);
}

TEST_F(Mapped, StepsAndTouchesOfManyThreads) {
  make({4, 8, 3, kPage + 300, 0});
  if (IsSkipped()) return;
  auto made = open(options(all() / 2, "learned", "learned"));
  ASSERT_TRUE(made) << made.status().what();
  MappedExperts& experts = **made;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; t++)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      const auto any = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
      for (uint64_t token = 0; token < 40; token++) {
        if (t == 0)
          wrong += !right(any(shape_.layers), any(shape_.parts), any(shape_.experts));
        else
          pass(experts, random, 2, token);
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Mapped, PartsAreConvertedWhereAllHaveRoomAndTheyAreWholePages) {
  make({3, 8, 2, 2 * kPage, 100});
  if (IsSkipped()) return;
  MappedOptions o = options(UINT64_MAX);
  o.convert = [&](uint32_t layer, uint32_t part, std::byte* bytes) {
    ASSERT_LT(layer, 3u);
    ASSERT_EQ(part, 0u) << "the other one is no whole pages";
    for (uint64_t i = 0; i < 2 * kPage; i++) bytes[i] ^= std::byte{0xff};
  };
  const auto inverted = [&](uint32_t layer, uint32_t expert) {
    const MappedPart& p = layers_[layer][0];
    for (uint64_t i = 0; i < p.bytes; i++)
      if ((range_->base()[p.at + expert * p.bytes + i] ^ std::byte{0xff}) != content_[p.offset + expert * p.bytes + i])
        return false;
    return true;
  };
  {
    auto all = open(o);
    ASSERT_TRUE(all);
    for (uint32_t l = 0; l < 3; l++)
      for (uint32_t e = 0; e < 8; e++) {
        auto step = (*all)->begin(l, std::vector<Use>{{e, 0, 0}});
        ASSERT_TRUE((*step)->wait(0));
        ASSERT_TRUE(inverted(l, e));
        ASSERT_TRUE((*step)->wait(1));
        ASSERT_TRUE(right(l, 1, e));
      }
  }
  range_->take_out(range_->base(), range_->bytes());
  o.budget_bytes = least();
  o.convert = [](uint32_t, uint32_t, std::byte*) { FAIL() << "not all have room"; };
  auto some = open(o);
  ASSERT_TRUE(some);
  auto step = (*some)->begin(1, std::vector<Use>{{3, 0, 0}});
  ASSERT_TRUE((*step)->wait(0));
  EXPECT_TRUE(right(1, 0, 3));
}

TEST_F(Mapped, AReadThatFailsFailsItsStepAndNoOther) {
  make({});
  if (IsSkipped()) return;
  auto made = open(options(all() / 2));
  ASSERT_TRUE(made) << made.status().what();
  MappedExperts& experts = **made;
  const std::vector<Use> one = {{3, 0, 0}, {5, 0, 1}};
  disk_->fail_reads(1, EIO);
  {
    auto step = experts.begin(1, one);
    ASSERT_TRUE(step);
    const Status failed = (*step)->wait(0);
    EXPECT_EQ(failed.code(), Code::kIo);
    EXPECT_NE(failed.what().find("model: cannot read"), std::string::npos) << failed.what();
  }
  disk_->fail_reads(0, 0);
  {
    auto step = experts.begin(1, one);
    ASSERT_TRUE(step);
    for (uint32_t p = 0; p < 3; p++) ASSERT_TRUE((*step)->wait(p)) << "asked for anew";
    EXPECT_TRUE(right(1, 2, 3));
  }
  disk_->fail_reads(0.3, EIO);
  std::mt19937_64 random(5);
  int good = 0;
  for (uint64_t token = 0; token < 40; token++)
    for (uint32_t l = 0; l < shape_.layers; l++) {
      const auto list = uses(random, 2, token);
      auto step = experts.begin(l, list);
      ASSERT_TRUE(step);
      for (uint32_t p = 0; p < shape_.parts; p++) {
        if (!(*step)->wait(p)) break;
        for (const Use& use : list) ASSERT_TRUE(right(l, p, use.expert));
        good++;
      }
    }
  EXPECT_GT(good, 0);
  EXPECT_GT(experts.counters().failures, 0u);
  EXPECT_LE(experts.counters().peak, experts.budget_bytes());
}

TEST_F(Mapped, APolicyThatBreaksTheRulesIsToldAndNothingElseEnds) {
  make({});
  if (IsSkipped()) return;
  static std::atomic<bool> wrong;
  wrong = false;
  const auto lru = placement::find_policy("lru", NEOTIER_EXPERTS);
  static const neotier_placement* const kLru = lru.get();
  auto broken = std::make_shared<neotier_placement>(*lru);
  broken->victims = [](void* state, const neotier_event* event, uint32_t index, uint32_t want, uint32_t* out) {
    const uint32_t found = kLru->victims(state, event, index, want, out);
    if (wrong && found > 0) out[0] = UINT32_MAX;
    return found;
  };
  MappedOptions o = options(all() / 2);
  o.policy = broken;
  auto made = open(o);
  ASSERT_TRUE(made) << made.status().what();
  std::mt19937_64 random(3);
  for (uint64_t token = 0; token < 20; token++) pass(**made, random, 2, token);
  wrong = true;
  int thrown = 0;
  for (uint64_t token = 0; token < 20; token++) {
    try {
      pass(**made, random, 2, token);
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("breaks the rules"), std::string::npos) << error.what();
      thrown++;
    }
  }
  EXPECT_GT(thrown, 0);
  wrong = false;
  // The last breach is told yet.
  try {
    pass(**made, random, 2, 0);
  } catch (const std::runtime_error&) {
    thrown++;
  }
  for (uint64_t token = 0; token < 20; token++) pass(**made, random, 2, token);
}

TEST_F(Mapped, EndsWhileReadsAreUnderWay) {
  make({});
  if (IsSkipped()) return;
  auto made = open(options(all() / 2));
  ASSERT_TRUE(made);
  disk_->hold();
  {
    auto step = (*made)->begin(0, std::vector<Use>{{1, 0, 0}, {2, 0, 1}});
    ASSERT_TRUE(step);
  }
  std::thread later([&] { disk_->release(); });
  made->reset();
  later.join();
  EXPECT_EQ(range_->base()[7 * 3 * kPage], std::byte{0})
      << "of an expert that nobody asked for: the range is anybody's";
}

TEST_F(Mapped, EndsWhileAllAreOnTheirWay) {
  make({});
  if (IsSkipped()) return;
  for (int round = 0; round < 20; round++) {
    auto made = open(options(UINT64_MAX));
    ASSERT_TRUE(made);
    made->reset();
  }
}

TEST_F(Mapped, RefusesWhatIsNotInItsFileOrItsRange) {
  make({});
  if (IsSkipped()) return;
  const auto refused = [&](const std::vector<MappedLayer>& layers, const MappedOptions& o, uint64_t bytes) {
    return MappedExperts::open(*range_, {{"model", bytes}}, layers, o).status().code() == Code::kInvalid;
  };
  const uint64_t whole = content_.size();
  EXPECT_TRUE(refused(layers_, options(all()), whole / 2));
  auto layers = layers_;
  layers[3][2].offset = UINT64_MAX - 100;
  EXPECT_TRUE(refused(layers, options(all()), whole));
  layers = layers_;
  layers[1][1].bytes = UINT64_MAX / 8 + 1;
  EXPECT_TRUE(refused(layers, options(all()), whole));
  layers = layers_;
  layers[1][1].file = 1;
  EXPECT_TRUE(refused(layers, options(all()), whole));
  layers = layers_;
  layers[3][2].at += kPage;
  EXPECT_TRUE(refused(layers, options(all()), whole)) << "past the range";
  layers = layers_;
  layers[0][1].at = layers[0][0].at;
  EXPECT_TRUE(refused(layers, options(all()), whole)) << "two at one place";
  layers = layers_;
  layers[0][0].at += 64;
  EXPECT_TRUE(refused(layers, options(all()), whole));
  layers = layers_;
  layers[2].pop_back();
  EXPECT_TRUE(refused(layers, options(all()), whole));
  EXPECT_TRUE(refused({}, options(all()), whole));
  for (auto* const change : {+[](MappedOptions& o) { o.top_k = 9; }, +[](MappedOptions& o) { o.top_k = 0; },
                             +[](MappedOptions& o) { o.rows = 0; }, +[](MappedOptions& o) { o.policy = nullptr; },
                             +[](MappedOptions& o) { o.policy = placement::find_policy("belady", NEOTIER_EXPERTS); }}) {
    MappedOptions o = options(all());
    change(o);
    EXPECT_TRUE(refused(layers_, o, whole));
  }
  auto experts = open(options(all()));
  ASSERT_TRUE(experts);
  EXPECT_EQ((*experts)->begin(4, {}).status().code(), Code::kInvalid);
  EXPECT_EQ((*experts)->begin(0, std::vector<Use>{{8, 0, 0}}).status().code(), Code::kInvalid);
  auto step = (*experts)->begin(0, {});
  ASSERT_TRUE(step) << "nothing is used";
  EXPECT_TRUE((*step)->wait(0));
  EXPECT_EQ((*step)->wait(3).code(), Code::kInvalid);
}

}  // namespace
}  // namespace neotier::experts
