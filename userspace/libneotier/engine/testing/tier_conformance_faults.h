// SPDX-License-Identifier: Apache-2.0
// The part of tier_conformance.h that needs faults; included there, and by nobody else.
#pragma once

#include "engine/testing/tier_conformance.h"

namespace neotier::engine {

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

// Said before the bytes, after them, twice, of nothing; and not covered by a flush.
TYPED_TEST_P(TierConformance, WhatWasSaidOfAnExtentSurvivesACrash) {
  if (!this->tier().info().durable) {
    this->tier().describe(this->stored(1, 100), 7);
    this->tier().describe(kNoExtent, 7);
    return;
  }
  NEOTIER_NEEDS(Fault::kCrash);
  for (int round = 0; round < 2; round++) {
    if (round == 0) {
      for (uint64_t i = 0; i < 6; i++) {
        const uint64_t bytes = 1000 + i * 40000;
        const Extent extent = this->allocate(i, bytes);
        Bytes content = pattern(i, bytes);
        if (i % 3 == 0) this->tier().describe(extent, static_cast<Note>(100 + i));
        ASSERT_TRUE(write_now(this->tier(), extent, content));
        if (i % 3 == 1) this->tier().describe(extent, static_cast<Note>(100 + i));
      }
      this->tier().describe(kNoExtent, 7);
      ASSERT_TRUE(flush_now(this->tier()));
    }
    this->harness().crash();
    Result<std::vector<Recovered>> recovered = this->tier().recover();
    ASSERT_TRUE(recovered.is_ok()) << recovered.status().what();
    ASSERT_EQ(recovered->size(), 6u);
    for (size_t i = 0; i < 6; i++) {
      const Note said = i % 3 == 2 ? 0 : static_cast<Note>(100 + i);
      EXPECT_EQ((*recovered)[i].note, round == 1 && i == 4 ? 200u : said) << i;
      EXPECT_TRUE(this->holds((*recovered)[i].extent, pattern(i, 1000 + i * 40000))) << i;
    }
    // A later word takes the place of the former with the next flush.
    this->tier().describe((*recovered)[4].extent, 200);
    ASSERT_TRUE(flush_now(this->tier()));
  }
}

TYPED_TEST_P(TierConformance, NothingToRecoverInAFreshOne) {
  if (this->tier().info().durable) GTEST_SKIP() << "skipped: durable; its harness has called recover() already";
  Result<std::vector<Recovered>> recovered = this->tier().recover();
  ASSERT_TRUE(recovered.is_ok());
  EXPECT_TRUE(recovered->empty());
}

}  // namespace neotier::engine
