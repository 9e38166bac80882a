// SPDX-License-Identifier: GPL-2.0-or-later
// What a kernel without a profiler in its memory device can know of hot pages, for the baselines `pebs` and `ptescan`:
// samples of cache misses, and the Accessed bits of page tables. Each names pages of the CXL tier as hot; the plugin
// passes them to the device as one request each, which at a threshold of 1 reports them to the driver. Emulated at the
// level of what the hardware would hand to software; the software's own work is charged as time, not run.
//
// Not thread-safe: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "hil/model/params.h"

namespace neotier::hil {

struct HotPageMachine {
  uint64_t cxl_base = 0, cxl_size = 0;  // bytes
  uint64_t dram_pages = 0;              // 4 KiB pages of DRAM that hot pages may fill
};

class HotPageSource {
 public:
  // Called with the host-physical address of a page of the CXL tier that is hot.
  using Report = std::function<void(uint64_t pa)>;

  virtual ~HotPageSource() = default;
  // A load or store of the guest, whether it hits a cache or not.
  virtual void on_access(uint64_t pa) = 0;
  // A line that was filled from memory, of either tier.
  virtual void on_fill(uint64_t pa) = 0;
  // 100 us of guest time have passed and `now_ps` of modelled time in all. Returns the modelled ps that the source's
  // own work has taken since the last call.
  virtual uint64_t tick(uint64_t now_ps) = 0;
};

// `name` is pebs or ptescan; any other returns nothing.
std::unique_ptr<HotPageSource> make_hot_page_source(std::string_view name, const Params& params,
                                                    const HotPageMachine& machine, HotPageSource::Report report);

}  // namespace neotier::hil
