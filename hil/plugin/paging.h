// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Instructions by which a kernel tells its processor's TLB what has changed: Intel SDM, volume 2, MOV to control
// registers, INVLPG, INVPCID. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace neotier::hil {

struct PagingInstruction {
  enum class Kind {
    kRoot,     // MOV CR3: a new root, or the old one to flush; its value is in register `base`
    kControl,  // MOV CR4, INVPCID: taken for a flush of everything
    kPage,     // INVLPG of base + (index << scale) + displacement
  };
  Kind kind;
  // Numbers of general registers as instructions encode them, rax 0 to r15 15; -1: none.
  int base = -1, index = -1, scale = 0;
  int64_t displacement = 0;
  bool operator==(const PagingInstruction&) const = default;
};

// `code`: the instruction's bytes; `next`: the address of the one behind it, for operands relative to it.
// Nothing: another instruction.
std::optional<PagingInstruction> decode_paging(const uint8_t* code, size_t size, uint64_t next);

}  // namespace neotier::hil
