// SPDX-License-Identifier: Apache-2.0
// A recording (trace/recording.h) in memory, as `neotier replay` walks through it: pages instead of addresses, each use
// of a piece of memory by somebody else a page of its own.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "trace/recording.h"

namespace neotier::pages {

// One step, 32 bits: what happens, and to which page.
enum class Step : uint32_t {
  kFill = 0,
  kWriteback = 1,
  kAccessed = 2,  // the page's Accessed bit is set
  kNew = 3,       // the page comes into being; it takes the place of an older one where Page::replaces says so
  kGone = 5,      // the page is freed
  kTime = 4,      // two more words follow: instructions and ps of modelled time without stalls that have passed
};
constexpr uint32_t kStepBits = 3;
constexpr uint32_t step_of(Step step, uint32_t page) { return page << kStepBits | static_cast<uint32_t>(step); }

inline constexpr uint32_t kNoPage = UINT32_MAX;

struct Page {
  uint32_t replaces = kNoPage;  // the page whose memory it got
  uint32_t owner = 0;           // who it belongs to, and where in there; 0: not known
  bool cxl = false;             // where the recorded run put it
  bool movable = false;         // a program's own; where a recording has no states of pages: accessed by a program
  bool evictable = false;       // movable, or of a file or of shared memory: the kernel demotes it
  // Of those that are evictable and not movable:
  bool cached =
      false;           // no program maps it; where a recording does not tell: none accessed it by an address of its own
  bool code = false;   // a program maps it, and none accessed it: nobody sees instructions that are fetched
  bool fresh = false;  // allocated during the recording
};

struct Recording {
  std::array<uint64_t, static_cast<size_t>(trace::Field::kNrFields)> fields{};
  uint64_t field(trace::Field field) const { return fields[static_cast<size_t>(field)]; }

  std::vector<uint32_t> steps;
  std::vector<Page> pages;
  uint64_t fills[2] = {0, 0};  // from {dram, cxl}, of the recorded run
  uint64_t writebacks[2] = {0, 0};
  uint64_t instructions = 0;
};

// Throws std::runtime_error with one line on a file that is no recording, damaged, cut short or of another version.
Recording read_recording(const std::filesystem::path& file);

}  // namespace neotier::pages
