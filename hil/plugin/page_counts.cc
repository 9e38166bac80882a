// SPDX-License-Identifier: GPL-2.0-or-later
#include "hil/plugin/page_counts.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace neotier::hil {

using namespace struct_page;

PageCounts::PageCounts(const PageCountsOptions& options, ReadGuest read)
    : options_(options), read_(std::move(read)), part_(options.path + ".part") {
  file_ = std::fopen(part_.c_str(), "wbe");
  if (!file_) throw std::runtime_error("cannot create " + part_ + ": " + std::strerror(errno));
  chunks_.resize((options_.end / 4096 + kChunkFrames - 1) / kChunkFrames);
  header_.magic = NEOTIER_PAGE_COUNTS_MAGIC;
  header_.epoch_ps = options_.epoch_ps;
}

PageCounts::~PageCounts() { abandon(); }

void PageCounts::put(const void* data, size_t bytes) {
  if (file_ && bytes != 0 && std::fwrite(data, 1, bytes, file_) != bytes) give_up("cannot write");
}

void PageCounts::give_up(const char* what) {
  std::fprintf(stderr, "neotier plugin: counts of pages: %s %s: %s\n", what, part_.c_str(), std::strerror(errno));
  abandon();
}

void PageCounts::abandon() {
  active_ = false;
  if (!file_) return;
  std::fclose(std::exchange(file_, nullptr));
  std::remove(part_.c_str());
}

void PageCounts::begin(uint64_t now_ps, std::array<uint64_t, 2> stall_ps) {
  if (!file_) return;
  put(&header_, sizeof header_);
  charged_ps_ = stall_ps;
  begin_ps_ = now_ps;
  epoch_end_ps_ = now_ps + (options_.epoch_ps != 0 ? options_.epoch_ps : kKindsEpochPs);
  active_ = true;
  if (options_.epoch_ps != 0) census();
}

PageCounts::Owner PageCounts::owner_of(uint64_t number, const StructPage& page) {
  StructPage head = page;
  Owner owner;
  uint64_t offset = 0;
  if (page[kCompoundHead] & 1) {
    const uint64_t at = page[kCompoundHead] - 1;
    const uint64_t own = kVmemmap + number * kBytes;
    if (at >= own || !read_(at, head.data(), sizeof head)) return owner;
    offset = (own - at) / kBytes;
  }
  const uint64_t mapping = head[kMapping];
  if (!has_owner(head)) return owner;
  owner.mapping = mapping;
  owner.index = head[kIndex] + offset;
  owner.locked = (head[kFlags] & (kUnevictable | kMlocked)) != 0;
  if (mapping & kMappingAnonymous) {
    const bool large = offset != 0 || (head[kFlags] & kHead);
    owner.kind = large ? NEOTIER_PAGE_HUGE : NEOTIER_PAGE_ANONYMOUS;
  } else {
    owner.kind = head[kFlags] & kSwapBacked ? NEOTIER_PAGE_SHMEM : NEOTIER_PAGE_FILE;
  }
  return owner;
}

// A device's memory: nobody's page.
void PageCounts::outside(bool cxl, bool is_write, uint64_t stall_ps) {
  neotier_page_fills& sum = header_.sum[cxl][NEOTIER_PAGE_KERNEL];
  if (is_write) {
    ++sum.writebacks;
    return;
  }
  ++sum.fills;
  sum.stall_ps += stall_ps - charged_ps_[cxl];
  charged_ps_[cxl] = stall_ps;
}

void PageCounts::look(uint64_t number, Frame& frame) {
  frame.looked = epoch_;
  StructPage page;
  Owner owner;
  if (read_(kVmemmap + number * kBytes, page.data(), sizeof page)) owner = owner_of(number, page);
  settle(number, frame, owner);
}

// What a frame without an owner was filled for in the epoch in which it gets one was its clearing: that is the new
// page's.
void PageCounts::settle(uint64_t number, Frame& frame, const Owner& owner) {
  if (owner.mapping != frame.owner.mapping || owner.index != frame.owner.index) {
    if (frame.owner.mapping != 0) flush(number, frame);
    frame.page = kNoPage;
  }
  frame.owner = owner;
  if (frame.page != kNoPage) {
    pages_[frame.page].kind = owner.kind;
    pages_[frame.page].locked = owner.locked;
  }
}

void PageCounts::add_page(uint64_t number, Frame& frame) {
  frame.page = static_cast<uint32_t>(pages_.size());
  neotier_page page{};
  page.frame = number;
  page.mapping = frame.owner.mapping;
  page.index = frame.owner.index;
  page.birth = page.last = epoch_;
  page.kind = frame.owner.kind;
  page.cxl = number << 12 >= options_.cxl_base;
  page.locked = frame.owner.locked;
  pages_.push_back(page);
}

// Gives what was counted in this epoch to the owner of now.
void PageCounts::flush(uint64_t number, Frame& frame) {
  if (frame.fills == 0 && frame.writebacks == 0) return;
  neotier_page_fills& sum = header_.sum[number << 12 >= options_.cxl_base][frame.owner.kind];
  sum.fills += frame.fills;
  sum.writebacks += frame.writebacks;
  sum.stall_ps += frame.stall_ps;
  if (options_.epoch_ps != 0) {
    if (frame.page == kNoPage) add_page(number, frame);
    const neotier_page_count count{frame.page, epoch_, frame.fills, frame.writebacks, frame.stall_ps};
    put(&count, sizeof count);
    ++header_.nr_counts;
  }
  frame.fills = frame.writebacks = 0;
  frame.stall_ps = 0;
}

// Looks at all frames. What can be demoted is a page even where it was never filled: it can make room.
void PageCounts::census() {
  constexpr size_t kAtOnce = 64;
  std::array<StructPage, kAtOnce> some;
  const uint64_t end = options_.end / 4096;
  for (uint64_t first = 0; first < end; first += kAtOnce) {
    const bool there = read_(kVmemmap + first * kBytes, some.data(), sizeof some);
    if (!there && !chunks_[first / kChunkFrames]) continue;
    for (uint64_t number = first; number < std::min(end, first + kAtOnce); ++number) {
      const Owner owner = there ? owner_of(number, some[number - first]) : Owner{};
      const bool room = options_.epoch_ps != 0 && owner.kind != NEOTIER_PAGE_KERNEL && !owner.locked;
      if (!room && !chunks_[number / kChunkFrames]) continue;
      Frame& frame = frame_of(number);
      settle(number, frame, owner);
      if (room && frame.page == kNoPage) add_page(number, frame);
      flush(number, frame);
      if (frame.page == kNoPage) continue;
      pages_[frame.page].last = epoch_;
      pages_[frame.page].seen = 1;
    }
  }
}

void PageCounts::end_epoch(uint64_t now_ps) {
  census();
  const uint64_t length = options_.epoch_ps != 0 ? options_.epoch_ps : kKindsEpochPs;
  const uint64_t passed = (now_ps - begin_ps_) / length;
  epoch_ = static_cast<uint32_t>(passed);
  epoch_end_ps_ = begin_ps_ + (passed + 1) * length;
}

void PageCounts::end() {
  if (!active_) return;
  end_epoch(epoch_end_ps_);
  active_ = false;
  header_.nr_epochs = epoch_;
  header_.nr_pages = pages_.size();
  put(pages_.data(), pages_.size() * sizeof pages_.front());
  if (file_ && std::fseek(file_, 0, SEEK_SET) != 0) give_up("cannot write");
  put(&header_, sizeof header_);
  if (!file_) return;
  if (std::fclose(std::exchange(file_, nullptr)) != 0 || std::rename(part_.c_str(), options_.path.c_str()) != 0) {
    std::fprintf(stderr, "neotier plugin: counts of pages: cannot write %s: %s\n", options_.path.c_str(),
                 std::strerror(errno));
    std::remove(part_.c_str());
  }
}

}  // namespace neotier::hil
