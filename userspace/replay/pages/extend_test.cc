// SPDX-License-Identifier: Apache-2.0
// A recording on more memory than was recorded: whose requests come, what is counted beside the tracker, which limits
// are reached.
#include "replay/pages/extend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "replay/pages/audit.h"
#include "replay/pages/recording_testing.h"
#include "replay/pages/tenants.h"

namespace neotier::pages {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30, kPages = RecordingFile::kCxlBytes >> 12;

std::vector<uint32_t> beside(Tenants& tenants, const std::vector<uint32_t>& requests) {
  const auto all = tenants.beside(requests);
  return {all.begin(), all.end()};
}

std::string message(const auto& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Each of `pages` is read `reads` times in each of some epochs.
Recording sweeps(uint64_t pages, int reads, int epochs = 20) {
  RecordingFile file;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (uint64_t page = 0; page < pages; ++page) {
      for (int i = 0; i < reads; ++i) file.line(RecordingFile::kCxlBase + page * 4096);
      if (page % 64 == 63) file.time(25'000'000 / (pages / 64), 6'000'000'000 / (pages / 64));
    }
  }
  return file.read();
}

Size extended(const Recording& recording, uint64_t bytes, const std::string& tracker = "exact",
              uint64_t threshold = 4) {
  Job job;
  job.tracker = tracker;
  job.law = "fixed";
  job.params.threshold = threshold;
  job.params.loss_ppm = NEOTIER_LEDGER_NO_BOUND;
  std::vector<Size> sizes = {plan_size(recording, bytes)};
  extend(recording, job, sizes, 1, [](size_t, size_t) {});
  return sizes[0];
}

TEST(Tenants, OneAloneAddsNothing) {
  Tenants alone;
  EXPECT_THAT(beside(alone, {14, 9}), ElementsAre(14, 9));
  EXPECT_EQ(alone.count(), 1u);
  EXPECT_EQ(alone.recorded(1u << 30), 1u << 30);
}

TEST(Tenants, OthersAskForTheSamePageOfTheirsWhereTheLinkHasRoom) {
  Tenants two(100, 2, 1, 10);
  EXPECT_THAT(beside(two, {7 << 1, 8 << 1 | 1}), ElementsAre(7 << 1, 107 << 1, 8 << 1 | 1, 108 << 1 | 1));
  EXPECT_EQ(two.recorded(107), 7u);
  EXPECT_EQ(two.held_back(), 0u);
}

TEST(Tenants, NoMoreComeThanTheLinkCarriesInATick) {
  Tenants many(100, 50, 2, 10);  // four of others beside each
  EXPECT_EQ(beside(many, {0, 2}).size(), 10u);
  EXPECT_EQ(beside(many, {4}).size(), 1u) << "the recorded one always comes";
  EXPECT_EQ(many.held_back(), 4u);
  many.tick();
  EXPECT_EQ(beside(many, {4}).size(), 5u);
}

TEST(Tenants, AllHaveTheirTurn) {
  Tenants many(100, 50, 1, 1'000'000);
  std::vector<int> asked(50);
  for (int i = 0; i < 1000; ++i)
    for (const uint32_t request : beside(many, {3 << 1})) {
      EXPECT_EQ(many.recorded(request >> 1), 3u);
      ++asked[(request >> 1) / 100];
    }
  for (const int times : asked) EXPECT_NEAR(times, 1000, 200);
}

// Reports what a test says.
class Scripted final : public Tracker {
 public:
  void requests(std::span<const uint32_t> slots) override { seen += slots.size(); }
  void tick() override {}
  void set_threshold(uint32_t) override {}
  void drain(uint32_t, std::vector<Report>& reports) override {
    reports.insert(reports.end(), next.begin(), next.end());
  }
  uint32_t discard() override { return 0; }
  TrackerState state() override { return {}; }
  size_t seen = 0;
  std::vector<Report> next;
};

TEST(Audit, ReportsAreHeldToExactCounts) {
  TrackerOptions options;
  options.slots = 10;
  options.epoch_ticks = 2;
  auto made = std::make_unique<Scripted>();
  Scripted& device = *made;
  AuditedTracker tracker(std::move(made), options);
  tracker.set_threshold(3);
  const auto read = [&](std::vector<Report> reports) {
    device.next = std::move(reports);
    std::vector<Report> got;
    tracker.drain(10, got);
    EXPECT_EQ(got.size(), device.next.size());
  };
  tracker.requests(
      std::vector<uint32_t>{2, 2, 2, 4, 4, 5, 5, 5, 6});  // page 1 three times, 2 twice, and three writes of 2
  EXPECT_EQ(device.seen, 9u);
  read({{1, 3}, {2, 3}});
  EXPECT_EQ(tracker.audit().read, 2u);
  EXPECT_EQ(tracker.audit().wrong, 1u) << "writes do not count";
  tracker.tick();
  EXPECT_EQ(tracker.audit().epochs, 0u);
  tracker.tick();
  EXPECT_EQ(tracker.audit().epochs, 1u);
  EXPECT_EQ(tracker.audit().hot, 1u);
  read({{1, 3}});
  EXPECT_EQ(tracker.audit().wrong, 1u) << "read late";
  tracker.tick();
  tracker.tick();
  read({{1, 3}});
  EXPECT_EQ(tracker.audit().wrong, 2u) << "two epochs later";
  tracker.set_threshold(1000);
  tracker.requests(std::vector<uint32_t>{2, 2, 2});
  read({{1, 3}});
  EXPECT_EQ(tracker.audit().wrong, 2u) << "it was reported at the threshold before";
  EXPECT_EQ(tracker.audit().requests, 12u);
}

TEST(Extend, ADeviceCountsSixtyFourGibibytes) {
  const Recording recording = sweeps(64, 1, 1);
  EXPECT_EQ(most_bytes_of_device(), 64 * kGiB);
  const Size same = plan_size(recording, RecordingFile::kCxlBytes);
  EXPECT_EQ(same.devices, 1u);
  EXPECT_EQ(same.tenants, 1u);
  EXPECT_EQ(plan_size(recording, kGiB).tenants, 16u);
  EXPECT_EQ(plan_size(recording, 64 * kGiB).tenants, 1024u);
  EXPECT_EQ(plan_size(recording, 64 * kGiB).devices, 1u);
  const Size large = plan_size(recording, 1024 * kGiB);
  EXPECT_EQ(large.devices, 16u);
  EXPECT_EQ(large.tenants, 1024u);
  EXPECT_EQ(plan_size(recording, 65 * kGiB).devices, 2u);
}

TEST(Extend, WhatCannotBeExtendedIsRefused) {
  const Recording recording = sweeps(64, 1, 1);
  EXPECT_THAT(message([&] { plan_size(recording, 1 << 20); }), HasSubstr("less than the 64 MiB"));
  EXPECT_THAT(message([&] { plan_size(recording, 17 * 1024 * kGiB); }), HasSubstr("at most 16 TiB"));
  RecordingFile nothing;
  nothing.line(0x1000);
  nothing.time(1000, 1000);
  const Recording idle = nothing.read();
  EXPECT_THAT(message([&] { extended(idle, kGiB); }), HasSubstr("no request to CXL memory"));
  Job job;
  job.policy = "neotier";
  job.tenants = 2;
  EXPECT_THAT(message([&] { replay(recording, job); }), HasSubstr("nothing is moved"));
}

TEST(Extend, EachTenantBringsHotPagesOfItsOwn) {
  const Recording recording = sweeps(64, 8);
  const Size one = extended(recording, RecordingFile::kCxlBytes),
             four = extended(recording, 4 * RecordingFile::kCxlBytes);
  const uint64_t reads = 64 * 8 * 20;
  EXPECT_EQ(one.result.extended.audit.requests, 0u) << "nothing is audited where nothing is extended";
  EXPECT_NEAR(static_cast<double>(four.result.extended.audit.requests), 4.0 * reads, 4);
  const Audit& audit = four.result.extended.audit;
  EXPECT_NEAR(static_cast<double>(audit.hot) / static_cast<double>(audit.epochs), 4 * 64, 8);
  EXPECT_EQ(audit.wrong, 0u) << "counts are exact";
  EXPECT_GT(four.result.reports, 3 * one.result.reports);
  EXPECT_GT(four.result.tried_dry, 3 * one.result.tried_dry) << "pages of all tenants are the program's own";
  EXPECT_GT(one.result.tried_dry, 0u);
  EXPECT_EQ(four.result.promoted, 0u);
  EXPECT_GT(four.result.extended.table_bytes, 4 * kPages / 8);
}

TEST(Extend, LooksForVictimsAreNotCounted) {
  Size size;
  size.devices = 3;
  size.result.thread_ns = 100;
  size.result.age_ns = 40;
  size.result.modelled_ns = 1000;
  EXPECT_DOUBLE_EQ(size.cpu_used(), 3 * .06);
}

TEST(Extend, SharesAreOfWhatTheDeviceHadToReport) {
  Size size;
  size.result.reports = 50;
  size.result.discarded = 30;
  size.result.extended.lost_ring = 20;
  size.result.extended.audit.read = 50;
  size.result.extended.audit.wrong = 5;
  EXPECT_DOUBLE_EQ(size.ring_lost(), .2);
  EXPECT_DOUBLE_EQ(size.unread(), .3);
  EXPECT_DOUBLE_EQ(size.wrong(), .1);
  EXPECT_DOUBLE_EQ(Size{}.wrong(), 0.0);
}

TEST(Extend, ALargerMemoryHasTheDeviceAsItIsBuilt) {
  RecordingFile file;
  file.put(trace::header_of(trace::Field::kLog2Width, 6));  // the recorded machine's: 64 counters a row
  for (uint64_t page = 0; page < 4096; ++page) {
    file.line(RecordingFile::kCxlBase + page * 4096);
    if (page % 64 == 63) file.time(4'000'000, 1'000'000'000);
  }
  const Recording recording = file.read();
  EXPECT_EQ(extended(recording, 2 * RecordingFile::kCxlBytes, "device").result.extended.error_bound, 1u);
  EXPECT_GT(extended(recording, RecordingFile::kCxlBytes, "device").result.extended.error_bound, 10u);
}

TEST(Extend, WhatIsFullIsSaid) {
  const Recording recording = sweeps(4096, 8);
  const Size small = extended(recording, 2 * RecordingFile::kCxlBytes, "device"),
             large = extended(recording, 16 * RecordingFile::kCxlBytes, "device");
  EXPECT_GT(large.result.extended.lost_ring, 0u);
  EXPECT_GT(large.ring_lost(), small.ring_lost());
  EXPECT_GT(large.ring_lost(), limits()[0].most);
  const auto full = to_json(large)["full"];
  EXPECT_NE(std::find(full.begin(), full.end(), "ring"), full.end());
  EXPECT_GT(small.seen_used(), 0.0);
  EXPECT_LE(small.seen_used(), 1.0);
}

TEST(Extend, AlikeDevicesAreReplayedOnceAndTheirTimeIsAdded) {
  const Recording recording = sweeps(64, 8);
  std::vector<Size> sizes = {plan_size(recording, 64 * kGiB), plan_size(recording, 128 * kGiB)};
  Job job;
  job.tracker = "exact";
  size_t calls = 0;
  extend(recording, job, sizes, 2, [&](size_t done, size_t all) {
    ++calls;
    EXPECT_EQ(done, all);
  });
  EXPECT_EQ(calls, 1u);
  EXPECT_EQ(sizes[0].result.reports, sizes[1].result.reports);
  EXPECT_DOUBLE_EQ(sizes[1].cpu_used(), 2 * sizes[0].cpu_used());
  EXPECT_GT(sizes[0].cpu_used(), 0.0);
}

TEST(Extend, ThePageHasAPlotOfEachLimit) {
  const Recording recording = sweeps(64, 8);
  const std::vector<Size> sizes = {extended(recording, kGiB), extended(recording, 2 * kGiB)};
  const std::string page = make_page("x.rec", sizes);
  for (const char* title :
       {"The device's ring", "pages that wait for confirmation", "The module's threads", "The tracker"})
    EXPECT_THAT(page, HasSubstr(title));
  EXPECT_THAT(page, HasSubstr("x.rec, extended to 2 GiB"));
}

}  // namespace
}  // namespace neotier::pages
