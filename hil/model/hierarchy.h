// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// The machine's caches, its two memory tiers and its clock. Loads and stores go in; modelled time, misses per tier and
// the requests that reach the CXL memory device come out. All arithmetic is in whole picoseconds, so that a run repeats
// exactly. Not thread-safe.
//
// Model. time = instructions x base_ps + stalls. A load or store that misses stalls for (latency + queueing) / mlp: an
// out-of-order core overlaps about `mlp` independent misses. A tier serves one line in 64 / bandwidth and lines queue
// for it; a write-back takes the tier's time but stalls nobody. Caches are write-back, write-allocate and neither
// inclusive nor exclusive; a dirty victim moves one level down.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "hil/model/cache.h"
#include "hil/model/params.h"
#include "neotier/mailbox.h"

namespace neotier::hil {

enum Tier : int { kDram = 0, kCxl = 1 };

// Requests of 64 bytes to the CXL memory device, in order.
class DeviceSink {
 public:
  virtual ~DeviceSink() = default;
  virtual void request(uint64_t dpa, bool is_write) = 0;
};

// Every line that moves between the caches and memory, by host physical address (a multiple of 64).
class LineObserver {
 public:
  virtual ~LineObserver() = default;
  virtual void line(uint64_t hpa, bool cxl, bool is_write) = 0;
};

class Hierarchy {
 public:
  // Host-physical [cxl_base, cxl_base + cxl_size) is the slow tier; all else is DRAM. `sink` may be null.
  Hierarchy(const Params& params, uint64_t cxl_base, uint64_t cxl_size, DeviceSink* sink)
      : params_(params),
        l1_(params.l1_kib * 1024, static_cast<uint32_t>(params.l1_ways)),
        l2_(params.l2_kib * 1024, static_cast<uint32_t>(params.l2_ways)),
        llc_(params.llc_kib * 1024, static_cast<uint32_t>(params.llc_ways)),
        l2_stall_ps_(params.l2_ns * 1000 / params.mlp),
        llc_stall_ps_(params.llc_ns * 1000 / params.mlp),
        latency_ps_{params.dram_ns * 1000, params.cxl_ns * 1000},
        service_ps_{64'000'000 / params.dram_mb_s, 64'000'000 / params.cxl_mb_s},
        cxl_base_(cxl_base),
        cxl_size_(cxl_size),
        sink_(sink) {}

  // Moves the slow tier. Lines of its old place that are still cached count for what is there now.
  void set_slow_tier(uint64_t base, uint64_t size) {
    cxl_base_ = base;
    cxl_size_ = size;
  }
  uint64_t slow_base() const { return cxl_base_; }
  uint64_t slow_size() const { return cxl_size_; }
  bool in_slow_tier(uint64_t pa) const { return pa - cxl_base_ < cxl_size_; }

  // Pages of [base, base + pages x 4096) of the program's addresses whose bit is set are charged as DRAM from now on.
  void set_hot(uint64_t base, uint64_t pages, std::vector<uint64_t> bitmap) {
    hot_base_ = base;
    hot_pages_ = pages;
    hot_ = std::move(bitmap);
  }

  // Not owned; nullptr: none.
  void set_observer(LineObserver* observer) { observer_ = observer; }

  // Time that something beside the program's own accesses has taken.
  void spend(uint64_t ps) { other_stall_ps_ += ps; }

  // One load or store of at most 64 bytes that does not cross a line. `instructions` is the total so far.
  void access(uint64_t pa, uint64_t va, bool is_store, uint64_t instructions) {
    ++count_.accesses;
    const uint64_t line = pa >> 6;
    const uint32_t flags = is_store ? uint32_t{kLineDirty} : 0;
    if (l1_.touch(line, flags)) [[likely]]
      return;
    miss_l1(line, va, flags, instructions);
  }

  // Uncached access to the device's registers at `pa`. A streaming load (MOVNTDQA of write-combining memory) fetches
  // the whole line into a buffer, which serves the streaming loads of that line that follow.
  void mmio(uint64_t pa, bool is_store, bool is_streaming) {
    const uint64_t line = is_streaming ? pa >> 6 : kNoLine;
    if (is_store) {
      ++count_.bar_writes;
      other_stall_ps_ += params_.mmio_write_ns * 1000;
    } else if (line == kNoLine || line != streaming_line_) {
      ++count_.bar_reads;
      other_stall_ps_ += params_.mmio_read_ns * 1000;
    }
    streaming_line_ = line;
  }

  uint64_t now_ps(uint64_t instructions) const {
    return instructions * params_.base_ps + other_stall_ps_ + count_.stall_ps[kDram] + count_.stall_ps[kCxl];
  }

  // Totals; instructions are the caller's to add.
  neotier_counters counters(uint64_t instructions, uint64_t kernel_instructions) const {
    neotier_counters c = count_;
    c.instructions = instructions;
    c.kernel_instructions = kernel_instructions;
    c.modelled_ps = now_ps(instructions);
    return c;
  }

 private:
  Tier tier_of(uint64_t line, uint32_t flags) const { return in_cxl(line) && !(flags & kLineNear) ? kCxl : kDram; }
  bool in_cxl(uint64_t line) const { return in_slow_tier(line << 6); }

  bool hot(uint64_t va) const {
    const uint64_t page = (va - hot_base_) >> 12;
    return page < hot_pages_ && (hot_[page >> 6] >> (page & 63) & 1);
  }

  [[gnu::noinline]] void miss_l1(uint64_t line, uint64_t va, uint32_t flags, uint64_t instructions) {
    ++count_.l1_misses;
    l2_.prefetch(line);
    llc_.prefetch(line);
    const uint32_t near = find_below_l1(line, va, instructions);
    const Cache::Evicted victim = l1_.insert(line, flags | near);
    if (victim.valid && (victim.flags & kLineDirty) && !l2_.touch(victim.line, kLineDirty)) {
      put_l2(victim.line, victim.flags, instructions);
    }
  }

  // Brings the line into L2 and returns its kLineNear.
  uint32_t find_below_l1(uint64_t line, uint64_t va, uint64_t instructions) {
    if (l2_.touch(line, 0)) {
      other_stall_ps_ += l2_stall_ps_;
      return l2_.flags_of_touched(line) & kLineNear;
    }
    ++count_.l2_misses;
    uint32_t near = 0;
    if (llc_.touch(line, 0)) {
      other_stall_ps_ += llc_stall_ps_;
      near = llc_.flags_of_touched(line) & kLineNear;
    } else {
      near = hot_pages_ != 0 && in_cxl(line) && hot(va) ? uint32_t{kLineNear} : 0;
      fill(line, near, instructions);
      put_llc(line, near, instructions);
    }
    put_l2(line, near, instructions);
    return near;
  }

  void put_l2(uint64_t line, uint32_t flags, uint64_t instructions) {
    const Cache::Evicted victim = l2_.insert(line, flags);
    if (victim.valid && (victim.flags & kLineDirty) && !llc_.touch(victim.line, kLineDirty)) {
      put_llc(victim.line, victim.flags, instructions);
    }
  }

  void put_llc(uint64_t line, uint32_t flags, uint64_t instructions) {
    const Cache::Evicted victim = llc_.insert(line, flags);
    if (victim.valid && (victim.flags & kLineDirty)) write_back(victim.line, victim.flags, instructions);
  }

  // The tier's queue moves on by one line; returns how long a request arriving now waits.
  uint64_t occupy(Tier tier, uint64_t now) {
    const uint64_t start = std::max(now, free_at_ps_[tier]);
    free_at_ps_[tier] = start + service_ps_[tier];
    return start - now;
  }

  void fill(uint64_t line, uint32_t near, uint64_t instructions) {
    const Tier tier = tier_of(line, near);
    const uint64_t wait = occupy(tier, now_ps(instructions));
    ++count_.fills[tier];
    count_.stall_ps[tier] += (latency_ps_[tier] + wait) / params_.mlp;
    if (observer_) observer_->line(line << 6, in_cxl(line), false);
    if (in_cxl(line)) to_device(line, false);
  }

  void write_back(uint64_t line, uint32_t flags, uint64_t instructions) {
    const Tier tier = tier_of(line, flags);
    occupy(tier, now_ps(instructions));
    ++count_.writebacks[tier];
    if (observer_) observer_->line(line << 6, in_cxl(line), true);
    if (in_cxl(line)) to_device(line, true);
  }

  void to_device(uint64_t line, bool is_write) {
    ++(is_write ? count_.device_writes : count_.device_reads);
    if (sink_) sink_->request((line << 6) - cxl_base_, is_write);
  }

  Params params_;
  Cache l1_, l2_, llc_;
  uint64_t l2_stall_ps_, llc_stall_ps_;
  std::array<uint64_t, 2> latency_ps_, service_ps_;
  std::array<uint64_t, 2> free_at_ps_{};
  uint64_t other_stall_ps_ = 0;
  uint64_t cxl_base_, cxl_size_;
  DeviceSink* sink_;
  LineObserver* observer_ = nullptr;
  uint64_t hot_base_ = 0, hot_pages_ = 0;
  std::vector<uint64_t> hot_;
  neotier_counters count_{};
  static constexpr uint64_t kNoLine = UINT64_MAX;
  uint64_t streaming_line_ = kNoLine;  // that the streaming buffer has
};

}  // namespace neotier::hil
