// SPDX-License-Identifier: GPL-2.0-or-later
// Line fills over memory and time, in bounded memory: at most kRows bins of addresses and kColumns of time. Both axes
// begin fine; when one is full, neighbours are merged and its bins are twice as large from then on. No fill is lost:
// the cells always add up. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

namespace neotier::hil {

class Heatmap {
 public:
  static constexpr size_t kRows = 128, kColumns = 128;

  // `step_ps`: modelled time of a column to begin with.
  explicit Heatmap(uint64_t step_ps) : step_ps_(step_ps) {}

  struct Bin {
    bool cxl;
    uint64_t index;  // address / bin size
    bool operator<(const Bin& other) const { return std::tie(cxl, index) < std::tie(other.cxl, other.index); }
  };

  uint64_t step_ps() const { return step_ps_; }
  uint64_t bin_bytes() const { return uint64_t{4096} << shift_; }
  // Columns that have been in use; the last one may be partly filled.
  size_t columns() const { return column_ + 1; }
  // DRAM first, then by address.
  const std::map<Bin, std::array<uint64_t, kColumns>>& rows() const { return rows_; }

  // Whether `at_ps` lies beyond the column that add() fills.
  bool passed(uint64_t at_ps) const { return at_ps / step_ps_ > column_; }
  // Moves on to the column of `at_ps`.
  void advance(uint64_t at_ps) {
    while (at_ps / step_ps_ >= kColumns) halve_time();
    column_ = static_cast<size_t>(at_ps / step_ps_);
  }
  void add(bool cxl, uint64_t page, uint64_t fills) {
    rows_[{cxl, page >> shift_}][column_] += fills;
    while (rows_.size() > kRows) halve_addresses();
  }

 private:
  void halve_time() {
    for (auto& [bin, cells] : rows_) {
      for (size_t i = 0; i < kColumns; ++i) cells[i] = 2 * i < kColumns ? cells[2 * i] + cells[2 * i + 1] : 0;
    }
    step_ps_ *= 2;
    column_ /= 2;
  }

  void halve_addresses() {
    ++shift_;
    std::map<Bin, std::array<uint64_t, kColumns>> merged;
    for (const auto& [bin, cells] : rows_) {
      auto& to = merged[{bin.cxl, bin.index >> 1}];
      for (size_t i = 0; i < kColumns; ++i) to[i] += cells[i];
    }
    rows_ = std::move(merged);
  }

  uint64_t step_ps_;
  unsigned shift_ = 0;
  size_t column_ = 0;
  std::map<Bin, std::array<uint64_t, kColumns>> rows_;
};

}  // namespace neotier::hil
