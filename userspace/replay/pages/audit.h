// SPDX-License-Identifier: Apache-2.0
// A tracker, and beside it what is true: each page's requests counted exactly, in the present epoch and the one before.
// What it says of reports costs 8 bytes a page and no time of the machine.
//
// Thread safety: one thread an object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "replay/pages/tracker.h"

namespace neotier::pages {

// Totals since the start.
struct Audit {
  uint64_t requests = 0;  // reads and writes
  uint64_t hot = 0;       // pages whose reads in an epoch reached the threshold, over all epochs that have ended
  uint64_t epochs = 0;    // that have ended
  uint64_t read = 0;      // reports that were taken out of the ring
  uint64_t wrong = 0;     // of these, so many of pages that had not as many reads
};

class AuditedTracker final : public Tracker {
 public:
  // `slots`: pages of the device's memory. Requests to others are passed on and not counted.
  AuditedTracker(std::unique_ptr<Tracker> tracker, const TrackerOptions& options);

  void requests(std::span<const uint32_t> slots) override;
  void tick() override;
  void set_threshold(uint32_t threshold) override;
  void drain(uint32_t max, std::vector<Report>& reports) override;
  uint32_t discard() override { return tracker_->discard(); }
  TrackerState state() override { return tracker_->state(); }
  uint32_t places() const override { return tracker_->places(); }
  void watch(uint32_t place, uint32_t slot) override { tracker_->watch(place, slot); }
  uint32_t watched(uint32_t place) override { return tracker_->watched(place); }

  const Audit& audit() const { return audit_; }

 private:
  // Reads of each page in an epoch, and which pages had any.
  struct Epoch {
    std::vector<uint32_t> reads, pages;
  };

  std::unique_ptr<Tracker> tracker_;
  const uint32_t epoch_ticks_;
  uint32_t threshold_ = 1;
  uint64_t ticks_ = 0;
  Epoch now_, before_;
  Audit audit_;
};

}  // namespace neotier::pages
