// SPDX-License-Identifier: Apache-2.0
// Trackers: what each reports of the same requests, its ring, its epochs.
#include "replay/pages/tracker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace neotier::pages {
namespace {

constexpr uint32_t kSlots = 4096;

std::vector<Report> drained(Tracker& tracker) {
  std::vector<Report> reports;
  tracker.drain(Tracker::kRing, reports);
  return reports;
}

void read_times(Tracker& tracker, uint32_t slot, uint32_t times) {
  tracker.requests(std::vector<uint32_t>(times, slot * 2));
}

class EachTracker : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Tracker> tracker = make_tracker(GetParam(), {.slots = kSlots, .epoch_ticks = 2, .pebs_period = 10});
};
INSTANTIATE_TEST_SUITE_P(Trackers, EachTracker, testing::Values("device", "exact", "pebs"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(EachTracker, ReportsTheHotPageOnceAnEpoch) {
  tracker->set_threshold(50);
  for (int epoch = 0; epoch < 2; ++epoch) {
    read_times(*tracker, 7, 200);
    read_times(*tracker, 9, 20);
    tracker->tick();
    tracker->tick();
    const auto reports = drained(*tracker);
    ASSERT_EQ(reports.size(), 1u) << "epoch " << epoch;
    EXPECT_EQ(reports[0].slot, 7u);
    EXPECT_GE(reports[0].count, 50u);
  }
}

TEST_P(EachTracker, TheHistogramHasEachPageAtItsCount) {
  read_times(*tracker, 7, 1200);
  for (uint32_t slot = 10; slot < 20; ++slot) read_times(*tracker, slot, 20 * slot);
  tracker->tick();
  tracker->tick();
  const TrackerState state = tracker->state();
  uint32_t pages = 0;
  for (const uint32_t n : state.histogram) pages += n;
  EXPECT_EQ(pages, 11u);
  const uint32_t hottest = neotier_histogram_top(state.histogram, 1),
                 coldest = neotier_histogram_top(state.histogram, 11);
  EXPECT_GT(hottest, 1000u);
  EXPECT_LE(hottest, 1200u);
  EXPECT_GT(coldest, 160u);
  EXPECT_LE(coldest, 200u);
}

TEST_P(EachTracker, WritesAreNotCountedAsHeat) {
  tracker->set_threshold(50);
  tracker->requests(std::vector<uint32_t>(500, 7 * 2 + 1));
  tracker->tick();
  tracker->tick();
  EXPECT_TRUE(drained(*tracker).empty());
}

TEST_P(EachTracker, AnEpochForgets) {
  tracker->set_threshold(50);
  for (int epoch = 0; epoch < 4; ++epoch) {
    read_times(*tracker, 7, 40);
    tracker->tick();
    tracker->tick();
  }
  EXPECT_TRUE(drained(*tracker).empty());
}

TEST_P(EachTracker, TheRingIsDrainedInPartsOrThrownAway) {
  tracker->set_threshold(10);
  for (uint32_t slot = 0; slot < 100; ++slot) read_times(*tracker, slot, 20);
  tracker->tick();
  tracker->tick();
  std::vector<Report> first;
  tracker->drain(30, first);
  EXPECT_EQ(first.size(), 30u);
  EXPECT_EQ(tracker->discard(), 70u);
  EXPECT_TRUE(drained(*tracker).empty());
}

TEST_P(EachTracker, CountsRequestsAndEpochs) {
  tracker->set_threshold(10);
  read_times(*tracker, 3, 123);
  tracker->requests(std::vector<uint32_t>(45, 3 * 2 + 1));
  tracker->tick();
  tracker->tick();
  const TrackerState state = tracker->state();
  EXPECT_EQ(state.reads, 123u);
  EXPECT_EQ(state.writes, 45u);
  EXPECT_EQ(state.epochs, 1u);
  EXPECT_EQ(std::count_if(std::begin(state.histogram), std::end(state.histogram), [](uint32_t n) { return n != 0; }),
            1);
}

TEST(Tracker, ADeviceSaysByHowMuchItsCountsMayBeTooHigh) {
  const auto tracker = make_tracker("device", {.slots = kSlots, .epoch_ticks = 2, .log2_width = 6});
  for (uint32_t slot = 0; slot < 640; ++slot) read_times(*tracker, slot, 10);
  tracker->tick();
  tracker->tick();
  // e x 6400 requests over rows of 64 counters.
  EXPECT_EQ(tracker->state().error_bound, 272u);
}

TEST(Tracker, WhatIsLostIsToldApart) {
  const auto tracker = make_tracker("device", {.slots = 3 * Tracker::kRing, .epoch_ticks = 2});
  tracker->set_threshold(1);
  for (uint32_t slot = 0; slot < 3 * Tracker::kRing; ++slot) read_times(*tracker, slot, 1);
  const TrackerState state = tracker->state();
  EXPECT_EQ(state.lost_ring, 2 * Tracker::kRing + 1);
  EXPECT_GT(state.lost_units, Tracker::kRing);
  EXPECT_EQ(state.lost_requests, 0u);
  EXPECT_EQ(state.lost(), state.lost_ring) << "the others were reported all the same";
}

// Whatever shares its counters with them, and whether they are reported or not.
TEST(Tracker, ADeviceCountsThePagesThatItIsToldTo) {
  const auto device = make_tracker("device", {.slots = kSlots, .epoch_ticks = 2, .log2_width = 6});
  ASSERT_EQ(device->places(), 64u);
  device->set_threshold(1000);
  read_times(*device, 5, 3);
  device->watch(0, 5);
  device->watch(63, 6);
  for (uint32_t slot = 0; slot < kSlots; ++slot) read_times(*device, slot, 1 + slot % 7);
  device->requests(std::vector<uint32_t>(4, 5 * 2 + 1));
  device->tick();
  device->tick();
  EXPECT_EQ(device->watched(0), 1u + 5) << "reads alone, and none from before";
  EXPECT_EQ(device->watched(63), 1u + 6);
  device->watch(0, 8);
  read_times(*device, 5, 10);
  read_times(*device, 8, 2);
  EXPECT_EQ(device->watched(0), 2u);
  EXPECT_EQ(make_tracker("pebs", {.slots = kSlots})->places(), 0u);
}

TEST(Tracker, AnotherNameIsOneLine) {
  try {
    make_tracker("guess", {});
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "--tracker 'guess': expected device, exact or pebs");
  }
}

}  // namespace
}  // namespace neotier::pages
