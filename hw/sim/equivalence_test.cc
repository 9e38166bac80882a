// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// The RTL against the golden model under random traffic: in every clock the live values, at every drain point all
// registers, and all along the ring entries in order.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <vector>

#include "neoprof_regs.h"
#include "test_rigs.h"

namespace neoprof::test {
namespace {

template <class Rig>
class Equivalence : public testing::Test {
 protected:
  void run(uint64_t seed, int operations) {
    SCOPED_TRACE(testing::Message() << Rig::kName << ", NEOTIER_SEED=" << seed);
    random_.seed(seed);
    rtl_.set_observer(&rtl_log_);
    model_.set_observer(&model_log_);
    // Small pools of pages and short epochs, so that everything happens often.
    for (auto& page : pool_) {
      page = below(4) == 0 ? random_() >> below(40) : below(1ULL << 24) << 12;
    }
    pool_[0] = below(1ULL << 16) << 12;  // one at least in a range that is counted, whatever the seed
    write(NEOPROF_BITMAP_OFFSET, ~0ULL, 0xff);
    write(NEOPROF_BITMAP_OFFSET + 24, ~0ULL, 0xff);
    write(NEOPROF_CFG1_OFFSET, 12 | 1ULL << NEOPROF_CFG1_MODE_SHIFT | 1ULL << NEOPROF_CFG1_EPOCH_SCALE_SHIFT, 0xff);
    configure_cfg0();
    for (int i = 0; i < operations && !HasFailure(); ++i) {
      operation();
    }
    drain();
    compare_registers();
    EXPECT_EQ(rtl_log_.log, model_log_.log);
    // The test is worth something only if it reached what it compares: each counter of the device was above 0 once.
    for (uint32_t offset = NEOPROF_TICKS_OFFSET; offset <= NEOPROF_HOT_OFFSET; offset += 8) {
      const bool rare = (offset == NEOPROF_SATURATED_OFFSET && Rig::kParams.counter_bits > 4) ||
                        (offset == NEOPROF_LOST_CANDIDATES_OFFSET && Rig::kParams.hot_entries > 64) ||
                        (offset == NEOPROF_LOST_TAP_OFFSET && Rig::kParams.tap_depth > 64) ||
                        Rig::kParams.log2_width > 12;
      EXPECT_TRUE(rare || seen_.contains(offset)) << "offset 0x" << std::hex << offset << " was always 0";
    }
    EXPECT_GT(counted_.size(), 1U) << "entries of WATCH that counted anything";
  }

  void operation() {
    switch (below(64)) {
      case 0:
        write(random_offset(), random_(), static_cast<uint8_t>(random_()));
        break;
      case 1:
        configure_cfg0();
        break;
      case 2:
        configure_cfg1();
        break;
      case 3:
        write(NEOPROF_DECAY_OFFSET, below(3) == 0 ? below(16) : 0, 1);
        break;
      case 4:
        write(NEOPROF_CFG2_OFFSET, below(2) == 0 ? below(5) : random_(), 3);
        break;
      case 5:
      case 6:
        read_ring();
        break;
      case 7:
        write(NEOPROF_STATUS_OFFSET, random_(), static_cast<uint8_t>(random_()));
        break;
      case 8:
        write(NEOPROF_CTRL_OFFSET, random_(), static_cast<uint8_t>(random_()));
        break;
      case 9:
        compare_read(random_offset());
        break;
      case 10:
        drain();
        break;
      case 11:
        if (below(8) == 0) {
          drain();
          compare_registers();
        }
        break;
      case 12:
        if (below(Rig::kParams.log2_width > 12 ? 64 : 4) == 0) {
          write(NEOPROF_CFG0_OFFSET, random_() | NEOPROF_CFG0_RESET_MASK, static_cast<uint8_t>(below(2) == 0 ? 4 : 0));
        }
        break;
      case 13:
        name_watched();
        break;
      case 14:
        read_watched();
        break;
      case 15:
      case 16:
      case 17:
      case 18:
        burst();
        break;
      default:
        traffic();
        break;
    }
  }

  void configure_cfg0() {
    const uint64_t threshold = below(8) == 0 ? random_() >> 32 : below(12);
    const uint64_t track = below(8) == 0 ? below(256) : 4 + below(3);
    write(NEOPROF_CFG0_OFFSET,
          track | below(8) << NEOPROF_CFG0_RANDOM_DS_SHIFT | uint64_t{below(8) != 0} << NEOPROF_CFG0_ENABLE_SHIFT |
              threshold << NEOPROF_CFG0_THRESHOLD_SHIFT,
          0xff);
  }

  void configure_cfg1() {
    write(NEOPROF_CFG1_OFFSET,
          (below(4) == 0 ? 21 : 12) | (below(3) == 0 ? below(12) : 0) << NEOPROF_CFG1_DOWNSAMPLING_SHIFT |
              below(2) << NEOPROF_CFG1_MODE_SHIFT | below(2) << NEOPROF_CFG1_EPOCH_SCALE_SHIFT |
              below(5) << NEOPROF_CFG1_EPOCH_MULT_SHIFT,
          0xff);
  }

  // A burst, dense or sparse, with ticks in it.
  void traffic() {
    const uint64_t density = 1 + below(16);
    const uint64_t ticks = below(4) == 0 ? 1 + below(32) : 1000;
    const uint64_t hot = 1 + below(pool_.size());
    const uint64_t strangers = below(3) == 0 ? below(16) : 0;  // of 16 requests, for pages not in the pool
    const uint64_t length = 1 + below(below(8) == 0 ? 2000 : 60);
    for (uint64_t i = 0; i < length && !HasFailure(); ++i) {
      std::array<Request, Rig::kParams.channels> requests;
      for (uint32_t c = 0; c < requests.size(); ++c) {
        const uint64_t page = below(16) < strangers ? below(1ULL << 16) << 12 : pool_[below(hot)];
        requests[c] = {below(16) < density, below(3) == 0, page + below(4096)};
        rtl_.set_request(c, requests[c].valid, requests[c].write, requests[c].dpa);
      }
      const bool tick = below(ticks) == 0;
      model_.step(requests.data(), tick);
      rtl_.top().tick_i = tick;
      rtl_.clock();
      rtl_.top().tick_i = 0;
      rtl_.top().req_valid_i = 0;
      compare_live();
    }
  }

  // Requests in each clock, which the model may carry out together.
  void burst() {
    const uint64_t hot = 1 + below(pool_.size());
    std::vector<uint64_t> requests(below(below(4) == 0 ? 1000 : 40));
    for (uint64_t& request : requests) {
      request = ((pool_[below(hot)] + below(4096)) & ~uint64_t{1}) | (below(3) == 0 ? 1 : 0);
    }
    rtl_.accesses(requests);
    model_.accesses(requests);
    compare_live();
    ASSERT_EQ(rtl_log_.log, model_log_.log);
  }

  void read_ring() {
    const uint64_t ring = model_.ring();
    const auto head = static_cast<uint32_t>(ring & 0xfff);
    const auto level = static_cast<uint32_t>(((ring >> 16) - ring) & 0xfff);
    for (uint32_t i = 0; i < std::min(level, 4U); ++i) {
      compare_read(NEOPROF_HOTLIST_OFFSET + 8 * ((head + i) & 0xfff));
    }
    // Mostly a host that reads; at times a HEAD just past TAIL, so that the ring is nearly full; at times nonsense.
    const uint64_t tail = ring >> 16;
    const uint64_t kind = below(8);
    const uint64_t next = kind == 0 ? random_() : kind < 4 ? tail + 1 + below(8) : head + below(level + 1);
    write(NEOPROF_RING_OFFSET, next, below(16) == 0 ? 1 : 3);
  }

  // Mostly units that are asked for, in few entries, so that some are named twice.
  void name_watched() {
    const int shift = unit_shift();
    for (uint64_t i = 1 + below(6); i > 0; --i) {
      const uint64_t unit = below(8) == 0 ? random_() >> (32 + below(16)) : pool_[below(16)] >> shift;
      const uint64_t kind = below(8);  // some write COUNT alone
      const auto strobe = static_cast<uint8_t>(kind == 0 ? random_() : kind == 1 ? 0x0f : 0xf0);
      write(watch_offset(), unit << NEOPROF_WATCH_UNIT_SHIFT, strobe);
    }
  }

  // While requests for its unit are on their way to it.
  void read_watched() {
    const int shift = unit_shift();
    for (uint64_t i = 1 + below(4); i > 0; --i) {
      traffic();
      const uint32_t offset = watch_offset();
      const uint64_t unit = model_.read(offset) >> NEOPROF_WATCH_UNIT_SHIFT;
      rtl_.read(offset);
      for (uint64_t request = below(4); request > 0; --request) {
        const bool is_write = below(3) == 0;
        model_.access(unit << shift, is_write);
        rtl_.access(unit << shift, is_write);
      }
      compare_read(offset);
      compare_read(offset);
    }
  }

  int unit_shift() {
    rtl_.read(NEOPROF_CFG1_OFFSET);
    return (model_.read(NEOPROF_CFG1_OFFSET) & NEOPROF_CFG1_UNIT_SIZE_MASK) == 21 ? 21 : 12;
  }

  uint32_t watch_offset() {
    static constexpr std::array<uint32_t, 8> kEntries = {0, 1, 2, 3, 31, 32, 62, 63};
    const uint64_t entry = below(4) == 0 ? below(NEOPROF_WATCH_COUNT) : kEntries[below(kEntries.size())];
    return NEOPROF_WATCH_OFFSET + NEOPROF_WATCH_STRIDE * static_cast<uint32_t>(entry);
  }

  void write(uint32_t offset, uint64_t data, uint8_t strobe) {
    rtl_.write(offset, data, strobe);
    model_.write(offset, data, strobe);
    compare_live();
  }

  void drain() {
    rtl_.drain();
    model_.drain();
    compare_live();
  }

  void compare_read(uint32_t offset) {
    const uint64_t said = rtl_.read(offset), expected = model_.read(offset);
    // An entry of the hotlist that was never written has what the RAM began with.
    const bool known = offset < NEOPROF_HOTLIST_OFFSET || offset >= NEOPROF_ID_OFFSET ||
                       std::any_of(model_log_.log.begin(), model_log_.log.end(), [&](const auto& entry) {
                         return entry.first == (offset - NEOPROF_HOTLIST_OFFSET) / NEOPROF_HOTLIST_STRIDE;
                       });
    if (offset >= NEOPROF_WATCH_OFFSET && offset < NEOPROF_HISTOGRAM_OFFSET && (expected & NEOPROF_WATCH_COUNT_MASK)) {
      counted_.insert(offset);
    }
    if (known) {
      EXPECT_EQ(said, expected) << "offset 0x" << std::hex << offset;
    }
    compare_live();
  }

  void compare_live() {
    ASSERT_EQ(rtl_.cycles(), model_.cycles());
    ASSERT_EQ(rtl_.status(), model_.status()) << "clock " << model_.cycles();
    ASSERT_EQ(rtl_.ring(), model_.ring()) << "clock " << model_.cycles();
    ASSERT_EQ(rtl_.irq(), model_.irq()) << "clock " << model_.cycles();
    ASSERT_EQ(rtl_.messages(), model_.messages()) << "clock " << model_.cycles();
    ASSERT_EQ(rtl_log_.log.size(), model_log_.log.size()) << "clock " << model_.cycles();
    if (!model_log_.log.empty()) {
      ASSERT_EQ(rtl_log_.log.back(), model_log_.log.back()) << "clock " << model_.cycles();
    }
  }

  void compare_registers() {
    write(NEOPROF_CTRL_OFFSET, 1, 1);
    for (uint32_t offset = 0; offset < NEOPROF_HOTLIST_OFFSET; offset += 8) {
      compare_read(offset);
    }
    for (uint32_t offset = NEOPROF_ID_OFFSET; offset < 0x9600; offset += 8) {
      compare_read(offset);
      if (model_.read(offset) != 0) {
        seen_.insert(offset);
      }
      rtl_.read(offset);
    }
  }

  uint64_t below(uint64_t limit) { return random_() % limit; }
  uint32_t random_offset() {
    static constexpr std::array<uint32_t, 6> kBlocks = {0x0000, 0x0060, 0x9000, 0x9040, 0x9200, 0x9400};
    return below(8) == 0 ? static_cast<uint32_t>(random_() % 0x11000 & ~7ULL)
                         : kBlocks[below(kBlocks.size())] + static_cast<uint32_t>(8 * below(16));
  }

  std::mt19937_64 random_;
  std::array<uint64_t, 48> pool_{};
  Rtl<Rig> rtl_{straps_of<Rig>(), start_seed()};
  Model model_{Rig::kParams, straps_of<Rig>()};
  Recorder rtl_log_, model_log_;
  std::set<uint32_t> seen_;
  std::set<uint32_t> counted_;  // of WATCH, those that were read when they had counted something
};

using Small = testing::Types<Tiny, Mid, Wide, Dual>;
struct Names {
  template <class Rig>
  static std::string GetName(int) {
    return Rig::kName;
  }
};
TYPED_TEST_SUITE(Equivalence, Small, Names);

TYPED_TEST(Equivalence, RandomTraffic1) { this->run(seed_or(1), 8000); }
TYPED_TEST(Equivalence, RandomTraffic2) { this->run(seed_or(2), 8000); }
TYPED_TEST(Equivalence, RandomTraffic3) { this->run(seed_or(3), 8000); }

using EquivalenceFull = Equivalence<Full>;
TEST_F(EquivalenceFull, RandomTraffic) { run(seed_or(4), 2500); }
using EquivalenceNarrow = Equivalence<Narrow>;
TEST_F(EquivalenceNarrow, RandomTraffic) { run(seed_or(5), 4000); }

}  // namespace
}  // namespace neoprof::test
