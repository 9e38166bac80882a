// SPDX-License-Identifier: GPL-2.0-or-later
#include "hil/plugin/page_counts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

namespace neotier::hil {
namespace {

constexpr uint64_t kVmemmap = 0xffffea0000000000, kDirect = 0xffff888000000000;
constexpr uint64_t kCxlFrame = 256, kFrames = 512;
constexpr uint64_t kEpochPs = 1000;

// A guest of 256 frames of DRAM and as many of CXL memory, whose struct pages the test writes.
class PageCountsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (auto& page : pages_) page = {0, 0, 0, 0, 0, 0, uint64_t{0xffffffff}, 0};
    path_ = std::filesystem::temp_directory_path() / ("page_counts_test." + std::to_string(getpid()));
    counts_ = std::make_unique<PageCounts>(PageCountsOptions{path_, kEpochPs, kCxlFrame * 4096, kFrames * 4096},
                                           [this](uint64_t va, void* to, size_t n) {
                                             const uint64_t at = va - kVmemmap;
                                             if (at + n > sizeof pages_) return false;
                                             std::memcpy(to, reinterpret_cast<const char*>(pages_.data()) + at, n);
                                             return true;
                                           });
    counts_->begin(0, {0, 0});
  }
  void TearDown() override {
    counts_.reset();
    std::filesystem::remove(path_);
  }

  static uint64_t mapping(int owner) { return 0xffff888100000000 + static_cast<uint64_t>(owner) * 64; }
  void anonymous(uint64_t frame, int owner, uint64_t index) {
    pages_[frame][3] = mapping(owner) | 1;
    pages_[frame][4] = index;
  }
  void free(uint64_t frame) { pages_[frame][3] = 0; }
  void fill(uint64_t frame, uint64_t va, int times = 1) {
    const bool cxl = frame >= kCxlFrame;
    for (int i = 0; i < times; ++i) counts_->line(frame << 12, cxl, false, va, stall_[cxl] += cxl ? 60 : 20);
  }
  void end_epoch() { counts_->tick(now_ += kEpochPs); }

  void finish() {
    counts_->end();
    std::ifstream in(path_, std::ios::binary);
    ASSERT_TRUE(in.read(reinterpret_cast<char*>(&header_), sizeof header_));
    got_counts_.resize(header_.nr_counts);
    got_pages_.resize(header_.nr_pages);
    in.read(reinterpret_cast<char*>(got_counts_.data()), static_cast<std::streamsize>(header_.nr_counts * 24));
    ASSERT_TRUE(
        in.read(reinterpret_cast<char*>(got_pages_.data()), static_cast<std::streamsize>(header_.nr_pages * 40)));
    ASSERT_EQ(in.peek(), EOF);
  }
  // Fills of the pages of one owner, by index and epoch.
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> fills_of(int owner) const {
    std::map<std::pair<uint64_t, uint32_t>, uint32_t> fills;
    for (const neotier_page_count& count : got_counts_) {
      const neotier_page& page = got_pages_.at(count.page);
      if ((page.mapping & ~uint64_t{3}) == (owner == 0 ? 0 : mapping(owner))) {
        fills[{page.index, count.epoch}] += count.fills;
      }
    }
    return fills;
  }
  using Fills = std::map<std::pair<uint64_t, uint32_t>, uint32_t>;

  std::array<std::array<uint64_t, 8>, kFrames> pages_;
  uint64_t stall_[2] = {0, 0}, now_ = 0;
  std::string path_;
  std::unique_ptr<PageCounts> counts_;
  neotier_page_counts_header header_{};
  std::vector<neotier_page_count> got_counts_;
  std::vector<neotier_page> got_pages_;
};

TEST_F(PageCountsTest, CountsByPageAndEpoch) {
  anonymous(3, 1, 30);
  anonymous(kCxlFrame, 1, 31);
  fill(3, 0x30000, 5);
  fill(kCxlFrame, 0x31000, 2);
  end_epoch();
  fill(kCxlFrame, 0x31000, 7);
  finish();
  EXPECT_EQ(fills_of(1), (Fills{{{30, 0}, 5}, {{31, 0}, 2}, {{31, 1}, 7}}));
  EXPECT_EQ(header_.nr_epochs, 2u);
  EXPECT_EQ(header_.sum[0][NEOTIER_PAGE_ANONYMOUS].fills, 5u);
  EXPECT_EQ(header_.sum[0][NEOTIER_PAGE_ANONYMOUS].stall_ps, 100u);
  EXPECT_EQ(header_.sum[1][NEOTIER_PAGE_ANONYMOUS].fills, 9u);
  EXPECT_EQ(header_.sum[1][NEOTIER_PAGE_ANONYMOUS].stall_ps, 540u);
  ASSERT_EQ(got_pages_.size(), 2u);
  EXPECT_EQ(got_pages_[1].birth, 0u);
  EXPECT_EQ(got_pages_[1].last, 1u);
  EXPECT_EQ(got_pages_[1].cxl, 1);
}

TEST_F(PageCountsTest, AFrameGivenOutAgainIsAnotherPage) {
  anonymous(3, 1, 30);
  fill(3, 0x30000, 5);
  end_epoch();
  free(3);
  end_epoch();
  fill(3, kDirect + 3 * 4096, 64);  // cleared before it has an owner
  anonymous(3, 2, 70);
  fill(3, 0x70000, 4);
  finish();
  EXPECT_EQ(fills_of(1), (Fills{{{30, 0}, 5}}));
  EXPECT_EQ(fills_of(2), (Fills{{{70, 2}, 68}}));
  EXPECT_EQ(fills_of(0), Fills{});
  EXPECT_EQ(got_pages_[0].last, 0u);
  EXPECT_EQ(got_pages_[1].birth, 2u);
}

TEST_F(PageCountsTest, AFrameGivenOutAgainWithinAnEpochIsAnotherPage) {
  anonymous(3, 1, 30);
  fill(3, 0x30000, 5);
  anonymous(3, 1, 31);
  fill(3, 0x31000, 6);
  finish();
  EXPECT_EQ(fills_of(1), (Fills{{{30, 0}, 5}, {{31, 0}, 6}}));
  EXPECT_EQ(got_pages_[0].seen, 0);
  EXPECT_EQ(got_pages_[1].seen, 1);
}

// Anonymous memory, shared memory and the page cache; not what is locked, and not the kernel's.
TEST_F(PageCountsTest, PagesThatAreNotFilledAreThereAsRoom) {
  anonymous(7, 1, 9);
  pages_[8] = {1 << 17, 0, 0, mapping(3), 0, 0, 0xffffffff, 0};             // shmem
  pages_[9] = {0, 0, 0, mapping(4), 0, 0, 0xffffffff, 0};                   // page cache
  pages_[10] = {1 << 17 | 1 << 18, 0, 0, mapping(3), 1, 0, 0xffffffff, 0};  // of a ramfs: unevictable
  end_epoch();
  finish();
  ASSERT_EQ(got_pages_.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(got_pages_[i].frame, 7 + i);
  EXPECT_EQ(header_.nr_counts, 0u);
}

TEST_F(PageCountsTest, TellsKindsApart) {
  anonymous(1, 1, 1);
  pages_[2] = {1 << 6, 0, 0, mapping(2) | 1, 512, 0, 0xffffffff, 0};                     // head of a large folio
  pages_[3] = {0, (kVmemmap + 2 * 64) | 1, 0, 0xdead000000000400, 0, 0, 0xffffffff, 0};  // and its tail
  pages_[4] = {1 << 17, 0, 0, mapping(3), 0, 0, 0xffffffff, 0};                          // shmem
  pages_[5] = {0, 0, 0, mapping(4), 0, 0, 0xffffffff, 0};                                // page cache
  pages_[6] = {0, 0, 0, mapping(5), 0, 0, 0xf5000000, 0};            // slab, which keeps a list there
  pages_[8] = {1 << 13, 0, 0, mapping(6) | 1, 0, 0, 0xffffffff, 0};  // reserved
  for (uint64_t frame = 1; frame <= 8; ++frame) fill(frame, frame << 12, static_cast<int>(frame));
  counts_->line(3 << 12 | 64, false, true, 0x1000, stall_[0]);
  finish();
  EXPECT_EQ(header_.sum[0][NEOTIER_PAGE_ANONYMOUS].fills, 1u);
  EXPECT_EQ(header_.sum[0][NEOTIER_PAGE_HUGE].fills, 2u + 3u);
  EXPECT_EQ(header_.sum[0][NEOTIER_PAGE_HUGE].writebacks, 1u);
  EXPECT_EQ(header_.sum[0][NEOTIER_PAGE_SHMEM].fills, 4u);
  EXPECT_EQ(header_.sum[0][NEOTIER_PAGE_FILE].fills, 5u);
  EXPECT_EQ(header_.sum[0][NEOTIER_PAGE_KERNEL].fills, 6u + 7u + 8u);
  EXPECT_EQ(fills_of(2), (Fills{{{512, 0}, 2}, {{513, 0}, 3}}));
}

TEST_F(PageCountsTest, AWalksLineIsNotThePageThatWasAccessed) {
  anonymous(3, 1, 30);
  fill(3, 0x30000);
  const uint32_t pages = 1;
  counts_->line(9 << 12 | 0x80, false, false, 0x30000, stall_[0] += 20);
  finish();
  EXPECT_EQ(fills_of(1).size(), pages);
  EXPECT_EQ(header_.sum[0][NEOTIER_PAGE_KERNEL].fills, 1u);
}

TEST_F(PageCountsTest, LeavesNothingWhereTheGuestEndsEarly) {
  fill(3, 0x30000);
  counts_->abandon();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

// Frames: 8 to 11 free (a buddy of order 2), 12 a program's, 13 locked, 14 a file's, 16 one that is mapped, 300 free,
// the rest not managed.
TEST(Census, StatesOfFrames) {
  std::vector<StructPage> pages(512, StructPage{uint64_t{1} << 13, 0, 0, 0, 0, 0, 0xffffffff, 0});
  for (const size_t frame : {8, 9, 10, 11, 12, 13, 14, 16, 300}) pages[frame][0] = 0;
  pages[8][6] = pages[300][6] = 0xf0000000;
  pages[8][5] = 2;
  pages[12][3] = pages[13][3] = 0xffff888100000001;
  pages[13][0] = 1 << 19;
  pages[14][3] = pages[16][3] = 0xffff888100000040;
  pages[16][6] = 0;
  const auto read = [&](uint64_t va, void* to, size_t n) {
    const uint64_t at = va - kVmemmap;
    if (at + n > pages.size() * sizeof pages[0]) return false;
    std::memcpy(to, reinterpret_cast<const char*>(pages.data()) + at, n);
    return true;
  };
  const FrameCensus census = take_census(read, 256 << 12, 1024 << 12);
  ASSERT_EQ(census.states.size(), 1024u);
  for (const size_t frame : {8, 9, 10, 11, 300}) EXPECT_EQ(census.states[frame], FrameState::kFree) << frame;
  EXPECT_EQ(census.states[12], FrameState::kAnonymous);
  EXPECT_EQ(census.states[14], FrameState::kCached);
  EXPECT_EQ(census.states[16], FrameState::kFile);
  for (const size_t frame : {7, 13, 15, 600}) EXPECT_EQ(census.states[frame], FrameState::kOther) << frame;
  for (const size_t frame : {8, 13, 15, 600}) EXPECT_EQ(census.owners[frame], 0u) << frame;
  EXPECT_NE(census.owners[12], 0u);
  EXPECT_LT(census.owners[12], 1u << 28);
  EXPECT_NE(census.owners[12], census.owners[14]);
  EXPECT_EQ(census.free_pages[0], 4u);
  EXPECT_EQ(census.free_pages[1], 1u);
  EXPECT_EQ(census.managed_pages[0], 8u);
  EXPECT_EQ(census.managed_pages[3], 1u);
}

// A guest can write anything there.
TEST(Census, AnOrderOutOfRangeIsTheLargest) {
  std::vector<StructPage> pages(4096, StructPage{0, 0, 0, 0, 0, UINT64_MAX, 0xf0000000, 0});
  const auto read = [&](uint64_t va, void* to, size_t n) {
    std::memcpy(to, reinterpret_cast<const char*>(pages.data()) + (va - kVmemmap), n);
    return true;
  };
  EXPECT_EQ(take_census(read, 4096 << 12, 4096 << 12).free_pages[0], 4096u);
}

}  // namespace
}  // namespace neotier::hil
