// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// The device as its surroundings see it: requests and ticks go in, registers are read and written, hotlist entries come
// out. Two implementations answer alike, bit for bit: the Verilated RTL (make_rtl_device) and the C++ golden model
// (make_model_device). Not thread-safe: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace neoprof {

// What a CXL device knows from its decoders and its memory controller; constant for the device's life.
struct Straps {
  uint64_t hpa_base = 0;             // bytes; host physical address of DPA 0
  uint64_t hpa_size = 0;             // bytes
  uint32_t peak_lines_per_tick = 0;  // 64-byte requests the memory can serve in 100 us
  uint64_t serial = 0;               // of the CXL memory device; 0: none
  uint32_t log2_width = 0;           // counters in a row of the tracker, log2; 0: as many as were built
  uint32_t hash_seed = 0;            // which family of hash functions; 0: the one of a device without this strap
};

// Receives what the device changes by itself, in the order in which it changes it, during access, tick, write and
// drain.
class RingObserver {
 public:
  virtual ~RingObserver() = default;
  virtual void on_ring_entry(uint32_t index, uint64_t entry) = 0;  // index in [0, hotlist entries)
};

class Device {
 public:
  virtual ~Device() = default;
  // One request of 64 bytes at device physical address `dpa` (bytes). Takes one clock. Never refused.
  virtual void access(uint64_t dpa, bool is_write) = 0;
  // Requests in order, one a clock: each a `dpa`, plus 1 for a write (bit 0 of an address is none).
  virtual void accesses(std::span<const uint64_t> requests) = 0;
  // 100 us of device time pass.
  virtual void tick() = 0;
  // Clocks the device until every accepted request has had all its effects.
  virtual void drain() = 0;
  // AXI4-Lite write of 64 bits at a multiple of 8 in register space; bit n of `strobe` enables byte n. Drains first and
  // returns once the write and any operation it started (reset, snapshot) are complete.
  virtual void write(uint32_t offset, uint64_t data, uint8_t strobe) = 0;
  // AXI4-Lite read of 64 bits at a multiple of 8. No side effects. Unmapped offsets read 0.
  virtual uint64_t read(uint32_t offset) = 0;
  // Live values, without a bus access: STATUS and RING as a host would read them now, and the interrupt line.
  virtual uint64_t status() const = 0;
  virtual uint64_t ring() const = 0;
  virtual bool irq() const = 0;
  // Interrupt messages (MSI) that the device has sent since construction.
  virtual uint64_t messages() const = 0;
  // Clocks since construction (simulation speed is measured with it). The model counts the same clocks.
  virtual uint64_t cycles() const = 0;
  virtual void set_observer(RingObserver* observer) = 0;  // not owned; nullptr: none
};

std::unique_ptr<Device> make_rtl_device(const Straps& straps);
std::unique_ptr<Device> make_model_device(const Straps& straps);

}  // namespace neoprof
