// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/audit.h"

#include <algorithm>
#include <utility>

namespace neotier::pages {

AuditedTracker::AuditedTracker(std::unique_ptr<Tracker> tracker, const TrackerOptions& options)
    : tracker_(std::move(tracker)), epoch_ticks_(options.epoch_ticks) {
  now_.reads.resize(options.slots);
  before_.reads.resize(options.slots);
}

void AuditedTracker::requests(std::span<const uint32_t> slots) {
  audit_.requests += slots.size();
  for (const uint32_t slot : slots) {
    if (slot & 1 || slot >> 1 >= now_.reads.size()) continue;
    if (now_.reads[slot >> 1]++ == 0) now_.pages.push_back(slot >> 1);
  }
  tracker_->requests(slots);
}

void AuditedTracker::tick() {
  tracker_->tick();
  if (++ticks_ % epoch_ticks_ != 0) return;
  ++audit_.epochs;
  audit_.hot += static_cast<uint64_t>(std::count_if(now_.pages.begin(), now_.pages.end(),
                                                    [&](uint32_t page) { return now_.reads[page] >= threshold_; }));
  for (const uint32_t page : before_.pages) before_.reads[page] = 0;
  before_.pages.clear();
  std::swap(now_, before_);
}

void AuditedTracker::set_threshold(uint32_t threshold) {
  threshold_ = threshold;
  tracker_->set_threshold(threshold);
}

// A report may be read after its epoch has ended, and after the threshold has changed. It says that a page had as many
// requests as the threshold was then, and so it is held to the lower one.
void AuditedTracker::drain(uint32_t max, std::vector<Report>& reports) {
  const size_t first = reports.size();
  tracker_->drain(max, reports);
  for (size_t i = first; i < reports.size(); ++i) {
    const Report& report = reports[i];
    if (report.slot >= now_.reads.size()) continue;
    ++audit_.read;
    const uint32_t reads = std::max(now_.reads[report.slot], before_.reads[report.slot]);
    audit_.wrong += reads < std::min(report.count, threshold_);
  }
}

}  // namespace neotier::pages
