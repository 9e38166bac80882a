// SPDX-License-Identifier: Apache-2.0
// Attention over blocks that a store keeps, while they are promoted, demoted, evicted and cannot be read, against the
// same step over blocks in plain memory: the same bits, full and sparse.
#include "compute/attention.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "engine/testing/mem_tier.h"
#include "engine/testing/pattern.h"
#include "kv/kv_store.h"

namespace neotier::kv {
namespace {

using compute::AttentionShape;
using compute::Format;
using compute::KvBlock;
using engine::Key;

constexpr uint32_t kBlocks = 48, kTokens = 16;
constexpr AttentionShape kShape{8, 2, 32, Format::kBf16, 0};
constexpr uint64_t kHalf = uint64_t{2} * kTokens * 32 * 2;  // keys, or values: kv_heads x tokens x dim x bf16
constexpr uint64_t kBytes = 2 * kHalf;

KvBlock view(const std::byte* data) { return {data, data + kHalf, kTokens, kTokens}; }

class AttentionOverStore : public ::testing::Test {
 protected:
  AttentionOverStore() {
    std::vector<engine::TierSetup> setups;
    for (int i = 0; i < 2; i++) {
      engine::MemTierOptions o;
      o.name = i == 0 ? "fast" : "slow";
      o.kind = i == 0 ? engine::TierKind::kDram : engine::TierKind::kSsd;
      o.capacity_bytes = (i == 0 ? 12 : 3 * kBlocks) * kBytes;
      o.mappable = i == 0;
      if (i == 1) o.medium = std::make_shared<engine::MemMedium>();
      auto tier = std::make_unique<engine::MemTier>(o);
      tiers_.push_back(tier.get());
      engine::TierSetup setup;
      setup.object_bytes = kBytes;
      setup.tier = std::move(tier);
      setups.push_back(std::move(setup));
    }
    engine::EngineConfig config;
    config.max_objects = 1000;
    config.events = 4096;
    config.measure = false;
    config.knobs.promote_heat = 1;
    config.knobs.hysteresis_ms = 0;
    config.knobs.failures = 1000000;  // the tier stays; what fails is read again
    engine_ = std::make_unique<engine::Engine>(config, std::move(setups));
    StoreOptions o;
    o.layers = 1;
    o.layer_bytes = kBytes;
    o.write = WritePolicy::kWriteThrough;
    store_ = std::make_unique<KvStore>(*engine_, o);
    session_ = *store_->open_session(store_->tenant("t", 0), 0);
    std::normal_distribution<float> normal;
    blocks_.resize(kBlocks * kBytes);
    for (size_t at = 0; at < blocks_.size(); at += 2) {
      const uint16_t half = compute::to_bf16(normal(random_));
      std::memcpy(blocks_.data() + at, &half, 2);
    }
    for (uint32_t b = 0; b < kBlocks; b++) {
      keys_.push_back(engine::make_key(b));
      resident_.push_back(view(blocks_.data() + b * kBytes));
      digests_.push_back(compute::digest(kShape, resident_.back()));
      const std::byte* from = blocks_.data() + b * kBytes;
      EXPECT_EQ(store_->store(session_, std::span(&keys_.back(), 1), std::span(&from, 1)).stored, 1u);
    }
  }

  std::vector<float> query() {
    std::normal_distribution<float> normal;
    std::vector<float> q(kShape.heads * kShape.dim);
    for (float& v : q) v = normal(random_);
    return q;
  }
  std::vector<float> attend(std::span<const KvBlock> blocks, std::span<const float> q, const compute::Choice* choice) {
    std::vector<float> out(q.size());
    EXPECT_TRUE(compute::check(kShape, blocks).is_ok());
    (void)compute::attend(compute::kernels(), kShape, blocks, q, out, choice);
    return out;
  }

  std::mt19937 random_{engine::test_seed()};
  std::vector<engine::MemTier*> tiers_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<KvStore> store_;
  SessionId session_ = 0;
  std::vector<std::byte> blocks_;
  std::vector<Key> keys_;
  std::vector<KvBlock> resident_;
  std::vector<compute::Digest> digests_;
};

// Moves blocks between the tiers all the time.
class Mover {
 public:
  Mover(engine::Engine& engine, const std::vector<Key>& keys) {
    thread_ = std::thread([this, &engine, &keys] {
      std::mt19937 random(engine::test_seed() + 1);
      while (!stop_) {
        const Key& key = keys[random() % keys.size()];
        const auto ticket = engine.move({&key, 1}, random() % 2 ? "fast" : "slow", engine::MoveClass::kPrefetch);
        if (random() % 4 == 0) engine.cancel(ticket);
        (void)ticket->wait_ns(2000000);
        moves++;
      }
    });
  }
  ~Mover() {
    stop_ = true;
    thread_.join();
  }
  std::atomic<uint64_t> moves{0};

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_F(AttentionOverStore, LoadedBlocksGiveTheSameBitsFullAndSparse) {
  std::vector<std::byte> loaded(kBlocks * kBytes);
  uint64_t failed = 0;
  {
    Mover mover(*engine_, keys_);
    // On a busy machine the mover may get no turn for long.
    for (int round = 0; round < 60 || mover.moves <= 10 || !failed; round++) {
      ASSERT_LT(round, 20'000);
      const std::vector<float> q = query();
      const uint32_t budgets[8] = {2, 4, 6, 8, 10, 12, 3, 5};
      const auto choice = compute::choose_blocks(kShape, digests_, q, budgets);
      ASSERT_TRUE(choice.is_ok());
      const bool sparse = round % 2;
      std::vector<uint32_t> wanted(kBlocks);
      std::iota(wanted.begin(), wanted.end(), 0u);
      if (sparse) {
        std::vector<bool> some(kBlocks);
        for (const auto& head : choice->blocks)
          for (const uint32_t b : head) some[b] = true;
        std::erase_if(wanted, [&](uint32_t b) { return !some[b]; });
        EXPECT_LT(wanted.size(), kBlocks);
      }
      std::fill(loaded.begin(), loaded.end(), std::byte{0xff});  // NaN
      std::vector<KvBlock> blocks(kBlocks);
      for (const uint32_t b : wanted) {
        std::byte* const into = loaded.data() + b * kBytes;
        for (int attempt = 0;; attempt++) {
          ASSERT_LT(attempt, 50);
          if (attempt == 0 && random_() % 4 == 0) tiers_[random_() % 2]->fail(engine::Op::kRead, 1);
          auto load = store_->load(session_, std::span(&keys_[b], 1), std::span(&into, 1));
          ASSERT_TRUE(load.is_ok());
          if ((*load)->wait(20000).is_ok() && (*load)->good_blocks() == 1) break;
          failed++;
        }
        blocks[b] = view(into);
      }
      const compute::Choice* const c = sparse ? &*choice : nullptr;
      const std::vector<float> reference = attend(resident_, q, c), moved = attend(blocks, q, c);
      ASSERT_EQ(std::memcmp(reference.data(), moved.data(), reference.size() * sizeof(float)), 0) << "round " << round;
    }
  }
}

// Without a copy: pinned where they are, in the tier that the CPU can address.
TEST_F(AttentionOverStore, PinnedBlocksGiveTheSameBits) {
  Mover mover(*engine_, keys_);
  for (int round = 0; round < 60 || mover.moves <= 10; round++) {
    ASSERT_LT(round, 20'000);
    const std::vector<float> q = query();
    const engine::SessionId pins = engine_->open_session();
    std::vector<KvBlock> there, same;
    for (uint32_t b = 0; b < kBlocks; b++) {
      const auto pin = engine_->pin(pins, keys_[b], 0);
      if (!pin || !pin->data) continue;
      there.push_back(view(pin->data));
      same.push_back(resident_[b]);
    }
    const std::vector<float> reference = attend(same, q, nullptr), moved = attend(there, q, nullptr);
    ASSERT_EQ(std::memcmp(reference.data(), moved.data(), reference.size() * sizeof(float)), 0) << "round " << round;
    engine_->close_session(pins);
  }
}

}  // namespace
}  // namespace neotier::kv
