// SPDX-License-Identifier: Apache-2.0
// What a memory trace contains.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <unordered_map>

#include "trace/concentration.h"

namespace neotier::trace {

// Counts accesses by 4 KiB page. Memory grows with the pages touched. Not thread-safe.
class Summary {
 public:
  void add(std::span<const uint64_t> records);
  // records, reads, writes, pages, first_address and last_address (lowest and highest touched), unaligned (records that
  // are no 64-byte line), concentration {"1", "5", "10", "25", "50"} (share of accesses, from 0 to 1).
  nlohmann::ordered_json json() const;

 private:
  uint64_t reads_ = 0, writes_ = 0, unaligned_ = 0, lowest_ = UINT64_MAX, highest_ = 0;
  std::unordered_map<uint64_t, uint64_t> pages_;
};

// The JSON for people.
std::string to_text(const nlohmann::ordered_json& summary);

}  // namespace neotier::trace
