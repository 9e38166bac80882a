// SPDX-License-Identifier: Apache-2.0
// Keys of KV blocks: each is a hash of the block before it and of its own tokens, so that a key names the whole prefix
// up to its block's end, and equal keys mean equal KV.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/tier.h"

namespace neotier::kv {

using Token = uint32_t;
using Digest = std::array<uint8_t, 32>;

enum class HashKind : uint8_t {
  // SHA-256 of the canonical CBOR (RFC 8949, 4.2.1) of [parent's digest, [tokens], extra keys or null]: what vLLM
  // computes
  // with --prefix-caching-hash-algo sha256_cbor, so that blocks known by vLLM's hashes are found here.
  kSha256Cbor,
  // XXH3, 128 bits. Several times faster. Who can choose tokens and knows the seed can make two prefixes collide: only
  // where all tenants trust one another.
  kXxh3,
};

// What two requests with the same tokens may differ in. As in vLLM, an adapter and a salt of the same text are one.
struct Extra {
  std::string lora;  // adapter's name; empty: none. Of every block
  std::string salt;  // keeps a tenant's prefixes apart from others'. Of the first block, and so of all
};

struct KeyOptions {
  uint32_t block_tokens = 16;
  HashKind hash = HashKind::kSha256Cbor;
  // Root of all chains, as vLLM's PYTHONHASHSEED: processes that share it share keys. Empty: random.
  std::string seed;
  // Model, data type, layout, KV group: what makes bytes unusable for others. Not part of the digests.
  std::string space;
};

// Thread safety: all calls from any thread.
class KeyChain {
 public:
  // Throws std::runtime_error on block_tokens 0.
  explicit KeyChain(const KeyOptions& options);

  uint32_t block_tokens() const { return options_.block_tokens; }
  const Digest& root() const { return root_; }

  // Of all whole blocks of the tokens, first to last; what is left over has none.
  std::vector<Digest> digests(std::span<const Token> tokens, const Extra& extra = {}) const;
  // The digest after `parent`, for an engine that hashes as it goes. `first`: no block is before it.
  Digest next(const Digest& parent, std::span<const Token> block, const Extra& extra, bool first) const;
  // The engine's key of a block with this digest.
  engine::Key key(const Digest& digest) const;
  // The same of a digest that the caller made, of any length: always hashed, so that what follows its 16th byte counts.
  engine::Key key_of_digest(std::span<const uint8_t> digest) const;
  std::vector<engine::Key> keys(std::span<const Token> tokens, const Extra& extra = {}) const;

 private:
  KeyOptions options_;
  Digest root_{};
};

}  // namespace neotier::kv
