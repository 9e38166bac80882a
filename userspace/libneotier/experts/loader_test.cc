// SPDX-License-Identifier: Apache-2.0
// The order in which bytes are asked for, and how many at a time, on a medium that completes what it is told to.
#include "experts/loader.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <deque>
#include <optional>
#include <utility>

namespace neotier::experts {

namespace {

using Piece = Run;  // testing::Test has a Run of its own
constexpr uint64_t kChunk = 4 * kIoBlock;

// Takes reads in order and completes them in order, as many as the test says.
class SteppedFile : public engine::File {
 public:
  uint64_t bytes() const override { return 0; }
  const char* method() const override { return "memory (a test's)"; }
  bool register_buffers(std::span<const iovec>) override { return false; }
  void start(engine::Io& io) override {
    const std::lock_guard lock(mutex_);
    queue_.push_back(&io);
  }
  void wait(std::vector<engine::Io*>& completed, bool) override {
    std::unique_lock lock(mutex_);
    waits_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return woken_ || allowed_ > 0; });
    waits_ = woken_ = false;
    for (; allowed_ > 0; allowed_--) {
      engine::Io* const io = queue_.front();
      queue_.pop_front();
      io->result = static_cast<int64_t>(io->iov->iov_len);
      if (error_ != 0) io->result = -std::exchange(error_, 0);
      completed.push_back(io);
    }
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  }

  // Offsets of what is at the medium, once the loader has nothing more to do.
  std::vector<uint64_t> settled() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waits_ && !woken_ && allowed_ == 0; });
    std::vector<uint64_t> offsets;
    for (const engine::Io* io : queue_) offsets.push_back(io->offset);
    return offsets;
  }
  void complete(size_t count) {
    const size_t there = settled().size();
    ASSERT_LE(count, there);
    const std::lock_guard lock(mutex_);
    allowed_ = count;
    changed_.notify_all();
  }
  void fail_next(int error) {
    const std::lock_guard lock(mutex_);
    error_ = error;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<engine::Io*> queue_;
  size_t allowed_ = 0;
  bool waits_ = false, woken_ = false;
  int error_ = 0;
};

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() {
    LoaderOptions o;
    o.chunk_bytes = kChunk;
    o.demand_chunks = 4;
    o.background_chunks = 2;
    auto file = std::make_unique<SteppedFile>();
    file_ = file.get();
    loader_.emplace(
        mutex_, std::move(file), std::vector<std::string>{"m.gguf"}, std::vector<uint64_t>{1 << 30}, false, o,
        Loader::Hooks{
            [this](Loader::Load& load, Status status) { ended_.emplace_back(load.object, std::move(status)); },
            [] { return false; }});
  }
  ~LoaderTest() override {
    // The loader waits for what the medium still has.
    while (const size_t left = file_->settled().size()) file_->complete(left);
  }

  // An expert whose `pieces` of `bytes` each lie a megabyte apart; object `o` begins at o * 256 MiB.
  Loader::Load* start(uint32_t object, uint32_t pieces, uint64_t bytes, bool demand) {
    std::vector<Piece> runs;
    for (uint32_t i = 0; i < pieces; i++) runs.push_back({0, at(object, i), bytes, i * bytes});
    const std::lock_guard lock(mutex_);
    Loader::Load* const load = loader_->start(object, runs, nullptr, -1, demand);
    loader_->wake();
    return load;
  }
  static uint64_t at(uint32_t object, uint64_t piece, uint64_t offset = 0) {
    return (uint64_t{object} << 28) + (piece << 20) + offset;
  }
  // Of reads at the medium, by object.
  std::vector<uint32_t> objects() {
    std::vector<uint32_t> all;
    for (const uint64_t offset : file_->settled()) all.push_back(static_cast<uint32_t>(offset >> 28));
    return all;
  }
  std::vector<uint32_t> ended() {
    file_->settled();
    const std::lock_guard lock(mutex_);
    std::vector<uint32_t> all;
    for (const auto& [object, status] : ended_) all.push_back(object);
    return all;
  }

  std::mutex mutex_;
  std::vector<std::pair<uint32_t, Status>> ended_;
  SteppedFile* file_ = nullptr;
  std::optional<Loader> loader_;
};

TEST_F(LoaderTest, LargePiecesGoInChunks) {
  start(0, 1, 6 * kChunk, true);
  EXPECT_EQ(file_->settled(), (std::vector<uint64_t>{0, kChunk, 2 * kChunk, 3 * kChunk}));
  file_->complete(3);
  EXPECT_EQ(file_->settled(), (std::vector<uint64_t>{3 * kChunk, 4 * kChunk, 5 * kChunk}));
  file_->complete(3);
  EXPECT_EQ(ended(), std::vector<uint32_t>{0});
}

// A dozen small pieces an expert: what counts is bytes, or the medium would have two experts' pieces and be idle.
TEST_F(LoaderTest, SmallPiecesFillTheWindowByBytes) {
  start(0, 12, kIoBlock, true);
  start(1, 12, kIoBlock, true);
  std::vector<uint32_t> expected(12, 0);
  expected.resize(16, 1);
  EXPECT_EQ(objects(), expected);
  file_->complete(12);
  EXPECT_EQ(ended(), std::vector<uint32_t>{0});
  EXPECT_EQ(objects(), std::vector<uint32_t>(12, 1));
}

TEST_F(LoaderTest, SoManyReadsAndNoMore) {
  LoaderOptions o;
  o.demand_chunks = 1000;
  auto owned = std::make_unique<SteppedFile>();
  SteppedFile* const file = owned.get();
  std::mutex mutex;
  Loader loader(mutex, std::move(owned), {"m.gguf"}, {1 << 30}, false, o,
                {[](Loader::Load&, const Status&) {}, [] { return false; }});
  std::vector<Piece> runs;
  for (uint32_t i = 0; i < 200; i++) runs.push_back({0, at(0, i), kIoBlock, i * kIoBlock});
  {
    const std::lock_guard lock(mutex);
    loader.start(0, runs, nullptr, -1, true);
  }
  EXPECT_EQ(file->settled().size(), 128u);
  file->complete(128);
  EXPECT_EQ(file->settled().size(), 72u);
  file->complete(72);
}

TEST_F(LoaderTest, DemandGoesBesideWhatTheBackgroundHasThereAlready) {
  start(0, 4, kChunk, false);
  EXPECT_EQ(objects(), std::vector<uint32_t>(2, 0));
  start(1, 6, kChunk, true);
  EXPECT_EQ(objects(), (std::vector<uint32_t>{0, 0, 1, 1}));
  file_->complete(2);
  EXPECT_EQ(objects(), std::vector<uint32_t>(4, 1));
}

TEST_F(LoaderTest, NothingInTheBackgroundBesideAFullWindowOfDemand) {
  start(1, 6, kChunk, true);
  start(0, 4, kChunk, false);
  EXPECT_EQ(objects(), std::vector<uint32_t>(4, 1));
  file_->complete(1);
  EXPECT_EQ(objects(), std::vector<uint32_t>(4, 1));
  file_->complete(3);
  // Two of demand are as much as background may have.
  EXPECT_EQ(objects(), std::vector<uint32_t>(2, 1));
  file_->complete(1);
  EXPECT_EQ(objects(), (std::vector<uint32_t>{1, 0}));
  file_->complete(1);
  EXPECT_EQ(objects(), (std::vector<uint32_t>{0, 0}));
}

TEST_F(LoaderTest, WhatIsNeededNowGoesAheadOfTheBackground) {
  start(0, 6, kChunk, false);
  Loader::Load* const late = start(1, 3, kChunk, false);
  EXPECT_EQ(objects(), std::vector<uint32_t>(2, 0));
  {
    const std::lock_guard lock(mutex_);
    loader_->set_demand(late, true);
  }
  EXPECT_EQ(objects(), (std::vector<uint32_t>{0, 0, 1, 1}));
  file_->complete(2);
  EXPECT_EQ(objects(), (std::vector<uint32_t>{1, 1, 1}));
}

TEST_F(LoaderTest, ACancelledLoadEndsOnceTheMediumLetsGo) {
  Loader::Load* const load = start(0, 6, kChunk, true);
  EXPECT_EQ(objects(), std::vector<uint32_t>(4, 0));
  {
    const std::lock_guard lock(mutex_);
    loader_->cancel(load);
    EXPECT_TRUE(ended_.empty());
  }
  file_->complete(3);
  EXPECT_TRUE(ended().empty());
  file_->complete(1);
  EXPECT_EQ(ended(), std::vector<uint32_t>{0});
  EXPECT_EQ(ended_[0].second.code(), Code::kCancelled);
  EXPECT_TRUE(objects().empty());
}

TEST_F(LoaderTest, AReadIsTriedTwice) {
  file_->fail_next(EIO);
  start(0, 1, kChunk, true);
  file_->complete(1);
  EXPECT_EQ(file_->settled(), std::vector<uint64_t>{0});
  EXPECT_TRUE(ended().empty());
  file_->fail_next(EIO);
  file_->complete(1);
  EXPECT_EQ(ended(), std::vector<uint32_t>{0});
  EXPECT_EQ(ended_[0].second.code(), Code::kIo);
}

}  // namespace

}  // namespace neotier::experts
