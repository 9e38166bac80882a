// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/ssd/superblock.h"

#include <cstring>

#include "engine/tiers/ssd/access.h"

namespace neotier::engine::ssd {

Status io_error(int64_t result, const std::string& what) {
  return {result == -ENOSPC ? Code::kFull : Code::kIo, what + ": " + std::strerror(static_cast<int>(-result))};
}

Result<Geometry> read_superblock(File& file, const std::string& path, uint32_t& version) {
  constexpr uint64_t kBytes = 2 * kBlock;
  if (file.bytes() < kBytes)
    return Status(Code::kInvalid,
                  path + ": not an SSD tier's file; give another path, or remove it if it is not needed");
  const Memory memory = make_memory(kBytes);
  // Each copy by itself: one may lie on a sector that cannot be read.
  std::memset(memory.get(), 0, kBytes);
  int64_t failed[2];
  for (size_t copy = 0; copy < 2; copy++) {
    Access read;
    read.prepare(IoOp::kRead, copy * kBlock, memory.get() + copy * kBlock, kBlock, -1);
    failed[copy] = run_now(file, std::span(&read, 1));
  }
  if (failed[0] < 0 && failed[1] < 0) return io_error(failed[0], path + ": the superblock cannot be read");
  return decode_superblock(std::span(memory.get(), kBytes), file.bytes(), path, version);
}

namespace {

Status write_copy(File& file, size_t copy, std::byte* block, const std::string& path) {
  Access write;
  write.prepare(IoOp::kWrite, copy * kBlock, block, kBlock, -1);
  if (const int64_t failed = run_now(file, std::span(&write, 1)); failed < 0)
    return io_error(failed, path + ": the superblock cannot be written");
  Access sync;
  sync.prepare(IoOp::kSync, 0);
  if (const int64_t failed = run_now(file, std::span(&sync, 1)); failed < 0)
    return io_error(failed, path + ": cannot be made durable");
  return Status::ok();
}

}  // namespace

Status write_superblock(File& file, const Geometry& geometry, const std::string& path) {
  const Memory memory = make_memory(kBlock);
  encode_superblock(geometry, std::span<std::byte, kBlock>(memory.get(), kBlock));
  for (size_t copy = 0; copy < 2; copy++)
    if (Status written = write_copy(file, copy, memory.get(), path); !written) return written;
  return Status::ok();
}

Status erase_superblock(File& file, const std::string& path) {
  const Memory memory = make_memory(kBlock);
  std::memset(memory.get(), 0, kBlock);
  for (const size_t copy : {1, 0})
    if (Status written = write_copy(file, copy, memory.get(), path); !written) return written;
  return Status::ok();
}

}  // namespace neotier::engine::ssd
