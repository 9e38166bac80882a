// SPDX-License-Identifier: GPL-2.0-or-later
// What the guest kernel's struct page array says: Linux 6.12 on x86-64 with nokaslr and four levels of page tables
// (Documentation/arch/x86/x86_64/mm.rst), SPARSEMEM_VMEMMAP. The guest's memory is untrusted: any value may be found.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "promotion/ping_pong.h"

namespace neotier::hil {

// Copies `bytes` of the guest's memory from a kernel address; false where nothing is mapped.
using ReadGuest = std::function<bool(uint64_t va, void* to, size_t bytes)>;

// As the kernel lays out its struct page (include/linux/mm_types.h): words of 8 bytes.
using StructPage = std::array<uint64_t, 8>;

namespace struct_page {

inline constexpr uint64_t kVmemmap = 0xffffea0000000000;
inline constexpr size_t kBytes = sizeof(StructPage);
enum Word : size_t { kFlags = 0, kCompoundHead = 1, kMapping = 3, kIndex = 4, kPrivate = 5, kTypeAndCount = 6 };
// enum pageflags and enum pagetype of include/linux/page-flags.h.
inline constexpr uint64_t kHead = 1 << 6, kReserved = 1 << 13, kSwapBacked = 1 << 17, kUnevictable = 1 << 18,
                          kMlocked = 1 << 19;
inline constexpr unsigned kFirstType = 0xf0, kNoType = 0xff, kBuddy = 0xf0;
// PAGE_MAPPING_FLAGS.
inline constexpr uint64_t kMappingFlags = 3, kMappingAnonymous = 1, kMappingMovable = 2;
inline constexpr unsigned kLargestOrder = 10;

inline unsigned type_of(const StructPage& page) { return static_cast<unsigned>(page[kTypeAndCount] >> 24 & 0xff); }

// Kernel pointers have their upper bits set; what other users of struct page keep in the mapping's place has not, or
// they have a type.
inline bool has_owner(const StructPage& head) {
  const unsigned type = type_of(head);
  const uint64_t mapping = head[kMapping];
  return !(type >= kFirstType && type < kNoType) && !(head[kFlags] & kReserved) && mapping >> 47 == 0x1ffff &&
         (mapping & kMappingFlags) != kMappingMovable;
}

// Of a page that has an owner: whether a page table has it. Its count of those begins at -1.
inline bool is_mapped(const StructPage& page) { return static_cast<int32_t>(page[kTypeAndCount]) >= 0; }

// Who a page belongs to, and its place in there, as the module tells pages apart; in 28 bits that are not all zero.
inline uint32_t owner_number(const StructPage& page) {
  return static_cast<uint32_t>(neotier_page_identity(page[kMapping], page[kIndex]) >> 36) | 1;
}

// Calls `use` with the number and the struct page of each frame below `end` whose struct page is there, in order.
template <typename Use>
void for_each(const ReadGuest& read, uint64_t end, Use use) {
  constexpr size_t kAtOnce = 64;
  std::array<StructPage, kAtOnce> some;
  for (uint64_t first = 0; first < end; first += kAtOnce) {
    if (!read(kVmemmap + first * kBytes, some.data(), sizeof some)) continue;
    for (uint64_t number = first; number < std::min(end, first + kAtOnce); ++number) use(number, some[number - first]);
  }
}

}  // namespace struct_page

// What each frame is used for, in a word; as a recording tells it (trace/recording.h).
enum class FrameState : uint8_t { kOther = 0, kFree, kAnonymous, kFile, kCached, kStates };

struct FrameCensus {
  std::vector<FrameState> states;            // of each frame
  std::vector<uint32_t> owners;              // of each frame: who it belongs to, in 28 bits; 0: no program or file
  uint64_t free_pages[2] = {0, 0};           // of {dram, cxl}: in the allocator's lists that watermarks count
  uint64_t managed_pages[4] = {0, 0, 0, 0};  // by the allocator: DRAM below 16 MiB, below 4 GiB, above; CXL memory
};

// Of the frames below `end` (bytes); those in [cxl_base, end) are CXL memory.
inline FrameCensus take_census(const ReadGuest& read, uint64_t cxl_base, uint64_t end) {
  using namespace struct_page;
  constexpr uint64_t kDmaEnd = (16ull << 20) >> 12, kDma32End = (4ull << 30) >> 12;
  FrameCensus census;
  census.states.resize(end >> 12, FrameState::kOther);
  census.owners.resize(end >> 12, 0);
  uint64_t free_until = 0;
  for_each(read, end >> 12, [&](uint64_t number, const StructPage& page) {
    const bool cxl = number >= cxl_base >> 12;
    if (type_of(page) == kBuddy && number >= free_until) {
      free_until = number + (uint64_t{1} << std::min<uint64_t>(page[kPrivate], kLargestOrder));
    }
    const bool free = number < free_until;
    if (free) {
      census.states[number] = FrameState::kFree;
      ++census.free_pages[cxl];
    } else if (!(page[kCompoundHead] & 1) && !(page[kFlags] & (kHead | kUnevictable | kMlocked)) && has_owner(page)) {
      census.states[number] = page[kMapping] & kMappingAnonymous ? FrameState::kAnonymous
                              : is_mapped(page)                  ? FrameState::kFile
                                                                 : FrameState::kCached;
      census.owners[number] = owner_number(page);
    }
    if (free || !(page[kFlags] & kReserved)) {
      ++census.managed_pages[cxl ? 3 : number < kDmaEnd ? 0 : number < kDma32End ? 1 : 2];
    }
  });
  return census;
}

}  // namespace neotier::hil
