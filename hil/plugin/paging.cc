// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
#include "hil/plugin/paging.h"

#include <cstring>

namespace neotier::hil {

namespace {

bool is_prefix(uint8_t byte) {
  switch (byte) {
    case 0x26:
    case 0x2e:
    case 0x36:
    case 0x3e:
    case 0x64:
    case 0x65:
    case 0x66:
    case 0x67:
    case 0xf0:
    case 0xf2:
    case 0xf3:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<PagingInstruction> decode_paging(const uint8_t* code, size_t size, uint64_t next) {
  using Kind = PagingInstruction::Kind;
  size_t at = 0;
  bool operand_size = false;
  while (at < size && is_prefix(code[at])) operand_size |= code[at++] == 0x66;
  const uint8_t rex = at < size && (code[at] & 0xf0) == 0x40 ? code[at++] : uint8_t{0};
  if (at + 2 >= size || code[at] != 0x0f) return std::nullopt;
  const uint8_t opcode = code[at + 1], modrm = code[at + 2];
  const int mod = modrm >> 6, reg = modrm >> 3 & 7, rm = modrm & 7;
  const int rex_r = (rex & 4) << 1, rex_x = (rex & 2) << 2, rex_b = (rex & 1) << 3;
  if (opcode == 0x22) {
    const int control = reg | rex_r;
    if (control == 3) return PagingInstruction{.kind = Kind::kRoot, .base = rm | rex_b};
    if (control == 4) return PagingInstruction{.kind = Kind::kControl};
    return std::nullopt;
  }
  if (opcode == 0x38 && modrm == 0x82 && operand_size) return PagingInstruction{.kind = Kind::kControl};
  if (opcode != 0x01 || reg != 7 || mod == 3) return std::nullopt;

  PagingInstruction page{.kind = Kind::kPage};
  size_t rest = at + 3;
  bool wide = mod == 2;  // a displacement of 32 bits
  if (rm == 4) {
    if (rest >= size) return std::nullopt;
    const uint8_t sib = code[rest++];
    const int index = (sib >> 3 & 7) | rex_x;
    if (index != 4) page.index = index;
    page.scale = sib >> 6;
    if ((sib & 7) == 5 && mod == 0)
      wide = true;
    else
      page.base = (sib & 7) | rex_b;
  } else if (rm == 5 && mod == 0) {
    page.displacement = static_cast<int64_t>(next);
    wide = true;
  } else {
    page.base = rm | rex_b;
  }
  if (mod == 1 && rest < size) {
    page.displacement += static_cast<int8_t>(code[rest]);
  } else if (wide && rest + 4 <= size) {
    int32_t displacement;
    std::memcpy(&displacement, code + rest, sizeof displacement);
    page.displacement += displacement;
  } else if (mod == 1 || wide) {
    return std::nullopt;
  }
  return page;
}

}  // namespace neotier::hil
