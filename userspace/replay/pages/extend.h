// SPDX-License-Identifier: Apache-2.0
// A recording extended to larger CXL memory, up to that of a large server: what of profiler and module is full first.
// The recorded program is one of many alike (pages/tenants.h). Nothing is moved: what moves are worth is a question for
// the size that was recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/pages/recording.h"
#include "replay/pages/replay.h"

namespace neotier::pages {

// Bytes of memory whose pages of 4 KiB one device counts.
uint64_t most_bytes_of_device();

struct Size {
  uint64_t bytes = 0;      // of all devices
  uint64_t devices = 1;    // all alike
  uint32_t tenants = 1;    // of a device
  Result result{};         // of one device
  double cpu_seconds = 0;  // of this machine, for one device

  // Shares, 0 to 1. Of reports: that found the ring full, or were thrown away unread.
  double ring_lost() const, unread() const;
  // Of the entries of the table of pages that wait for confirmation, the most that were in use.
  double seen_used() const;
  // Of one core's time, for all devices: the module's thread, without its looks for victims, as the DRAM is not
  // extended.
  double cpu_used() const;
  // Of the reports that were read: of pages that had not been asked for as often as was said.
  double wrong() const;
};

// In what a size of memory is too large, by limits that are in the text.
struct Full {
  std::string what;   // "ring", "seen table", "CPU", "tracker"
  std::string limit;  // "more than 1 % of the reports are lost"
  double (*share)(const Size&);
  double most;
};
const std::vector<Full>& limits();

// As many tenants and devices as bytes ask for, rounded up. Throws std::runtime_error with one line where that is less
// than what was recorded, or more than 16 TiB.
Size plan_size(const Recording& recording, uint64_t bytes);

// `job`: law, tracker and parameters; its policy and tenants are ignored. Devices that are alike are replayed once.
// `threads` at a time; `done` is called after each, by any of them. Throws as replay() does, and where the recording
// has no request to CXL memory.
void extend(const Recording& recording, const Job& job, std::vector<Size>& sizes, unsigned threads,
            const std::function<void(size_t done, size_t all)>& done);

nlohmann::ordered_json to_json(const Size& size);
// One self-contained file with a plot of each limit. Throws std::runtime_error.
std::string make_page(const std::string& name, const std::vector<Size>& sizes);

}  // namespace neotier::pages
