// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// The machine's caches, its two memory tiers and its clock. Loads and stores go in; modelled time, misses per tier and
// the requests that reach the CXL memory device come out. All arithmetic is in whole picoseconds, so that a run repeats
// exactly. Not thread-safe.
//
// Model. time = instructions x base_ps + stalls. A tier serves one line in 64 / bandwidth and lines queue for it; a
// write-back takes the tier's time but stalls nobody. Caches are write-back, write-allocate and neither inclusive nor
// exclusive; a dirty victim moves one level down. How long an access stalls, with the parameter `streams`:
//   0: (latency + queueing) / mlp: an out-of-order core overlaps about `mlp` independent misses.
//   1: by what the core knows of it. A line of a detected stream comes when its prefetcher can have it. Other accesses
//   are
//      sent together while they fit the core's window and its fill buffers and their addresses are known; the core then
//      waits for the last one. An access shorter than the window takes to fill stalls nobody but those that follow it.
// With `tlb`, an access first needs its translation; a walk's reads of the tables go through the caches.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "hil/model/cache.h"
#include "hil/model/params.h"
#include "hil/model/streams.h"
#include "hil/model/tlb.h"
#include "neotier/mailbox.h"

namespace neotier::hil {

enum Tier : int { kDram = 0, kCxl = 1 };

// Since instrumentation began.
struct InstructionCounts {
  uint64_t user = 0, kernel = 0;
  uint64_t all() const { return user + kernel; }
};

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
  // `tables`, not owned, is where the guest's page tables are read; the parameter `tlb` needs it.
  Hierarchy(const Params& params, uint64_t cxl_base, uint64_t cxl_size, DeviceSink* sink,
            const PhysicalMemory* tables = nullptr)
      : params_(params),
        l1_(params.l1_kib * 1024, static_cast<uint32_t>(params.l1_ways)),
        l2_(params.l2_kib * 1024, static_cast<uint32_t>(params.l2_ways)),
        llc_(params.llc_kib * 1024, static_cast<uint32_t>(params.llc_ways)),
        kernel_ps_(params.kernel_base_ps != 0 ? params.kernel_base_ps : params.base_ps),
        window_ps_(params.rob * params.base_ps),
        latency_ps_{params.dram_ns * 1000, params.cxl_ns * 1000},
        service_ps_{64'000'000 / params.dram_mb_s, 64'000'000 / params.cxl_mb_s},
        cxl_base_(cxl_base),
        cxl_size_(cxl_size),
        sink_(sink),
        tables_(tables) {
    if (params.streams != 0) core_ = std::make_unique<Core>();
    if (params.tlb != 0 && tables) tlb_ = std::make_unique<Tlb>(params);
  }

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

  // One load or store of at most 64 bytes that does not cross a line, by the instruction at `pc`. True: loaded() wants
  // the value, if it was a load.
  bool access(uint64_t pa, uint64_t va, bool is_store, const InstructionCounts& n, uint64_t pc = 0) {
    ++count_.accesses;
    const uint64_t line = pa >> 6;
    const uint32_t flags = is_store ? uint32_t{kLineDirty} : 0;
    if (tlb_ && !tlb_->hit(va)) [[unlikely]]
      return access_untranslated(pa, va, flags, n, pc);
    if (l1_.touch(line, flags)) [[likely]]
      return line == missed_line_;
    Request request = request_of(va, pc, is_store, n);
    return miss_l1(line, flags, request);
  }

  // What the load just made has read, of 4 bytes or more.
  void loaded(uint64_t pc, uint64_t va, uint64_t value) {
    if (core_) core_->dependence.loaded(pc, va, value, missed_done_ps_);
  }

  // The guest has another root of its page tables.
  void set_address_space(uint64_t root) { root_ = root; }
  // Its processor's orders to the TLB.
  void flush_tlb(bool all) {
    if (tlb_) tlb_->flush(all);
  }
  void invalidate_page(uint64_t va) {
    if (tlb_) tlb_->invalidate(va);
  }
  // By the guest's tables as they are now; changes nothing.
  Translation translate(uint64_t va) const { return walk_tables(*tables_, root_, va); }
  bool has_tlb() const { return tlb_ != nullptr; }

  // The kernel has told other processors to drop translations, and waits for them.
  void shoot_down() {
    ++count_.shootdowns;
    other_stall_ps_ += (params_.shootdown_cpus - 1) * params_.shootdown_ns * 1000;
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

  uint64_t now_ps(const InstructionCounts& n) const {
    return n.user * params_.base_ps + n.kernel * kernel_ps_ + other_stall_ps_ + count_.stall_ps[kDram] +
           count_.stall_ps[kCxl];
  }

  // Charged so far for the fills of `tier`; a fill has been charged when its line is observed.
  uint64_t stall_ps(Tier tier) const { return count_.stall_ps[tier]; }

  // Totals; instructions are the caller's to add.
  neotier_counters counters(const InstructionCounts& n) const {
    neotier_counters c = count_;
    c.instructions = n.all();
    c.kernel_instructions = n.kernel;
    c.modelled_ps = now_ps(n);
    return c;
  }

 private:
  // What the core remembers of the order of misses.
  struct Core {
    StreamDetector streams;
    Dependence dependence;
    // Accesses that are sent together: since which instruction, how many, and for how long the core has waited for
    // them.
    uint64_t window_begin = 0, window_misses = UINT64_MAX, window_stall_ps = 0;
  };

  // An access that is under way below the first level, or whose translation is.
  struct Request {
    uint64_t va;
    const InstructionCounts& n;
    uint64_t sent_ps;                      // when the core can send it
    bool joins;                            // what has been sent before, and is still awaited
    uint64_t walk_ps;                      // from then on until its address is known
    const StreamDetector::Stream* stream;  // whose prefetched line it is; else nullptr
  };

  static constexpr int kNoTier = -1;

  Tier tier_of(uint64_t line, uint32_t flags) const { return in_cxl(line) && !(flags & kLineNear) ? kCxl : kDram; }
  bool in_cxl(uint64_t line) const { return in_slow_tier(line << 6); }

  bool hot(uint64_t va) const {
    const uint64_t page = (va - hot_base_) >> 12;
    return page < hot_pages_ && (hot_[page >> 6] >> (page & 63) & 1);
  }

  Request request_of(uint64_t va, uint64_t pc, bool is_store, const InstructionCounts& n) {
    const uint64_t now = now_ps(n);
    if (!core_) return {va, n, now, false, 0, nullptr};
    // Nothing waits for a store, whose address comes early.
    const uint64_t known = is_store ? 0 : core_->dependence.known_ps(pc, va);
    const uint64_t sent = now - core_->window_stall_ps;
    const bool joins =
        core_->window_misses < params_.fill_buffers && n.all() - core_->window_begin < params_.rob && known <= sent;
    if (known > sent) ++count_.dependent;
    return {va, n, joins ? sent : std::max(now, known), joins, 0, nullptr};
  }

  // The core has sent `request`, which takes `latency_ps` after its translation, from `tier` or a cache.
  void settle(const Request& request, uint64_t latency_ps, int tier) {
    uint64_t& stall = tier == kNoTier ? other_stall_ps_ : count_.stall_ps[tier];
    const uint64_t latency = request.walk_ps + latency_ps;
    if (!core_) {
      stall += latency_ps / params_.mlp;
      other_stall_ps_ += request.walk_ps / params_.mlp;
      return;
    }
    const uint64_t now = now_ps(request.n);
    const uint64_t done = request.sent_ps + latency;
    missed_done_ps_ = done;
    if (latency <= window_ps_) {
      if (request.sent_ps > now) stall += request.sent_ps - now;
      return;
    }
    if (!request.joins) {
      core_->window_begin = request.n.all();
      core_->window_misses = core_->window_stall_ps = 0;
    }
    ++core_->window_misses;
    if (done <= now) return;
    stall += done - now;
    core_->window_stall_ps += done - now;
  }

  // A line that its prefetcher asked for `latency_ps` or more ago, if it could: it runs `prefetch_lines` ahead at most.
  void settle_prefetched(const Request& request, uint64_t done_ps, uint64_t latency_ps, Tier tier) {
    const uint64_t now = now_ps(request.n);
    const uint64_t done = std::max(done_ps, request.stream->used_ps + latency_ps / params_.prefetch_lines);
    missed_done_ps_ = std::max(now, done);
    count_.stall_ps[tier] += missed_done_ps_ - now;
    ++count_.prefetched;
  }

  [[gnu::noinline]] bool access_untranslated(uint64_t pa, uint64_t va, uint32_t flags, const InstructionCounts& n,
                                             uint64_t pc) {
    const Tlb::Level level = tlb_->find(va);
    const uint64_t line = pa >> 6;
    if (level == Tlb::Level::kFirst) {
      if (l1_.touch(line, flags)) return line == missed_line_;
      Request request = request_of(va, pc, flags != 0, n);
      return miss_l1(line, flags, request);
    }
    Request request = request_of(va, pc, flags != 0, n);
    request.walk_ps = params_.tlb_l2_ps;
    if (level == Tlb::Level::kNone) request.walk_ps += walk(request);
    if (!l1_.touch(line, flags)) return miss_l1(line, flags, request);
    settle(request, 0, kNoTier);
    if (core_) missed_line_ = line;
    return true;
  }

  // One of the walkers reads the entries one after another, through the caches. Returns how long the request waits.
  uint64_t walk(const Request& request) {
    const Translation t = translate(request.va);
    // The access has happened, so the page was there; the guest may have changed its tables since.
    if (!t.present) return 0;
    ++count_.walks[t.size];
    uint64_t latency = 0;
    Request read = request;
    for (int i = tlb_->spared(request.va, t); i < t.nr_entries; ++i) {
      const uint64_t line = t.entries[static_cast<size_t>(i)] >> 6;
      if (l1_.touch(line, 0)) continue;
      read.sent_ps = request.sent_ps + latency;
      latency += find_below_l1(line, read, true);
      put_l1(line, 0, request.n);
    }
    tlb_->fill(request.va, t);
    if (!core_) return latency;
    const uint64_t begin = std::max(request.sent_ps, walkers_free_ps_);
    walkers_free_ps_ = begin + latency / params_.page_walkers;
    return begin - request.sent_ps + latency;
  }

  [[gnu::noinline]] bool miss_l1(uint64_t line, uint32_t flags, Request& request) {
    ++count_.l1_misses;
    l2_.prefetch(line);
    llc_.prefetch(line);
    StreamDetector::Stream* stream = nullptr;
    if (core_) {
      stream = &core_->streams.miss(line);
      if (stream->prefetched()) request.stream = stream;
      missed_line_ = line;
    }
    find_below_l1(line, request, false);
    if (stream) stream->used_ps = now_ps(request.n);
    put_l1(line, flags | (l2_.flags_of_touched(line) & kLineNear), request.n);
    return stream != nullptr;
  }

  void put_l1(uint64_t line, uint32_t flags, const InstructionCounts& n) {
    const Cache::Evicted victim = l1_.insert(line, flags);
    if (victim.valid && (victim.flags & kLineDirty) && !l2_.touch(victim.line, kLineDirty)) {
      put_l2(victim.line, victim.flags, n);
    }
  }

  // Brings the line into L2, where it is the last one touched. Of a walk: returns its latency, which the caller
  // settles.
  uint64_t find_below_l1(uint64_t line, const Request& request, bool of_walk) {
    if (l2_.touch(line, 0)) return found(request, params_.l2_ns * 1000, of_walk);
    ++count_.l2_misses;
    uint32_t near = 0;
    uint64_t latency;
    if (llc_.touch(line, 0)) {
      latency = found(request, params_.llc_ns * 1000, of_walk);
      near = llc_.flags_of_touched(line) & kLineNear;
    } else {
      near = !of_walk && hot_pages_ != 0 && in_cxl(line) && hot(request.va) ? uint32_t{kLineNear} : 0;
      latency = fill(line, near, request, of_walk);
      put_llc(line, near, request.n);
    }
    put_l2(line, near, request.n);
    return latency;
  }

  uint64_t found(const Request& request, uint64_t latency, bool of_walk) {
    if (of_walk) return latency;
    // A prefetched line is as good as here.
    settle(request, request.stream ? 0 : latency, kNoTier);
    return latency;
  }

  void put_l2(uint64_t line, uint32_t flags, const InstructionCounts& n) {
    const Cache::Evicted victim = l2_.insert(line, flags);
    if (victim.valid && (victim.flags & kLineDirty) && !llc_.touch(victim.line, kLineDirty)) {
      put_llc(victim.line, victim.flags, n);
    }
  }

  void put_llc(uint64_t line, uint32_t flags, const InstructionCounts& n) {
    const Cache::Evicted victim = llc_.insert(line, flags);
    if (victim.valid && (victim.flags & kLineDirty)) write_back(victim.line, victim.flags, n);
  }

  // The tier's queue moves on by one line; returns how long a request arriving at `at` waits. Accesses that overlap are
  // looked at one after another, so some arrive before one that was already seen: such a one finds the queue as it is.
  uint64_t occupy(Tier tier, uint64_t at) {
    seen_ps_[tier] = std::max(seen_ps_[tier], at);
    const uint64_t start = std::max(seen_ps_[tier], free_at_ps_[tier]);
    free_at_ps_[tier] = start + service_ps_[tier];
    return start - seen_ps_[tier];
  }

  uint64_t fill(uint64_t line, uint32_t near, const Request& request, bool of_walk) {
    const Tier tier = tier_of(line, near);
    const bool prefetched = request.stream && !of_walk;
    const uint64_t latency_alone = latency_ps_[tier];
    const uint64_t known = request.sent_ps + request.walk_ps;
    const uint64_t sent = prefetched ? known - std::min(known, latency_alone) : known;
    const uint64_t latency = latency_alone + occupy(tier, sent);
    ++count_.fills[tier];
    if (prefetched)
      settle_prefetched(request, sent + latency, latency_alone, tier);
    else if (!of_walk)
      settle(request, latency, tier);
    if (observer_) observer_->line(line << 6, in_cxl(line), false);
    if (in_cxl(line)) to_device(line, false);
    return latency;
  }

  void write_back(uint64_t line, uint32_t flags, const InstructionCounts& n) {
    const Tier tier = tier_of(line, flags);
    occupy(tier, now_ps(n));
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
  uint64_t kernel_ps_;  // per instruction of the kernel
  uint64_t window_ps_;  // how long the core takes to fill its window
  std::array<uint64_t, 2> latency_ps_, service_ps_;
  std::array<uint64_t, 2> free_at_ps_{}, seen_ps_{};
  uint64_t other_stall_ps_ = 0;
  uint64_t cxl_base_, cxl_size_;
  DeviceSink* sink_;
  LineObserver* observer_ = nullptr;
  uint64_t hot_base_ = 0, hot_pages_ = 0;
  std::vector<uint64_t> hot_;
  neotier_counters count_{};
  static constexpr uint64_t kNoLine = UINT64_MAX;
  uint64_t streaming_line_ = kNoLine;  // that the streaming buffer has

  std::unique_ptr<Core> core_;      // with `streams`
  uint64_t missed_line_ = kNoLine;  // the last one, with `streams`: what is read of it may be an address
  uint64_t missed_done_ps_ = 0;     // when it came
  std::unique_ptr<Tlb> tlb_;        // with `tlb`
  const PhysicalMemory* tables_ = nullptr;
  uint64_t root_ = 0;             // CR3
  uint64_t walkers_free_ps_ = 0;  // when the next walk may begin
};

}  // namespace neotier::hil
