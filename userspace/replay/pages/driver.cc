// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace neotier::pages {

using trace::Field;

namespace {
constexpr uint64_t kUs = 1000, kMs = 1'000'000, kTickNs = 100 * kUs;
// The one CPU is taken from whoever has it at a tick of 250 Hz, unless it has had it for less than the scheduler's
// slice. kswapd and the program have turns of one tick each. The thread, which sleeps most of the time, has credit: of
// 295 ticks at which it had run for longer than a slice, in eight runs, it was preempted at 119, as many as if its
// slice were 3 ms.
constexpr uint64_t kTickOfKernelNs = 4 * kMs, kSliceNs = 750 * kUs, kThreadSliceNs = 3 * kMs;
constexpr uint64_t end_of_turn(uint64_t begin, uint64_t slice) {
  return (begin + slice + kTickOfKernelNs - 1) / kTickOfKernelNs * kTickOfKernelNs;
}
// For a law that looks at it.
constexpr uint64_t kHistogramReads = NEOTIER_HISTOGRAM_BINS / 2;
constexpr uint64_t kReportsPerRead = 8;  // a line of the ring, read by streaming loads
// Identities of pages: all that programs map is one mapping, by a page's number, or by the owner that the
// recording tells.
constexpr uint64_t kPages = 1, kOwners = 2;
// Lines that the kernel fetches for a report, in hundredths: of the module's table, which lies in either tier. Nobody
// knows in which, so half is taken from each.
constexpr uint64_t kReportDram = 45, kReportCxl = 45;

uint64_t link_per_tick(const Recording& recording) {
  return std::max<uint64_t>(1, kTickNs * 1000 / std::max<uint64_t>(1, recording.field(Field::kCxlServicePs)));
}

Tenants tenants_of(const Recording& recording, uint32_t tenants) {
  if (tenants <= 1) return {};
  const uint64_t guest_ns = recording.field(Field::kModelledClock) != 0
                                ? recording.field(Field::kEndModelledNs)
                                : recording.instructions << recording.field(Field::kShift);
  const uint64_t ticks = guest_ns / kTickNs;
  const uint64_t requests = recording.fills[1] + recording.writebacks[1];
  return Tenants(static_cast<uint32_t>(recording.field(Field::kCxlBytes) >> 12), tenants,
                 static_cast<double>(requests) / static_cast<double>(std::max<uint64_t>(1, ticks)),
                 static_cast<uint32_t>(link_per_tick(recording)));
}

}  // namespace

const neotier_hotlist_ops Driver::kHotlistOps = {
    [](void* owner, uint32_t slot, bool) {
      const Driver& d = of(owner);
      const uint32_t page = d.memory_.page_of(d.tenants_.recorded(slot));
      if (page == kNoPage) return NEOTIER_SKIP_NOT_LRU;
      return d.memory_.moves(page) ? NR_NEOTIER_SKIP : NEOTIER_SKIP_FILE;
    },
    [](void* owner, uint32_t, neotier_skip reason) {
      of(owner).counts_.unconfirmed += reason == NEOTIER_SKIP_UNCONFIRMED;
      of(owner).counts_.control += reason == NEOTIER_SKIP_CONTROL;
    },
    [](void* owner, uint32_t slot) { return of(owner).memory_.demoted_lately(of(owner).tenants_.recorded(slot)); },
    [](void* owner, uint32_t slot) -> u64 {
      const Driver& d = of(owner);
      const uint32_t page = d.memory_.page_of(d.tenants_.recorded(slot));
      return page == kNoPage ? 0 : d.identity(page);
    }};

const neotier_promote_ops Driver::kPromoteOps = {
    [](void* owner, uint32_t pages) {
      Driver& d = of(owner);
      return neotier_bucket_take(&d.bucket_, d.quota_rate(), pages, d.now_ns());
    },
    [](void* owner, uint32_t pages) { neotier_bucket_return(&of(owner).bucket_, pages); },
    [](void* owner) -> u64 {
      const Driver& d = of(owner);
      if (d.exchange_) return d.unpaid() + d.exchange_->victims();
      const neotier_levels levels = d.levels();
      return neotier_room_pages(&d.room_, d.hotlist_.waiting.nr, &levels);
    },
    [](void* owner) {
      Driver& d = of(owner);
      if (d.exchange_ || neotier_room_hold(&d.room_, d.hotlist_.waiting.nr)) return false;
      d.wake_kswapd();
      neotier_room_asked(&d.room_, d.now_ns());
      return true;
    },
    [](void* owner, neotier_hot* batch, uint32_t nr) { return of(owner).migrate(batch, nr); },
    [](void* owner, neotier_promote_event event, uint32_t n) {
      Driver& d = of(owner);
      (event == NEOTIER_EVENT_DRY_RUN     ? d.counts_.tried_dry
       : event == NEOTIER_EVENT_ROOM_HOLD ? d.counts_.room_holds
                                          : d.counts_.room_waits) += n;
    }};

const neotier_watch_ops Driver::kWatchOps = {
    [](void* owner, uint32_t place, uint32_t slot) { of(owner).tracker_->watch(place, slot); },
    [](void* owner, uint32_t place) -> u32 {
      Driver& d = of(owner);
      d.memory_.spend_reads(1);
      return d.tracker_->watched(place);
    },
    kHotlistOps.identity};

Driver::Driver(const Recording& recording, Memory& memory, const Job& job, bool dry_run)
    : memory_(memory),
      params_(job.params),
      dry_run_(dry_run),
      tenants_(tenants_of(recording, job.tenants)),
      law_(find_law(job.law)),
      queued_(neotier_hotlist_words(slots())),
      seen_(NEOTIER_SEEN_WAYS << neotier_seen_sets_log2(slots())),
      places_(neotier_waiting_places(slots())),
      batch_(job.params.batch) {
  TrackerOptions options;
  options.slots = slots();
  options.epoch_ticks = static_cast<uint32_t>(params_.epoch_us / 100);
  // A larger memory has the device as it is built; the recorded machine's was made smaller, as its memory is.
  options.log2_width = job.tenants > 1 ? 0 : static_cast<uint32_t>(recording.field(Field::kLog2Width));
  peak_lines_per_tick_ = link_per_tick(recording);
  options.peak_lines_per_tick = static_cast<uint32_t>(peak_lines_per_tick_);
  tracker_ = make_tracker(job.tracker, options);
  if (job.tenants > 1) {
    auto audited = std::make_unique<AuditedTracker>(std::move(tracker_), options);
    audited_ = audited.get();
    tracker_ = std::move(audited);
  }
  tracker_->set_threshold(static_cast<uint32_t>(params_.threshold));

  hotlist_.queued = queued_.data();
  hotlist_.seen = {seen_.data(), neotier_seen_sets_log2(slots())};
  hotlist_.ops = &kHotlistOps;
  hotlist_.owner = this;
  const neotier_ledger_terms terms = {params_.loss_base_ms * kMs, static_cast<uint32_t>(params_.loss_ppm),
                                      static_cast<uint32_t>(params_.saved_ns)};
  neotier_ledger_start(&hotlist_.ledger, &terms);
  watch_.nr = tracker_->places();
  watch_.ops = &kWatchOps;
  watch_.owner = this;
  neotier_hotlist_init(&hotlist_, places_.data(), static_cast<uint32_t>(places_.size()));
  ping_pong_.sets_log2 = neotier_ping_pong_sets_log2(memory.dram_pages());
  ping_pong_entries_.resize(size_t{NEOTIER_PING_PONG_WAYS} << ping_pong_.sets_log2);
  ping_pong_.entries = ping_pong_entries_.data();
  if (params_.exchange != 0) {
    exchange_.emplace(memory);
    regret_entries_.resize(ping_pong_entries_.size());
    regrets_ = {};
    regrets_.sets_log2 = ping_pong_.sets_log2;
    regrets_.entries = regret_entries_.data();
  }
  promotion_ = {&hotlist_, batch_.data(), &kPromoteOps, this, NEOTIER_NO_LIMIT};
  counts_.threshold = params_.threshold;
  const neotier_time now = time();
  neotier_clock_start(&clock_, true, &now);
}

neotier_levels Driver::levels() const {
  neotier_levels levels{};
  const auto gap = params_.gap_pages, low = static_cast<uint64_t>(memory_.low());
  const neotier_zone_levels zone = {static_cast<uint64_t>(std::max<int64_t>(0, memory_.dram_free())),
                                    low > gap ? low - gap : 0, low, low + gap, 0};
  neotier_levels_add(&levels, &zone);
  neotier_levels_headroom(&levels, params_.headroom_pages);
  return levels;
}

void Driver::decide(uint64_t now) {
  if (!started_) {
    started_ = true;
    promotion_.left = neotier_ledger_pages(&hotlist_.ledger, least_pages());
    neotier_policy_params params = neotier_policy_default_params;
    params.threshold = static_cast<uint32_t>(params_.threshold);
    params.saved_ns = static_cast<uint32_t>(params_.saved_ns);
    params.payback_ms = static_cast<uint32_t>(params_.payback_ms);
    law_->init(policy_state_, &params);
    decided_ns_ = now;
    settled_ps_ = memory_.now_ps();
    return;
  }
  const uint64_t interval = now - decided_ns_;
  if (interval < params_.decide_interval_ms * kMs) return;
  pass_requests();
  const TrackerState state = tracker_->state();
  neotier_snapshot s{};
  s.interval_ns = interval;
  s.epochs = state.epochs - observed_.epochs;
  s.reads = state.reads - observed_.reads;
  s.writes = state.writes - observed_.writes;
  s.lost = state.lost() - observed_.lost();
  s.peak_lines = peak_lines_per_tick_ * interval / kTickNs;
  std::copy(std::begin(state.histogram), std::end(state.histogram), s.histogram);
  s.error_bound = state.error_bound;
  s.threshold = static_cast<uint32_t>(counts_.threshold);
  s.counter_max = Tracker::kCounterMax;
  s.downsampling = 1;
  const neotier_time at = time();
  neotier_clock_mark(&clock_, &at, ticks_ * kTickNs);
  neotier_drain_phase(&drain_, now, ticks_, state.epochs, static_cast<uint32_t>(params_.epoch_us * kUs / kTickNs),
                      kTickNs);
  s.epoch_ns = neotier_clock_scale(&clock_, params_.epoch_us * kUs);
  s.reported = counts_.reports - decided_counts_.reports;
  s.promoted = counts_.promoted - decided_counts_.promoted;
  s.promote_ns = counts_.promote_ns - decided_counts_.promote_ns;
  s.ping_pong = counts_.ping_pong - decided_counts_.ping_pong;
  s.demoted = counts_.exchanged - decided_counts_.exchanged;
  s.demote_ns = counts_.demote_ns - decided_counts_.demote_ns + counts_.age_ns - decided_counts_.age_ns;
  s.regrets = counts_.regrets - decided_counts_.regrets;
  s.short_stays = counts_.short_stays - decided_counts_.short_stays;
  s.lasted_ns = hotlist_.ledger.lasted_ns;
  s.quota_pages = neotier_bucket_pages(quota_rate(), std::min<uint64_t>(interval, 60'000 * kMs));
  const neotier_levels levels = this->levels();
  s.fast_free_pages = neotier_room_pages(&room_, hotlist_.waiting.nr, &levels);
  s.fast_total_pages = memory_.dram_pages();
  s.slow_total_pages = slots();
  neotier_plan plan{};
  law_->decide(policy_state_, &s, &plan);
  counts_.threshold = std::clamp(plan.threshold, 1u, Tracker::kCounterMax);
  settle((memory_.now_ps() - settled_ps_) / 1000, state, s.threshold);
  promotion_.left = std::min<uint64_t>(plan.promote_max, neotier_ledger_pages(&hotlist_.ledger, least_pages()));
  tracker_->set_threshold(static_cast<uint32_t>(counts_.threshold));
  ++counts_.decisions;
  counts_.epochs = state.epochs;
  counts_.lost = state.lost() + state.lost_units;
  counts_.extended.lost_ring = state.lost_ring;
  counts_.extended.lost_units = state.lost_units;
  counts_.extended.error_bound = state.error_bound;
  if (audited_) look_at_tables(now);
  observed_ = state;
  decided_counts_ = counts_;
  decided_ns_ = now;
  memory_.spend_instructions(params_.decide_instructions);
  const bool histogram = law_->histogram || neotier_ledger_bounds(&hotlist_.ledger);
  memory_.spend_reads(params_.decide_reads + (histogram ? kHistogramReads : 0));
}

// How much of the table of pages that wait for confirmation is in use: entries of which a report still counts.
void Driver::look_at_tables(uint64_t now) {
  const auto part = static_cast<uint32_t>(now / (params_.epoch_us * kUs / NEOTIER_SEEN_PARTS));
  constexpr uint32_t kPartMask = (1u << 28) - 1;
  const auto used = std::count_if(seen_.begin(), seen_.end(), [&](const neotier_seen& entry) {
    return entry.page1 != 0 && ((part - entry.part) & kPartMask) <= NEOTIER_SEEN_GAP;
  });
  const uint64_t ppm = static_cast<uint64_t>(used) * 1'000'000 / seen_.size();
  counts_.extended.seen_most_ppm = std::max(counts_.extended.seen_most_ppm, ppm);
}

void Driver::settle(uint64_t interval_ns, const TrackerState& state, uint32_t threshold) {
  count_thread();
  const Result& old = decided_counts_;
  neotier_ledger_period period{};
  period.interval_ns = interval_ns;
  period.promoted = counts_.promoted - old.promoted;
  period.waiting = hotlist_.waiting.nr;
  period.returned = counts_.ping_pong - old.ping_pong;
  // Who makes room had to be found: that is part of a move's price.
  const uint64_t moves_ns = counts_.moves_ns - old.moves_ns + counts_.age_ns - old.age_ns;
  period.moves_ns = moves_ns + counts_.kswapd_ns - old.kswapd_ns;
  // With all that a wake-up costs: so period.wakes is 0.
  const uint64_t thread_ns = counts_.thread_ns - old.thread_ns;
  period.looking_ns = thread_ns - std::min(thread_ns, moves_ns);
  period.reads = state.reads - observed_.reads;  // alone: the tracker counts no writes for pages
  period.hot = neotier_histogram_hot(state.histogram, threshold);
  period.reports = counts_.reports - old.reports;
  period.missed = counts_.discarded - old.discarded + state.lost() - observed_.lost();
  period.epoch_ns = neotier_clock_scale(&clock_, params_.epoch_us * kUs);
  period.downsampling = period.cpus = 1;
  period.counted = neotier_watch_count(&watch_, &hotlist_.ledger, &clock_, now_ns());
  if (neotier_ledger_settle(&hotlist_.ledger, &period)) memory_.next_horizon();
  neotier_watch_name(&watch_, &hotlist_.ledger, now_ns());
  settled_ps_ = memory_.now_ps();
  counts_.won_ns = hotlist_.ledger.won_ns;
  counts_.regret_ns = hotlist_.ledger.regret_ns;
  counts_.spent_ns = hotlist_.ledger.spent_ns;
  counts_.stops += neotier_ledger_stopped(&hotlist_.ledger);
}

void Driver::drain(uint64_t now) {
  const uint64_t epoch_ns = params_.epoch_us * kUs;
  pass_requests();
  if (neotier_drain_begin(&drain_, now, epoch_ns, Tracker::kRing, hotlist_.confirmed,
                          neotier_ledger_pages(&hotlist_.ledger, least_pages())))
    counts_.discarded += tracker_->discard();
  const uint32_t most = neotier_drain_most(&drain_, hotlist_.waiting.nr);
  if (most == 0) return;
  reports_.clear();
  tracker_->drain(most, reports_);
  neotier_drain_done(&drain_, static_cast<uint32_t>(reports_.size()));
  counts_.reports += reports_.size();
  memory_.spend_reads((reports_.size() + kReportsPerRead - 1) / kReportsPerRead);
  memory_.spend({params_.report_instructions, kReportDram, kReportCxl}, reports_.size());
  for (const Report& report : reports_) {
    if (report.slot >= queued_.size() * 64) continue;
    neotier_hotlist_report(&hotlist_, report.slot, report.count, now, epoch_ns,
                           static_cast<uint32_t>(params_.confirm_epochs));
  }
}

uint64_t Driver::unpaid() const {
  const neotier_levels target = levels();
  return target.above_low > target.gap ? target.above_low - target.gap : 0;
}

void Driver::look_for_victims() {
  const uint64_t least = neotier_age_window(params_.epoch_us * kUs, static_cast<uint32_t>(counts_.threshold));
  const uint64_t waiting = std::min<uint64_t>(hotlist_.waiting.nr, promotion_.left), free = unpaid();
  const neotier_time start = time();
  const uint64_t after = neotier_clock_unscale(&clock_, params_.payback_ms * kMs);
  if (!exchange_->look(waiting > free ? waiting - free : 0, least, after, [this] { yield_turn(); })) return;
  const neotier_time end = time();
  counts_.age_ns += neotier_clock_span(&clock_, &start, &end);
  counts_.age_looks = exchange_->looks();
}

bool Driver::too_soon(const neotier_ping_pong& moved, uint64_t identity) const {
  const uint64_t age_ns = neotier_ping_pong_age(&moved, identity, now_ns());
  return age_ns != NEOTIER_NEVER && neotier_clock_scale(&clock_, age_ns) < params_.payback_ms * kMs;
}

uint32_t Driver::demote(uint32_t nr) {
  const neotier_time start = time();
  const uint32_t most = std::min<uint32_t>(16 * nr, 512);
  uint32_t moved = 0, tried = 0;
  for (; moved < nr && tried < most; ++tried) {
    if (exchange_->victims() == 0) break;
    const uint32_t page = exchange_->victim();
    if (page == kNoPage || !memory_.moves(page)) continue;  // freed meanwhile
    const uint64_t identity = this->identity(page);
    counts_.short_stays += too_soon(ping_pong_, identity);
    neotier_ping_pong_note(&regrets_, identity, now_ns());
    memory_.demote(page);
    const neotier_ledger_page demoted = {memory_.slot_of(page), 0, kHotlistOps.identity, this};
    neotier_ledger_demoted(&hotlist_.ledger, &demoted);
    ++moved;
    yield_turn();
  }
  exchange_->done(moved, tried == most && moved == 0);
  const neotier_time end = time();
  counts_.exchanged += moved;
  counts_.demote_ns += neotier_clock_span(&clock_, &start, &end);
  return moved;
}

uint32_t Driver::exchange_room(uint32_t nr) {
  const uint64_t free = unpaid();
  const uint64_t room = free < nr ? free + demote(static_cast<uint32_t>(nr - free)) : nr;
  return static_cast<uint32_t>(std::min<uint64_t>(nr, room));
}

void Driver::keep_reserve(uint64_t now) {
  if (exchange_) return;
  const uint64_t most = neotier_room_most(params_.reserve_pages, memory_.dram_pages());
  const neotier_levels target = levels();
  const int64_t free = std::max<int64_t>(0, memory_.dram_free()) + std::max<int64_t>(0, memory_.cxl_free());
  neotier_room_watch(&room_, static_cast<uint64_t>(free) + room_.reserved, target.gap, now);
  if (!neotier_room_keep(&room_, counts_.promoted, most, now)) drop_reserve();
  if (!room_.fill) return;
  const uint64_t pages = neotier_room_fill(&room_, target.above_low, most);
  memory_.take_dram(static_cast<int64_t>(pages));
  room_.reserved += pages;
  room_.fill = room_.reserved < most;
}

void Driver::drop_reserve() {
  memory_.take_dram(-static_cast<int64_t>(room_.reserved));
  room_.reserved = 0;
  room_.fill = false;
}

// To the module, memory that is freed and got anew at the same address is the same page.
uint64_t Driver::identity(uint32_t page) const {
  const uint32_t owner = memory_.owner(page);
  return owner != 0 ? neotier_page_identity(kOwners, owner) : neotier_page_identity(kPages, page);
}

int Driver::migrate(const neotier_hot* batch, uint32_t nr) {
  const neotier_time start = time();
  const uint64_t start_ps = own_ps(), demote_ns = counts_.demote_ns;
  if (exchange_) {
    const uint32_t got = exchange_room(nr);
    if (got < nr) neotier_hotlist_untake(&hotlist_, batch + got, nr - got);
    if (got == 0) return -1;
    nr = got;
  }
  neotier_hotlist_done(&hotlist_, batch, nr);
  uint32_t moved = 0;
  for (uint32_t i = 0; i < nr; ++i) {
    const uint32_t page = memory_.page_of(batch[i].page);
    if (page == kNoPage || !memory_.moves(page)) continue;  // freed while the program had its turn
    const uint64_t identity = this->identity(page);
    counts_.ping_pong += neotier_ping_pong_check(&ping_pong_, identity);
    if (exchange_) {
      counts_.regrets += too_soon(regrets_, identity);
      neotier_ping_pong_check(&regrets_, identity);
      memory_.take_dram(1);
    } else if (room_.reserved != 0) {
      --room_.reserved;
    } else {
      // As the kernel's allocator: below the low watermark it wakes kswapd, unless the module leaves it asleep.
      if (!neotier_room_hold(&room_, hotlist_.waiting.nr) && memory_.dram_free() <= memory_.low()) {
        wake_kswapd();
        room_.fill = true;
      }
      memory_.take_dram(1);
    }
    memory_.promote(page);
    if (exchange_) exchange_->came(page);
    ++moved;
    neotier_ping_pong_note(&ping_pong_, identity, now_ns());
    yield_turn();
  }
  counts_.promoted += moved;
  const neotier_time end = time();
  const uint64_t took_ns = neotier_clock_span(&clock_, &start, &end);
  counts_.promote_ns += took_ns - std::min(took_ns, counts_.demote_ns - demote_ns);
  counts_.moves_ns += (own_ps() - start_ps) / 1000;
  return static_cast<int>(moved);
}

// Where the kernel lets others run, in the middle of work whose time goes on. One other has a turn, not each.
void Driver::yield_turn() {
  if (now_ns() < turn_ends_ns_) return;
  const uint64_t start_ps = memory_.now_ps();
  if (now_ns() >= kswapd_at_ns_) {
    run_kswapd();
  } else if (program_) {
    program_->run_until(end_of_turn(now_ns(), kSliceNs));
  }
  others_ps_ += memory_.now_ps() - start_ps;
  turn_ends_ns_ = end_of_turn(now_ns(), kThreadSliceNs);
}

neotier_next Driver::step() {
  const uint64_t now = now_ns();
  decide(now);
  if (neotier_ledger_stopped(&hotlist_.ledger)) {
    pass_requests();
    tracker_->discard();
    neotier_hotlist_clear(&hotlist_);
    neotier_watch_forget(&watch_);
    drop_reserve();
    return NEOTIER_SLEEP;
  }
  drain(now);
  if (exchange_) look_for_victims();
  if (dry_run_)
    drop_reserve();
  else
    keep_reserve(now);
  const neotier_next what =
      hotlist_.waiting.nr == 0 ? NEOTIER_SLEEP
                               : neotier_promote_some(&promotion_, static_cast<uint32_t>(params_.batch), dry_run_, now);
  neotier_watch_name(&watch_, &hotlist_.ledger, now_ns());
  return what == NEOTIER_SLEEP && room_.fill ? NEOTIER_WAIT_ROOM : what;
}

// One that is awake waits for its turn.
void Driver::wake_kswapd() {
  if (!kswapd_awake_) kswapd_at_ns_ = now_ns();
}

void Driver::run_kswapd() {
  // A round ends early where each zone has a batch more than its high watermark. kswapd rests where one zone has its
  // watermark: the larger, from which reclaim takes; the other one stays at its low watermark.
  constexpr int64_t kZones = 2, kBatch = 64;
  const int64_t high = memory_.low() + static_cast<int64_t>(params_.gap_pages);
  const Memory::Goal goal = {high, high + kZones * kBatch, params_.high_pages};
  const uint64_t start_ps = memory_.now_ps();
  kswapd_awake_ = memory_.reclaim(goal, now_ns() + kTickOfKernelNs);
  counts_.kswapd_ns += (memory_.now_ps() - start_ps) / 1000;
  kswapd_at_ns_ = kswapd_awake_ ? now_ns() + kTickOfKernelNs : UINT64_MAX;
}

void Driver::wake() {
  if (now_ns() >= kswapd_at_ns_) run_kswapd();
  if (now_ns() >= wakes_at_ns_) run_thread();
}

void Driver::run_thread() {
  running_ = true;
  const uint64_t start = now_ns(), kswapd_at_ns = kswapd_at_ns_;
  counted_ps_ = own_ps();
  turn_ends_ns_ = end_of_turn(start, kThreadSliceNs);
  memory_.spend_instructions(params_.wake_instructions);
  memory_.spend_reads(params_.wake_reads);
  neotier_next what;
  do {
    what = step();
    if (what != NEOTIER_WAIT_ROOM) room_wait_us_ = NEOTIER_ROOM_WAIT_US;
    // Between two batches the thread offers its turn: kswapd, woken from its sleep, goes first.
    if (!kswapd_awake_ && now_ns() >= kswapd_at_ns_) {
      const uint64_t kswapd_ps = memory_.now_ps();
      run_kswapd();
      others_ps_ += memory_.now_ps() - kswapd_ps;
      turn_ends_ns_ = end_of_turn(now_ns(), kThreadSliceNs);
    }
  } while (what == NEOTIER_AGAIN);
  count_thread();
  running_ = false;
  const bool stopped = neotier_ledger_stopped(&hotlist_.ledger);
  const uint64_t now = now_ns(), period = stopped ? params_.decide_interval_ms * kMs : params_.period_us * kUs;
  // The turn that kswapd waits for is the program's.
  if (kswapd_awake_ && kswapd_at_ns_ == kswapd_at_ns && kswapd_at_ns > start) {
    kswapd_at_ns_ = kswapd_at_ns + (now - start);
  }
  if (what == NEOTIER_WAIT_ROOM) {
    wakes_at_ns_ = now + std::min<uint64_t>(room_wait_us_ * kUs, period);
    room_wait_us_ = static_cast<uint32_t>(std::min<uint64_t>(room_wait_us_ * 2, params_.period_us));
  } else {
    next_period_ns_ += period;
    if (next_period_ns_ < now || next_period_ns_ > now + period) next_period_ns_ = now + period;
    wakes_at_ns_ = next_period_ns_;
  }
  // As the module, which looks when an epoch of the device begins, if it looks that often.
  if (!stopped && params_.period_us <= params_.epoch_us && drain_.next_ns < wakes_at_ns_) {
    wakes_at_ns_ = next_period_ns_ = drain_.next_ns;
  }
}

Result Driver::result() const {
  Result result = counts_;
  if (audited_) {
    result.extended.audit = audited_->audit();
    result.extended.held_back = tenants_.held_back();
    result.extended.table_bytes =
        queued_.size() * sizeof(queued_[0]) + seen_.size() * sizeof(seen_[0]) + places_.size() * sizeof(places_[0]);
  }
  return result;
}

}  // namespace neotier::pages
