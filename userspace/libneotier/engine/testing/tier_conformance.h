// SPDX-License-Identifier: Apache-2.0
// One suite for every tier. To run it: a default-constructible harness (tier_harness.h), and
//   INSTANTIATE_TYPED_TEST_SUITE_P(Dram, TierConformance, DramHarness);
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/testing/pattern.h"
#include "engine/testing/tier_harness.h"
#include "engine/testing/transfer_batch.h"

namespace neotier::engine {

template <typename Harness>
class TierConformance : public ::testing::Test {
 protected:
  Tier& tier() { return harness_->tier(); }
  Harness& harness() { return *harness_; }
  Extent allocate(uint64_t key, uint64_t bytes) {
    Result<Extent> extent = tier().allocate(make_key(key), bytes);
    EXPECT_TRUE(extent.is_ok()) << extent.status().what();
    return extent ? *extent : kNoExtent;
  }
  // Allocated and written with pattern(key).
  Extent stored(uint64_t key, uint64_t bytes) {
    const Extent extent = allocate(key, bytes);
    Bytes content = pattern(key, bytes);
    const Status status = write_now(tier(), extent, content);
    EXPECT_TRUE(status.is_ok()) << status.what();
    return extent;
  }
  ::testing::AssertionResult holds(Extent extent, const Bytes& content) {
    Bytes read(content.size(), std::byte{0xA5});
    const Status status = read_now(tier(), extent, read);
    if (!status) return ::testing::AssertionFailure() << to_string(status.code()) << ": " << status.what();
    const auto differ = std::mismatch(read.begin(), read.end(), content.begin());
    if (differ.first == read.end()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "other bytes from offset " << differ.first - read.begin();
  }

  std::unique_ptr<Harness> harness_ = std::make_unique<Harness>();
};
TYPED_TEST_SUITE_P(TierConformance);

#define NEOTIER_NEEDS(fault)                                          \
  do {                                                                \
    const std::string why = this->harness().cannot(fault);            \
    if (!why.empty()) GTEST_SKIP() << "skipped: " #fault ": " << why; \
  } while (false)

inline constexpr uint64_t kSizes[] = {1, 511, 4096, 4097, 65536, 65537, 200000, (1 << 20) + 13};

// ---- an extent's life

TYPED_TEST_P(TierConformance, SaysWhatItIs) {
  const TierInfo& info = this->tier().info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.capacity_bytes, 4u << 20);
  EXPECT_LE(info.capacity_bytes, 64u << 20) << "the suite fills the tier: make the harness' smaller";
  EXPECT_EQ(info.alignment & (info.alignment - 1), 0u);
  EXPECT_GT(info.alignment, 0u);
  EXPECT_TRUE(this->tier().in_service());
  EXPECT_EQ(this->tier().usage().extents, 0u);
  EXPECT_EQ(this->tier().usage().used_bytes, 0u);
}

TYPED_TEST_P(TierConformance, ReadsWhatWasWritten) {
  std::map<Extent, uint64_t> sizes;
  for (const uint64_t bytes : kSizes) sizes[this->stored(bytes, bytes)] = bytes;
  EXPECT_EQ(sizes.size(), std::size(kSizes)) << "two extents of one name";
  for (const auto& [extent, bytes] : sizes) EXPECT_TRUE(this->holds(extent, pattern(bytes, bytes))) << bytes;
}

TYPED_TEST_P(TierConformance, IsWrittenAgain) {
  for (const uint64_t bytes : {uint64_t{4096}, uint64_t{200000}}) {
    const Extent extent = this->stored(1, bytes);
    for (uint64_t round = 2; round < 6; round++) {
      Bytes content = pattern(round, bytes);
      ASSERT_TRUE(write_now(this->tier(), extent, content));
      EXPECT_TRUE(this->holds(extent, content));
    }
  }
}

TYPED_TEST_P(TierConformance, AnyRangeOfBytes) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("NEOTIER_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const uint64_t bytes : {uint64_t{5000}, uint64_t{300001}}) {
    const Extent extent = this->stored(7, bytes);
    Bytes model = pattern(7, bytes);
    for (int step = 0; step < 60; step++) {
      const uint64_t offset = random() % bytes;
      const uint64_t length = 1 + random() % (bytes - offset);
      if (random() % 2) {
        Bytes content = pattern(random(), length);
        ASSERT_TRUE(write_now(this->tier(), extent, content, offset));
        std::copy(content.begin(), content.end(), model.begin() + static_cast<ptrdiff_t>(offset));
      } else {
        Bytes read(length);
        ASSERT_TRUE(read_now(this->tier(), extent, read, offset));
        ASSERT_TRUE(std::equal(read.begin(), read.end(), model.begin() + static_cast<ptrdiff_t>(offset)))
            << offset << "+" << length << " at step " << step;
      }
    }
    EXPECT_TRUE(this->holds(extent, model));
  }
}

TYPED_TEST_P(TierConformance, PiecesAnyhowCutAndAligned) {
  constexpr size_t kGuard = 64;
  const uint64_t seed = test_seed();
  SCOPED_TRACE("NEOTIER_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const uint64_t bytes : {uint64_t{9000}, uint64_t{262144}}) {
    for (int round = 0; round < 8; round++) {
      const Extent extent = this->allocate(1, bytes);
      // Memory of pieces with guard bytes between, in no order; round 0 is one aligned piece.
      std::vector<std::pair<uint64_t, uint64_t>> cuts;
      for (uint64_t at = 0; at < bytes;) {
        const uint64_t length = round == 0 ? bytes : std::min<uint64_t>(bytes - at, 1 + random() % (bytes / 5));
        cuts.emplace_back(at, length);
        at += length;
      }
      const size_t room = bytes + (cuts.size() + 1) * kGuard + 8192;
      Bytes memory(room, std::byte{0x5A});
      const Bytes content = pattern(seed + static_cast<uint64_t>(round), bytes);
      std::vector<size_t> order(cuts.size());
      for (size_t i = 0; i < order.size(); i++) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Piece> pieces(cuts.size());
      size_t at = kGuard;
      if (round == 0) at = 4096 - reinterpret_cast<uintptr_t>(memory.data()) % 4096;
      for (const size_t i : order) {
        pieces[i] = {memory.data() + at, cuts[i].second};
        std::copy_n(content.begin() + static_cast<ptrdiff_t>(cuts[i].first), cuts[i].second, pieces[i].data);
        at += cuts[i].second + kGuard;
      }
      const Bytes before = memory;
      TransferBatch write(this->tier());
      write.add(Op::kWrite, extent, 0, pieces);
      write.run();
      ASSERT_TRUE(write.status(0)) << write.status(0).what();
      EXPECT_EQ(memory, before) << "a write changed its caller's memory";
      EXPECT_TRUE(this->holds(extent, content));

      std::fill(memory.begin(), memory.end(), std::byte{0x5A});
      TransferBatch read(this->tier());
      read.add(Op::kRead, extent, 0, pieces);
      read.run();
      ASSERT_TRUE(read.status(0)) << read.status(0).what();
      EXPECT_EQ(memory, before) << "other bytes, or some beyond the pieces";
      this->tier().free(extent);
    }
  }
}

TYPED_TEST_P(TierConformance, NothingBeyondBounds) {
  const Extent extent = this->stored(1, 10000);
  const Extent freed = this->stored(2, 10000);
  this->tier().free(freed);
  Bytes memory(20000, std::byte{1});
  const std::span all(memory);
  TransferBatch batch(this->tier());
  for (const Op op : {Op::kRead, Op::kWrite}) {
    batch.add(op, extent, 0, all.first(10001));
    batch.add(op, extent, 10000, all.first(1));
    batch.add(op, extent, 9999, all.first(2));
    batch.add(op, extent, 1 << 30, all.first(1));
    batch.add(op, extent, UINT64_MAX, all.first(1));
    batch.add(op, extent, UINT64_MAX - 99, all.first(200));
    batch.add(op, extent, 0, {{memory.data(), 1}, {memory.data(), UINT64_MAX}});
    batch.add(op, kNoExtent, 0, all.first(1));
    batch.add(op, freed, 0, all.first(1));
  }
  batch.run();
  for (size_t i = 0; i < batch.size(); i++) {
    EXPECT_EQ(batch.status(i).code(), Code::kInvalid) << i;
    EXPECT_FALSE(batch.status(i).what().empty()) << i;
    EXPECT_EQ(batch.calls(i), 1u) << i;
  }
  EXPECT_TRUE(this->holds(extent, pattern(1, 10000)));
}

TYPED_TEST_P(TierConformance, NoBytesAreNoTrouble) {
  const Extent extent = this->stored(1, 5000);
  TransferBatch batch(this->tier());
  batch.add(Op::kRead, extent, 0, std::vector<Piece>{});
  batch.add(Op::kWrite, extent, 5000, std::vector<Piece>{{nullptr, 0}});
  batch.run();
  EXPECT_TRUE(batch.status(0)) << batch.status(0).what();
  EXPECT_TRUE(batch.status(1)) << batch.status(1).what();
  EXPECT_TRUE(this->holds(extent, pattern(1, 5000)));
}

TYPED_TEST_P(TierConformance, SizesThatCannotBe) {
  EXPECT_EQ(this->tier().allocate(make_key(1), 0).status().code(), Code::kInvalid);
  for (const uint64_t bytes : {this->tier().info().capacity_bytes + 1, UINT64_MAX}) {
    const Result<Extent> extent = this->tier().allocate(make_key(1), bytes);
    EXPECT_TRUE(extent.status().code() == Code::kInvalid || extent.status().code() == Code::kFull)
        << to_string(extent.status().code());
  }
  EXPECT_EQ(this->tier().usage().extents, 0u);
}

TYPED_TEST_P(TierConformance, MappedMemoryIsTheExtent) {
  const Extent extent = this->stored(1, 70000);
  std::byte* const memory = this->tier().map(extent);
  if (memory == nullptr) GTEST_SKIP() << "skipped: the host cannot address this tier";
  EXPECT_TRUE(std::equal(memory, memory + 70000, pattern(1, 70000).begin()));
  const Bytes other = pattern(2, 70000);
  std::copy(other.begin(), other.end(), memory);
  EXPECT_TRUE(this->holds(extent, other));
}

TYPED_TEST_P(TierConformance, TheHostsAddressIsTheProcessorsOwn) {
  const Extent extent = this->stored(1, 70000);
  std::byte* const memory = this->tier().map(extent);
  if (memory) {
    EXPECT_EQ(this->tier().address(extent), memory);
  }
  const Extent other = this->stored(2, 70000);
  std::byte *const one = this->tier().address(extent), *const two = this->tier().address(other);
  if (!one) return;  // nothing computes there
  EXPECT_TRUE(one + 70000 <= two || two + 70000 <= one);
}

// ---- room

TYPED_TEST_P(TierConformance, CountsWhatIsUsed) {
  std::vector<Extent> extents;
  uint64_t asked = 0;
  for (const uint64_t bytes : kSizes) {
    extents.push_back(this->allocate(bytes, bytes));
    asked += bytes;
    EXPECT_GE(this->tier().usage().used_bytes, asked);
    EXPECT_EQ(this->tier().usage().extents, extents.size());
  }
  EXPECT_LE(this->tier().usage().used_bytes, this->tier().info().capacity_bytes);
  for (const Extent extent : extents) this->tier().free(extent);
  EXPECT_EQ(this->tier().usage().used_bytes, 0u);
  EXPECT_EQ(this->tier().usage().extents, 0u);
}

TYPED_TEST_P(TierConformance, FullAndRoomAgain) {
  constexpr uint64_t kBytes = 256 << 10;
  std::vector<Extent> extents;
  Status full;
  while (full.is_ok()) {
    Result<Extent> extent = this->tier().allocate(make_key(extents.size()), kBytes);
    if (!extent) {
      full = extent.status();
      break;
    }
    Bytes content = pattern(extents.size(), kBytes);
    const Status written = write_now(this->tier(), *extent, content);
    ASSERT_TRUE(written) << "extent " << extents.size() << ": " << written.what();
    extents.push_back(*extent);
    ASSERT_LE(extents.size() * kBytes, this->tier().info().capacity_bytes);
  }
  EXPECT_EQ(full.code(), Code::kFull);
  EXPECT_FALSE(full.what().empty());
  EXPECT_LE(this->tier().usage().used_bytes, this->tier().info().capacity_bytes);
  // An eighth for what rounding and headers cost.
  EXPECT_GE(extents.size() * kBytes, this->tier().info().capacity_bytes / 8 * 7 - kBytes);

  // Room that is given back is room again, at once, and over and over: on a log that means cleaning.
  for (size_t round = 0; round < 4 * extents.size(); round++) {
    const size_t i = (round * 7) % extents.size();
    this->tier().free(extents[i]);
    const Result<Extent> extent = this->tier().allocate(make_key(i), kBytes);
    ASSERT_TRUE(extent.is_ok()) << extent.status().what();
    extents[i] = *extent;
    Bytes content = pattern(i, kBytes);
    ASSERT_TRUE(write_now(this->tier(), extents[i], content));
  }
  for (size_t i = 0; i < extents.size(); i++) EXPECT_TRUE(this->holds(extents[i], pattern(i, kBytes))) << i;
}

TYPED_TEST_P(TierConformance, ChurnOfManySizes) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("NEOTIER_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  struct Object {
    Extent extent;
    uint64_t key, bytes;
  };
  std::vector<Object> objects;
  const uint64_t enough = this->tier().info().capacity_bytes * 4;
  for (uint64_t written = 0, key = 1; written < enough; key++) {
    const uint64_t bytes = 1 + random() % (random() % 8 == 0 ? 500000 : 20000);
    Result<Extent> extent = this->tier().allocate(make_key(key), bytes);
    while (!extent && !objects.empty()) {
      ASSERT_EQ(extent.status().code(), Code::kFull);
      std::swap(objects[random() % objects.size()], objects.back());
      ASSERT_TRUE(this->holds(objects.back().extent, pattern(objects.back().key, objects.back().bytes)));
      this->tier().free(objects.back().extent);
      objects.pop_back();
      extent = this->tier().allocate(make_key(key), bytes);
    }
    ASSERT_TRUE(extent.is_ok());
    Bytes content = pattern(key, bytes);
    ASSERT_TRUE(write_now(this->tier(), *extent, content));
    objects.push_back({*extent, key, bytes});
    written += bytes;
  }
  EXPECT_EQ(this->tier().usage().extents, objects.size());
  for (const Object& object : objects) ASSERT_TRUE(this->holds(object.extent, pattern(object.key, object.bytes)));
}

// ---- at once

TYPED_TEST_P(TierConformance, ManyInOneSubmission) {
  constexpr uint64_t kPart = 4096, kParts = 300;
  const Extent extent = this->allocate(1, kPart * kParts);
  Bytes content = pattern(1, kPart * kParts);
  const auto run = [&](Op op, Bytes& memory) {
    TransferBatch batch(this->tier());
    for (uint64_t i = 0; i < kParts; i++) {
      const uint64_t part = (i * 113) % kParts;
      batch.add(op, extent, part * kPart, std::span(memory).subspan(part * kPart, kPart));
    }
    batch.run();
    for (size_t i = 0; i < batch.size(); i++) {
      ASSERT_TRUE(batch.status(i)) << batch.status(i).what();
      ASSERT_EQ(batch.calls(i), 1u);
    }
  };
  run(Op::kWrite, content);
  Bytes read(content.size());
  run(Op::kRead, read);
  EXPECT_EQ(read, content);
}

TYPED_TEST_P(TierConformance, DoneMaySubmit) {
  constexpr int kLinks = 50;
  const Extent extent = this->stored(1, 4096);
  Bytes memory(4096);
  const Piece piece{memory.data(), memory.size()};
  std::atomic<int> started = 1, calls = 0, errors = 0;
  Transfer transfer;
  transfer.extent = extent;
  transfer.pieces = std::span(&piece, 1);
  transfer.done = [&](Transfer& t, const Status& status) {
    if (!status) errors++;
    Transfer* const again = &t;
    // The count last: the test ends with it.
    if (started.fetch_add(1) < kLinks && this->tier().submit(std::span(&again, 1)) != 1) errors++;
    calls++;
  };
  Transfer* const first = &transfer;
  ASSERT_EQ(this->tier().submit(std::span(&first, 1)), 1u);
  for (int i = 0; i < 60000 && calls < kLinks; i++) {
    if (this->tier().poll() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(calls, kLinks);
  EXPECT_EQ(errors, 0);
}

TYPED_TEST_P(TierConformance, ThreadsOnTheirOwnExtents) {
  constexpr unsigned kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> errors = 0;
  for (unsigned thread = 0; thread < kThreads; thread++)
    threads.emplace_back([this, thread, &errors] {
      std::mt19937_64 random(thread);
      for (uint64_t round = 0; round < 60; round++) {
        const uint64_t key = thread * 1000 + round, bytes = 1 + random() % 100000;
        const Result<Extent> extent = this->tier().allocate(make_key(key), bytes);
        if (!extent) {
          errors++;
          continue;
        }
        Bytes content = pattern(key, bytes), read(bytes);
        if (!write_now(this->tier(), *extent, content)) errors++;
        if (round % 16 == 0 && this->tier().info().durable && !flush_now(this->tier())) errors++;
        if (!read_now(this->tier(), *extent, read) || read != content) errors++;
        this->tier().free(*extent);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, 0);
  EXPECT_EQ(this->tier().usage().extents, 0u);
  EXPECT_EQ(this->tier().usage().used_bytes, 0u);
}

TYPED_TEST_P(TierConformance, ThreadsOnOneExtent) {
  constexpr unsigned kThreads = 4;
  constexpr uint64_t kPart = 20001;
  const Extent extent = this->stored(9, kPart * kThreads);
  std::vector<std::thread> threads;
  std::atomic<int> errors = 0;
  // Each thread writes its own part, not aligned to anything, and reads it back.
  for (unsigned thread = 0; thread < kThreads; thread++)
    threads.emplace_back([this, thread, extent, &errors] {
      for (uint64_t round = 0; round < 40; round++) {
        Bytes content = pattern(thread * 100 + round, kPart), read(kPart);
        if (!write_now(this->tier(), extent, content, thread * kPart)) errors++;
        if (!read_now(this->tier(), extent, read, thread * kPart) || read != content) errors++;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, 0);
}

TYPED_TEST_P(TierConformance, CancelAtAnyMoment) {
  constexpr uint64_t kCount = 64, kBytes = 8192;
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < kCount; i++) extents.push_back(this->stored(i, kBytes));
  std::vector<Bytes> content;
  for (uint64_t i = 0; i < kCount; i++) content.push_back(pattern(1000 + i, kBytes));
  TransferBatch batch(this->tier());
  for (uint64_t i = 0; i < kCount; i++) batch.add(Op::kWrite, extents[i], 0, std::span(content[i]));
  batch.submit_some();
  for (size_t i = 0; i < batch.submitted(); i += 2) this->tier().cancel(batch.transfer(i));
  batch.run();
  for (size_t i = 0; i < batch.size(); i += 2) this->tier().cancel(batch.transfer(i));  // too late: harmless
  for (uint64_t i = 0; i < kCount; i++) {
    ASSERT_EQ(batch.calls(i), 1u);
    ASSERT_TRUE(batch.status(i).is_ok() || batch.status(i).code() == Code::kCancelled) << batch.status(i).what();
    EXPECT_TRUE(this->holds(extents[i], batch.status(i).is_ok() ? content[i] : pattern(i, kBytes))) << i;
  }
}

// ---- faults, durability

}  // namespace neotier::engine

#include "engine/testing/tier_conformance_faults.h"

namespace neotier::engine {

REGISTER_TYPED_TEST_SUITE_P(TierConformance, SaysWhatItIs, ReadsWhatWasWritten, IsWrittenAgain, AnyRangeOfBytes,
                            PiecesAnyhowCutAndAligned, NothingBeyondBounds, NoBytesAreNoTrouble, SizesThatCannotBe,
                            MappedMemoryIsTheExtent, TheHostsAddressIsTheProcessorsOwn, CountsWhatIsUsed,
                            FullAndRoomAgain, ChurnOfManySizes, ManyInOneSubmission, DoneMaySubmit,
                            ThreadsOnTheirOwnExtents, ThreadsOnOneExtent, CancelAtAnyMoment, SlowMediumStopsNobody,
                            CancelWhileSlow, OneFailureIsOneTransfers, RottenBytesAreNotHandedOut, GoneAndBack,
                            GoneInTheMiddle, FlushWhereThereIsNothingToKeep, FlushedSurvivesACrash,
                            WhatWasSaidOfAnExtentSurvivesACrash, NothingToRecoverInAFreshOne);

}  // namespace neotier::engine
