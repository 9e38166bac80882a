// SPDX-License-Identifier: GPL-2.0-or-later
// One NeoProf behind one shared-memory BAR: passes the guest's stores on to the device's bus, keeps the BAR's copy of
// the registers true, and raises the interrupt. The caller says where the BAR lies and how time passes.
//
// Thread safety: one thread; only DeviceThread has another, and is waited for before anything is seen.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "hil/plugin/device_thread.h"
#include "hil/plugin/timeline.h"
#include "hw/sim/neoprof_device.h"
#include "neoprof_regs.h"
#include "neotier/mailbox.h"

namespace neotier::hil {

// A device that misbehaves, for the driver's tests.
// kNoClock: one without the machine's clock, as hardware is.
enum class Fault { kNone, kMagic, kVersion, kUnits, kTail, kNoClock };

class BarDevice final : public neoprof::RingObserver {
 public:
  // `bar`: NEOTIER_BAR_BYTES, mapped, not owned. `irq_fd`: an eventfd that raises the device's MSI-X vector, -1: none.
  BarDevice(const neoprof::Straps& straps, bool model, Fault fault, uint8_t* bar, int irq_fd)
      : fault_(fault),
        bar_(bar),
        irq_fd_(irq_fd),
        device_(model ? neoprof::make_model_device(straps) : neoprof::make_rtl_device(straps)) {
    device_->set_observer(this);
    thread_ = std::make_unique<DeviceThread>(*device_);
    mirror_all();
  }

  void set_address(uint64_t address) { address_ = address; }
  // Whether a guest-physical address is in this BAR.
  bool contains(uint64_t pa) const { return pa - address_ < NEOTIER_BAR_BYTES; }
  uint32_t offset(uint64_t pa) const { return static_cast<uint32_t>(pa - address_); }

  // A request of 64 bytes reaches the memory device.
  void count(bool is_write) { ++(is_write ? counts_.writes : counts_.reads); }
  // The profiler sees it. One that is not enabled ignores requests and time: clocking it could change nothing.
  void observe(uint64_t dpa, bool is_write) {
    if (enabled_) thread_->request(dpa, is_write);
  }
  const neotier_device_counters& counts() const { return counts_; }

  void settle() { thread_->settle(); }
  bool enabled() const { return enabled_; }

  // From here on take_reports() has the units that the device has put into its hotlist.
  void keep_reports() { keep_reports_ = true; }
  // Since the last call; after settle().
  std::vector<uint64_t> take_reports() { return std::exchange(reports_, {}); }

  // Latches and reads the device's own counters; after settle().
  DeviceCounters observe_counters() {
    const auto field = [](uint64_t value, uint64_t mask) { return (value & mask) / (mask & -mask); };
    device_->write(NEOPROF_CTRL_OFFSET, NEOPROF_CTRL_SNAPSHOT_MASK, 0xff);
    const uint64_t cfg0 = device_->read(NEOPROF_CFG0_OFFSET), cfg1 = device_->read(NEOPROF_CFG1_OFFSET);
    const uint64_t track = field(cfg0, NEOPROF_CFG0_TRACK_MASK);
    DeviceCounters observed;
    observed.epochs = device_->read(NEOPROF_EPOCHS_OFFSET);
    observed.lost_tap = device_->read(NEOPROF_LOST_TAP_OFFSET);
    observed.lost_ring = device_->read(NEOPROF_LOST_RING_OFFSET);
    observed.lost_candidates = device_->read(NEOPROF_LOST_CANDIDATES_OFFSET);
    observed.saturated = device_->read(NEOPROF_SATURATED_OFFSET);
    observed.threshold = field(cfg0, NEOPROF_CFG0_THRESHOLD_MASK);
    observed.unit_shift = field(cfg1, NEOPROF_CFG1_UNIT_SIZE_MASK) == 21 ? 21 : 12;
    observed.counts_reads = track == 1 || track == 3 || track == 4 || track == 6;
    observed.counts_writes = track == 2 || track == 3 || track == 5 || track == 6;
    return observed;
  }

  // After settle().
  uint64_t cycles() const { return device_->cycles(); }
  void tick() {
    if (enabled_) device_->tick();
  }

  // The guest's store has already landed in the shared memory: pass it on, then restore what the device says.
  // `now_ns`: of the machine's clock, for CLOCK.
  void store(uint32_t offset, unsigned bytes, uint64_t now_ns) {
    settle();
    for (uint32_t word = offset & ~7u; word < offset + bytes; word += 8) {
      uint64_t data;
      std::memcpy(&data, bar_ + word, 8);
      uint8_t strobe = 0;
      for (uint32_t b = 0; b < 8; ++b) {
        if (word + b >= offset && word + b < offset + bytes) strobe |= static_cast<uint8_t>(1u << b);
      }
      device_->write(word, data, strobe);
      if (word == NEOPROF_CTRL_OFFSET && (strobe & 1) && (data & NEOPROF_CTRL_CLOCK_MASK) && has_clock()) {
        clock_ns_ = now_ns;
        mirror_word(NEOPROF_CLOCK_OFFSET);
      }
      if ((word == NEOPROF_CTRL_OFFSET && (data & NEOPROF_CTRL_SNAPSHOT_MASK)) ||
          (word == NEOPROF_CFG0_OFFSET && (data & NEOPROF_CFG0_RESET_MASK))) {
        mirror_all();
      } else {
        mirror_word(word);
      }
    }
    mirror_live();
  }

  // What the device changes by itself. After settle().
  void mirror_live() {
    device_->drain();
    uint64_t ring = device_->ring();
    if (fault_ == Fault::kTail && ring != 0) ring |= uint64_t{0xffff} << 16;
    const uint64_t status = device_->status();
    enabled_ = (status & NEOPROF_STATUS_ENABLED_MASK) != 0;
    store64(NEOPROF_STATUS_OFFSET, status);
    store64(NEOPROF_RING_OFFSET, ring);
    pass_messages();
  }

  // RingObserver; in the thread that clocks the device.
  void on_ring_entry(uint32_t index, uint64_t entry) override {
    if (keep_reports_) reports_.push_back(entry >> 16);
    if (fault_ == Fault::kUnits) entry |= uint64_t{1} << 60;
    store64(NEOPROF_HOTLIST_OFFSET + index * NEOPROF_HOTLIST_STRIDE, entry);
  }

 private:
  bool has_clock() const { return fault_ != Fault::kNoClock; }

  void store64(uint32_t offset, uint64_t value) { std::memcpy(bar_ + offset, &value, 8); }

  void pass_messages() {
    const uint64_t sent = device_->messages();
    if (sent != passed_ && irq_fd_ >= 0) {
      const uint64_t one = 1;
      // Cannot fail but when 2^64 - 1 messages wait: one that is not sent is then no loss.
      [[maybe_unused]] const ssize_t written = write(irq_fd_, &one, sizeof one);
    }
    passed_ = sent;
  }

  void mirror_word(uint32_t offset) {
    uint64_t value = device_->read(offset);
    if (offset == NEOPROF_CLOCK_OFFSET) value = clock_ns_;
    if (offset == NEOPROF_ID_OFFSET && has_clock()) value |= NEOPROF_ID_CLOCK_MASK;
    if (offset == NEOPROF_ID_OFFSET && fault_ == Fault::kMagic) value ^= 1;
    if (offset == NEOPROF_ID_OFFSET && fault_ == Fault::kVersion) value += uint64_t{0x0100} << 32;
    store64(offset, value);
  }

  // Everything but the hotlist's entries, which the observer keeps current.
  void mirror_all() {
    for (uint32_t offset = 0; offset < NEOPROF_HOTLIST_OFFSET; offset += 8) mirror_word(offset);
    for (uint32_t offset = NEOPROF_ID_OFFSET;
         offset < NEOPROF_HISTOGRAM_OFFSET + NEOPROF_HISTOGRAM_COUNT * NEOPROF_HISTOGRAM_STRIDE; offset += 8) {
      mirror_word(offset);
    }
    mirror_live();
  }

  Fault fault_;
  uint8_t* bar_;
  int irq_fd_;
  std::unique_ptr<neoprof::Device> device_;
  std::unique_ptr<DeviceThread> thread_;  // every other use of device_ comes after its settle()
  uint64_t address_ = UINT64_MAX - NEOTIER_BAR_BYTES;
  neotier_device_counters counts_{};
  bool enabled_ = false;
  bool keep_reports_ = false;
  std::vector<uint64_t> reports_;
  uint64_t passed_ = 0;    // of the device's messages
  uint64_t clock_ns_ = 0;  // as latched
};

}  // namespace neotier::hil
