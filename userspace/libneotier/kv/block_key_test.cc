// SPDX-License-Identifier: Apache-2.0
#include "kv/block_key.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <stdexcept>

namespace neotier::kv {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

std::vector<Token> two_blocks() {
  std::vector<Token> tokens(32);
  std::iota(tokens.begin(), tokens.begin() + 16, 0u);
  for (Token i = 0; i < 16; i++) tokens[16 + i] = 50000 + 1000 * i;
  return tokens;
}

KeyOptions vllm(std::string seed = "42") {
  KeyOptions options;
  options.seed = std::move(seed);
  return options;
}

// Made with Debian's python3-cbor2 5.4.6 and hashlib, as vLLM does: sha256(cbor2.dumps((parent, tokens, extra),
// canonical=True)), where the first parent is sha256(cbor2.dumps("42", canonical=True)).
TEST(BlockKey, DigestsAreThoseOfVllm) {
  const KeyChain chain(vllm());
  EXPECT_EQ(hex(chain.root()), "9fa6eb003f14425eb9c8e6baacfbcaab26257357b829c7bfa74ffcc4f31c1780");
  const auto plain = chain.digests(two_blocks());
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(hex(plain[0]), "63876f948a5f9ef88191c7d6554fbeeea5c622d4da15d0d527bd352623590b0d");
  EXPECT_EQ(hex(plain[1]), "530df7c1d18923f77ecc7fe85d6ca8ef35a177f95382c2816668f50d7d1230c9");
  const auto extra = chain.digests(two_blocks(), {.lora = "sql-lora", .salt = "tenant-7"});
  EXPECT_EQ(hex(extra[0]), "d30dce50efe238a64d7c2bfad6f258b8144b1d58277cfbba20631becd05882e5");
  EXPECT_EQ(hex(extra[1]), "5394e6f58dc165178dafbd3b40ef97eec1631fc172176f70976b19ff712e0f40");
}

TEST(BlockKey, OnlyWholeBlocksHaveKeys) {
  KeyOptions options = vllm();
  options.block_tokens = 10;
  const KeyChain chain(options);
  EXPECT_EQ(chain.keys(two_blocks()).size(), 3u);
  EXPECT_TRUE(chain.keys(std::vector<Token>(9)).empty());
  EXPECT_TRUE(chain.keys({}).empty());
  options.block_tokens = 0;
  EXPECT_THROW(KeyChain{options}, std::runtime_error);
}

TEST(BlockKey, AKeyNamesItsWholePrefix) {
  for (const HashKind hash : {HashKind::kSha256Cbor, HashKind::kXxh3}) {
    KeyOptions options = vllm();
    options.hash = hash;
    options.block_tokens = 4;
    const KeyChain chain(options);
    const auto base = chain.digests(two_blocks());
    ASSERT_EQ(base.size(), 8u);
    EXPECT_EQ(std::set<Digest>(base.begin(), base.end()).size(), 8u);
    for (size_t changed = 0; changed < 32; changed++) {
      std::vector<Token> tokens = two_blocks();
      tokens[changed] ^= 1;
      const auto other = chain.digests(tokens);
      for (size_t block = 0; block < 8; block++)
        EXPECT_EQ(base[block] == other[block], block < changed / 4) << changed << ' ' << block;
    }
  }
}

TEST(BlockKey, SaltLoraSeedAndSpaceKeepApart) {
  const KeyChain chain(vllm());
  const auto tokens = two_blocks();
  std::set<std::string> seen;
  for (const Extra& extra : {Extra{}, Extra{.lora = "a", .salt = ""}, Extra{.lora = "", .salt = "s"},
                             Extra{.lora = "b", .salt = ""}, Extra{.lora = "a", .salt = "s"}}) {
    for (const Digest& digest : chain.digests(tokens, extra)) EXPECT_TRUE(seen.insert(hex(digest)).second);
  }
  EXPECT_NE(KeyChain(vllm("1")).keys(tokens), chain.keys(tokens));
  KeyOptions spaced = vllm();
  spaced.space = "llama-3.1-8b/bf16";
  EXPECT_EQ(KeyChain(spaced).digests(tokens), chain.digests(tokens));
  EXPECT_NE(KeyChain(spaced).keys(tokens), chain.keys(tokens));
}

TEST(BlockKey, WithoutASeedEachProcessHasItsOwn) {
  EXPECT_NE(KeyChain(vllm("")).keys(two_blocks()), KeyChain(vllm("")).keys(two_blocks()));
}

TEST(BlockKey, NextContinuesAChain) {
  const KeyChain chain(vllm());
  const auto tokens = two_blocks();
  const Extra extra{.lora = "l", .salt = "s"};
  const auto all = chain.digests(tokens, extra);
  const Digest first = chain.next(chain.root(), std::span(tokens).first(16), extra, true);
  EXPECT_EQ(first, all[0]);
  EXPECT_EQ(chain.next(first, std::span(tokens).last(16), extra, false), all[1]);
}

// 24, 256, 65536 and 2^32 - 1 are where CBOR's heads grow; by the same program as above.
TEST(BlockKey, CborHeadsAreTheShortest) {
  KeyOptions options = vllm();
  options.block_tokens = 8;
  const KeyChain chain(options);
  const auto digest = chain.digests(std::vector<Token>{0, 23, 24, 255, 256, 65535, 65536, 4294967295u});
  EXPECT_EQ(hex(digest[0]), "242f2b2cc91b8686a1263626f3951679f57dc2df529c8e13f4d4c21768448575");
}

}  // namespace
}  // namespace neotier::kv
