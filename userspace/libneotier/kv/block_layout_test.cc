// SPDX-License-Identifier: Apache-2.0
// Blocks of any layout: where pieces lie, whole ways through a store, and a completion for each layer.
#include "kv/block_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/testing/mem_tier.h"
#include "engine/testing/pattern.h"
#include "kv/kv_store.h"

namespace neotier::kv {
namespace {

using engine::Code;
using engine::Key;
using engine::make_key;

TEST(BlockLayout, PiecesLieOneAfterAnotherLayerByLayer) {
  const BlockLayout uniform(3, 100);
  EXPECT_EQ(uniform.layers(), 3u);
  EXPECT_EQ(uniform.nr_pieces(), 3u);
  EXPECT_EQ(uniform.bytes(), 300u);
  EXPECT_EQ(uniform.pieces()[2].offset, 200u);

  const std::vector<uint64_t> bytes = {10, 10, 7, 1, 2, 3};
  const std::vector<uint32_t> counts = {2, 1, 3};
  const BlockLayout odd(3, bytes, counts);
  EXPECT_EQ(odd.bytes(), 33u);
  EXPECT_EQ(odd.largest_piece(), 10u);
  EXPECT_EQ(odd.first_piece(0), 0u);
  EXPECT_EQ(odd.end_piece(0), 2u);
  EXPECT_EQ(odd.first_piece(2), 3u);
  EXPECT_EQ(odd.end_piece(2), 6u);
  EXPECT_EQ(odd.pieces()[3].offset, 27u);
  EXPECT_EQ(odd.pieces()[3].bytes, 1u);

  const BlockLayout apart(2, std::vector<uint64_t>{5, 6, 5, 6}, {});
  EXPECT_EQ(apart.end_piece(0), 2u) << "all as many";
  EXPECT_EQ(apart.pieces()[3].offset, 16u);
}

TEST(BlockLayout, WhatIsNoneIsRefused) {
  const auto refused = [](uint32_t layers, const std::vector<uint64_t>& bytes, const std::vector<uint32_t>& counts) {
    try {
      (void)BlockLayout(layers, bytes, counts);
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("was taken");
  };
  EXPECT_THAT(refused(0, {1}, {}), testing::HasSubstr("0 layers"));
  EXPECT_THAT(refused(2, {1, 2, 3}, {}), testing::HasSubstr("3 pieces for 2 layers"));
  EXPECT_THAT(refused(2, {}, {}), testing::HasSubstr("0 pieces for 2 layers"));
  EXPECT_THAT(refused(2, {1, 2}, {1}), testing::HasSubstr("pieces of 1 layers"));
  EXPECT_THAT(refused(2, {1, 2}, {2, 0}), testing::HasSubstr("layer 1 has no pieces"));
  EXPECT_THAT(refused(2, {1, 2}, {1, 2}), testing::HasSubstr("have 3 of them"));
  EXPECT_THAT(refused(2, {1, 0}, {}), testing::HasSubstr("piece 1 has no bytes"));
  EXPECT_THAT(refused(2, {UINT32_MAX, 1}, {}), testing::HasSubstr("up to piece 1"));
  EXPECT_EQ(refused(2, {UINT32_MAX - 1, 1}, {}), "was taken");
  EXPECT_THROW(BlockLayout(1, 0), std::runtime_error);
  EXPECT_THROW(BlockLayout(0, 1), std::runtime_error);
  EXPECT_THROW(BlockLayout(UINT32_MAX, UINT64_MAX), std::runtime_error);
  EXPECT_THROW(BlockLayout((1 << 20) + 1, 1), std::runtime_error);
  EXPECT_EQ(BlockLayout(1 << 20, 1).nr_pieces(), 1u << 20);
}

// Each piece of each block in memory of its own, with a margin on both sides that nobody may touch.
class Scattered {
 public:
  Scattered(const BlockLayout& layout, size_t blocks) : layout_(layout), blocks_(blocks) {
    for (const BlockPiece& piece : layout.pieces()) {
      for (size_t block = 0; block < blocks; block++) {
        memory_.emplace_back(piece.bytes + 2 * kMargin, kMarked);
        into.push_back(memory_.back().data() + kMargin);
      }
    }
  }
  void fill(uint64_t first) {
    each([&](size_t piece, size_t block, std::byte& byte, uint64_t at) { byte = byte_of(first + block, piece, at); });
  }
  // Bytes of the first `nr` blocks' pieces, up to piece `end`, that are not what fill(first) writes.
  uint64_t wrong(uint64_t first, size_t nr, size_t end) {
    uint64_t found = 0;
    each([&](size_t piece, size_t block, const std::byte& byte, uint64_t at) {
      found += block < nr && piece < end && byte != byte_of(first + block, piece, at);
    });
    return found;
  }
  uint64_t margins_touched() const {
    uint64_t found = 0;
    for (const auto& one : memory_) {
      for (size_t i = 0; i < kMargin; i++) found += (one[i] != kMarked) + (one[one.size() - 1 - i] != kMarked);
    }
    return found;
  }
  std::vector<const std::byte*> from() const { return {into.begin(), into.end()}; }

  std::vector<std::byte*> into;

 private:
  static constexpr size_t kMargin = 16;
  static constexpr std::byte kMarked{0x5a};
  static std::byte byte_of(uint64_t block, size_t piece, uint64_t at) {
    return static_cast<std::byte>((block * 131 + piece * 17 + at) * 0x9e3779b97f4a7c15u >> 56);
  }
  template <typename Each>
  void each(Each call) {
    for (size_t piece = 0; piece < layout_.nr_pieces(); piece++) {
      for (size_t block = 0; block < blocks_; block++) {
        for (uint64_t at = 0; at < layout_.pieces()[piece].bytes; at++)
          call(piece, block, into[piece * blocks_ + block][at], at);
      }
    }
  }

  const BlockLayout& layout_;
  size_t blocks_;
  std::vector<std::vector<std::byte>> memory_;
};

struct OneTier {
  engine::MemTier* tier = nullptr;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<KvStore> store;
  SessionId session = 0;

  OneTier(bool mappable, const StoreOptions& options) {
    std::vector<engine::TierSetup> setups(1);
    engine::MemTierOptions memory;
    memory.name = "memory";
    memory.capacity_bytes = 8 << 20;
    memory.mappable = mappable;
    auto made = std::make_unique<engine::MemTier>(memory);
    tier = made.get();
    setups[0].tier = std::move(made);
    engine::EngineConfig config;
    config.max_objects = 1000;
    config.events = 1000;
    config.measure = false;
    engine = std::make_unique<engine::Engine>(config, std::move(setups));
    store = std::make_unique<KvStore>(*engine, options);
    session = *store->open_session(store->tenant("t", 0), 0);
  }
};

std::vector<Key> keys_of(size_t nr) {
  std::vector<Key> keys;
  for (uint64_t i = 0; i < nr; i++) keys.push_back(make_key(100 + i));
  return keys;
}

// K and V apart, layers of sizes of their own, and one of many pieces.
StoreOptions odd(uint64_t scale) {
  StoreOptions options;
  options.layers = 4;
  options.piece_bytes = {512 * scale, 512 * scale, 2048 * scale, 100, 1, 27 * scale, 64, 1};
  options.layer_pieces = {2, 1, 4, 1};
  options.recompute_ns = 1000000;
  return options;
}

class AnyLayout : public testing::TestWithParam<std::tuple<bool, uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(Ways, AnyLayout, testing::Combine(testing::Bool(), testing::Values(1, 20)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "Mapped" : "Not") +
                                  (std::get<1>(test.param) == 1 ? "Small" : "Large");
                         });

TEST_P(AnyLayout, EachPieceComesBackToItsPlace) {
  const auto [mappable, scale] = GetParam();
  OneTier rig(mappable, odd(scale));
  const BlockLayout& layout = rig.store->layout();
  EXPECT_EQ(rig.store->block_bytes(), (512 + 512 + 2048 + 27) * scale + 166);
  constexpr size_t kBlocks = 6;
  const auto keys = keys_of(kBlocks);
  Scattered stored(layout, kBlocks);
  stored.fill(1);
  const StoreResult result = rig.store->store(rig.session, keys, stored.from());
  ASSERT_TRUE(result.status.is_ok()) << result.status.what();
  ASSERT_EQ(result.stored, kBlocks);
  EXPECT_EQ(rig.engine->lookup(keys[0])->bytes, layout.bytes());

  Scattered loaded(layout, kBlocks);
  auto load = rig.store->load(rig.session, keys, loaded.into);
  ASSERT_TRUE(load.is_ok()) << load.status().what();
  for (uint32_t layer = 0; layer < layout.layers(); layer++) {
    ASSERT_TRUE((*load)->wait_layer(layer, 10000));
    EXPECT_EQ(loaded.wrong(1, kBlocks, layout.end_piece(layer)), 0u) << layer;
  }
  EXPECT_EQ((*load)->good_blocks(), kBlocks);
  EXPECT_EQ(loaded.margins_touched(), 0u);
  EXPECT_EQ((*load)->wait_layer(layout.layers(), 0).code(), Code::kInvalid);

  // A part of them, from the middle.
  Scattered some(layout, 2);
  auto part = rig.store->load(rig.session, std::span(keys).subspan(3, 2), some.into, 3);
  ASSERT_TRUE(part.is_ok());
  ASSERT_TRUE((*part)->wait(10000));
  EXPECT_EQ(some.wrong(4, 2, layout.nr_pieces()), 0u);
  EXPECT_EQ(rig.store->load(rig.session, keys, some.into).status().code(), Code::kInvalid);
}

TEST_P(AnyLayout, ALayerIsToldOnceItIsThereAndOnce) {
  const auto [mappable, scale] = GetParam();
  OneTier rig(mappable, odd(scale));
  const BlockLayout& layout = rig.store->layout();
  constexpr size_t kBlocks = 5;
  const auto keys = keys_of(kBlocks);
  Scattered stored(layout, kBlocks), loaded(layout, kBlocks);
  stored.fill(1);
  ASSERT_EQ(rig.store->store(rig.session, keys, stored.from()).stored, kBlocks);
  rig.tier->hold();
  auto load = rig.store->load(rig.session, keys, loaded.into);
  ASSERT_TRUE(load.is_ok());
  const auto queue = std::make_shared<engine::CompletionQueue>();
  ASSERT_TRUE((*load)->notify_layers(queue, 70));
  EXPECT_EQ((*load)->notify_layers(queue, 70).code(), engine::Code::kExists);
  EXPECT_EQ((*load)->notify(queue, 1).code(), engine::Code::kExists);
  std::array<uint64_t, 16> tags{};
  const bool at_once = mappable && scale == 1;
  const size_t early = queue->take(tags);
  EXPECT_EQ(early, at_once ? 4u : 0u);
  rig.tier->release();
  std::vector<uint64_t> seen(tags.begin(), tags.begin() + static_cast<std::ptrdiff_t>(early));
  for (int i = 0; i < 10000 && seen.size() < 4; i++) {
    const size_t nr = queue->take(tags);
    for (size_t k = 0; k < nr; k++) {
      seen.push_back(tags[k]);
      const auto layer = static_cast<uint32_t>(tags[k] - 70);
      ASSERT_LT(layer, layout.layers());
      EXPECT_TRUE((*load)->wait_layer(layer, 0)) << "told, so there";
    }
    if (nr == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_THAT(seen, testing::UnorderedElementsAre(70, 71, 72, 73));
  ASSERT_TRUE((*load)->wait(0));
  EXPECT_EQ(loaded.wrong(1, kBlocks, layout.nr_pieces()), 0u);
  EXPECT_EQ(queue->take(tags), 0u);
}

// Of a block that fails in one piece no layer after it is good, and each layer is told all the same.
TEST(Pieces, APieceThatFailsFailsItsBlock) {
  OneTier rig(false, odd(1));
  constexpr size_t kBlocks = 3;
  const auto keys = keys_of(kBlocks);
  Scattered stored(rig.store->layout(), kBlocks), loaded(rig.store->layout(), kBlocks);
  stored.fill(1);
  ASSERT_EQ(rig.store->store(rig.session, keys, stored.from()).stored, kBlocks);
  rig.tier->fail(engine::Op::kRead, 1);
  auto load = rig.store->load(rig.session, keys, loaded.into);
  ASSERT_TRUE(load.is_ok());
  const auto queue = std::make_shared<engine::CompletionQueue>();
  ASSERT_TRUE((*load)->notify_layers(queue, 0));
  EXPECT_EQ((*load)->wait(10000).code(), Code::kIo);
  EXPECT_LT((*load)->good_blocks(), kBlocks);
  // What waits may be told a little before the queue is.
  std::array<uint64_t, 16> tags{};
  size_t told = 0;
  for (int i = 0; i < 10000 && told < 4; i++) {
    told += queue->take(tags);
    if (told < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(told, 4u);
  EXPECT_EQ(loaded.wrong(1, (*load)->good_blocks(), rig.store->layout().nr_pieces()), 0u);
  EXPECT_EQ(loaded.margins_touched(), 0u);
}

TEST(Pieces, OptionsThatContradictAreRefused) {
  OneTier rig(true, odd(1));
  const auto refused = [&](const StoreOptions& options) {
    try {
      const KvStore store(*rig.engine, options);
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("was taken");
  };
  StoreOptions both = odd(1);
  both.layer_bytes = 4096;
  EXPECT_THAT(refused(both), testing::HasSubstr("give one of them"));
  StoreOptions alone;
  alone.layers = 2;
  alone.layer_bytes = 64;
  alone.layer_pieces = {1, 1};
  EXPECT_THAT(refused(alone), testing::HasSubstr("without piece_bytes"));
}

}  // namespace
}  // namespace neotier::kv
