// SPDX-License-Identifier: GPL-2.0-or-later
#include "hil/plugin/hot_page_source.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

namespace neotier::hil {

namespace {

constexpr unsigned kPageShift = 12;
constexpr uint64_t kTickUs = 100;

// A growing array of one value a page of host-physical memory.
template <typename T>
class PerPage {
 public:
  T& at(uint64_t page) {
    if (page >= values_.size()) values_.resize(std::max<uint64_t>(page + 1, values_.size() * 3 / 2));
    return values_[page];
  }
  uint64_t size() const { return values_.size(); }
  T& operator[](uint64_t page) { return values_[page]; }

 private:
  std::vector<T> values_;
};

// MEMTIS (SOSP 2023) without its huge page half: every `pebs_period`-th LLC miss is sampled; pages are ranked by a
// histogram of their sampled counts in powers of two; the hot threshold is the lowest bin at which all pages from there
// up still fit into DRAM; counts are halved at an interval. MEMTIS lengthens its period where sampling would take more
// than 3 % of a CPU. Its intervals (100 k samples between looks at the threshold, 2 M between halvings, 500 ms between
// migrations) are those of a server with some 32 GiB at work; like those of `numab-fast` they shrink with the memory.
class Pebs final : public HotPageSource {
 public:
  Pebs(const Params& params, const HotPageMachine& machine, Report report)
      : machine_(machine),
        report_(std::move(report)),
        first_period_(params.pebs_period),
        sample_ps_(params.pebs_sample_ns * 1000),
        halving_samples_(scaled(2'000'000)),
        period_(params.pebs_period),
        countdown_(params.pebs_period) {}

  void on_access(uint64_t) override {}

  void on_fill(uint64_t pa) override {
    if (--countdown_ != 0) return;
    countdown_ = period_;
    pending_ps_ += sample_ps_;
    const uint64_t page = pa >> kPageShift;
    uint32_t& count = counts_.at(page);
    if (count != 0) --bins_[bin(count)];
    ++bins_[bin(++count)];
    if (++samples_ % halving_samples_ == 0) halve();
  }

  uint64_t tick(uint64_t now_ps) override {
    const uint64_t work = std::exchange(pending_ps_, 0);
    work_ps_ += work;
    if (++ticks_ % (kMigrateUs / kTickUs) == 0) {
      keep_quota(now_ps);
      name_hot_pages();
    }
    return work;
  }

 private:
  static constexpr uint64_t kMigrateUs = 50'000;
  static constexpr uint64_t kQuotaPercent = 3;
  static constexpr uint64_t kReferencePages = (32ull << 30) >> kPageShift;

  uint64_t scaled(uint64_t samples) const {
    const uint64_t pages = machine_.dram_pages + (machine_.cxl_size >> kPageShift);
    return std::max<uint64_t>(1000, samples * pages / kReferencePages);
  }

  static size_t bin(uint32_t count) { return static_cast<size_t>(std::bit_width(count)) - 1; }

  void halve() {
    bins_.fill(0);
    for (uint64_t page = 0; page < counts_.size(); ++page) {
      uint32_t& count = counts_[page];
      count /= 2;
      if (count != 0) ++bins_[bin(count)];
    }
  }

  void keep_quota(uint64_t now_ps) {
    const uint64_t elapsed = now_ps - std::exchange(quota_from_ps_, now_ps);
    const uint64_t work = std::exchange(work_ps_, 0);
    const uint64_t allowed = elapsed * kQuotaPercent / 100;
    if (work > allowed) {
      period_ = std::min<uint64_t>(period_ * 3 / 2 + 1, 100'000);
    } else if (work < allowed / 2) {
      period_ = std::max(first_period_, period_ * 2 / 3);
    }
  }

  void name_hot_pages() {
    uint64_t pages = 0;
    size_t threshold = bins_.size();
    while (threshold > 0 && pages + bins_[threshold - 1] <= machine_.dram_pages) pages += bins_[--threshold];
    const uint64_t first = machine_.cxl_base >> kPageShift;
    const uint64_t last = std::min(counts_.size(), (machine_.cxl_base + machine_.cxl_size) >> kPageShift);
    for (uint64_t page = first; page < last; ++page) {
      if (counts_[page] != 0 && bin(counts_[page]) >= threshold) report_(page << kPageShift);
    }
  }

  HotPageMachine machine_;
  Report report_;
  uint64_t first_period_, sample_ps_, halving_samples_;
  uint64_t period_, countdown_;
  uint64_t samples_ = 0, ticks_ = 0;
  uint64_t pending_ps_ = 0, work_ps_ = 0, quota_from_ps_ = 0;
  PerPage<uint32_t> counts_;
  std::array<uint64_t, 32> bins_{};
};

// A scan of all page table entries every `ptescan_ms`, which takes the Accessed bits away. A page of the CXL tier that
// was accessed since the last scan may go up (NeoMem's `abit` baseline asks for one access too), those accessed in more
// of the last eight scans first, as many as its 256 MB/s allow.
class PteScan final : public HotPageSource {
 public:
  PteScan(const Params& params, const HotPageMachine& machine, Report report)
      : machine_(machine),
        report_(std::move(report)),
        interval_ticks_(params.ptescan_ms * 1000 / kTickUs),
        page_ps_(params.ptescan_page_ns * 1000),
        quota_pages_((256ull << 20 >> kPageShift) * params.ptescan_ms / 1000) {}

  void on_access(uint64_t pa) override {
    const uint64_t page = pa >> kPageShift;
    if (page != last_page_) {
      last_page_ = page;
      history_.at(page) |= 1;
    }
  }

  void on_fill(uint64_t) override {}

  uint64_t tick(uint64_t) override { return ++ticks_ % interval_ticks_ == 0 ? scan() : 0; }

 private:
  uint64_t scan() {
    std::array<std::vector<uint64_t>, 9> accessed;  // pages of the CXL tier, by scans of the last eight that saw them
    const uint64_t first = machine_.cxl_base >> kPageShift,
                   last = (machine_.cxl_base + machine_.cxl_size) >> kPageShift;
    uint64_t mapped = 0;
    for (uint64_t page = 0; page < history_.size(); ++page) {
      uint8_t& history = history_[page];
      if (history == 0) continue;
      ++mapped;
      if ((history & 1) && page >= first && page < last) {
        accessed[static_cast<size_t>(std::popcount(history))].push_back(page);
      }
      history = static_cast<uint8_t>(history << 1);
    }
    last_page_ = UINT64_MAX;
    uint64_t left = quota_pages_;
    for (size_t n = accessed.size(); n-- > 0;) {
      for (const uint64_t page : accessed[n]) {
        if (left == 0) break;
        --left;
        report_(page << kPageShift);
      }
    }
    return mapped * page_ps_;
  }

  HotPageMachine machine_;
  Report report_;
  uint64_t interval_ticks_, page_ps_, quota_pages_;
  uint64_t ticks_ = 0, last_page_ = UINT64_MAX;
  PerPage<uint8_t> history_;  // bit n: accessed in the interval n scans ago
};

}  // namespace

std::unique_ptr<HotPageSource> make_hot_page_source(std::string_view name, const Params& params,
                                                    const HotPageMachine& machine, HotPageSource::Report report) {
  if (name == "pebs") return std::make_unique<Pebs>(params, machine, std::move(report));
  if (name == "ptescan") return std::make_unique<PteScan>(params, machine, std::move(report));
  return nullptr;
}

}  // namespace neotier::hil
