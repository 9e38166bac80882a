// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
#include "neoprof_model.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "neoprof_regs.h"

namespace neoprof {
namespace {

// The RTL's schedule. A request that leaves the queue in clock t has its report in the ring at the end of clock
// t + kReportClocks, and the pipeline is empty again from clock t + kReportClocks + 1.
constexpr uint64_t kReportClocks = 8;
// A counter that the scrubber or a reset takes up in clock t is written back, and the tracker at rest, from t + 6.
constexpr uint64_t kSweepClocks = 6;
// Bus: a write takes effect in its 2nd of 3 clocks; a read samples in its 3rd of 4, the histogram two later.
constexpr int kReadClocksBefore = 2;
constexpr int kReadClocksAfter = 2;
constexpr int kHistogramReadClocks = 2;

constexpr uint32_t kLfsrSeed = 0x5eed1234U;
constexpr uint32_t kLfsrTaps = 0xa3000000U;
constexpr uint64_t kUpdatesMax = 0xffffffffU;
constexpr uint64_t kUnits = uint64_t{NEOPROF_BITMAP_BITS} << (28 - 12);  // that the range bitmap reaches, of 4 KiB

constexpr uint64_t field(uint64_t reg, uint64_t mask, int shift) { return (reg & mask) >> shift; }

// Bins of 8 x 1, 8 x 2, ... 8 x 128 counts. Those that are 2^k wide begin at 8 x 2^k - 8.
uint32_t bin_of(uint64_t count) {
  const auto k = static_cast<uint32_t>(std::bit_width((count + 8) / 8) - 1);
  return k > 7 ? 63 : 8 * k + static_cast<uint32_t>((count + 8) >> k) - 8;
}

uint64_t merge(uint64_t old, uint64_t data, uint8_t strobe, uint64_t writable) {
  for (int byte = 0; byte < 8; ++byte) {
    if ((strobe >> byte) & 1) {
      const uint64_t mask = (0xffULL << (8 * byte)) & writable;
      old = (old & ~mask) | (data & mask);
    }
  }
  return old;
}

constexpr uint64_t kCfg0Writable = NEOPROF_CFG0_TRACK_MASK | NEOPROF_CFG0_RANDOM_DS_MASK |
                                   NEOPROF_CFG0_OVERFLOW_IRQ_EN_MASK | NEOPROF_CFG0_FILL_IRQ_EN_MASK |
                                   NEOPROF_CFG0_ENABLE_MASK | NEOPROF_CFG0_THRESHOLD_MASK;

bool in_watch(uint32_t offset) {
  return offset >= NEOPROF_WATCH_OFFSET && offset < NEOPROF_WATCH_OFFSET + 8 * NEOPROF_WATCH_COUNT;
}

bool power_of_two(uint32_t n) { return std::has_single_bit(n); }

}  // namespace

Model::Model(const ModelParams& params, const Straps& straps)
    : params_(params),
      straps_(straps),
      log2_width_(straps.log2_width >= params.min_log2_width && straps.log2_width <= params.log2_width
                      ? straps.log2_width
                      : params.log2_width),
      count_max_((1ULL << params.counter_bits) - 1),
      cfg0_(NEOPROF_CFG0_INIT & kCfg0Writable),
      cfg1_(NEOPROF_CFG1_INIT),
      cfg2_(NEOPROF_CFG2_INIT) {
  const bool good = params.channels >= 1 && params.channels <= 8 && params.rows >= 1 && params.rows <= 8 &&
                    params.min_log2_width >= 6 && params.min_log2_width <= params.log2_width &&
                    params.log2_width <= kHashMaxWidth && params.hash_seeds >= 1 && params.hash_seeds <= kHashSeeds &&
                    straps.hash_seed < kHashSeeds && params.counter_bits >= 2 && params.counter_bits <= 16 &&
                    params.hot_entries >= 8 && power_of_two(params.hot_entries) && params.tap_depth >= 2 &&
                    power_of_two(params.tap_depth) && params.tag_bits >= 2 && params.tag_bits <= 16;
  if (!good) {
    throw std::invalid_argument("neoprof model: a parameter is out of its range");
  }
  queues_.resize(params.channels);
  rows_.assign(params.rows, std::vector<Counter>(size_t{1} << log2_width_));
  sets_.resize(params.hot_entries / kWays);
  lost_units_.resize(params.hot_entries / kWays);
  const uint32_t seed = params.hash_seeds > 1 ? straps.hash_seed : 0;
  const auto set_bits = static_cast<uint32_t>(std::countr_zero(params.hot_entries / kWays));
  for (uint32_t row = 0; row < kHashRows; ++row) {
    const uint32_t width = row < kLostHashRow ? log2_width_ : set_bits;
    for (uint32_t byte = 0; byte < 3; ++byte) {
      for (uint32_t value = 0; value < 256; ++value) {
        hashes_[row][byte][value] = hash_index(seed, width, row, uint64_t{value} << (8 * byte));
      }
    }
  }
  tracking_ = tracking();
  reset();
}

void Model::reset() {
  sample_count_ = 0;
  sample_lfsr_ = kLfsrSeed;
  for (auto& row : rows_) {
    std::fill(row.begin(), row.end(), Counter{});
  }
  mass_ = epoch_updates_ = epoch_units_ = 0;
  entered_ = {};
  left_ = {};
  std::fill(sets_.begin(), sets_.end(), Set{});
  hot_list_.clear();
  std::fill(lost_units_.begin(), lost_units_.end(), std::nullopt);
  lost_any_ = false;
  epoch_elapsed_ = epoch_length_ = 0;
  head_ = tail_ = 0;
  overflow_ = false;
  reports_.clear();
  watched_ = {};
  watch_chains_ = {};
  watch_any_ = false;
  live_ = Counts{};
  snapshot_ = Counts{};
}

Model::Tracking Model::tracking() const {
  const uint64_t track = field(cfg0_, NEOPROF_CFG0_TRACK_MASK, NEOPROF_CFG0_TRACK_SHIFT);
  Tracking of;
  of.reads = track == 1 || track == 3 || track == 4 || track == 6;
  of.writes = track == 2 || track == 3 || track == 5 || track == 6;
  of.unit_shift = field(cfg1_, NEOPROF_CFG1_UNIT_SIZE_MASK, NEOPROF_CFG1_UNIT_SIZE_SHIFT) == 21 ? 21 : 12;
  of.threshold = std::max<uint64_t>(1, field(cfg0_, NEOPROF_CFG0_THRESHOLD_MASK, NEOPROF_CFG0_THRESHOLD_SHIFT));
  return of;
}

uint64_t Model::epoch_ticks() const {
  static constexpr std::array<uint64_t, 5> kScale = {1, 10, 100, 1000, 10000};
  const uint64_t scale = field(cfg1_, NEOPROF_CFG1_EPOCH_SCALE_MASK, NEOPROF_CFG1_EPOCH_SCALE_SHIFT);
  const uint64_t mult = field(cfg1_, NEOPROF_CFG1_EPOCH_MULT_MASK, NEOPROF_CFG1_EPOCH_MULT_SHIFT);
  return kScale[std::clamp<uint64_t>(scale, 1, 5) - 1] * std::max<uint64_t>(mult, 1);
}

uint32_t Model::index(uint32_t row, uint64_t unit) const {
  const auto& table = hashes_[row];
  return table[0][unit & 0xff] ^ table[1][(unit >> 8) & 0xff] ^ table[2][(unit >> 16) & 0xff];
}

uint64_t Model::scrub_entries() const {
  const uint64_t tags = (1ULL << params_.tag_bits) - 2;
  return ((1ULL << log2_width_) + tags - 1) / tags;
}

uint64_t Model::value(const Counter& counter) const {
  const uint64_t shift = faded_ - counter.faded;
  return shift >= 16 ? 0 : uint64_t{counter.count} >> shift;
}

uint64_t Model::estimate(uint64_t unit) const {
  uint64_t least = count_max_;
  for (uint32_t row = 0; row < params_.rows; ++row) {
    least = std::min(least, value(rows_[row][index(row, unit)]));
  }
  return least;
}

bool Model::passes_sampling() {
  const uint64_t log2 =
      std::min<uint64_t>(8, field(cfg1_, NEOPROF_CFG1_DOWNSAMPLING_MASK, NEOPROF_CFG1_DOWNSAMPLING_SHIFT));
  const uint32_t mask = (1U << log2) - 1;
  if (cfg0_ & NEOPROF_CFG0_RANDOM_DS_MASK) {
    const bool passes = (sample_lfsr_ & mask) == 0;
    for (int bit = 0; bit < 8; ++bit) {
      sample_lfsr_ = (sample_lfsr_ >> 1) ^ ((sample_lfsr_ & 1) ? kLfsrTaps : 0);
    }
    return passes;
  }
  sample_count_ = (sample_count_ + 1) & 0xff;
  return (sample_count_ & mask) == 0;
}

bool Model::is_filtered(uint64_t request) const {
  const uint64_t range = request >> 28;
  return !((request & kWrite) != 0 ? tracking_.writes : tracking_.reads) || range >= NEOPROF_BITMAP_BITS ||
         !((bitmap_[range / 64] >> (range % 64)) & 1);
}

void Model::request_at_tracker(uint64_t request) {
  if (is_filtered(request)) {
    ++live_.filtered;
  } else {
    track(request);
    watch_empty_from_ = now_ + kWatchClocks + 1;
  }
}

void Model::track(uint64_t request) {
  if (watch_any_) {
    watch(request >> tracking_.unit_shift);
  }
  if (!passes_sampling()) {
    ++live_.sampled_out;
    return;
  }
  const uint64_t unit = request >> tracking_.unit_shift;
  std::array<Counter*, kLostHashRow> counters;
  uint64_t before = count_max_;
  for (uint32_t row = 0; row < params_.rows; ++row) {
    counters[row] = &rows_[row][index(row, unit)];
    before = std::min(before, value(*counters[row]));
  }
  const uint64_t after = std::min(before + 1, count_max_);
  for (uint32_t row = 0; row < params_.rows; ++row) {
    if (value(*counters[row]) != before) {
      continue;
    }
    // Both parts in one store, as both are read at once soon after.
    *counters[row] = {.faded = faded_ & 0xffffffffffffULL, .count = static_cast<uint16_t>(after)};
  }
  ++live_.tracked;
  live_.saturated += before == count_max_;
  epoch_units_ += before == 0;
  epoch_updates_ = std::min(epoch_updates_ + 1, kUpdatesMax);
  mass_ = std::min(mass_ + 1, kUpdatesMax);
  const uint32_t from = bin_of(before), to = bin_of(after);
  entered_[to] += from != to;
  left_[from] += from != to && before > 0;
  pipe_empty_from_ = now_ + kReportClocks + 1;
  if (after >= tracking_.threshold) {
    candidate(unit, before, after);
  }
}

void Model::watch(uint64_t unit) {
  size_t at = watch_chains_[unit % kWatchChains];
  while (at != 0 && watched_[at - 1].unit != unit) {
    at = watched_[at - 1].next;
  }
  if (at != 0) {
    ++watched_[at - 1].count;
    watch_hits_[now_ % kWatchClocks] = {now_, at - 1};
  }
}

void Model::name_watched(size_t entry, uint64_t unit) {
  watched_[entry] = {.unit = unit < kUnits ? unit : kNoUnit};
  watch_chains_ = {};
  watch_any_ = false;
  for (size_t at = watched_.size(); at > 0; --at) {
    Watched& other = watched_[at - 1];
    if (other.unit != kNoUnit) {
      other.next = std::exchange(watch_chains_[other.unit % kWatchChains], static_cast<uint8_t>(at));
      watch_any_ = true;
    }
  }
}

// WATCH as a read in this clock sees it.
uint64_t Model::watched(size_t entry) const {
  uint32_t count = watched_[entry].count;
  for (const WatchHit& hit : watch_hits_) {
    count -= hit.entry == entry && now_ <= hit.clock + kWatchClocks;
  }
  return watched_[entry].unit << NEOPROF_WATCH_UNIT_SHIFT | count;
}

// Counters of pages that are asked for at random lie all over a table that fits no near cache.
void Model::prefetch(uint64_t request) const {
  for (uint32_t row = 0; row < params_.rows; ++row) {
    __builtin_prefetch(&rows_[row][index(row, request >> tracking_.unit_shift)], 1);
  }
}

void Model::candidate(uint64_t unit, uint64_t before, uint64_t after) {
  Set& set = sets_[index(kHotHashRow, unit)];
  if (std::find(set.units.begin(), set.units.begin() + set.nr, unit) != set.units.begin() + set.nr) {
    return;
  }
  if (set.nr == kWays) {
    if (is_lost_again(unit, before, after)) {
      return;
    }
    ++live_.lost_candidates;
  } else {
    set.units[set.nr++] = unit;
    hot_list_.push_back(unit);
  }
  if (field(cfg1_, NEOPROF_CFG1_MODE_MASK, NEOPROF_CFG1_MODE_SHIFT) != 0) {
    reports_.push_back({now_ + kReportClocks, unit << NEOPROF_HOTLIST_UNIT_SHIFT | after});
  }
}

// Whether a unit that does not fit the hot filter has been counted as lost in this epoch already. The table of lost
// units has one name an index; those that find another's there have their chances when they reach the threshold and at
// powers of two.
bool Model::is_lost_again(uint64_t unit, uint64_t before, uint64_t after) {
  auto& name = lost_units_[index(kLostHashRow, unit)];
  if (!name) {
    name = unit;
    lost_any_ = true;
    return false;
  }
  return *name == unit || (before >= tracking_.threshold && !std::has_single_bit(after));
}

void Model::end_epoch() {
  const bool report = field(cfg1_, NEOPROF_CFG1_MODE_MASK, NEOPROF_CFG1_MODE_SHIFT) == 0;
  const uint64_t begin = std::max({now_ + 1, pipe_empty_from_, watch_empty_from_});
  const uint64_t listed = hot_list_.size();
  if (report) {
    for (uint64_t i = 0; i < listed; ++i) {
      const uint64_t count = estimate(hot_list_[i]);
      if (count >= tracking_.threshold) {
        reports_.push_back({begin + 2 + i + kReportClocks, hot_list_[i] << NEOPROF_HOTLIST_UNIT_SHIFT | count});
      }
    }
  }

  ++live_.epochs;
  live_.occupancy = epoch_updates_ << NEOPROF_OCCUPANCY_UPDATES_SHIFT | epoch_units_;
  // e in 16 fraction bits, rounded up, so that the bound is never too small.
  const uint64_t width_bits = 16 + log2_width_;
  live_.error = mass_ == kUpdatesMax ? kUpdatesMax : (mass_ * 178146 + (1ULL << width_bits) - 1) >> width_bits;
  live_.hot = listed;
  for (uint32_t bin = 0; bin < kBins; ++bin) {
    live_.histogram[bin] = entered_[bin] > left_[bin] ? entered_[bin] - left_[bin] : 0;
  }

  const uint64_t shift = decay_ == 0 ? 16 : decay_;
  faded_ += shift;
  mass_ = decay_ == 0 ? 0 : mass_ >> shift;
  epoch_updates_ = epoch_units_ = 0;
  entered_ = {};
  left_ = {};
  for (uint64_t unit : hot_list_) {
    sets_[index(kHotHashRow, unit)].nr = 0;
  }
  hot_list_.clear();

  const uint64_t latched = report && listed > 0 ? begin + 11 + listed : begin + 3 + listed;
  const uint64_t forgotten = lost_any_ ? params_.hot_entries / kWays + 1 : 0;
  std::fill(lost_units_.begin(), lost_units_.end(), std::nullopt);
  lost_any_ = false;
  serves_from_ = latched + std::max({scrub_entries() + kSweepClocks, uint64_t{kBins} + 1, forgotten}) + 1;
}

void Model::publish(uint64_t entry) {
  const uint32_t next = (tail_ + 1) % kRingEntries;
  if (next == head_) {
    ++live_.lost_ring;
    overflow_ = true;
    return;
  }
  const uint32_t at = tail_;
  ring_[at] = entry;
  tail_ = next;
  ++live_.reported;
  if (observer_ != nullptr) {
    observer_->on_ring_entry(at, entry);
  }
}

void Model::publish_due() {
  if (!reports_.empty() && reports_.front().clock == now_) {
    const uint64_t entry = reports_.front().entry;
    reports_.pop_front();
    publish(entry);
  }
}

// What is due up to `clock`, that clock included; at most one report in each.
void Model::publish_until(uint64_t clock) {
  for (; !reports_.empty() && reports_.front().clock <= clock; tell_host()) {
    publish(reports_.front().entry);
    reports_.pop_front();
  }
}

void Model::tell_host() {
  const auto standing = causes();
  messages_ += (standing[0] && !told_[0]) || (standing[1] && !told_[1]);
  told_ = standing;
}

void Model::step(const Request* requests, bool tick) {
  publish_due();

  // A queue that is full at the start of the clock refuses, even if it is served in this clock.
  uint32_t full = 0;
  for (uint32_t c = 0; c < params_.channels; ++c) {
    full |= (queues_[c].size() == params_.tap_depth ? 1U : 0U) << c;
  }
  if (now_ >= serves_from_) {
    for (uint32_t i = 0; i < params_.channels; ++i) {
      const uint32_t c = (next_channel_ + i) % params_.channels;
      if (!queues_[c].empty()) {
        const uint64_t request = queues_[c].front();
        queues_[c].pop_front();
        next_channel_ = (c + 1) % params_.channels;
        request_at_tracker(request);
        break;
      }
    }
  }
  if (cfg0_ & NEOPROF_CFG0_ENABLE_MASK) {
    for (uint32_t c = 0; c < params_.channels; ++c) {
      if (!requests[c].valid) {
        continue;
      }
      ++(requests[c].write ? live_.writes : live_.reads);
      if ((full >> c) & 1) {
        ++live_.lost_tap;
      } else {
        queues_[c].push_back((requests[c].dpa & ~kWrite) | (requests[c].write ? kWrite : 0));
      }
    }
    if (tick) {
      ++live_.ticks;
      if (epoch_elapsed_ == 0) {
        epoch_length_ = epoch_ticks();
      }
      ++epoch_elapsed_;
      // An epoch does not end while the end of the one before is still being worked on: it takes more ticks.
      if (epoch_elapsed_ >= epoch_length_ && now_ >= serves_from_) {
        epoch_elapsed_ = 0;
        end_epoch();
      }
    }
  }
  ++now_;
  tell_host();
}

bool Model::idle() const {
  return now_ >= serves_from_ && now_ >= pipe_empty_from_ && now_ >= watch_empty_from_ &&
         std::all_of(queues_.begin(), queues_.end(), [](const auto& queue) { return queue.empty(); });
}

void Model::access(uint64_t dpa, bool is_write) {
  std::array<Request, 8> requests{};
  requests[0] = {true, is_write, dpa};
  step(requests.data(), false);
}

void Model::accesses(std::span<const uint64_t> requests) {
  while (!requests.empty()) {
    const auto& queue = queues_[0];
    const bool steady = params_.channels == 1 && !queue.empty() && queue.size() < params_.tap_depth &&
                        now_ >= serves_from_ && (cfg0_ & NEOPROF_CFG0_ENABLE_MASK);
    const auto next = requests.first(steady ? std::min(kBurst, requests.size()) : 1);
    if (steady) {
      burst(next);
    } else {
      access(next[0] & ~kWrite, (next[0] & kWrite) != 0);
    }
    requests = requests.subspan(next.size());
  }
}

// Requests in as many clocks, the same that step() goes through one by one. While they come to the one channel, its
// queue is served in each clock and keeps its length. So nothing else can happen but a report's way into the ring, of
// which the host may have to be told. What is counted, and what is filtered out, depends on no clock.
void Model::burst(std::span<const uint64_t> requests) {
  const uint64_t begin = now_, end = begin + requests.size();
  std::array<uint64_t, kBurst> served;
  auto& queue = queues_[0];
  const auto waiting = static_cast<std::ptrdiff_t>(std::min(queue.size(), requests.size()));
  std::copy_n(requests.begin(), requests.size() - waiting, std::copy_n(queue.begin(), waiting, served.begin()));
  queue.erase(queue.begin(), queue.begin() + waiting);
  queue.insert(queue.end(), requests.end() - waiting, requests.end());

  std::array<uint32_t, kBurst> clocks;  // of those that are counted
  size_t nr = 0;
  uint64_t writes = 0;
  for (uint32_t i = 0; i < requests.size(); ++i) {
    writes += requests[i] & kWrite;
    clocks[nr] = i;
    nr += !is_filtered(served[i]);
  }
  live_.writes += writes;
  live_.reads += requests.size() - writes;
  live_.filtered += requests.size() - nr;

  // Counters of pages that are asked for at random lie all over a table that fits no near cache: each is fetched while
  // so many before it are worked on.
  constexpr size_t kAhead = 12;
  for (size_t i = 0; i < nr; ++i) {
    if (i + kAhead < nr) {
      prefetch(served[clocks[i + kAhead]]);
    }
    now_ = begin + clocks[i];
    track(served[clocks[i]]);
  }
  if (nr > 0) {
    watch_empty_from_ = now_ + kWatchClocks + 1;
  }
  publish_until(end - 1);
  now_ = end;
}

void Model::tick() {
  const std::array<Request, 8> none{};
  step(none.data(), true);
}

void Model::drain() {
  const std::array<Request, 8> none{};
  while (!idle()) {
    step(none.data(), false);
  }
}

void Model::write(uint32_t offset, uint64_t data, uint8_t strobe) {
  drain();
  if (offset >= NEOPROF_SIZE) {
    return;
  }
  const std::array<Request, 8> none{};
  step(none.data(), false);
  const auto writes_bit = [&](uint64_t mask) { return (merge(0, data, strobe, mask) & mask) != 0; };
  switch (const uint32_t aligned = offset & ~7U; aligned) {
    case NEOPROF_CFG0_OFFSET:
      cfg0_ = merge(cfg0_, data, strobe, kCfg0Writable);
      if (writes_bit(NEOPROF_CFG0_RESET_MASK)) {
        reset();
        const uint64_t tracker = scrub_entries() + kSweepClocks;
        const uint64_t hot_filter = params_.hot_entries / kWays + 1;
        const uint64_t histogram = 4 * kBins + 1;
        serves_from_ = now_ + std::max({tracker, hot_filter, histogram}) + 1;
      }
      break;
    case NEOPROF_CFG1_OFFSET:
      cfg1_ = merge(cfg1_, data, strobe, ~0ULL);
      break;
    case NEOPROF_CFG2_OFFSET:
      cfg2_ = merge(cfg2_, data, strobe, NEOPROF_CFG2_FILL_LEVEL_MASK);
      break;
    case NEOPROF_STATUS_OFFSET:
      if (writes_bit(NEOPROF_STATUS_OVERFLOW_MASK)) {
        overflow_ = told_[1] = false;
      }
      break;
    case NEOPROF_RING_OFFSET:
      // The host has read: if that was not enough, it is told again.
      if (const uint32_t head =
              static_cast<uint32_t>(merge(head_, data, strobe, NEOPROF_RING_HEAD_MASK)) % kRingEntries;
          head != head_) {
        head_ = head;
        told_[0] = false;
      }
      break;
    case NEOPROF_DECAY_OFFSET:
      decay_ = merge(decay_, data, strobe, NEOPROF_DECAY_SHIFT_MASK);
      break;
    case NEOPROF_CTRL_OFFSET:
      if (writes_bit(NEOPROF_CTRL_SNAPSHOT_MASK)) {
        snapshot_ = live_;
      }
      break;
    default:
      if (aligned >= NEOPROF_BITMAP_OFFSET && aligned < NEOPROF_BITMAP_OFFSET + 8 * NEOPROF_BITMAP_COUNT) {
        uint64_t& word = bitmap_[(aligned - NEOPROF_BITMAP_OFFSET) / 8];
        word = merge(word, data, strobe, ~0ULL);
      } else if (in_watch(aligned) && (strobe & 0xf0) != 0) {
        const size_t entry = (aligned - NEOPROF_WATCH_OFFSET) / 8;
        name_watched(entry, field(merge(watched(entry), data, strobe, NEOPROF_WATCH_UNIT_MASK), NEOPROF_WATCH_UNIT_MASK,
                                  NEOPROF_WATCH_UNIT_SHIFT));
      }
  }
  tracking_ = tracking();
  step(none.data(), false);
  step(none.data(), false);
  drain();
}

uint64_t Model::read(uint32_t offset) {
  if (offset >= NEOPROF_SIZE) {
    return 0;
  }
  const std::array<Request, 8> none{};
  const uint32_t aligned = offset & ~7U;
  const bool histogram =
      aligned >= NEOPROF_HISTOGRAM_OFFSET && aligned < NEOPROF_HISTOGRAM_OFFSET + 8 * NEOPROF_HISTOGRAM_COUNT;
  for (int i = 0; i < kReadClocksBefore + (histogram ? kHistogramReadClocks : 0); ++i) {
    step(none.data(), false);
  }
  const auto reg = [&]() -> uint64_t {
    switch (aligned) {
      case NEOPROF_COMMON_CAP0_OFFSET:
        return NEOPROF_COMMON_CAP0_INIT;
      case NEOPROF_COMMON_CAP1_OFFSET:
        return NEOPROF_COMMON_CAP1_INIT;
      case NEOPROF_CAP0_OFFSET:
        return NEOPROF_CAP0_INIT;
      case NEOPROF_CAP1_OFFSET:
        return NEOPROF_CAP1_INIT;
      case NEOPROF_CAP2_OFFSET:
        return NEOPROF_CAP2_INIT;
      case NEOPROF_CAP3_OFFSET:
        return NEOPROF_CAP3_INIT;
      case NEOPROF_CFG0_OFFSET:
        return cfg0_;
      case NEOPROF_CFG1_OFFSET:
        return cfg1_;
      case NEOPROF_CFG2_OFFSET:
        return cfg2_;
      case NEOPROF_STATUS_OFFSET:
        return status();
      case NEOPROF_RING_OFFSET:
        return ring();
      case NEOPROF_ID_OFFSET:
        return NEOPROF_ID_INIT;
      case NEOPROF_TRACKER_OFFSET:
        return NEOPROF_TRACKER_KIND_RESET | uint64_t{params_.rows} << NEOPROF_TRACKER_ROWS_SHIFT |
               uint64_t{log2_width_} << NEOPROF_TRACKER_LOG2_WIDTH_SHIFT |
               uint64_t{params_.counter_bits} << NEOPROF_TRACKER_COUNTER_BITS_SHIFT |
               uint64_t{params_.hot_entries} << NEOPROF_TRACKER_CANDIDATES_SHIFT;
      case NEOPROF_HPA_BASE_OFFSET:
        return straps_.hpa_base;
      case NEOPROF_HPA_SIZE_OFFSET:
        return straps_.hpa_size;
      case NEOPROF_PEAK_OFFSET:
        return straps_.peak_lines_per_tick;
      case NEOPROF_DECAY_OFFSET:
        return decay_;
      case NEOPROF_SERIAL_OFFSET:
        return straps_.serial;
      case NEOPROF_TICKS_OFFSET:
        return snapshot_.ticks;
      case NEOPROF_EPOCHS_OFFSET:
        return snapshot_.epochs;
      case NEOPROF_READS_OFFSET:
        return snapshot_.reads;
      case NEOPROF_WRITES_OFFSET:
        return snapshot_.writes;
      case NEOPROF_TRACKED_OFFSET:
        return snapshot_.tracked;
      case NEOPROF_FILTERED_OFFSET:
        return snapshot_.filtered;
      case NEOPROF_SAMPLED_OUT_OFFSET:
        return snapshot_.sampled_out;
      case NEOPROF_REPORTED_OFFSET:
        return snapshot_.reported;
      case NEOPROF_LOST_TAP_OFFSET:
        return snapshot_.lost_tap;
      case NEOPROF_LOST_RING_OFFSET:
        return snapshot_.lost_ring;
      case NEOPROF_LOST_CANDIDATES_OFFSET:
        return snapshot_.lost_candidates;
      case NEOPROF_SATURATED_OFFSET:
        return snapshot_.saturated;
      case NEOPROF_OCCUPANCY_OFFSET:
        return snapshot_.occupancy;
      case NEOPROF_ERROR_OFFSET:
        return snapshot_.error;
      case NEOPROF_HOT_OFFSET:
        return snapshot_.hot;
      default:
        break;
    }
    if (aligned >= NEOPROF_BITMAP_OFFSET && aligned < NEOPROF_BITMAP_OFFSET + 8 * NEOPROF_BITMAP_COUNT) {
      return bitmap_[(aligned - NEOPROF_BITMAP_OFFSET) / 8];
    }
    if (aligned >= NEOPROF_HOTLIST_OFFSET && aligned < NEOPROF_HOTLIST_OFFSET + 8 * NEOPROF_HOTLIST_COUNT) {
      return ring_[(aligned - NEOPROF_HOTLIST_OFFSET) / 8];
    }
    if (in_watch(aligned)) {
      return watched((aligned - NEOPROF_WATCH_OFFSET) / 8);
    }
    if (histogram) {
      const uint32_t word = (aligned - NEOPROF_HISTOGRAM_OFFSET) / 8;
      return uint64_t{snapshot_.histogram[2 * word + 1]} << 32 | snapshot_.histogram[2 * word];
    }
    return 0;
  }();
  for (int i = 0; i < kReadClocksAfter; ++i) {
    step(none.data(), false);
  }
  return reg;
}

uint64_t Model::status() const {
  const bool enabled = (cfg0_ & NEOPROF_CFG0_ENABLE_MASK) != 0;
  return uint64_t{enabled} | NEOPROF_STATUS_INIT | uint64_t{overflow_} << NEOPROF_STATUS_OVERFLOW_SHIFT |
         uint64_t{level() >= std::max<uint64_t>(1, cfg2_)} << NEOPROF_STATUS_FILL_SHIFT;
}

uint64_t Model::ring() const {
  return uint64_t{head_} << NEOPROF_RING_HEAD_SHIFT | uint64_t{tail_} << NEOPROF_RING_TAIL_SHIFT;
}

// Fill level, overflow.
std::array<bool, 2> Model::causes() const {
  return {level() >= std::max<uint64_t>(1, cfg2_) && (cfg0_ & NEOPROF_CFG0_FILL_IRQ_EN_MASK),
          overflow_ && (cfg0_ & NEOPROF_CFG0_OVERFLOW_IRQ_EN_MASK)};
}

bool Model::irq() const {
  const auto standing = causes();
  return standing[0] || standing[1];
}

std::unique_ptr<Device> make_model_device(const Straps& straps) {
  return std::make_unique<Model>(ModelParams{}, straps);
}

}  // namespace neoprof
