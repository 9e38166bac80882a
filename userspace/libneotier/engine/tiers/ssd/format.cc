// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/ssd/format.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "util/random_number.h"

namespace neotier::engine::ssd {

namespace {

constexpr uint64_t kSuperMagic = 0x3144535349544F4E;  // "NOTISSD1"
constexpr uint64_t kFrameMagic = 0x454D4152464E544E;  // "NTNFRAME"

struct Superblock {
  uint64_t magic;
  uint32_t version;
  uint32_t block_bytes;
  uint32_t chunk_bytes;
  uint32_t reserved;
  Geometry geometry;
  uint64_t hash;  // XXH3 of all the above
};
static_assert(sizeof(Geometry) == 72 && sizeof(Superblock) == 104);
static_assert(std::endian::native == std::endian::little, "the file is little-endian and written as it lies in memory");

bool sound(const Geometry& g) {
  const uint64_t blocks = g.file_bytes / kBlock;
  return g.file_bytes <= kMaxFileBytes && g.journal_offset == 2 * kBlock && g.journal_area_bytes % kBlock == 0 &&
         g.journal_area_bytes >= 2 * kFrameBytes && g.journal_area_bytes < g.file_bytes &&
         g.data_offset == g.journal_offset + 2 * g.journal_area_bytes && g.segment_bytes % kChunk == 0 &&
         g.segment_bytes > 0 && g.segments >= 8 && g.segments < blocks && g.segment_bytes < g.file_bytes &&
         g.data_offset < g.file_bytes && g.segments <= (g.file_bytes - g.data_offset) / g.segment_bytes &&
         g.capacity_bytes <= g.segments * g.segment_bytes && g.max_extents > 0 && g.max_extents <= blocks;
}

}  // namespace

Result<Geometry> plan_geometry(uint64_t file_bytes, uint64_t max_extents) {
  constexpr uint64_t kMinBytes = 16 << 20;
  if (file_bytes < kMinBytes || file_bytes > kMaxFileBytes)
    return Status(Code::kInvalid, "an SSD file of " + std::to_string(file_bytes) + " bytes: give 16 MiB to 8 TiB");
  Geometry g;
  g.file_id = random_number();
  g.file_bytes = file_bytes / kBlock * kBlock;
  g.max_extents = max_extents ? max_extents : std::max<uint64_t>(1024, file_bytes / (16 << 10));
  if (g.max_extents > g.file_bytes / kBlock)
    return Status(Code::kInvalid, "an SSD file of " + std::to_string(file_bytes) + " bytes has no room for " +
                                      std::to_string(max_extents) + " extents of a block each");
  g.segment_bytes = std::clamp<uint64_t>(std::bit_floor(file_bytes / 64), 1 << 20, 64 << 20);
  // The largest checkpoint, twice over: the second half takes what happens before the next one.
  const uint64_t checkpoint =
      g.max_extents * (sizeof(Record) + sizeof(Place)) + file_bytes / kChunk * sizeof(Place) + kFrameBytes;
  g.journal_offset = 2 * kBlock;
  g.journal_area_bytes = blocks_of(checkpoint * 2 + checkpoint / 8 + kFrameBytes) * kBlock;
  g.data_offset = g.journal_offset + 2 * g.journal_area_bytes;
  constexpr uint64_t kReserved = 4;  // two open, two for the cleaner to begin with
  if (g.data_offset + (kReserved + 4) * g.segment_bytes > g.file_bytes)
    return Status(Code::kInvalid, "an SSD file of " + std::to_string(file_bytes) + " bytes is too small for " +
                                      std::to_string(g.max_extents) + " extents: give a larger file or fewer extents");
  g.segments = (g.file_bytes - g.data_offset) / g.segment_bytes;
  // An eighth stays empty, so that some segment always has an eighth of dead bytes when the tier is full.
  g.capacity_bytes = (g.segments - kReserved) * g.segment_bytes / 8 * 7 / kBlock * kBlock;
  return g;
}

void encode_superblock(const Geometry& geometry, std::span<std::byte, kBlock> block) {
  Superblock super{kSuperMagic, kVersion, kBlock, kChunk, 0, geometry, 0};
  super.hash = XXH3_64bits(&super, offsetof(Superblock, hash));
  std::fill(block.begin(), block.end(), std::byte{0});
  std::memcpy(block.data(), &super, sizeof super);
}

Result<Geometry> decode_superblock(std::span<const std::byte> blocks, uint64_t file_bytes, const std::string& path,
                                   uint32_t& version) {
  version = kVersion;
  std::optional<Geometry> found;
  Status bad(Code::kInvalid, path + ": not an SSD tier's file; give another path, or remove it if it is not needed");
  for (size_t copy = 0; copy < 2; copy++) {
    Superblock super;
    std::memcpy(&super, blocks.data() + copy * kBlock, sizeof super);
    if (super.magic != kSuperMagic) continue;
    if (super.version < 1 || super.version > kVersion) {
      bad = Status(Code::kInvalid, path + ": format version " + std::to_string(super.version) + "; this program has " +
                                       std::to_string(kVersion));
      continue;
    }
    if (super.hash != XXH3_64bits(&super, offsetof(Superblock, hash)) || super.block_bytes != kBlock ||
        super.chunk_bytes != kChunk || !sound(super.geometry)) {
      bad = Status(Code::kInvalid, path + ": its superblock is damaged; restore the file, or remove it to begin anew");
      continue;
    }
    if (file_bytes < super.geometry.file_bytes)
      return Status(Code::kInvalid, path + ": has " + std::to_string(file_bytes) + " bytes and was made with " +
                                        std::to_string(super.geometry.file_bytes) + ": it was cut short");
    version = std::min(version, super.version);
    if (!found) found = super.geometry;
  }
  if (found) return *found;
  return bad;
}

namespace {

// Of the header but for its last field, and the payload.
uint64_t frame_hash(const FrameHeader& header, const std::byte* payload) {
  return XXH3_64bits_withSeed(payload, header.payload, XXH3_64bits(&header, offsetof(FrameHeader, hash)));
}

}  // namespace

uint64_t seal_frame(std::byte* frame, FrameHeader header) {
  header.magic = kFrameMagic;
  header.hash = frame_hash(header, frame + sizeof header);
  std::memcpy(frame, &header, sizeof header);
  std::fill(frame + sizeof header + header.payload, frame + frame_bytes(header.payload), std::byte{0});
  return header.hash;
}

std::optional<FrameHeader> check_frame(std::span<const std::byte> bytes, const FrameHeader& expected) {
  FrameHeader header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kFrameMagic || header.file_id != expected.file_id || header.epoch != expected.epoch ||
      header.sequence != expected.sequence || header.previous != expected.previous ||
      header.payload > kFrameBytes - sizeof header || frame_bytes(header.payload) > bytes.size() ||
      header.hash != frame_hash(header, bytes.data() + sizeof header))
    return std::nullopt;
  return header;
}

void append_record(std::vector<std::byte>& to, const Record& record, const Place* places) {
  const size_t at = to.size();
  to.resize(at + record_bytes(record));
  if (record.type == Record::kFree) {
    std::memcpy(to.data() + at, &record, kFreeRecordBytes);
    return;
  }
  std::memcpy(to.data() + at, &record, sizeof record);
  std::memcpy(to.data() + at + sizeof record, places, uint64_t{record.count} * sizeof(Place));
}

bool take_record(std::span<const std::byte>& from, const Geometry& geometry, Record& record, const std::byte*& places,
                 bool& damaged) {
  if (from.empty()) return false;
  damaged = true;
  if (from.size() < kFreeRecordBytes) return false;
  record = {};
  std::memcpy(static_cast<void*>(&record), from.data(), kFreeRecordBytes);
  if (record.slot >= geometry.max_extents) return false;
  if (record.type == Record::kWrite || record.type == Record::kWriteV1) {
    if (from.size() < sizeof record) return false;
    std::memcpy(&record, from.data(), sizeof record);
    if (record.type == Record::kWriteV1) {
      uint32_t chunks[2];
      std::memcpy(chunks, from.data() + offsetof(Record, first), sizeof chunks);
      if (chunks[0] > UINT16_MAX || chunks[1] > UINT16_MAX) return false;
      record.type = Record::kWrite;
      record.first = static_cast<uint16_t>(chunks[0]);
      record.count = static_cast<uint16_t>(chunks[1]);
      record.note = 0;
    }
    if (record.bytes == 0 || record.bytes > kMaxExtentBytes || record.count == 0 ||
        record.count > chunks_of(record.bytes) || record.first > chunks_of(record.bytes) - record.count ||
        record_bytes(record) > from.size())
      return false;
    places = from.data() + sizeof record;
    for (uint32_t i = 0; i < record.count; i++) {
      Place place;
      std::memcpy(&place, places + i * sizeof place, sizeof place);
      if (place.block != 0 && !geometry.contains(place.number(), chunk_blocks(record.bytes, record.first + i)))
        return false;
    }
  } else if (record.type != Record::kFree) {
    return false;
  }
  from = from.subspan(record_bytes(record));
  damaged = false;
  return true;
}

}  // namespace neotier::engine::ssd
