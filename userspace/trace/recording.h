// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// A recording: a memory trace (trace/writer.h) of both tiers with time. Each record is a u64 whose top byte says what
// it is, so that a record of a line is the same as in a bare trace:
//
//   kLine      bits 0..39 the line's address; bit 0 write-back, bit 1 the kernel's own access (by an address of the
//              kernel)
//   kTime      bits 0..27 instructions, 28..55 ps of modelled time without stalls of fills, both since the last kTime;
//              as many in a row as the passed time needs. What follows happened after it.
//   kAccessed  bits 0..39 a number g, bits 40..55 a mask: pages 16 g + n whose bit n is set were accessed since the
//              last kAccessed records of them: what an Accessed bit would show
//   kFree, kAnonymous, kFile, kCached, kOther
//              likewise: such pages have been found to be free, a program's own and movable, of a file or of shared
//              memory and evictable, the same and in no program's page table, or anything else. Each page is kOther
//              until one of these says otherwise; what was so when the recording began comes first. Older recordings
//              have kFile in the place of kCached.
//   kOwner     bits 0..27 a page's number, bits 28..55 a number for whoever it belongs to and the place in there: the
//              address space or the file. Another number than before is another page in the same memory.
//   kHeader    bits 48..55 a field of Field, bits 0..47 its value. The first record is kVersion; all fields come before
//              anything else, but for the totals at the end.
#pragma once

#include <cstdint>

namespace neotier::trace {

enum class Record : uint8_t {
  kLine = 0,
  kTime = 1,
  kAccessed = 2,
  kHeader = 3,
  kFree = 4,
  kAnonymous = 5,
  kOther = 6,
  kFile = 7,
  kOwner = 8,
  kCached = 9
};

inline constexpr uint64_t kKernelBit = 2;
inline constexpr uint64_t kRecordingVersion = 3;
inline constexpr uint64_t kTimeField = (uint64_t{1} << 28) - 1;
inline constexpr uint64_t kOwnerField = (uint64_t{1} << 28) - 1;

enum class Field : uint8_t {
  kVersion = 1,
  kShift,    // guest ns an instruction = 2^shift
  kCxlBase,  // bytes
  kCxlBytes,
  kDramLatencyPs,  // of a fill
  kCxlLatencyPs,
  kDramServicePs,  // of a line
  kCxlServicePs,
  kMlp,
  kDramFreePages,  // when the region of interest began
  kCxlFreePages,
  kMmioReadPs,
  kBasePs,     // of an instruction
  kLog2Width,  // of the profiler's tracker
  // Pages that the kernel's allocator manages: DRAM below 16 MiB, below 4 GiB, above that; CXL memory.
  kManagedDma,
  kManagedDma32,
  kManagedNormal,
  kManagedCxl,
  kDramPresentPages,
  kMinFreeKib,      // sysctl vm.min_free_kbytes
  kWatermarkScale,  // vm.watermark_scale_factor of the recorded run, and of a policy that moves pages
  kTieringWatermarkScale,
  kReservePages,  // of the module, on this machine
  kBatchPages,
  // Totals of the region of interest, at the end.
  kEndModelledNs,
  kEndDramFills,
  kEndCxlFills,
  kEndL2Misses,  // what the last cache was asked for
  // Not at the end; they came later.
  kLlcKib,         // the last cache
  kModelledClock,  // 1: the guest's time is the modelled one, and kShift says nothing
  kNrFields
};
// What came later is 0 in older recordings of the same version.
constexpr bool is_total(Field field) { return field >= Field::kEndModelledNs && field <= Field::kEndL2Misses; }

constexpr uint64_t record_of(Record record, uint64_t value) {
  return static_cast<uint64_t>(record) << 56 | (value & ((uint64_t{1} << 56) - 1));
}
constexpr Record kind_of(uint64_t word) { return static_cast<Record>(word >> 56); }

constexpr uint64_t header_of(Field field, uint64_t value) {
  return record_of(Record::kHeader, static_cast<uint64_t>(field) << 48 | (value & ((uint64_t{1} << 48) - 1)));
}
constexpr uint64_t time_of(uint64_t instructions, uint64_t base_ps) {
  return record_of(Record::kTime, base_ps << 28 | instructions);
}
// Of pages 16 `group` + n whose bit n in `mask` is set.
constexpr uint64_t pages_of(Record record, uint64_t group, uint64_t mask) {
  return record_of(record, mask << 40 | group);
}
constexpr uint64_t accessed_of(uint64_t group, uint64_t mask) { return pages_of(Record::kAccessed, group, mask); }
constexpr uint64_t owner_of(uint64_t page, uint64_t owner) {
  return record_of(Record::kOwner, owner << 28 | (page & kOwnerField));
}

}  // namespace neotier::trace
