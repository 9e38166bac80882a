// SPDX-License-Identifier: Apache-2.0
// Addresses without memory, to be filled and emptied page by page while others compute there. A touch of a page that is
// not there is a fault: the toucher waits until its bytes have come, and never sees zeros (userfaultfd(2)).
//
// Invariant: a page appears with all its bytes, at once, for every thread.
//
// Thread safety: all calls from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/status.h"

namespace neotier::experts {

inline constexpr uint64_t kPage = 4096;

class EmptyRange {
 public:
  // Called by the range's own thread for each page that somebody waits for, at least once.
  using Fault = std::function<void(std::byte* page)>;

  // bytes: rounded up to whole pages. node: where its memory is to lie, preferred; -1: the system's choice.
  // kUnsupported: no userfaultfd for this process; kNoMemory, kInvalid (no such node). One line each.
  static engine::Result<std::unique_ptr<EmptyRange>> reserve(uint64_t bytes, int node = -1);
  ~EmptyRange();
  EmptyRange(const EmptyRange&) = delete;
  EmptyRange& operator=(const EmptyRange&) = delete;

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }

  // Empty: pages that are touched become zeros. Returns when no call of the former one is under way.
  void on_fault(Fault fault);

  // Whole pages, at `to`. Those that are there stay as they are. `from`: outside of every range. kNoMemory, kInvalid.
  engine::Status put(std::byte* to, const std::byte* from, uint64_t bytes);
  void take_out(std::byte* at, uint64_t bytes);
  // Who waits for the page tries again.
  void wake(std::byte* page);
  // Who touches the page gets a SIGBUS; where the kernel cannot do that (before 6.6) the process ends with `why`.
  void poison(std::byte* page, const std::string& why);

 private:
  EmptyRange() = default;
  void run();
  void zero(std::byte* page);

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  int faults_ = -1, stop_ = -1;
  std::mutex mutex_;  // of fault_, held while it runs
  Fault fault_;
  std::thread thread_;
};

}  // namespace neotier::experts
