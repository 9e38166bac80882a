// SPDX-License-Identifier: Apache-2.0
#include "kv/block_key.h"

#include <openssl/sha.h>
#include <xxhash.h>

#include <cstring>
#include <stdexcept>

#include "util/random_number.h"

namespace neotier::kv {

namespace {

// Major types of CBOR, RFC 8949 section 3.1.
enum Major : uint8_t { kUnsigned = 0, kBytes = 2, kText = 3, kArray = 4 };
constexpr uint8_t kNull = 0xf6;

// The shortest head for the number, as canonical CBOR has it.
void put_head(std::vector<uint8_t>& out, Major major, uint64_t number) {
  const auto top = static_cast<uint8_t>(major << 5);
  if (number < 24) {
    out.push_back(static_cast<uint8_t>(top | number));
    return;
  }
  const int log2 = number <= UINT8_MAX ? 0 : number <= UINT16_MAX ? 1 : number <= UINT32_MAX ? 2 : 3;
  out.push_back(static_cast<uint8_t>(top | (24 + log2)));
  for (int byte = (1 << log2) - 1; byte >= 0; byte--) out.push_back(static_cast<uint8_t>(number >> (8 * byte)));
}

void put_text(std::vector<uint8_t>& out, const std::string& text) {
  put_head(out, kText, text.size());
  out.insert(out.end(), text.begin(), text.end());
}

Digest sha256(std::span<const uint8_t> bytes) {
  Digest digest;
  SHA256(bytes.data(), bytes.size(), digest.data());
  return digest;
}

Digest xxh3(std::span<const uint8_t> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  Digest digest{};
  static_assert(sizeof canonical.digest == 16);
  std::memcpy(digest.data(), canonical.digest, sizeof canonical.digest);
  return digest;
}

}  // namespace

KeyChain::KeyChain(const KeyOptions& options) : options_(options) {
  if (options_.block_tokens == 0) throw std::runtime_error("a block of 0 tokens: expected 1 or more");
  if (options_.seed.empty()) {
    for (size_t at = 0; at < root_.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random_number();
      std::memcpy(root_.data() + at, &word, sizeof word);
    }
    return;
  }
  std::vector<uint8_t> text;
  put_text(text, options_.seed);
  root_ = options_.hash == HashKind::kXxh3 ? xxh3(text) : sha256(text);
}

Digest KeyChain::next(const Digest& parent, std::span<const Token> block, const Extra& extra, bool first) const {
  const bool salted = first && !extra.salt.empty();
  std::vector<uint8_t> text;
  text.reserve(64 + 5 * block.size());
  put_head(text, kArray, 3);
  put_head(text, kBytes, parent.size());
  text.insert(text.end(), parent.begin(), parent.end());
  put_head(text, kArray, block.size());
  for (const Token token : block) put_head(text, kUnsigned, token);
  if (extra.lora.empty() && !salted) {
    text.push_back(kNull);
  } else {
    put_head(text, kArray, (extra.lora.empty() ? 0u : 1u) + (salted ? 1u : 0u));
    if (!extra.lora.empty()) put_text(text, extra.lora);
    if (salted) put_text(text, extra.salt);
  }
  return options_.hash == HashKind::kXxh3 ? xxh3(text) : sha256(text);
}

std::vector<Digest> KeyChain::digests(std::span<const Token> tokens, const Extra& extra) const {
  std::vector<Digest> made;
  made.reserve(tokens.size() / options_.block_tokens);
  Digest parent = root_;
  for (size_t at = 0; tokens.size() - at >= options_.block_tokens; at += options_.block_tokens) {
    parent = next(parent, tokens.subspan(at, options_.block_tokens), extra, at == 0);
    made.push_back(parent);
  }
  return made;
}

engine::Key KeyChain::key(const Digest& digest) const {
  engine::Key key;
  if (options_.space.empty()) {
    std::memcpy(key.bytes, digest.data(), sizeof key.bytes);
    return key;
  }
  return key_of_digest(digest);
}

engine::Key KeyChain::key_of_digest(std::span<const uint8_t> digest) const {
  engine::Key key;
  std::vector<uint8_t> text(digest.begin(), digest.end());
  text.insert(text.end(), options_.space.begin(), options_.space.end());
  const Digest mixed = options_.hash == HashKind::kXxh3 ? xxh3(text) : sha256(text);
  std::memcpy(key.bytes, mixed.data(), sizeof key.bytes);
  return key;
}

std::vector<engine::Key> KeyChain::keys(std::span<const Token> tokens, const Extra& extra) const {
  std::vector<engine::Key> made;
  for (const Digest& digest : digests(tokens, extra)) made.push_back(key(digest));
  return made;
}

}  // namespace neotier::kv
