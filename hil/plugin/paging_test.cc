// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Encodings by hand, after the Intel SDM, volume 2; and those that the guest's kernel has.
#include "hil/plugin/paging.h"

#include <gtest/gtest.h>

#include <vector>

namespace neotier::hil {
namespace {

using Kind = PagingInstruction::Kind;

std::optional<PagingInstruction> decode(const std::vector<uint8_t>& code) {
  return decode_paging(code.data(), code.size(), 0x1000 + code.size());
}

TEST(Paging, MovesToControlRegisters) {
  const auto cr3 = decode({0x0f, 0x22, 0xdf});  // mov cr3, rdi
  ASSERT_TRUE(cr3);
  EXPECT_EQ(*cr3, (PagingInstruction{.kind = Kind::kRoot, .base = 7}));
  const auto high = decode({0x41, 0x0f, 0x22, 0xdc});  // mov cr3, r12
  ASSERT_TRUE(high);
  EXPECT_EQ(high->base, 12);
  const auto cr4 = decode({0x0f, 0x22, 0xe0});  // mov cr4, rax
  ASSERT_TRUE(cr4);
  EXPECT_EQ(cr4->kind, Kind::kControl);
  EXPECT_FALSE(decode({0x0f, 0x22, 0xc0}));        // cr0
  EXPECT_FALSE(decode({0x44, 0x0f, 0x22, 0xc0}));  // cr8
  EXPECT_FALSE(decode({0x0f, 0x20, 0xd8}));        // mov rax, cr3
}

TEST(Paging, InvlpgOfAllKindsOfOperands) {
  EXPECT_EQ(decode({0x0f, 0x01, 0x38}), (PagingInstruction{.kind = Kind::kPage, .base = 0}));         // [rax]
  EXPECT_EQ(decode({0x41, 0x0f, 0x01, 0x3f}), (PagingInstruction{.kind = Kind::kPage, .base = 15}));  // [r15]
  EXPECT_EQ(decode({0x0f, 0x01, 0x7b, 0xf0}),
            (PagingInstruction{.kind = Kind::kPage, .base = 3, .displacement = -16}));  // [rbx-16]
  EXPECT_EQ(decode({0x0f, 0x01, 0xbd, 0x00, 0x00, 0x01, 0x00}),
            (PagingInstruction{.kind = Kind::kPage, .base = 5, .displacement = 0x10000}));  // [rbp+0x10000]
  EXPECT_EQ(decode({0x42, 0x0f, 0x01, 0x3c, 0xe1}),
            (PagingInstruction{.kind = Kind::kPage, .base = 1, .index = 12, .scale = 3}));           // [rcx+r12*8]
  EXPECT_EQ(decode({0x0f, 0x01, 0x3c, 0x24}), (PagingInstruction{.kind = Kind::kPage, .base = 4}));  // [rsp]
  EXPECT_EQ(decode({0x0f, 0x01, 0x3c, 0x25, 0x78, 0x56, 0x34, 0x12}),
            (PagingInstruction{.kind = Kind::kPage, .displacement = 0x12345678}));  // [0x12345678]
  EXPECT_EQ(decode({0x0f, 0x01, 0x3d, 0x10, 0x00, 0x00, 0x00}),
            (PagingInstruction{.kind = Kind::kPage, .displacement = 0x1000 + 7 + 0x10}));  // [rip+16]
}

TEST(Paging, OtherInstructionsAreNone) {
  EXPECT_FALSE(decode({0x0f, 0x01, 0xf8}));  // swapgs
  EXPECT_FALSE(decode({0x0f, 0x01, 0x10}));  // lgdt [rax]
  EXPECT_FALSE(decode({0x90}));
  EXPECT_FALSE(decode({}));
  EXPECT_FALSE(decode({0x0f, 0x01}));
  EXPECT_FALSE(decode({0x0f, 0x01, 0x3c}));                   // cut short
  EXPECT_FALSE(decode({0x0f, 0x01, 0xbd, 0x00}));             // likewise
  EXPECT_TRUE(decode({0x66, 0x0f, 0x38, 0x82, 0x0c, 0x24}));  // invpcid
  EXPECT_FALSE(decode({0x0f, 0x38, 0x82, 0x0c, 0x24}));
}

}  // namespace
}  // namespace neotier::hil
