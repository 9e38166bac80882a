// SPDX-License-Identifier: Apache-2.0
// Who says which pages of the CXL memory are hot: the profiler in the device (its C++ golden model, bit for bit what
// the RTL does), or exact counts, or samples as PEBS takes them. Each looks like the device to the driver: a threshold
// goes in, a ring of reports comes out.
//
// Thread safety: one thread an object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "neotier_policy.h"

namespace neotier::pages {

struct Report {
  uint32_t slot = 0;   // page of the device's memory
  uint32_t count = 0;  // requests in the epoch, as estimated
};

// Totals since the start, and levels; as the driver reads them when it decides.
struct TrackerState {
  uint64_t epochs = 0, reads = 0, writes = 0;
  // Reports for which the ring had no place; units for which the hot filter had none, which are reported more than
  // once; requests that the tracker did not see.
  uint64_t lost_ring = 0, lost_units = 0, lost_requests = 0;
  // lost_units were reported all the same: the trackers here are in always-on mode.
  uint64_t lost() const { return lost_ring + lost_requests; }
  uint32_t error_bound = 0;
  uint32_t histogram[NEOTIER_HISTOGRAM_BINS] = {};
};

class Tracker {
 public:
  static constexpr uint32_t kRing = 4096;  // reports that it can hold; one place stays free
  static constexpr uint32_t kCounterMax = 65535;

  virtual ~Tracker() = default;
  // Requests of 64 bytes to pages of the device's memory, in order: slot x 2, plus 1 for a write.
  virtual void requests(std::span<const uint32_t> slots) = 0;
  // 100 us of the device's time have passed.
  virtual void tick() = 0;
  virtual void set_threshold(uint32_t threshold) = 0;
  // Takes up to `max` reports out of the ring, oldest first.
  virtual void drain(uint32_t max, std::vector<Report>& reports) = 0;
  // Throws all of them away; how many they were.
  virtual uint32_t discard() = 0;
  virtual TrackerState state() = 0;
  // Pages that it can count one by one, each in a place of its own.
  virtual uint32_t places() const { return 0; }
  // Counts the reads of `slot` in `place`, below places(), from 0 on; and how many there were, modulo 2^32.
  virtual void watch(uint32_t /*place*/, uint32_t /*slot*/) {}
  virtual uint32_t watched(uint32_t /*place*/) { return 0; }
};

struct TrackerOptions {
  uint32_t slots = 0;          // pages of the device's memory
  uint32_t epoch_ticks = 500;  // 100 us each
  uint32_t log2_width = 0;     // of the device's rows; 0: as built
  uint32_t peak_lines_per_tick = 0;
  uint32_t pebs_period = 199;  // requests a sample
};

// "device", "exact" or "pebs". Throws std::runtime_error with one line for any other name.
std::unique_ptr<Tracker> make_tracker(std::string_view name, const TrackerOptions& options);

}  // namespace neotier::pages
