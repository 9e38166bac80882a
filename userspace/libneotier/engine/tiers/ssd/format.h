// SPDX-License-Identifier: Apache-2.0
// The bytes of an SSD tier's file; docs/engine.md draws them. Little-endian. All that is read from a file is checked
// here before anything else sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/status.h"
#include "engine/tier.h"

namespace neotier::engine::ssd {

inline constexpr uint32_t kBlock = 4096;  // the unit of place
// The unit of checksum and of mapping: 8 bytes of state each 64 KiB, 0.012 %, where 4 KiB would cost 0.2 %. A read of
// less than a chunk reads the chunk; objects smaller than that are one chunk of their own size.
inline constexpr uint32_t kChunk = 64 << 10;
inline constexpr uint32_t kChunkBlocks = kChunk / kBlock;
inline constexpr uint64_t kMaxExtentBytes = 1 << 30;
inline constexpr uint64_t kMaxFileBytes = uint64_t{kBlock} << 31;  // of 31-bit block numbers: 8 TiB
// 1 had no notes: such a file is read as it is and becomes one of this version when it is opened.
inline constexpr uint32_t kVersion = 2;
inline constexpr uint32_t kFrameBytes = 256 << 10;  // at most, header and padding included

// Where a chunk lies. The top bit of `block` marks one that was written only in part.
struct Place {
  uint32_t block = 0;  // 0: never written (the superblock lies there)
  uint32_t sum = 0;
  static constexpr uint32_t kHoles = 1u << 31;
  uint32_t number() const { return block & ~kHoles; }
  bool holes() const { return block & kHoles; }
  friend bool operator==(const Place&, const Place&) = default;
};
static_assert(sizeof(Place) == 8);

inline uint64_t blocks_of(uint64_t bytes) { return (bytes + kBlock - 1) / kBlock; }
inline uint32_t chunks_of(uint64_t bytes) { return static_cast<uint32_t>((bytes + kChunk - 1) / kChunk); }
// Blocks of chunk `i` of an extent.
inline uint32_t chunk_blocks(uint64_t extent_bytes, uint32_t i) {
  const uint64_t rest = extent_bytes - uint64_t{i} * kChunk;
  return rest >= kChunk ? kChunkBlocks : static_cast<uint32_t>(blocks_of(rest));
}

struct Geometry {
  uint64_t file_id = 0;  // random
  uint64_t file_bytes = 0;
  uint64_t journal_offset = 0;      // two areas, one after the other
  uint64_t journal_area_bytes = 0;  // each
  uint64_t data_offset = 0;
  uint64_t segment_bytes = 0;
  uint64_t segments = 0;
  uint64_t capacity_bytes = 0;  // that extents may fill; the rest lets the cleaner work
  uint64_t max_extents = 0;

  uint32_t first_block() const { return static_cast<uint32_t>(data_offset / kBlock); }
  uint32_t segment_blocks() const { return static_cast<uint32_t>(segment_bytes / kBlock); }
  uint32_t segment_of(uint32_t block) const { return (block - first_block()) / segment_blocks(); }
  // Whether `count` blocks from `block` lie within one segment.
  bool contains(uint32_t block, uint32_t count) const {
    return block >= first_block() && block - first_block() < segments * segment_blocks() &&
           (block - first_block()) % segment_blocks() + count <= segment_blocks();
  }
};

// For a new file. kInvalid where it is too small or too large. max_extents 0: one for each 16 KiB.
Result<Geometry> plan_geometry(uint64_t file_bytes, uint64_t max_extents);

// The superblock, a block written twice (blocks 0 and 1) and never again.
void encode_superblock(const Geometry& geometry, std::span<std::byte, kBlock> block);
// From its two copies; `path` is for the message. kInvalid: foreign, another version, cut short, or damaged. `version`:
// the older of the two copies'.
Result<Geometry> decode_superblock(std::span<const std::byte> blocks, uint64_t file_bytes, const std::string& path,
                                   uint32_t& version);

// ---- the journal

enum FrameFlags : uint32_t { kCheckpointBegin = 1, kCheckpointEnd = 2 };

// A frame is this, `payload` bytes of records, and zeros up to a multiple of 4096.
struct FrameHeader {
  uint64_t magic = 0;
  uint64_t file_id = 0;
  uint64_t epoch = 0;     // of the area's checkpoint; the highest complete one counts
  uint64_t sequence = 0;  // in the area, from 0
  uint64_t previous = 0;  // hash of the frame before: nothing that an earlier life left can follow
  uint64_t session = 0;   // random, each time the file is opened: no two lives write the same frame
  uint32_t payload = 0;
  uint32_t flags = 0;
  uint64_t hash = 0;  // XXH3 of the payload, seeded with that of all the above
};
static_assert(sizeof(FrameHeader) == 64);

inline uint64_t frame_bytes(uint64_t payload) { return blocks_of(sizeof(FrameHeader) + payload) * kBlock; }
// Seals the frame whose payload lies behind the header's room at `frame`. Returns its hash.
uint64_t seal_frame(std::byte* frame, FrameHeader header);
// The frame at the start of `bytes` if it is whole and the one expected (epoch and sequence, previous hash).
std::optional<FrameHeader> check_frame(std::span<const std::byte> bytes, const FrameHeader& expected);

// What happened to an extent. Each sets state and names no difference, so that one applied twice is as applied once.
struct Record {
  // kWriteV1: of version 1, with 4 bytes each for `first` and `count`; take_record() makes a kWrite of it.
  enum Type : uint32_t { kWriteV1 = 1, kFree = 2, kWrite = 3 };
  uint32_t type = 0;
  uint32_t slot = 0;
  uint32_t generation = 0;
  // kWrite only:
  uint32_t bytes = 0;
  Key key;
  uint16_t first = 0, count = 0;  // chunks, whose places follow
  Note note = 0;
};
static_assert(sizeof(Record) == 40 && kMaxExtentBytes / kChunk <= UINT16_MAX);
inline constexpr uint32_t kFreeRecordBytes = 16;
inline uint64_t record_bytes(const Record& record) {
  return record.type == Record::kFree ? kFreeRecordBytes : sizeof(Record) + uint64_t{record.count} * sizeof(Place);
}

void append_record(std::vector<std::byte>& to, const Record& record, const Place* places);
// Takes the record at the front of `from`; false at the end or where it makes no sense (then `damaged` is set).
bool take_record(std::span<const std::byte>& from, const Geometry& geometry, Record& record, const std::byte*& places,
                 bool& damaged);

}  // namespace neotier::engine::ssd
