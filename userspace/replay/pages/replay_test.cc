// SPDX-License-Identifier: Apache-2.0
// Replays: time by hand, the law on made-up programs, repetition, names.
#include "replay/pages/replay.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "promotion/room.h"
#include "replay/pages/memory.h"
#include "replay/pages/recording_testing.h"

namespace neotier::pages {
namespace {

constexpr uint64_t kCxl = RecordingFile::kCxlBase;

enum Room { kKswapd, kExchange };

Result run(const Recording& recording, const std::string& policy, const std::string& tracker = "exact",
           Room room = kKswapd) {
  Job job;
  job.policy = policy;
  job.params.loss_ppm = NEOTIER_LEDGER_NO_BOUND;
  job.tracker = tracker;
  job.params.exchange = room == kExchange;
  job.params.low_pages = 110;
  job.params.gap_pages = 20;
  return replay(recording, job);
}

TEST(Divisor, IsDivision) {
  for (const uint64_t divisor : {1u, 2u, 3u, 4u, 7u, 12u, 1000u, 65535u}) {
    const Divisor by(divisor);
    for (uint64_t n = 1; n < uint64_t{1} << 47; n = n * 3 + 1) {
      for (const uint64_t dividend : {n, n / divisor * divisor, n / divisor * divisor - (n >= divisor)})
        ASSERT_EQ(by.divide(dividend), dividend / divisor) << dividend << " / " << divisor;
    }
  }
}

TEST(Replay, TimeOfEachFillByHand) {
  RecordingFile file;
  file.line(0x1000);
  file.time(1000, 240'000);  // apart, so that no line waits for another
  file.line(kCxl);
  file.time(1000, 240'000);
  const Recording r = file.read();
  // 480 ns of base, 90 / 4 and 250 / 4 ns of stalls.
  const Result none = run(r, "none");
  EXPECT_EQ(none.modelled_ns, 480u + 22 + 62 + 1);  // .5 + .5 ns
  EXPECT_EQ(none.guest_ns, 4000u);
  EXPECT_EQ(none.fills[0], 1u);
  EXPECT_EQ(none.fills[1], 1u);
  EXPECT_EQ(run(r, "all-dram").modelled_ns, 480u + 45);
}

TEST(Replay, LinesWaitForEachOtherInATier) {
  RecordingFile file;
  for (int i = 0; i < 1000; ++i) file.line(kCxl + static_cast<uint64_t>(i) * 64, true);
  file.line(kCxl);
  const Recording r = file.read();
  // 1000 lines of 3.2 ns each are before it: (250 + 3200) / 4.
  EXPECT_EQ(run(r, "none").modelled_ns, 862u);
}

// Programs that allocate `dram` pages in DRAM, then `hot` pages in CXL memory, and go on reading the latter for
// `ms` guest ms, `times` times in each.
RecordingFile hot_set_in_cxl(uint64_t dram, uint64_t hot, uint64_t ms, uint64_t times) {
  RecordingFile file;
  for (uint64_t page = 1; page <= dram; ++page) {
    file.clear(page << 12);
    file.line(page << 12);
    file.time(1000, 240'000);
  }
  for (uint64_t page = 0; page < hot; ++page) {
    file.clear(kCxl + (page << 12));
    file.line(kCxl + (page << 12));
    file.time(1000, 240'000);
  }
  for (uint64_t i = 0; i < ms; ++i) {
    for (uint64_t time = 0; time < times; ++time) {
      for (uint64_t page = 0; page < hot; ++page) {
        file.line(kCxl + (page << 12) + ((i * times + time) % 64) * 64);
      }
      file.time(500'000 / times, 120'000'000 / times);
    }
  }
  return file;
}

class HotSet : public testing::TestWithParam<std::tuple<const char*, Room>> {};
INSTANTIATE_TEST_SUITE_P(Trackers, HotSet,
                         testing::Combine(testing::Values("device", "exact"), testing::Values(kKswapd, kExchange)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) == kExchange ? "Exchange" : "Kswapd");
                         });

TEST_P(HotSet, AHotSetInCxlMemoryComesUpAndColdPagesMakeRoom) {
  const auto [tracker, room] = GetParam();
  const Recording r = hot_set_in_cxl(900, 200, 1000, 20).read();
  const Result none = run(r, "none"), law = run(r, "neotier", tracker, room);
  EXPECT_GE(law.promoted, 180u);  // for the last few kswapd is not woken
  EXPECT_GE(law.demoted, 90u);
  EXPECT_LT(law.fills[1], none.fills[1] / 2);
  EXPECT_LT(law.modelled_ns, none.modelled_ns);
}

TEST(Replay, WithExchangeOnePageGoesForEachThatComes) {
  const Result law = run(hot_set_in_cxl(900, 200, 1000, 20).read(), "neotier", "exact", kExchange);
  EXPECT_EQ(law.demoted, law.exchanged) << "kswapd sleeps";
  EXPECT_EQ(law.kswapd_ns, 0u);
  EXPECT_GE(law.promoted, 180u);
  EXPECT_EQ(law.exchanged, law.promoted);
  EXPECT_GE(law.age_looks, 2u * law.exchanged) << "each was armed and checked";
  EXPECT_GT(law.age_ns, 0u);
  EXPECT_GT(law.demote_ns, 1000u * law.exchanged);
  EXPECT_EQ(law.regrets, 0u);
  EXPECT_EQ(law.short_stays, 0u);
}

// Two sets in turn are hot, and only one of them has room: what went is wanted again.
TEST(Replay, WithExchangeWhatReturnsIsARegretAndWhatGoesAgainAShortStay) {
  RecordingFile file;
  const auto page_of = [](uint64_t set, uint64_t page) { return kCxl + ((set * 400 + page) << 12); };
  for (uint64_t page = 0; page < 800; ++page) file.state(trace::Record::kAnonymous, (kCxl >> 12) + page);
  for (uint64_t page = 1; page <= 895; ++page) {
    file.state(trace::Record::kFree, page);
    file.line(page << 12, false, true);
    file.state(page <= 500 ? trace::Record::kOther : trace::Record::kAnonymous, page);
  }
  for (uint64_t i = 0; i < 40'000; ++i) {
    for (uint64_t page = 0; page < 400; ++page) file.line(page_of(i / 8000 % 2, page) + i % 64 * 64);
    file.time(25'000, 6'000'000);
  }
  Job job;
  job.policy = "neotier";
  job.params.loss_ppm = NEOTIER_LEDGER_NO_BOUND;
  job.tracker = "exact";
  job.law = "fixed";
  job.params.low_pages = 110;
  job.params.gap_pages = 20;
  job.params.payback_ms = 10'000;
  const Result law = replay(file.read(), job);
  EXPECT_GT(law.exchanged, 400u);
  EXPECT_GT(law.regrets, 50u);
  EXPECT_GT(law.short_stays, 50u);
  EXPECT_LE(law.regrets, law.ping_pong);
}

// All of the DRAM's free pages but the last hundred become such pages.
void fill_dram(RecordingFile& file, trace::Record what) {
  for (uint64_t page = 1; page <= 895; ++page) {
    file.state(trace::Record::kFree, page);
    file.line(page << 12, false, true);
    file.state(what, page);
  }
}
// For a guest second a program reads 100 pages of CXL memory.
void read_hot_pages(RecordingFile& file) {
  for (uint64_t i = 0; i < 20'000; ++i) {
    for (uint64_t page = 0; page < 100; ++page) file.line(kCxl + (page << 12) + i % 64 * 64);
    file.time(25'000, 6'000'000);
  }
}

// Who has the DRAM needs it more often than those that wait.
TEST(Replay, WithExchangePagesInUseStay) {
  RecordingFile file;
  for (uint64_t page = 0; page < 100; ++page) file.state(trace::Record::kAnonymous, (kCxl >> 12) + page);
  fill_dram(file, trace::Record::kAnonymous);
  for (uint64_t i = 0; i < 20'000; ++i) {
    for (uint64_t page = 0; page < 100; ++page) file.line(kCxl + (page << 12) + i % 64 * 64);
    if (i % 20 == 0)
      for (uint64_t page = 1; page <= 895; ++page) file.line((page << 12) + i % 64 * 64);
    file.time(25'000, 6'000'000);
  }
  const Recording r = file.read();
  EXPECT_GT(run(r, "neotier").demoted, 20u) << "kswapd cannot tell";
  const Result law = run(r, "neotier", "exact", kExchange);
  EXPECT_GT(law.age_looks, 895u);
  EXPECT_EQ(law.exchanged, 0u);
}

// What is above the low watermark and the gap nobody misses: nobody goes for that.
TEST(Replay, WithExchangeNobodyGoesForWhatIsFree) {
  const auto stay = [](uint64_t freed) {
    RecordingFile file;
    for (uint64_t page = 0; page < 100; ++page) file.state(trace::Record::kAnonymous, (kCxl >> 12) + page);
    fill_dram(file, trace::Record::kAnonymous);
    for (uint64_t page = 1; page <= freed; ++page) file.state(trace::Record::kFree, page);
    read_hot_pages(file);
    const Result law = run(file.read(), "neotier", "exact", kExchange);
    EXPECT_GE(law.promoted, 80u) << freed;
    return law.promoted - law.exchanged;
  };
  EXPECT_EQ(stay(0), 0u);
  EXPECT_EQ(stay(60), 40u) << "of 170 free pages, 110 and 20 are kept";
  EXPECT_GE(stay(300), 80u) << "all of them";
}

// What the module measures for a page, ns.
uint64_t page_ns(uint64_t promote_instructions, bool full) {
  RecordingFile file;
  for (uint64_t page = 0; page < 100; ++page) file.state(trace::Record::kAnonymous, (kCxl >> 12) + page);
  if (full) fill_dram(file, trace::Record::kAnonymous);
  read_hot_pages(file);
  Job job;
  job.policy = "neotier";
  job.params.loss_ppm = NEOTIER_LEDGER_NO_BOUND;
  job.tracker = "exact";
  job.law = "fixed";
  job.params.low_pages = 110;
  job.params.gap_pages = 20;
  job.params.promote_instructions = promote_instructions;
  const Result law = replay(file.read(), job);
  EXPECT_GT(law.promoted, 100u - NEOTIER_WORTH_WAKING);
  EXPECT_EQ(law.demoted != 0, full);
  return law.promote_ns / law.promoted;
}

// After 4 guest ms of the module's own work, 2,000,000 instructions, the program has its turn, or kswapd, where it
// works. That is in what the module measures: 480 us are its own, 80 x 12 us the program's.
TEST(Replay, ABatchThatTakesLongIsPreempted) {
  EXPECT_GT(page_ns(2'000'000, false), 1'200'000u);
  EXPECT_GT(page_ns(2'000'000, true), 700'000u);
  EXPECT_LT(page_ns(9'000, false), 20'000u);
}

// Freed after its promotion, and got again at the same address: to the module the page has come back.
TEST(Replay, MemoryGotAgainIsThePageThatWasThere) {
  const auto ping_pong = [](uint32_t second_owner) {
    RecordingFile file;
    fill_dram(file, trace::Record::kAnonymous);
    uint64_t others = (kCxl >> 12) + 1000;
    for (const uint32_t owner : {1000u, second_owner}) {
      for (uint64_t page = 0; page < 100; ++page) file.state(trace::Record::kFree, (kCxl >> 12) + page);
      // What is left of the DRAM is others' now.
      for (const uint64_t end = others + 400; others < end; ++others) {
        file.state(trace::Record::kFree, others);
        file.line(others << 12);
        file.state(trace::Record::kAnonymous, others);
      }
      for (uint32_t page = 0; page < 100; ++page) {
        file.state(trace::Record::kAnonymous, (kCxl >> 12) + page);
        file.put(trace::owner_of((kCxl >> 12) + page, owner + page));
      }
      read_hot_pages(file);
    }
    const Result law = run(file.read(), "neotier");
    EXPECT_GT(law.promoted, 200u - 2 * NEOTIER_WORTH_WAKING);
    return law.ping_pong;
  };
  EXPECT_GT(ping_pong(1000), 100u - NEOTIER_WORTH_WAKING);
  EXPECT_EQ(ping_pong(2000), 0u);
}

// Where all else in the DRAM is the kernel's, hot pages can displace one another alone.
TEST(Replay, PagesOfFilesMakeRoom) {
  const auto slow_fills = [](trace::Record what) {
    RecordingFile file;
    for (uint64_t page = 0; page < 100; ++page) file.state(trace::Record::kAnonymous, (kCxl >> 12) + page);
    fill_dram(file, what);
    read_hot_pages(file);
    return run(file.read(), "neotier").fills[1];
  };
  EXPECT_LT(slow_fills(trace::Record::kFile), slow_fills(trace::Record::kOther) / 2);
}

// Pages of files, or of shared memory, as a program maps them, or as system calls alone use them.
enum class Use { kMapped, kCalls };
struct Files {
  Use use;
  bool page_cache = true;
  bool in_use = false;   // those in DRAM, as much as what waits
  bool swapped = false;  // what waits is a program's own, what is in DRAM is of files

  // A program reads a line in its own way; the kernel, for a system call, never all of a page in rising order.
  void read(RecordingFile& file, uint64_t page, uint64_t i) const {
    file.line(page + (63 - i % 64) * 64, false, use == Use::kCalls);
  }
};

// Hot pages wait in CXL memory, and nothing else is in DRAM but the others.
Result exchange_of_files(const Files& files) {
  RecordingFile file;
  const auto hot = files.swapped ? trace::Record::kAnonymous : trace::Record::kFile;
  const auto other = files.swapped ? trace::Record::kFile : trace::Record::kAnonymous;
  for (uint64_t page = 0; page < 100; ++page) file.state(hot, (kCxl >> 12) + page);
  fill_dram(file, other);
  if (files.swapped && files.use == Use::kMapped)
    for (uint64_t page = 1; page <= 895; ++page) files.read(file, page << 12, 0);
  for (uint64_t i = 0; i < 20'000; ++i) {
    for (uint64_t page = 0; page < 100; ++page)
      files.swapped ? file.line(kCxl + (page << 12) + i % 64 * 64) : files.read(file, kCxl + (page << 12), i);
    if (files.in_use && i % 20 == 0)
      for (uint64_t page = 1; page <= 895; ++page) files.read(file, page << 12, i);
    file.time(25'000, 6'000'000);
  }
  Job job;
  job.policy = "neotier";
  job.params.loss_ppm = NEOTIER_LEDGER_NO_BOUND;
  job.tracker = "exact";
  job.params.low_pages = 110;
  job.params.gap_pages = 20;
  job.params.page_cache = files.page_cache;
  return replay(file.read(), job);
}

class FilesOfUse : public testing::TestWithParam<Use> {};
INSTANTIATE_TEST_SUITE_P(Replay, FilesOfUse, testing::Values(Use::kMapped, Use::kCalls),
                         [](const auto& test) { return std::string(test.param == Use::kMapped ? "Mapped" : "Calls"); });

TEST_P(FilesOfUse, HotOnesComeUp) {
  EXPECT_GE(exchange_of_files({.use = GetParam()}).promoted, 80u);
  EXPECT_EQ(exchange_of_files({.use = GetParam(), .page_cache = false}).promoted, 0u);
}

TEST_P(FilesOfUse, IdleOnesMakeRoom) {
  const Result law = exchange_of_files({.use = GetParam(), .swapped = true});
  EXPECT_GE(law.exchanged, 80u);
  EXPECT_EQ(law.exchanged, law.promoted);
  EXPECT_EQ(law.demoted, law.exchanged) << "kswapd sleeps";
  EXPECT_EQ(exchange_of_files({.use = GetParam(), .page_cache = false, .swapped = true}).exchanged, 0u);
}

TEST_P(FilesOfUse, ThoseInUseStay) {
  EXPECT_EQ(exchange_of_files({.use = GetParam(), .in_use = true, .swapped = true}).exchanged, 0u);
}

// Mapped, and never accessed, as far as is seen.
TEST(Replay, CodeStays) {
  RecordingFile file;
  for (uint64_t page = 0; page < 100; ++page) file.state(trace::Record::kAnonymous, (kCxl >> 12) + page);
  fill_dram(file, trace::Record::kFile);
  file.state(trace::Record::kCached, 895);  // so the recording tells
  read_hot_pages(file);
  EXPECT_EQ(run(file.read(), "neotier", "exact", kExchange).exchanged, 0u);
}

// Idle pages of both kinds, by turns: who reads them in the end finds those of the one kind alone in CXL memory.
TEST(Replay, PageCacheThatNobodyMapsMakesRoomFirst) {
  const auto slow_fills = [](bool read_cached, bool read_mapped) {
    RecordingFile file;
    for (uint64_t page = 0; page < 100; ++page) file.state(trace::Record::kAnonymous, (kCxl >> 12) + page);
    for (uint64_t page = 1; page <= 895; ++page) {
      file.state(trace::Record::kFree, page);
      file.line(page << 12, false, true);
      file.state(page % 2 ? trace::Record::kFile : trace::Record::kAnonymous, page);
    }
    read_hot_pages(file);
    for (uint64_t page = 1; page <= 895; ++page)
      if (page % 2 ? read_cached : read_mapped) file.line((page << 12) + 64, false, page % 2);
    const Result law = run(file.read(), "neotier", "exact", kExchange);
    EXPECT_GE(law.exchanged, 80u);
    return law.fills[1];
  };
  const uint64_t without = slow_fills(false, false);
  EXPECT_LT(slow_fills(false, true), without + 10) << "reading takes time, in which others read as well";
  EXPECT_GE(slow_fills(true, false), without + 80);
}

// A look at one goes to no page table.
TEST(Replay, PageCacheThatNobodyMapsIsInNoTable) {
  const Result cached = exchange_of_files({.use = Use::kCalls, .swapped = true});
  EXPECT_LT(cached.age_looks, exchange_of_files({.use = Use::kMapped, .swapped = true}).age_looks);
  EXPECT_LE(cached.age_looks, 2 * 100u) << "of those that have come up";
  EXPECT_GT(cached.age_ns, 2 * 895 * 40u) << "each was armed and checked, some 180 instructions";
}

TEST(Replay, APlaceboMovesNothingAndCostsALittle) {
  const Recording r = hot_set_in_cxl(900, 200, 600, 20).read();
  const Result placebo = run(r, "placebo");
  EXPECT_EQ(placebo.promoted, 0u);
  EXPECT_EQ(placebo.demoted, 0u);
  EXPECT_GT(placebo.tried_dry, 0u);
  EXPECT_GT(placebo.kernel_ns, 0u);
}

TEST(Replay, ColdPagesStay) {
  const Recording r = hot_set_in_cxl(900, 200, 600, 1).read();
  Job job;
  job.policy = "neotier";
  job.params.loss_ppm = NEOTIER_LEDGER_NO_BOUND;
  job.tracker = "exact";
  job.params.threshold = 1000;
  job.law = "fixed";
  EXPECT_EQ(replay(r, job).promoted, 0u);
}

// What /proc/zoneinfo of a machine of 96 + 192 MiB showed: DMA 3 / 14 / 25, DMA32 55 / 254 / 453 (min, low, high).
TEST(Replay, WatermarksAreThoseOfTheKernel) {
  Recording recording;
  const auto set = [&](trace::Field field, uint64_t value) { recording.fields[static_cast<size_t>(field)] = value; };
  set(trace::Field::kManagedDma, 3840);
  set(trace::Field::kManagedDma32, 66590);
  set(trace::Field::kManagedCxl, 47300);
  set(trace::Field::kMinFreeKib, 392);
  set(trace::Field::kTieringWatermarkScale, 30);
  set(trace::Field::kReservePages, 245);
  set(trace::Field::kBatchPages, 24);
  Params kswapd;
  kswapd.exchange = 0;
  const Params stock = on_machine({}, recording), on = on_machine(kswapd, recording);
  // Of kswapd's room the settings that it needs; of exchange a stock kernel's.
  EXPECT_EQ(stock.gap_pages, 66u + 3u);
  EXPECT_EQ(stock.low_pages, 55u + 66u + 3u + 3u + 66590u / 256);
  EXPECT_EQ(on.gap_pages, 199u + 11u);
  EXPECT_EQ(on.high_pages, 453u + 32u) << "no zone wants fewer than 32";
  EXPECT_EQ(on.low_pages, 254u + 14u + 66590u / 256);
  EXPECT_EQ(on.reserve_pages, 245u);
  EXPECT_EQ(on.batch, 24u);
  Params own;
  own.low_pages = 7;
  EXPECT_EQ(on_machine(own, recording).low_pages, 7u);
}

// Of 100 lines that the last cache is asked for, 75 are there: so many of those that the kernel evicts are wanted
// again.
TEST(Replay, WhatTheKernelEvictsIsFetchedAgain) {
  RecordingFile file = hot_set_in_cxl(900, 200, 600, 20);
  const Recording older = file.read();
  EXPECT_EQ(on_machine({}, older).evict_percent, 0u) << "an older recording does not tell";
  const uint64_t fills = older.fills[0] + older.fills[1];
  file.asked(4 * fills);
  const Recording newer = file.read();
  EXPECT_EQ(on_machine({}, newer).evict_percent, 75u);
  const auto fetched = [](const Recording& recording) {
    const Result result = run(recording, "placebo");
    EXPECT_GT(result.reports, 0u);
    return result.fills[0] + result.fills[1];
  };
  const uint64_t kernels = fetched(older) - fills;
  EXPECT_GT(kernels, 100u);
  EXPECT_NEAR(static_cast<double>(fetched(newer) - fills), 1.75 * static_cast<double>(kernels), 2);
}

// kswapd works in whole rounds, here of 20,000 / 2^6 pages in batches of 64, however few are wanted.
TEST(Replay, KswapdFreesARoundsWorth) {
  constexpr uint32_t kPages = 20'000;
  Recording recording;
  const auto set = [&](trace::Field field, uint64_t value) { recording.fields[static_cast<size_t>(field)] = value; };
  set(trace::Field::kBasePs, 240);
  set(trace::Field::kCxlBytes, uint64_t{kPages} << 12);
  recording.pages.resize(kPages, {.movable = true, .evictable = true, .fresh = true});
  Params params;
  params.low_pages = 0;
  Memory memory(recording, params, Placement::kAllDram);
  for (uint32_t page = 0; page < kPages; ++page) memory.come(page);
  const auto freed = [&](int64_t wanted) {
    const int64_t before = memory.dram_free();
    EXPECT_FALSE(memory.reclaim({before + wanted, before + 10'000, 478}, UINT64_MAX / 2));
    return memory.dram_free() - before;
  };
  EXPECT_EQ(freed(0), 0);
  EXPECT_EQ(freed(1), 512) << "two agings are two rounds that took nothing; the third ends when 478 have been demoted";
  EXPECT_EQ(freed(1), 320);
  EXPECT_EQ(freed(320), 320);
  EXPECT_EQ(freed(321), 320 + 512);
}

// What was freed lately is still in a large one.
TEST(Replay, AMoveCostsLessWithALargeLastCache) {
  const auto of = [](uint64_t llc_kib) {
    RecordingFile file = hot_set_in_cxl(900, 200, 600, 20);
    if (llc_kib != 0) file.put(trace::header_of(trace::Field::kLlcKib, llc_kib));
    const Recording recording = file.read();
    const Result law = run(recording, "neotier");
    EXPECT_GT(law.promoted, 100u);
    return std::pair(on_machine({}, recording).llc_kib, law.promote_ns / law.promoted);
  };
  const auto older = of(0), large = of(8192), small = of(2048);
  EXPECT_EQ(older.first, 8192u) << "an older recording does not tell";
  EXPECT_EQ(small.first, 2048u);
  EXPECT_EQ(older.second, large.second);
  EXPECT_GT(small.second, large.second);
}

TEST(Replay, FreedMemoryIsRoom) {
  // 950 of 1000 free pages are taken and given back; what comes then finds room in DRAM.
  RecordingFile file;
  for (uint64_t page = 1; page <= 950; ++page) file.state(trace::Record::kFree, page);
  for (uint64_t page = 1; page <= 950; ++page) file.line(page << 12);
  file.time(1000, 240'000);
  for (uint64_t page = 1; page <= 950; ++page) file.state(trace::Record::kFree, page);
  for (uint64_t page = 1; page <= 850; ++page) file.line(page << 12);
  const Result placebo = run(file.read(), "placebo");
  EXPECT_EQ(placebo.fills[1], 60u) << "the 60 pages below the low watermark of 110, the first time alone";
}

TEST(Replay, ItRepeatsToTheDigit) {
  const Recording r = hot_set_in_cxl(900, 200, 400, 20).read();
  Job job;
  job.policy = "neotier";
  job.params.loss_ppm = NEOTIER_LEDGER_NO_BOUND;
  const Result first = replay(r, job), second = replay(r, job);
  EXPECT_EQ(to_json(job, first), to_json(job, second));
}

TEST(Replay, OtherNamesAreOneLine) {
  const auto refused = [](const Job& job) {
    try {
      check(job);
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("was taken");
  };
  EXPECT_EQ(refused({.policy = "numab"}), "--policy 'numab': expected none, all-dram, neotier, placebo");
  EXPECT_EQ(refused({.policy = "neotier", .law = "x"}),
            "--law 'x': expected payback, fixed, neomem, or a shared library");
  Params params;
  EXPECT_THROW(set_param(params, "batch=0"), std::runtime_error);
  EXPECT_THROW(set_param(params, "batch=1x"), std::runtime_error);
  EXPECT_THROW(set_param(params, "nonsense=1"), std::runtime_error);
  set_param(params, "batch=512");
  EXPECT_EQ(params.batch, 512u);
}

}  // namespace
}  // namespace neotier::pages
