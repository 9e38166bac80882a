// SPDX-License-Identifier: Apache-2.0
// Reads that end in a tier's memory: the bytes, their order of arrival, and what goes wrong on the way.
#include "experts/staged_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "engine/testing/fake_disk.h"
#include "engine/testing/mem_tier.h"
#include "engine/testing/pattern.h"
#include "engine/tiers/memory/memory_tier.h"

namespace neotier::experts {

namespace {

constexpr uint64_t kPiece = 8192, kPlace = 64 << 10, kFile = (1 << 20) + 100;

class StagedFileTest : public ::testing::Test {
 protected:
  StagedFileTest() {
    engine::MemoryTierOptions o;
    o.name = "gpu";
    o.kind = engine::TierKind::kGpu;
    o.capacity_bytes = 1 << 20;
    o.before_copy = [this](engine::Op) {
      return fail_ ? engine::Status(engine::Code::kIo, "a test's") : engine::Status();
    };
    tier_ = std::make_shared<engine::MemoryTier>(o);
    disk_->put("m", engine::pattern(1, kFile));
    for (int i = 0; i < 3; i++) {
      const auto extent = tier_->allocate({}, kPlace);
      places_.push_back({tier_->address(*extent), kPlace, *extent});
      std::memset(places_.back().address, 0x5a, kPlace);
    }
    const std::string name = "m";
    file_ = staged_file(std::move(*disk_->open_to_read({&name, 1})), tier_, places_, kPiece, 3);
  }

  struct Read : engine::Io {
    iovec vector{};
  };
  Read& start(std::byte* to, uint64_t offset, uint64_t bytes) {
    Read& read = *reads_.emplace_back(std::make_unique<Read>());
    read.vector = {to, bytes};
    read.iov = &read.vector;
    read.iovs = 1;
    read.offset = offset;
    file_->start(read);
    return read;
  }
  void finish() {
    std::vector<engine::Io*> completed;
    while (ended_ + completed.size() < reads_.size()) file_->wait(completed, true);
    ended_ = reads_.size();
  }
  // Whether `bytes` of the file from `offset` lie there.
  static bool holds(const std::byte* at, uint64_t offset, uint64_t bytes) {
    const auto all = engine::pattern(1, kFile);
    return std::memcmp(at, all.data() + offset, bytes) == 0;
  }

  bool fail_ = false;
  std::shared_ptr<engine::MemoryTier> tier_;
  std::shared_ptr<engine::ssd::FakeDisk> disk_ = std::make_shared<engine::ssd::FakeDisk>(engine::test_seed());
  std::vector<StagedPlace> places_;
  std::vector<std::unique_ptr<Read>> reads_;
  size_t ended_ = 0;
  std::unique_ptr<engine::File> file_;
};

TEST_F(StagedFileTest, MoreReadsThanStagingBuffersEndWhereTheyShould) {
  for (uint64_t i = 0; i < 3; i++)
    for (uint64_t at = 0; at < kPlace; at += kPiece) start(places_[2 - i].address + at, i * kPlace + at, kPiece);
  finish();
  for (const auto& read : reads_) EXPECT_EQ(read->result, static_cast<int64_t>(kPiece));
  for (uint64_t i = 0; i < 3; i++) EXPECT_TRUE(holds(places_[2 - i].address, i * kPlace, kPlace)) << i;
  EXPECT_STREQ(file_->method(), "memory (a test's), staged for gpu");
  EXPECT_EQ(file_->bytes(), kFile);
}

TEST_F(StagedFileTest, TheFilesEndComesShorterAndNothingBehindItIsTouched) {
  const Read& read = start(places_[0].address, 1 << 20, kPiece);
  const Read& behind = start(places_[1].address, 1 << 21, kPiece);
  finish();
  EXPECT_EQ(read.result, 100);
  EXPECT_TRUE(holds(places_[0].address, 1 << 20, 100));
  EXPECT_EQ(places_[0].address[100], std::byte{0x5a});
  EXPECT_EQ(behind.result, 0);
}

TEST_F(StagedFileTest, WhatFitsNowhereIsRefused) {
  std::vector<Read*> bad = {&start(places_[0].address, 0, kPiece + 4096),
                            &start(places_[0].address + kPlace - 4096, 0, kPiece),
                            &start(places_[0].address - 4096, 0, 4096), &start(nullptr, 0, 4096)};
  Read write;
  write.op = engine::IoOp::kWrite;
  write.vector = {places_[0].address, 4096};
  write.iov = &write.vector;
  write.iovs = 1;
  file_->start(write);
  const Read& good = start(places_[1].address, 0, 4096);
  std::vector<engine::Io*> completed;
  while (completed.size() < 6) file_->wait(completed, true);
  for (const Read* read : bad) EXPECT_EQ(read->result, -EINVAL);
  EXPECT_EQ(write.result, -EINVAL);
  EXPECT_EQ(good.result, 4096);
  EXPECT_EQ(places_[0].address[0], std::byte{0x5a});
}

TEST_F(StagedFileTest, ErrorsOfTheFileAndOfTheTier) {
  disk_->fail(engine::IoOp::kRead, 1, EUCLEAN);
  const Read& of_file = start(places_[0].address, 0, 4096);
  finish();
  EXPECT_EQ(of_file.result, -EUCLEAN);
  fail_ = true;
  const Read& of_tier = start(places_[0].address, 0, 4096);
  finish();
  EXPECT_EQ(of_tier.result, -EIO);
  fail_ = false;
  tier_->set_present(false);
  const Read& gone = start(places_[0].address, 0, 4096);
  finish();
  EXPECT_EQ(gone.result, -ENODEV);
  tier_->set_present(true);
  ASSERT_TRUE(tier_->come_back());
  const Read& back = start(places_[0].address, 0, 4096);
  finish();
  EXPECT_EQ(back.result, 4096);
  EXPECT_TRUE(holds(places_[0].address, 0, 4096));
}

// A tier that takes one transfer at a time, and that one is another's: nothing of ours would end a wait there.
TEST_F(StagedFileTest, ATierWhoseQueueIsFullOfOthersIsAskedAgain) {
  engine::MemTierOptions o;
  o.queue_depth = 1;
  auto tier = std::make_shared<engine::MemTier>(o);
  const auto mine = tier->allocate({}, kPlace), other = tier->allocate({}, 4096);
  const std::string name = "m";
  file_ = staged_file(std::move(*disk_->open_to_read({&name, 1})), tier, {{tier->address(*mine), kPlace, *mine}},
                      kPiece, 3);
  std::vector<std::byte> bytes(4096);
  engine::Piece piece{bytes.data(), bytes.size()};
  engine::Transfer transfer, *one = &transfer;
  transfer.op = engine::Op::kWrite;
  transfer.extent = *other;
  transfer.pieces = {&piece, 1};
  std::atomic<bool> ended = false;
  transfer.done = [&](engine::Transfer&, const engine::Status&) { ended = true; };
  tier->hold();
  ASSERT_EQ(tier->submit({&one, 1}), 1u);
  for (uint64_t at = 0; at < kPlace; at += kPiece) start(tier->address(*mine) + at, at, kPiece);
  std::vector<engine::Io*> completed;
  for (int i = 0; i < 5; i++) file_->wait(completed, true);
  EXPECT_TRUE(completed.empty());
  tier->release();
  while (completed.size() < reads_.size()) file_->wait(completed, true);
  EXPECT_TRUE(holds(tier->address(*mine), 0, kPlace));
  EXPECT_TRUE(ended);
  file_.reset();
}

TEST_F(StagedFileTest, AWaitCanBeEnded) {
  std::thread other([&] { file_->wake(); });
  std::vector<engine::Io*> completed;
  file_->wait(completed, true);
  other.join();
  EXPECT_TRUE(completed.empty());
}

}  // namespace

}  // namespace neotier::experts
