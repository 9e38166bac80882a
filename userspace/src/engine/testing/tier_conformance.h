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

// ---- faults

TYPED_TEST_P(TierConformance, SlowMediumStopsNobody) {
  NEOTIER_NEEDS(Fault::kHold);
  const Extent extent = this->stored(1, 10000);
  const Extent other = this->stored(2, 10000);
  this->harness().hold();
  Bytes read(10000), write = pattern(3, 10000);
  TransferBatch batch(this->tier());
  batch.add(Op::kRead, extent, 0, std::span(read));
  batch.add(Op::kWrite, other, 0, std::span(write));
  batch.submit_some();
  ASSERT_EQ(batch.submitted(), 2u);
  const Extent third = this->allocate(4, 5000);
  EXPECT_EQ(this->tier().usage().extents, 3u);
  this->tier().free(third);
  this->tier().poll();
  EXPECT_EQ(batch.completed(), 0u);
  this->harness().release();
  batch.wait();
  EXPECT_TRUE(batch.status(0)) << batch.status(0).what();
  EXPECT_TRUE(batch.status(1)) << batch.status(1).what();
  EXPECT_EQ(read, pattern(1, 10000));
  EXPECT_TRUE(this->holds(other, write));
}

TYPED_TEST_P(TierConformance, CancelWhileSlow) {
  NEOTIER_NEEDS(Fault::kHold);
  constexpr uint64_t kCount = 200, kBytes = 4096;
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < kCount; i++) extents.push_back(this->stored(i, kBytes));
  std::vector<Bytes> content;
  for (uint64_t i = 0; i < kCount; i++) content.push_back(pattern(1000 + i, kBytes));
  this->harness().hold();
  TransferBatch batch(this->tier());
  for (uint64_t i = 0; i < kCount; i++) batch.add(Op::kWrite, extents[i], 0, std::span(content[i]));
  batch.submit_some();
  ASSERT_GT(batch.submitted(), 0u);
  for (size_t i = 0; i < batch.submitted(); i++)
    if (i % 3 != 0) this->tier().cancel(batch.transfer(i));
  this->harness().release();
  batch.run();
  for (uint64_t i = 0; i < kCount; i++) {
    ASSERT_EQ(batch.calls(i), 1u);
    ASSERT_TRUE(batch.status(i).is_ok() || batch.status(i).code() == Code::kCancelled) << batch.status(i).what();
    EXPECT_TRUE(this->holds(extents[i], batch.status(i).is_ok() ? content[i] : pattern(i, kBytes))) << i;
  }
}

TYPED_TEST_P(TierConformance, OneFailureIsOneTransfers) {
  NEOTIER_NEEDS(Fault::kFail);
  constexpr uint64_t kCount = 24, kBytes = 65536;
  constexpr unsigned kFailures = 5;
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < kCount; i++) extents.push_back(this->stored(i, kBytes));
  for (const Op op : {Op::kWrite, Op::kRead}) {
    std::vector<Bytes> memory;
    for (uint64_t i = 0; i < kCount; i++) memory.push_back(op == Op::kWrite ? pattern(100 + i, kBytes) : Bytes(kBytes));
    TransferBatch batch(this->tier());
    for (uint64_t i = 0; i < kCount; i++) batch.add(op, extents[i], 0, std::span(memory[i]));
    this->harness().fail(op, kFailures);
    batch.run();
    unsigned failed = 0;
    for (uint64_t i = 0; i < kCount; i++) {
      ASSERT_EQ(batch.calls(i), 1u);
      if (batch.status(i)) {
        EXPECT_TRUE(this->holds(extents[i], pattern(100 + i, kBytes)));
        continue;
      }
      failed++;
      EXPECT_EQ(batch.status(i).code(), Code::kIo) << batch.status(i).what();
      EXPECT_FALSE(batch.status(i).what().empty());
      // It is as good as before for the next one.
      Bytes content = pattern(100 + i, kBytes);
      EXPECT_TRUE(write_now(this->tier(), extents[i], content));
      EXPECT_TRUE(this->holds(extents[i], content));
    }
    EXPECT_EQ(failed, kFailures);
    EXPECT_TRUE(this->tier().in_service());
  }
}

TYPED_TEST_P(TierConformance, RottenBytesAreNotHandedOut) {
  NEOTIER_NEEDS(Fault::kCorrupt);
  const uint64_t kBytes = 300000;
  const Extent rotten = this->stored(1, kBytes), sound = this->stored(2, kBytes);
  this->harness().corrupt(rotten, 150001);
  Bytes read(kBytes, std::byte{0x11});
  const Bytes good = pattern(1, kBytes);
  const Status status = read_now(this->tier(), rotten, read);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_FALSE(status.what().empty());
  Bytes part(100);
  EXPECT_EQ(read_now(this->tier(), rotten, part, 150000).code(), Code::kCorrupt);
  EXPECT_TRUE(this->holds(sound, pattern(2, kBytes)));
  EXPECT_TRUE(this->tier().in_service());
  // Written anew it is whole.
  Bytes anew = pattern(3, kBytes);
  ASSERT_TRUE(write_now(this->tier(), rotten, anew));
  EXPECT_TRUE(this->holds(rotten, anew));
}

TYPED_TEST_P(TierConformance, GoneAndBack) {
  NEOTIER_NEEDS(Fault::kLose);
  constexpr uint64_t kCount = 20, kBytes = 50000;
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < kCount; i++) extents.push_back(this->stored(i, kBytes));
  for (int round = 0; round < 2; round++) {
    this->harness().lose();
    // The first transfers may be what finds out.
    std::vector<Bytes> memory(kCount, Bytes(kBytes));
    TransferBatch first(this->tier());
    for (uint64_t i = 0; i < kCount; i++) first.add(Op::kRead, extents[i], 0, std::span(memory[i]));
    first.run();
    for (uint64_t i = 0; i < kCount; i++) {
      ASSERT_EQ(first.calls(i), 1u);
      ASSERT_TRUE(first.status(i).code() == Code::kGone || first.status(i).code() == Code::kIo)
          << to_string(first.status(i).code());
    }
    EXPECT_FALSE(this->tier().in_service());
    TransferBatch later(this->tier());
    later.add(Op::kRead, extents[0], 0, std::span(memory[0]));
    later.add(Op::kWrite, extents[1], 0, std::span(memory[1]));
    if (this->tier().info().durable) later.add_flush();
    later.run();
    for (size_t i = 0; i < later.size(); i++) EXPECT_EQ(later.status(i).code(), Code::kGone) << later.status(i).what();
    EXPECT_EQ(this->tier().allocate(make_key(99), kBytes).status().code(), Code::kGone);
    EXPECT_EQ(this->tier().usage().extents, kCount);
    EXPECT_FALSE(this->tier().come_back());

    this->harness().mend();
    const Status back = this->tier().come_back();
    ASSERT_TRUE(back) << back.what();
    EXPECT_TRUE(this->tier().in_service());
    EXPECT_TRUE(this->tier().come_back()) << "again, while in service";
    for (uint64_t i = 0; i < kCount; i++) EXPECT_TRUE(this->holds(extents[i], pattern(i, kBytes))) << i;
    this->tier().free(this->stored(98, kBytes));
  }
}

TYPED_TEST_P(TierConformance, GoneInTheMiddle) {
  NEOTIER_NEEDS(Fault::kLose);
  NEOTIER_NEEDS(Fault::kHold);
  constexpr uint64_t kCount = 40, kBytes = 20000;
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < kCount; i++) extents.push_back(this->stored(i, kBytes));
  this->harness().hold();
  std::vector<Bytes> content;
  for (uint64_t i = 0; i < kCount; i++) content.push_back(pattern(500 + i, kBytes));
  TransferBatch batch(this->tier());
  for (uint64_t i = 0; i < kCount; i++) batch.add(Op::kWrite, extents[i], 0, std::span(content[i]));
  batch.submit_some();
  this->harness().lose();
  batch.run();
  for (uint64_t i = 0; i < kCount; i++) {
    ASSERT_EQ(batch.calls(i), 1u);
    ASSERT_TRUE(batch.status(i).code() == Code::kGone || batch.status(i).code() == Code::kIo)
        << to_string(batch.status(i).code());
  }
  this->harness().mend();
  ASSERT_TRUE(this->tier().come_back());
  // What was not acknowledged may be either, and is one of the two.
  for (uint64_t i = 0; i < kCount; i++) {
    Bytes read(kBytes);
    ASSERT_TRUE(read_now(this->tier(), extents[i], read));
    EXPECT_TRUE(read == pattern(i, kBytes) || read == content[i]) << i;
  }
}

// ---- durability

TYPED_TEST_P(TierConformance, FlushWhereThereIsNothingToKeep) {
  if (this->tier().info().durable) GTEST_SKIP() << "skipped: the tier is durable; FlushedSurvivesACrash has that";
  EXPECT_EQ(flush_now(this->tier()).code(), Code::kUnsupported);
}

TYPED_TEST_P(TierConformance, FlushedSurvivesACrash) {
  if (!this->tier().info().durable) GTEST_SKIP() << "skipped: the tier keeps nothing past its process";
  NEOTIER_NEEDS(Fault::kCrash);
  std::map<uint64_t, uint64_t> kept;  // key: bytes
  const auto key_of = [](const Key& key) {
    uint64_t n;
    std::memcpy(&n, key.bytes, sizeof n);
    return n;
  };
  for (uint64_t round = 0; round < 3; round++) {
    // Flushed; flushed and freed; never flushed; never written in full.
    const uint64_t base = round * 100;
    for (uint64_t i = 0; i < 20; i++) {
      const uint64_t bytes = kSizes[i % std::size(kSizes)] % 100000 + 1;
      this->stored(base + i, bytes);
      kept[base + i] = bytes;
    }
    const Extent freed = this->stored(base + 50, 30000);
    const Extent part = this->allocate(base + 51, 300000);
    Bytes half = pattern(base + 51, 150000);
    ASSERT_TRUE(write_now(this->tier(), part, half));
    ASSERT_TRUE(flush_now(this->tier()));
    this->tier().free(freed);
    ASSERT_TRUE(flush_now(this->tier()));
    this->stored(base + 52, 30000);
    this->harness().crash();

    Result<std::vector<Recovered>> recovered = this->tier().recover();
    ASSERT_TRUE(recovered.is_ok()) << recovered.status().what();
    EXPECT_TRUE(std::is_sorted(recovered->begin(), recovered->end(), [&](const Recovered& a, const Recovered& b) {
      return key_of(a.key) < key_of(b.key);
    })) << "not in the order of allocation";
    std::set<uint64_t> seen;
    for (const Recovered& object : *recovered) {
      const uint64_t key = key_of(object.key);
      EXPECT_TRUE(seen.insert(key).second) << "named twice: " << key;
      if (key == base + 52) {  // luck; then it is whole
        EXPECT_TRUE(this->holds(object.extent, pattern(key, 30000)));
        kept[key] = 30000;
        continue;
      }
      ASSERT_TRUE(kept.count(key)) << "not to come back: " << key;
      EXPECT_EQ(object.bytes, kept[key]);
      EXPECT_TRUE(this->holds(object.extent, pattern(key, kept[key]))) << key;
    }
    for (const auto& [key, bytes] : kept) EXPECT_TRUE(seen.count(key)) << "lost: " << key;
    EXPECT_EQ(this->tier().usage().extents, recovered->size());
  }
}

TYPED_TEST_P(TierConformance, NothingToRecoverInAFreshOne) {
  if (this->tier().info().durable) GTEST_SKIP() << "skipped: durable; its harness has called recover() already";
  Result<std::vector<Recovered>> recovered = this->tier().recover();
  ASSERT_TRUE(recovered.is_ok());
  EXPECT_TRUE(recovered->empty());
}

REGISTER_TYPED_TEST_SUITE_P(TierConformance, SaysWhatItIs, ReadsWhatWasWritten, IsWrittenAgain, AnyRangeOfBytes,
                            PiecesAnyhowCutAndAligned, NothingBeyondBounds, NoBytesAreNoTrouble, SizesThatCannotBe,
                            MappedMemoryIsTheExtent, CountsWhatIsUsed, FullAndRoomAgain, ChurnOfManySizes,
                            ManyInOneSubmission, DoneMaySubmit, ThreadsOnTheirOwnExtents, ThreadsOnOneExtent,
                            CancelAtAnyMoment, SlowMediumStopsNobody, CancelWhileSlow, OneFailureIsOneTransfers,
                            RottenBytesAreNotHandedOut, GoneAndBack, GoneInTheMiddle, FlushWhereThereIsNothingToKeep,
                            FlushedSurvivesACrash, NothingToRecoverInAFreshOne);

}  // namespace neotier::engine
