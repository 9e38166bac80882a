// SPDX-License-Identifier: GPL-2.0-or-later
// The guest's RAM, mapped for reading from the descriptors that QEMU has it from. Thread-safe: never written.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "hil/model/tlb.h"

namespace neotier::hil {

class GuestMemory final : public PhysicalMemory {
 public:
  // `size` bytes at `offset` of `fd` are the guest's at `base`. Throws std::runtime_error in one line.
  void add(int fd, uint64_t base, uint64_t offset, uint64_t size) {
    void* at = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (at == MAP_FAILED) throw std::runtime_error(std::string("cannot map the guest's memory: ") + strerror(errno));
    pieces_.push_back({base, size, static_cast<const uint8_t*>(at)});
  }
  bool empty() const { return pieces_.empty(); }

  bool read(uint64_t pa, uint64_t& value) const override {
    for (const Piece& piece : pieces_) {
      if (pa - piece.base >= piece.size || piece.size - (pa - piece.base) < sizeof value) continue;
      std::memcpy(&value, piece.at + (pa - piece.base), sizeof value);
      return true;
    }
    return false;
  }

 private:
  struct Piece {
    uint64_t base, size;
    const uint8_t* at;
  };
  std::vector<Piece> pieces_;  // for as long as QEMU lives
};

}  // namespace neotier::hil
