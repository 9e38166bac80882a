// SPDX-License-Identifier: GPL-2.0-or-later
// What happened when, over the region of interest: counters at fixed steps of modelled time, exact accesses of every
// 4 KiB page, a heatmap of them, and how the device's reports compare with the exact counts. It only watches: figures
// are the same with and without it. Memory is bounded by the guest's (32 bytes a page) and fixed numbers of samples.
//
// Thread safety: one thread; reported() may be called from another one that the caller has waited for before it calls
// anything else (DeviceThread::settle).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "hil/plugin/heatmap.h"
#include "neotier/mailbox.h"

namespace neotier::hil {

// Of all devices together, since power-on; from their registers.
struct DeviceCounters {
  uint64_t epochs = 0;  // of the first device
  uint64_t lost_tap = 0, lost_ring = 0, lost_candidates = 0, saturated = 0;
  // How they are set now.
  uint64_t threshold = 0;  // CFG0.THRESHOLD
  unsigned unit_shift = 12;
  bool counts_reads = true, counts_writes = true;
};

class Timeline {
 public:
  // Samples are merged in pairs when there are this many.
  static constexpr size_t kSteps = 512;

  void begin(const neotier_counters& counters, const DeviceCounters& device);

  // A line fill or write-back of 64 bytes at host physical address `hpa`. Cheap: called for each.
  void line(uint64_t hpa, bool cxl, bool is_write) {
    Page& page = page_of(hpa, cxl);
    if (is_write) {
      ++page.writes;
      ++page.epoch_writes;
    } else {
      ++page.reads;
      ++page.epoch_reads;
      ++page.heat;
    }
  }

  // The device has put the unit that contains `hpa` into its hotlist.
  void reported(uint64_t hpa) { reports_.push_back(hpa); }

  // Some time has passed: a few thousand instructions, so that steps are exact to that. Every request so far has had
  // all its effects in the device.
  void tick(const neotier_counters& counters, const DeviceCounters& device);

  // Pages that the guest has promoted and demoted since it booted. After end() they belong to the last step: the guest
  // reads its counters when its region has ended.
  void moved(uint64_t promoted, uint64_t demoted);

  void end(const neotier_counters& counters, const DeviceCounters& device);

  // Keys "timeline", "pages" and "reports" of docs/hil.md.
  nlohmann::ordered_json json() const;

 private:
  static constexpr uint64_t kFirstStepPs = 1'000'000'000;  // 1 ms
  static constexpr size_t kChunkPages = 512;

  // Everything that is counted and adds up over steps.
  enum Series : size_t {
    kDramFills,
    kCxlFills,
    kDramWritebacks,
    kCxlWritebacks,
    kInstructions,
    kKernelInstructions,
    kDeviceReads,
    kDeviceWrites,
    kRegisterReads,
    kRegisterWrites,
    kReported,
    kLostTap,
    kLostRing,
    kLostCandidates,
    kSaturated,
    kPromoted,
    kDemoted,
    kJudgedEpochs,
    kJudgedUnits,
    kRightUnits,
    kReportedRequests,
    kTopRequests,
    kHotUnits,
    kHotReported,
    kNrSeries
  };
  static const std::array<std::string_view, kNrSeries> kNames;
  using Values = std::array<uint64_t, kNrSeries>;

  struct Page {
    uint64_t reads = 0, writes = 0;
    uint32_t heat = 0;  // fills in the heatmap's current column
    uint32_t epoch_reads = 0, epoch_writes = 0;
  };
  struct Chunk {
    bool cxl = false;
    std::array<Page, kChunkPages> pages{};
  };

  Page& page_of(uint64_t hpa, bool cxl) {
    const size_t index = static_cast<size_t>(hpa >> 21);
    if (index >= chunks_.size() || !chunks_[index]) [[unlikely]]
      add_chunk(index, cxl);
    return chunks_[index]->pages[hpa >> 12 & (kChunkPages - 1)];
  }
  void add_chunk(size_t index, bool cxl);
  template <class Act>
  void each_page(Act act) const;

  uint64_t since_begin_ps(const neotier_counters& c) const { return c.modelled_ps - begin_.modelled_ps; }
  void take(const neotier_counters& counters, const DeviceCounters& device);
  void store(uint64_t at_ps);
  void fold_heat();
  void judge_epoch(const DeviceCounters& device);
  nlohmann::ordered_json pages_json(bool dram, bool cxl) const;

  bool running_ = false;
  neotier_counters begin_{};
  DeviceCounters device_;  // as last seen
  uint64_t end_ps_ = 0, step_ps_ = kFirstStepPs;
  Values now_{};                                // since begin
  std::vector<Values> samples_;                 // at the end of each step, since begin
  std::vector<std::unique_ptr<Chunk>> chunks_;  // by address / 2 MiB
  Heatmap heatmap_{kFirstStepPs};
  std::vector<uint64_t> reports_;  // since the device's epoch began
  size_t counted_reports_ = 0;     // of reports_, those in now_
  bool whole_epoch_ = false;       // all of the running epoch has been watched
  bool moves_known_ = false;
  uint64_t moved_begin_[2] = {0, 0};
};

}  // namespace neotier::hil
