// SPDX-License-Identifier: GPL-2.0-or-later
// Counts the line fills of every page of the guest by epochs of modelled time, and by kind of page over the region of
// interest. Who owns a frame is read from the guest kernel's struct page array, which costs the guest nothing: of every
// frame at the end of each epoch, and of one frame when it is filled for the first time in an epoch or through another
// virtual page than before. Format of the file: neotier/page_counts.h. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "hil/plugin/struct_page.h"
#include "neotier/page_counts.h"

namespace neotier::hil {

struct PageCountsOptions {
  std::string path;                // empty: nothing is counted
  uint64_t epoch_ps = 0;           // 0: sums by kind alone, no page is written
  uint64_t cxl_base = 0, end = 0;  // host-physical: [cxl_base, end) is CXL memory, [0, cxl_base) DRAM and holes
};

class PageCounts {
 public:
  // Throws std::runtime_error if the file cannot be written.
  PageCounts(const PageCountsOptions& options, ReadGuest read);
  ~PageCounts();
  PageCounts(const PageCounts&) = delete;
  PageCounts& operator=(const PageCounts&) = delete;

  bool active() const { return active_; }

  // The region of interest begins, `stall_ps` of {dram, cxl} having been charged so far.
  void begin(uint64_t now_ps, std::array<uint64_t, 2> stall_ps);

  // A line of 64 bytes has moved, while the guest accessed `va`. `stall_ps`: charged in its tier so far. Cheap.
  void line(uint64_t hpa, bool cxl, bool is_write, uint64_t va, uint64_t stall_ps) {
    if (hpa >= options_.end) [[unlikely]] {
      outside(cxl, is_write, stall_ps);
      return;
    }
    Frame& frame = frame_of(hpa >> 12);
    if (is_write) {
      ++frame.writebacks;
      return;
    }
    // Of a page walk, or the second line of an access: `va` is not of this line.
    const bool own = ((hpa ^ va) & 0xfc0) == 0;
    const auto tag = static_cast<uint32_t>(va >> 12);
    if (frame.looked != epoch_ || (own && frame.va != tag)) [[unlikely]] {
      frame.va = tag;
      look(hpa >> 12, frame);
    }
    ++frame.fills;
    frame.stall_ps += stall_ps - charged_ps_[cxl];
    charged_ps_[cxl] = stall_ps;
  }

  void tick(uint64_t now_ps) {
    if (now_ps >= epoch_end_ps_) [[unlikely]]
      end_epoch(now_ps);
  }

  // It ends: the file is whole, under its own name; or there is none, and a line on standard error says why.
  void end();
  // The guest ends before its region does: nothing is left.
  void abandon();

 private:
  static constexpr uint32_t kNoPage = UINT32_MAX;
  static constexpr uint32_t kNever = UINT32_MAX;
  static constexpr size_t kChunkFrames = 512;
  static constexpr uint64_t kKindsEpochPs = 50'000'000'000;  // where pages are not written

  struct Owner {
    neotier_page_kind kind = NEOTIER_PAGE_KERNEL;
    uint64_t mapping = 0, index = 0;  // 0: the kernel, or nobody
    bool locked = false;
  };
  struct Frame {
    uint64_t stall_ps = 0;
    uint32_t fills = 0, writebacks = 0;  // of the owner, in this epoch
    uint32_t looked = kNever;            // epoch in which its owner was looked at because of a fill
    uint32_t va = 0;                     // virtual page of that access, its low bits
    uint32_t page = kNoPage;
    Owner owner;
  };
  using Chunk = std::array<Frame, kChunkFrames>;

  Frame& frame_of(uint64_t number) {
    auto& chunk = chunks_[number / kChunkFrames];
    if (!chunk) [[unlikely]]
      chunk = std::make_unique<Chunk>();
    return (*chunk)[number % kChunkFrames];
  }
  void outside(bool cxl, bool is_write, uint64_t stall_ps);
  void look(uint64_t number, Frame& frame);
  Owner owner_of(uint64_t number, const StructPage& page);
  void settle(uint64_t number, Frame& frame, const Owner& owner);
  void flush(uint64_t number, Frame& frame);
  void add_page(uint64_t number, Frame& frame);
  void census();
  void end_epoch(uint64_t now_ps);
  void put(const void* data, size_t bytes);
  void give_up(const char* what);

  PageCountsOptions options_;
  ReadGuest read_;
  std::string part_;
  std::FILE* file_ = nullptr;
  bool active_ = false;
  uint32_t epoch_ = 0;
  uint64_t begin_ps_ = 0, epoch_end_ps_ = UINT64_MAX;
  std::array<uint64_t, 2> charged_ps_{};
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<neotier_page> pages_;
  neotier_page_counts_header header_{};
};

}  // namespace neotier::hil
