// SPDX-License-Identifier: Apache-2.0
// An access with its memory list, that goes on after a short transfer.
#pragma once

#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <vector>

#include "engine/io/file.h"
#include "engine/tiers/ssd/format.h"

namespace neotier::engine::ssd {

struct Access : Io {
  enum class Owner : uint8_t { kRun, kJournal, kCleaner, kCaller };
  Owner owner = Owner::kCaller;
  std::vector<iovec> list;
  uint64_t total = 0, left = 0;
  unsigned restarts = 0;

  void prepare(IoOp what, uint64_t at) {
    op = what;
    offset = at;
    list.clear();
    buffer = -1;
  }
  void prepare(IoOp what, uint64_t at, std::byte* memory, uint64_t bytes, int registered) {
    prepare(what, at);
    list.push_back({memory, bytes});
    buffer = registered;
  }
  void start(File& file) {
    iov = list.data();
    iovs = static_cast<uint32_t>(list.size());
    total = 0;
    for (const iovec& part : list) total += part.iov_len;
    left = total;
    restarts = 0;
    file.start(*this);
  }
  // After wait() gave it back: true if it had to be started again. Else `result` is `total`, or -errno.
  bool go_on(File& file) {
    constexpr unsigned kRestarts = 100;
    if ((result == -EINTR || result == -EAGAIN) && ++restarts < kRestarts) {
      file.start(*this);
      return true;
    }
    if (result < 0 || op == IoOp::kSync) return false;
    uint64_t done = static_cast<uint64_t>(result) / kBlock * kBlock;
    if (static_cast<uint64_t>(result) < left && (result == 0 || ++restarts == kRestarts)) {
      result = -EIO;  // past the end, or no progress
      return false;
    }
    if (static_cast<uint64_t>(result) >= left) {
      result = static_cast<int64_t>(total);
      return false;
    }
    left -= done;
    offset += done;
    while (done >= iov->iov_len) {
      done -= iov->iov_len;
      iov++;
      iovs--;
    }
    auto& part = list[static_cast<size_t>(iov - list.data())];
    part.iov_base = static_cast<std::byte*>(part.iov_base) + done;
    part.iov_len -= done;
    file.start(*this);
    return true;
  }
};

// Aligned to a block.
struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte[], FreeMemory>;
inline Memory make_memory(size_t bytes) {
  return Memory(static_cast<std::byte*>(std::aligned_alloc(kBlock, (bytes + kBlock - 1) / kBlock * kBlock)));
}

// Starts all and waits for them; for when nothing else is under way. The first -errno, or 0.
int64_t run_now(File& file, std::span<Access> accesses);

}  // namespace neotier::engine::ssd
