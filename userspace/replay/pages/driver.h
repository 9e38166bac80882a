// SPDX-License-Identifier: Apache-2.0
// neotier.ko in a replay: its thread, with the module's own objects for whatever it decides, and the replay's memory
// and tracker in place of the kernel and the device. Follows kmod/promote.c and kmod/policy.c step by step. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "promotion/clock.h"
#include "promotion/drain.h"
#include "promotion/hotlist.h"
#include "promotion/ping_pong.h"
#include "promotion/promote.h"
#include "promotion/quota.h"
#include "promotion/room.h"
#include "promotion/watch.h"
#include "replay/pages/audit.h"
#include "replay/pages/exchange.h"
#include "replay/pages/law.h"
#include "replay/pages/memory.h"
#include "replay/pages/replay.h"
#include "replay/pages/tenants.h"
#include "replay/pages/tracker.h"

namespace neotier::pages {

// The program, which shares the CPU with the driver's thread and kswapd.
class Program {
 public:
  virtual ~Program() = default;
  // Goes on until then, or to its end.
  virtual void run_until(uint64_t guest_ns) = 0;
};

class Driver {
 public:
  // Throws std::runtime_error with one line for a law or tracker of no known name.
  Driver(const Recording& recording, Memory& memory, const Job& job, bool dry_run);

  // Not owned. Until then nothing runs in the middle of the thread's work.
  void set_program(Program& program) { program_ = &program; }

  // Guest ns at which the thread, or kswapd on its behalf, wants to run. Not while the thread has been preempted.
  uint64_t wakes_at() const { return running_ ? UINT64_MAX : std::min(wakes_at_ns_, kswapd_at_ns_); }
  void wake();
  // 100 us of guest time have passed.
  void tick() {
    pass_requests();
    tracker_->tick();
    tenants_.tick();
    ++ticks_;
  }
  // Of the law; the rest is the memory's.
  Result result() const;

 private:
  static const neotier_hotlist_ops kHotlistOps;
  static const neotier_promote_ops kPromoteOps;
  static const neotier_watch_ops kWatchOps;
  static Driver& of(void* owner) { return *static_cast<Driver*>(owner); }

  uint64_t now_ns() const { return memory_.guest_ns(); }
  // The module's two clocks: the guest's, and the machine's that its device hands out.
  neotier_time time() const { return {now_ns(), memory_.now_ps() / 1000}; }
  uint64_t quota_rate() const { return neotier_quota_rate(params_.quota_mb_per_s); }
  void pass_requests() {
    tracker_->requests(tenants_.beside(memory_.requests()));
    memory_.clear_requests();
  }
  // Pages of the device's memory: of all tenants.
  uint32_t slots() const { return memory_.slots() * tenants_.count(); }
  void look_at_tables(uint64_t now);
  neotier_levels levels() const;
  neotier_next step();
  void yield_turn();
  uint64_t identity(uint32_t page) const;
  void settle(uint64_t interval_ns, const TrackerState& state, uint32_t threshold);
  // Modelled, without what others have had of the CPU meanwhile.
  uint64_t own_ps() const { return memory_.now_ps() - others_ps_; }
  void count_thread() {
    counts_.thread_ns += (own_ps() - counted_ps_) / 1000;
    counted_ps_ = own_ps();
  }
  void run_thread();
  void run_kswapd();
  void wake_kswapd();
  void decide(uint64_t now);
  void drain(uint64_t now);
  void keep_reserve(uint64_t now);
  void drop_reserve();
  int migrate(const neotier_hot* batch, uint32_t nr);
  // Of exchange: free pages that nobody misses, room for a batch (how many of nr), victims that are demoted.
  uint64_t unpaid() const;
  uint32_t exchange_room(uint32_t nr);
  uint32_t demote(uint32_t nr);
  void look_for_victims();
  bool too_soon(const neotier_ping_pong& moved, uint64_t identity) const;
  uint32_t least_pages() const { return exchange_ ? NEOTIER_LEDGER_LEAST_EXCHANGE : NEOTIER_LEDGER_LEAST_KSWAPD; }

  Memory& memory_;
  const Params params_;
  const bool dry_run_;
  Tenants tenants_;
  std::unique_ptr<Tracker> tracker_;
  const AuditedTracker* audited_ = nullptr;  // the same, where there are several tenants
  const neotier_policy* law_;
  uint64_t peak_lines_per_tick_ = 0;

  std::vector<uint64_t> queued_;
  std::vector<neotier_seen> seen_;
  std::vector<neotier_waiting_place> places_;
  std::vector<neotier_ping_pong_entry> ping_pong_entries_, regret_entries_;
  std::optional<Exchange> exchange_;  // none: kswapd makes room
  std::vector<neotier_hot> batch_;
  neotier_hotlist hotlist_{};
  neotier_ping_pong ping_pong_{}, regrets_{};
  neotier_promotion promotion_{};
  neotier_bucket bucket_{};
  neotier_room room_{};
  neotier_drain drain_{};
  neotier_clock clock_{};
  neotier_watch watch_{};
  alignas(8) uint8_t policy_state_[NEOTIER_POLICY_STATE_BYTES] = {};

  Program* program_ = nullptr;
  bool started_ = false, running_ = false;  // running: the thread, which may have been preempted
  uint64_t wakes_at_ns_ = 0, next_period_ns_ = 0, decided_ns_ = 0, turn_ends_ns_ = 0;
  uint32_t room_wait_us_ = NEOTIER_ROOM_WAIT_US;
  bool kswapd_awake_ = false;
  uint64_t kswapd_at_ns_ = UINT64_MAX;  // its next turn
  TrackerState observed_;               // when it last decided
  uint64_t ticks_ = 0;                  // 100 us each
  uint64_t others_ps_ = 0;              // of kswapd and the program in the middle of the thread's work
  Result counts_, decided_counts_;
  uint64_t settled_ps_ = 0, counted_ps_ = 0;
  std::vector<Report> reports_;
};

}  // namespace neotier::pages
