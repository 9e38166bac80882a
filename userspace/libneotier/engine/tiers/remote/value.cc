// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/remote/value.h"

#define XXH_STATIC_LINKING_ONLY  // states on the stack
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace neotier::engine::remote {

namespace {

static_assert(std::endian::native == std::endian::little, "values are little-endian");

// The last character is the version: another program's values are nothing.
constexpr char kPartMagic[] = "NTREMV01", kEntryMagic[] = "NTREME01";

template <typename T>
void put(char* at, T value) {
  std::memcpy(at, &value, sizeof value);
}
template <typename T>
T take(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Of all but the eight bytes at `hole`.
uint64_t seal(const Namespace& space, const char* bytes, size_t size, size_t hole) {
  XXH3_state_t state;
  XXH3_64bits_reset_withSeed(&state, space.high ^ space.low);
  XXH3_64bits_update(&state, bytes, hole);
  XXH3_64bits_update(&state, bytes + hole + 8, size - hole - 8);
  return XXH3_64bits_digest(&state);
}

// Of bytes in the order that they are given, or of a number from its highest digit on.
template <typename Bytes>
void append_hex(std::string& text, const Bytes& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
}
void append_hex(std::string& text, uint64_t number) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; i++) bytes[i] = static_cast<uint8_t>(number >> (56 - 8 * i));
  append_hex(text, bytes);
}

}  // namespace

Namespace make_namespace(std::string_view words) {
  const XXH128_hash_t hash = XXH3_128bits(words.data(), words.size());
  return {hash.high64, hash.low64};
}

std::string entry_name(const Namespace& space, const Key& key) {
  // A request asks for hundreds.
  std::string name;
  name.reserve(96);
  name += "neotier:";
  append_hex(name, space.high);
  append_hex(name, space.low);
  name += ':';
  append_hex(name, key.bytes);
  return name;
}

std::string part_name(const Namespace& space, const Identity& identity, uint32_t part) {
  std::string name = entry_name(space, identity.key);
  name += ':';
  append_hex(name, identity.token);
  return name + ':' + std::to_string(part);
}

Sums sums_of(std::span<const Piece> pieces, uint32_t bytes) {
  Sums sums{};
  XXH3_state_t state;
  uint32_t at = 0, in_grain = 0;
  XXH3_64bits_reset(&state);
  const auto close = [&] {
    sums[(at - 1) / kGrainBytes] = XXH3_64bits_digest(&state);
    XXH3_64bits_reset(&state);
    in_grain = 0;
  };
  for (const Piece& piece : pieces) {
    for (uint64_t done = 0; done < piece.bytes && at < bytes;) {
      const auto some = static_cast<uint32_t>(
          std::min<uint64_t>({piece.bytes - done, uint64_t{kGrainBytes} - in_grain, uint64_t{bytes} - at}));
      if (in_grain == 0 && some == kGrainBytes) {
        sums[at / kGrainBytes] = XXH3_64bits(piece.data + done, some);
      } else {
        XXH3_64bits_update(&state, piece.data + done, some);
        in_grain += some;
      }
      at += some;
      done += some;
      if (in_grain == kGrainBytes) close();
    }
  }
  if (in_grain > 0) close();
  return sums;
}

// 0 magic, 8 part, 12 payload bytes, 16 key, 32 token, 40 object bytes, 48 part bytes, 52 grain bytes, 56 seal, 64 sums
Header make_header(const Namespace& space, const Identity& identity, uint32_t part, const Sums& sums) {
  Header header{};
  std::memcpy(header.data(), kPartMagic, 8);
  put(header.data() + 8, part);
  put(header.data() + 12, identity.part_bytes(part));
  std::memcpy(header.data() + 16, identity.key.bytes, 16);
  put(header.data() + 32, identity.token);
  put(header.data() + 40, identity.bytes);
  put(header.data() + 48, kPartBytes);
  put(header.data() + 52, kGrainBytes);
  std::memcpy(header.data() + 64, sums.data(), sizeof sums);
  put(header.data() + 56, seal(space, header.data(), kHeaderBytes, 56));
  return header;
}

std::optional<Sums> read_header(const Namespace& space, const Identity& identity, uint32_t part,
                                std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return std::nullopt;
  Sums sums;
  std::memcpy(sums.data(), bytes.data() + 64, sizeof sums);
  const Header expected = make_header(space, identity, part, sums);
  if (std::memcmp(expected.data(), bytes.data(), kHeaderBytes) != 0) return std::nullopt;
  return sums;
}

// 0 magic, 8 part bytes, 12 0, 16 key, 32 token, 40 object bytes, 48 0, 56 seal
std::array<char, kEntryBytes> make_entry(const Namespace& space, const Identity& identity) {
  std::array<char, kEntryBytes> entry{};
  std::memcpy(entry.data(), kEntryMagic, 8);
  put(entry.data() + 8, kPartBytes);
  std::memcpy(entry.data() + 16, identity.key.bytes, 16);
  put(entry.data() + 32, identity.token);
  put(entry.data() + 40, identity.bytes);
  put(entry.data() + 56, seal(space, entry.data(), kEntryBytes, 56));
  return entry;
}

std::optional<Identity> read_entry(const Namespace& space, const Key& key, std::string_view bytes) {
  if (bytes.size() != kEntryBytes) return std::nullopt;
  Identity identity;
  identity.key = key;
  identity.token = take<uint64_t>(bytes.data() + 32);
  identity.bytes = take<uint64_t>(bytes.data() + 40);
  if (identity.bytes == 0 || identity.bytes > UINT32_MAX) return std::nullopt;
  const std::array<char, kEntryBytes> expected = make_entry(space, identity);
  if (std::memcmp(expected.data(), bytes.data(), kEntryBytes) != 0) return std::nullopt;
  return identity;
}

}  // namespace neotier::engine::remote
