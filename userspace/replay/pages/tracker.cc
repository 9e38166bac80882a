// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/tracker.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "hw/sim/neoprof_device.h"
#include "neoprof_regs.h"

namespace neotier::pages {

namespace {

uint64_t put(uint64_t mask, uint64_t value) { return value * (mask & -mask) & mask; }
uint64_t get(uint64_t mask, uint64_t word) { return (word & mask) / (mask & -mask); }

// The profiler itself, set up as the driver does.
class DeviceTracker final : public Tracker, neoprof::RingObserver {
 public:
  explicit DeviceTracker(const TrackerOptions& options) : ring_(kRing) {
    neoprof::Straps straps;
    straps.hpa_size = uint64_t{options.slots} << 12;
    straps.log2_width = options.log2_width;
    straps.peak_lines_per_tick = options.peak_lines_per_tick;
    device_ = neoprof::make_model_device(straps);
    device_->set_observer(this);
    uint64_t cfg1 = device_->read(NEOPROF_CFG1_OFFSET);
    cfg1 &= ~(NEOPROF_CFG1_UNIT_SIZE_MASK | NEOPROF_CFG1_EPOCH_SCALE_MASK | NEOPROF_CFG1_EPOCH_MULT_MASK |
              NEOPROF_CFG1_MODE_MASK);
    uint64_t scale = 1, length = options.epoch_ticks;
    while (length > get(NEOPROF_CFG1_EPOCH_MULT_MASK, NEOPROF_CFG1_EPOCH_MULT_MASK)) {
      length /= 10;
      ++scale;
    }
    cfg1 |= put(NEOPROF_CFG1_UNIT_SIZE_MASK, 12) | put(NEOPROF_CFG1_EPOCH_SCALE_MASK, scale) |
            put(NEOPROF_CFG1_EPOCH_MULT_MASK, length) | put(NEOPROF_CFG1_MODE_MASK, 1);
    device_->write(NEOPROF_CFG1_OFFSET, cfg1, 0xff);
    set_bitmap(options.slots);
    set_threshold(1);
  }

  void requests(std::span<const uint32_t> slots) override {
    requests_.clear();
    for (const uint32_t slot : slots) requests_.push_back(uint64_t{slot >> 1} << 12 | (slot & 1));
    device_->accesses(requests_);
  }
  void tick() override {
    device_->tick();
    // Its clock runs on: what the end of an epoch takes is over long before the next tick.
    device_->drain();
  }
  void set_threshold(uint32_t threshold) override {
    if (threshold == threshold_) return;
    threshold_ = threshold;
    constexpr uint64_t kReads = 4;
    device_->write(NEOPROF_CFG0_OFFSET,
                   put(NEOPROF_CFG0_TRACK_MASK, kReads) | put(NEOPROF_CFG0_ENABLE_MASK, 1) |
                       put(NEOPROF_CFG0_THRESHOLD_MASK, threshold),
                   0xff);
  }
  void drain(uint32_t max, std::vector<Report>& reports) override {
    device_->drain();
    const auto tail = static_cast<uint32_t>(get(NEOPROF_RING_TAIL_MASK, device_->ring()));
    for (; head_ != tail && max != 0; --max, head_ = (head_ + 1) % kRing) {
      reports.push_back({static_cast<uint32_t>(ring_[head_] >> 16), static_cast<uint32_t>(ring_[head_] & 0xffff)});
    }
    write_head();
  }
  uint32_t discard() override {
    device_->drain();
    const auto tail = static_cast<uint32_t>(get(NEOPROF_RING_TAIL_MASK, device_->ring()));
    const uint32_t thrown = (tail + kRing - head_) % kRing;
    head_ = tail;
    write_head();
    return thrown;
  }
  TrackerState state() override {
    device_->drain();
    device_->write(NEOPROF_CTRL_OFFSET, NEOPROF_CTRL_SNAPSHOT_MASK, 0xff);
    TrackerState s;
    s.epochs = device_->read(NEOPROF_EPOCHS_OFFSET);
    s.reads = device_->read(NEOPROF_READS_OFFSET);
    s.writes = device_->read(NEOPROF_WRITES_OFFSET);
    s.lost_ring = device_->read(NEOPROF_LOST_RING_OFFSET);
    s.lost_units = device_->read(NEOPROF_LOST_CANDIDATES_OFFSET);
    s.lost_requests = device_->read(NEOPROF_LOST_TAP_OFFSET);
    s.error_bound = static_cast<uint32_t>(get(NEOPROF_ERROR_BOUND_MASK, device_->read(NEOPROF_ERROR_OFFSET)));
    static_assert(NEOTIER_HISTOGRAM_BINS == 2 * NEOPROF_HISTOGRAM_COUNT);
    for (uint32_t i = 0; i < NEOPROF_HISTOGRAM_COUNT; ++i) {
      const uint64_t word = device_->read(NEOPROF_HISTOGRAM_OFFSET + i * NEOPROF_HISTOGRAM_STRIDE);
      s.histogram[2 * i] = static_cast<uint32_t>(get(NEOPROF_HISTOGRAM_EVEN_MASK, word));
      s.histogram[2 * i + 1] = static_cast<uint32_t>(get(NEOPROF_HISTOGRAM_ODD_MASK, word));
    }
    return s;
  }
  uint32_t places() const override { return NEOPROF_WATCH_COUNT; }
  void watch(uint32_t place, uint32_t slot) override {
    device_->write(watch_offset(place), put(NEOPROF_WATCH_UNIT_MASK, slot), 0xff);
  }
  uint32_t watched(uint32_t place) override {
    device_->drain();
    return static_cast<uint32_t>(get(NEOPROF_WATCH_COUNT_MASK, device_->read(watch_offset(place))));
  }

 private:
  static uint32_t watch_offset(uint32_t place) { return NEOPROF_WATCH_OFFSET + place * NEOPROF_WATCH_STRIDE; }
  void on_ring_entry(uint32_t index, uint64_t entry) override { ring_[index] = entry; }
  void write_head() { device_->write(NEOPROF_RING_OFFSET, put(NEOPROF_RING_HEAD_MASK, head_), 0x3); }
  void set_bitmap(uint32_t slots) {
    // One bit for each 256 MiB of the device.
    const uint64_t bits = (uint64_t{slots} + 65535) / 65536;
    for (uint64_t word = 0; word * 64 < bits && word < 4; ++word) {
      const uint64_t n = std::min<uint64_t>(64, bits - word * 64);
      device_->write(static_cast<uint32_t>(NEOPROF_BITMAP_OFFSET + 8 * word),
                     n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1, 0xff);
    }
  }

  std::unique_ptr<neoprof::Device> device_;
  std::vector<uint64_t> ring_, requests_;
  uint32_t head_ = 0, threshold_ = 0;
};

// What exact trackers share: counts of an epoch, and the ring.
class Ring {
 public:
  void put(const Report& report, uint64_t& lost) {
    if (reports_.size() - begin_ >= Tracker::kRing - 1) {
      ++lost;
      return;
    }
    reports_.push_back(report);
  }
  void drain(uint32_t max, std::vector<Report>& to) {
    const size_t n = std::min<size_t>(max, reports_.size() - begin_);
    to.insert(to.end(), reports_.begin() + static_cast<std::ptrdiff_t>(begin_),
              reports_.begin() + static_cast<std::ptrdiff_t>(begin_ + n));
    begin_ += n;
    if (begin_ == reports_.size()) clear();
  }
  uint32_t clear() {
    const auto n = static_cast<uint32_t>(reports_.size() - begin_);
    reports_.clear();
    begin_ = 0;
    return n;
  }

 private:
  std::vector<Report> reports_;
  size_t begin_ = 0;
};

// Each page by itself, every request or one in `period`; a page is reported when its count reaches the threshold.
class CountingTracker final : public Tracker {
 public:
  CountingTracker(const TrackerOptions& options, uint32_t period)
      : options_(options), period_(period), left_(period), counts_(options.slots) {}

  void requests(std::span<const uint32_t> slots) override {
    for (const uint32_t slot : slots) {
      if (slot & 1) {
        ++state_.writes;
        continue;
      }
      ++state_.reads;
      if (--left_ != 0) continue;
      left_ = period_;
      if (slot >> 1 >= counts_.size()) counts_.resize((slot >> 1) + 1);
      uint32_t& count = counts_[slot >> 1];
      if (count++ == 0) touched_.push_back(slot >> 1);
      if (count == threshold_) ring_.put({slot >> 1, count * period_}, state_.lost_ring);
    }
  }
  void tick() override {
    if (++ticks_ % options_.epoch_ticks != 0) return;
    ++state_.epochs;
    std::fill(std::begin(state_.histogram), std::end(state_.histogram), 0);
    for (const uint32_t slot : touched_) {
      ++state_.histogram[bin_of(counts_[slot] * period_)];
      counts_[slot] = 0;
    }
    touched_.clear();
  }
  void set_threshold(uint32_t threshold) override { threshold_ = std::max(1u, threshold / period_); }
  void drain(uint32_t max, std::vector<Report>& reports) override { ring_.drain(max, reports); }
  uint32_t discard() override { return ring_.clear(); }
  TrackerState state() override { return state_; }

 private:
  static uint32_t bin_of(uint32_t count) {
    uint32_t bin = NEOTIER_HISTOGRAM_BINS - 1;
    while (bin > 0 && neotier_bin_low(bin) > count) --bin;
    return bin;
  }

  TrackerOptions options_;
  uint32_t period_, left_, threshold_ = 1;
  uint64_t ticks_ = 0;
  std::vector<uint32_t> counts_, touched_;
  Ring ring_;
  TrackerState state_;
};

}  // namespace

std::unique_ptr<Tracker> make_tracker(std::string_view name, const TrackerOptions& options) {
  if (name == "device") return std::make_unique<DeviceTracker>(options);
  if (name == "exact") return std::make_unique<CountingTracker>(options, 1);
  if (name == "pebs") return std::make_unique<CountingTracker>(options, options.pebs_period);
  throw std::runtime_error(fmt::format("--tracker '{}': expected device, exact or pebs", name));
}

}  // namespace neotier::pages
