// SPDX-License-Identifier: Apache-2.0
// What lies on the server: the names of values, and their bytes. All that comes from a server is checked here.
//
// An object is cut into parts of kPartBytes; each is one value, with a header before its bytes. A directory entry under
// a name of the object's key alone says which parts belong together, so that other hosts find them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/tier.h"

namespace neotier::engine::remote {

// What the mover moves at a time, so that a transfer is a value.
inline constexpr uint32_t kPartBytes = 1 << 20;
// A checksum covers so many bytes: a read of less reads them, and no more.
inline constexpr uint32_t kGrainBytes = 64 << 10;
inline constexpr uint32_t kGrains = kPartBytes / kGrainBytes;
inline constexpr uint32_t kHeaderBytes = 64 + 8 * kGrains;
inline constexpr uint32_t kEntryBytes = 64;

// Of a model and a layout: 128 bits of its words' XXH3. What is written under one is nothing under another, by the
// names and by the checksums.
struct Namespace {
  uint64_t high = 0, low = 0;
};
Namespace make_namespace(std::string_view words);

// An extent, as the server knows it. `token` is random: two writers of one key never write under one name.
struct Identity {
  Key key;
  uint64_t token = 0;
  uint64_t bytes = 0;

  uint32_t parts() const { return static_cast<uint32_t>((bytes + kPartBytes - 1) / kPartBytes); }
  uint32_t part_bytes(uint32_t part) const {
    const uint64_t begin = uint64_t{part} * kPartBytes;
    return static_cast<uint32_t>(bytes - begin < kPartBytes ? bytes - begin : kPartBytes);
  }
};

std::string part_name(const Namespace& space, const Identity& identity, uint32_t part);
std::string entry_name(const Namespace& space, const Key& key);

using Sums = std::array<uint64_t, kGrains>;
// Of bytes that lie in pieces. `bytes` of them, from the first piece's begin on.
Sums sums_of(std::span<const Piece> pieces, uint32_t bytes);

using Header = std::array<char, kHeaderBytes>;
Header make_header(const Namespace& space, const Identity& identity, uint32_t part, const Sums& sums);
// The sums of a part, where the bytes are the header of that very part.
std::optional<Sums> read_header(const Namespace& space, const Identity& identity, uint32_t part,
                                std::string_view bytes);

std::array<char, kEntryBytes> make_entry(const Namespace& space, const Identity& identity);
// The object of that key, where the bytes are an entry of it.
std::optional<Identity> read_entry(const Namespace& space, const Key& key, std::string_view bytes);

}  // namespace neotier::engine::remote
