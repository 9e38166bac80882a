// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// The parameter sets that the tests run: for each the Verilated class and the model's parameters. hw/CMakeLists.txt
// passes the same numbers to Verilator; the TRACKER register and the comparison itself would show a difference.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "Vneoprof_dual.h"
#include "Vneoprof_mid.h"
#include "Vneoprof_tiny.h"
#include "Vneoprof_top.h"
#include "Vneoprof_wide.h"
#include "neoprof_model.h"
#include "rtl_driver.h"

namespace neoprof::test {

struct Tiny {  // everything overflows, tags wrap at once
  using Top = Vneoprof_tiny;
  static constexpr ModelParams kParams{1, 2, 6, 6, 1, 16, 8, 4, 2};
  static constexpr const char* kName = "tiny";
};
struct Mid {  // room enough for exact results, tags wrap, straps choose width and hashes
  using Top = Vneoprof_mid;
  static constexpr ModelParams kParams{1, 2, 10, 6, 4, 16, 1024, 512, 2};
  static constexpr const char* kName = "mid";
};
struct Wide {  // three rows, short counters
  using Top = Vneoprof_wide;
  static constexpr ModelParams kParams{1, 3, 8, 8, 1, 8, 32, 16, 3};
  static constexpr const char* kName = "wide";
};
struct Dual {  // two channels
  using Top = Vneoprof_dual;
  static constexpr ModelParams kParams{2, 2, 7, 7, 1, 4, 16, 8, 2};
  static constexpr const char* kName = "dual";
};
struct Full {  // as shipped
  using Top = Vneoprof_top;
  static constexpr ModelParams kParams{};
  static constexpr const char* kName = "full";
};
struct Narrow {  // as shipped, narrowed by its straps
  using Top = Vneoprof_top;
  static constexpr ModelParams kParams{};
  static constexpr const char* kName = "narrow";
  static constexpr uint32_t kLog2Width = 9, kHashSeed = 2;
};

template <class Rig>
using Rtl = RtlDriver<typename Rig::Top, Rig::kParams.channels>;

inline constexpr Straps kStraps{0x1'0000'0000ULL, 0x10'0000'0000ULL, 40'000, 0x1122'3344'5566'7788ULL};

// The seed of a random test: NEOTIER_SEED if it is set.
inline uint64_t seed_or(uint64_t otherwise) {
  const char* text = std::getenv("NEOTIER_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : otherwise;
}

// What flip-flops and memories begin with: of the test's name and NEOTIER_SEED.
inline int start_seed() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test->test_suite_name()) + test->name();
  return static_cast<int>((std::hash<std::string>()(name) + 31 * seed_or(0)) % 0x7fffffff) + 1;
}

template <class Rig>
constexpr Straps straps_of() {
  Straps straps = kStraps;
  if constexpr (requires { Rig::kLog2Width; }) {
    straps.log2_width = Rig::kLog2Width;
    straps.hash_seed = Rig::kHashSeed;
  }
  return straps;
}

using RingLog = std::vector<std::pair<uint32_t, uint64_t>>;
class Recorder final : public RingObserver {
 public:
  void on_ring_entry(uint32_t index, uint64_t entry) override { log.emplace_back(index, entry); }
  RingLog log;
};

}  // namespace neoprof::test
