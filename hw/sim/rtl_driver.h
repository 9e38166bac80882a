// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Clock, reset and bus driver for any Verilated neoprof_top: the RTL as a neoprof::Device, and clock by clock for
// tests.
#pragma once

#include <verilated.h>

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>

#include "neoprof_device.h"

namespace neoprof {

// Top: a class made by Verilator from neoprof_top. Channels: its parameter of that name.
template <class Top, unsigned Channels = 1>
class RtlDriver final : public Device {
 public:
  // Comes out of reset and waits until the memories are clear; clocks count from then on. Where Top was built with
  // --x-initial unique, everything that no reset sets begins with random bits of `start`.
  explicit RtlDriver(const Straps& straps, int start = 1)
      : context_(random_context(start)), top_(std::make_unique<Top>(context_.get(), "")) {
    Top& top = *top_;
    top.hpa_base_i = straps.hpa_base;
    top.hpa_size_i = straps.hpa_size;
    top.peak_lines_per_tick_i = straps.peak_lines_per_tick;
    top.serial_i = straps.serial;
    top.log2_width_i = static_cast<uint8_t>(straps.log2_width);
    top.hash_seed_i = static_cast<uint8_t>(straps.hash_seed);
    top.tick_i = 0;
    top.req_valid_i = 0;
    top.req_write_i = 0;
    for (unsigned channel = 0; channel < Channels; ++channel) set_request(channel, false, false, 0);
    top.s_axil_awvalid_i = 0;
    top.s_axil_awaddr_i = 0;
    top.s_axil_wvalid_i = 0;
    top.s_axil_wdata_i = 0;
    top.s_axil_wstrb_i = 0;
    top.s_axil_arvalid_i = 0;
    top.s_axil_araddr_i = 0;
    top.s_axil_bready_i = 1;
    top.s_axil_rready_i = 1;
    // rst_ni has to fall: the RTL is sensitive to the edge.
    top.clk_i = 0;
    top.rst_ni = 1;
    top.eval();
    top.rst_ni = 0;
    top.eval();
    clock();
    top.rst_ni = 1;
    top.eval();
    drain();
    cycles_ = messages_ = 0;
  }

  ~RtlDriver() override { top_->final(); }
  RtlDriver(const RtlDriver&) = delete;
  RtlDriver& operator=(const RtlDriver&) = delete;

  Top& top() { return *top_; }

  // One request port for the next clock().
  void set_request(unsigned channel, bool valid, bool is_write, uint64_t dpa) {
    const auto bit = static_cast<uint8_t>(1U << channel);
    top_->req_valid_i = static_cast<uint8_t>(valid ? top_->req_valid_i | bit : top_->req_valid_i & ~bit);
    top_->req_write_i = static_cast<uint8_t>(is_write ? top_->req_write_i | bit : top_->req_write_i & ~bit);
    if constexpr (Channels == 1) {
      top_->req_addr_i = dpa;
    } else {
      top_->req_addr_i[2 * channel] = static_cast<uint32_t>(dpa);
      top_->req_addr_i[2 * channel + 1] = static_cast<uint32_t>(dpa >> 32);
    }
  }

  void clock() {
    Top& top = *top_;
    top.clk_i = 1;
    top.eval();
    top.clk_i = 0;
    top.eval();
    ++cycles_;
    messages_ += top.msi_o;
    if (top.ring_we_o && observer_ != nullptr) {
      observer_->on_ring_entry(top.ring_index_o, top.ring_entry_o);
    }
  }

  [[nodiscard]] bool idle() const { return top_->idle_o; }

  void access(uint64_t dpa, bool is_write) override {
    set_request(0, true, is_write, dpa);
    clock();
    top_->req_valid_i = 0;
  }
  void accesses(std::span<const uint64_t> requests) override {
    for (const uint64_t request : requests) {
      access(request & ~uint64_t{1}, request & 1);
    }
  }

  void tick() override {
    top_->tick_i = 1;
    clock();
    top_->tick_i = 0;
  }

  void drain() override {
    settle();
    while (!top_->idle_o) {
      clock();
    }
  }

  void write(uint32_t offset, uint64_t data, uint8_t strobe) override {
    drain();
    if (offset >= kRegisterBytes) {
      return;
    }
    post_write(offset, data, strobe);
    drain();
  }

  // A write without waiting for requests in flight, before or after.
  void post_write(uint32_t offset, uint64_t data, uint8_t strobe) {
    Top& top = *top_;
    top.s_axil_awaddr_i = static_cast<uint16_t>(offset);
    top.s_axil_wdata_i = data;
    top.s_axil_wstrb_i = strobe;
    top.s_axil_awvalid_i = 1;
    top.s_axil_wvalid_i = 1;
    clock();
    top.s_axil_awvalid_i = 0;
    top.s_axil_wvalid_i = 0;
    await(top.s_axil_bvalid_o);
    clock();
  }

  uint64_t read(uint32_t offset) override {
    if (offset >= kRegisterBytes) {
      return 0;
    }
    Top& top = *top_;
    top.s_axil_araddr_i = static_cast<uint16_t>(offset);
    top.s_axil_arvalid_i = 1;
    clock();
    top.s_axil_arvalid_i = 0;
    await(top.s_axil_rvalid_o);
    const uint64_t data = top.s_axil_rdata_o;
    clock();
    return data;
  }

  [[nodiscard]] uint64_t status() const override { return top_->status_o; }
  [[nodiscard]] uint64_t ring() const override { return top_->ring_o; }
  [[nodiscard]] bool irq() const override { return top_->irq_o; }
  [[nodiscard]] uint64_t messages() const override { return messages_; }
  [[nodiscard]] uint64_t cycles() const override { return cycles_; }
  void set_observer(RingObserver* observer) override { observer_ = observer; }

 private:
  static constexpr uint32_t kRegisterBytes = 0x10000;

  // Far longer than an epoch's end, for which a write of configuration may have to wait.
  static constexpr uint64_t kBusClocks = 1'000'000;

  // Clocks until `signal` is 1. Throws std::runtime_error when the bus does not answer: the RTL is broken.
  void await(const CData& signal) {
    for (uint64_t waited = 0; !signal; ++waited) {
      if (waited == kBusClocks) {
        throw std::runtime_error("neoprof: no answer on the register bus");
      }
      clock();
    }
  }

  static std::unique_ptr<VerilatedContext> random_context(int start) {
    auto context = std::make_unique<VerilatedContext>();
    context->randReset(2);
    context->randSeed(start);
    return context;
  }

  // Takes over inputs changed since the last clock edge, so that combinational outputs (idle_o) are up to date.
  void settle() { top_->eval(); }

  std::unique_ptr<VerilatedContext> context_;
  std::unique_ptr<Top> top_;
  RingObserver* observer_ = nullptr;
  uint64_t cycles_ = 0;
  uint64_t messages_ = 0;
};

}  // namespace neoprof
