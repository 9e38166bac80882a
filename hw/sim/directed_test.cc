// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// What docs/registers.md promises, one promise a test, each on the Verilated RTL and on the model. The parameter set is
// "mid": pages 0 to 999 have no collisions that matter here, because the expected estimate of each is checked or
// forced.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <random>

#include "neoprof_regs.h"
#include "test_rigs.h"

namespace neoprof::test {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kNever = 0xffffffff;
constexpr uint64_t kNoUnit = 0xffffffff;  // what WATCH.UNIT says of an entry that names nothing

uint64_t get(uint64_t reg, uint64_t mask, int shift) { return (reg & mask) >> shift; }
#define FIELD(reg, name) get(reg, NEOPROF_##name##_MASK, NEOPROF_##name##_SHIFT)

// The first `n` pages of set `set` of the hot filter.
std::vector<uint64_t> pages_of_one_set(size_t n, uint32_t set) {
  std::vector<uint64_t> pages;
  for (uint64_t page = 0; pages.size() < n; ++page) {
    if (hash_index(0, 8, kHotHashRow, page) == set) {  // of 256 sets
      pages.push_back(page);
    }
  }
  return pages;
}

class Directed : public testing::TestWithParam<std::string> {
 protected:
  Directed()
      : device_(GetParam() == "rtl" ? std::unique_ptr<Device>(std::make_unique<Rtl<Mid>>(kStraps, start_seed()))
                                    : std::make_unique<Model>(Mid::kParams, kStraps)) {
    device_->set_observer(&ring_);
    for (uint32_t word = 0; word < NEOPROF_BITMAP_COUNT; ++word) {
      write(NEOPROF_BITMAP_OFFSET + 8 * word, ~0ULL);
    }
  }

  void write(uint32_t offset, uint64_t data, uint8_t strobe = 0xff) { device_->write(offset, data, strobe); }
  uint64_t read(uint32_t offset) { return device_->read(offset); }

  void configure(uint64_t threshold, bool always_on, uint64_t flags = 0) {
    write(NEOPROF_CFG1_OFFSET, 12 | uint64_t{always_on} << NEOPROF_CFG1_MODE_SHIFT |
                                   1ULL << NEOPROF_CFG1_EPOCH_SCALE_SHIFT | 1ULL << NEOPROF_CFG1_EPOCH_MULT_SHIFT);
    write(NEOPROF_CFG0_OFFSET, 6 | flags | NEOPROF_CFG0_ENABLE_MASK | threshold << NEOPROF_CFG0_THRESHOLD_SHIFT);
  }
  void threshold(uint64_t value) { write(NEOPROF_CFG0_OFFSET, value << 32, 0xf0); }

  void touch(uint64_t page, uint64_t times = 1) {
    for (uint64_t i = 0; i < times; ++i) {
      device_->access(page * kPage, false);
    }
  }
  // Ends the epoch (of one tick) and all that follows from it.
  void end_epoch() {
    device_->drain();
    device_->tick();
    device_->drain();
  }
  uint64_t count(uint32_t offset) {
    write(NEOPROF_CTRL_OFFSET, NEOPROF_CTRL_SNAPSHOT_MASK);
    return read(offset);
  }
  void watch(uint32_t entry, uint64_t unit, uint8_t strobe = 0xf0) {
    write(NEOPROF_WATCH_OFFSET + NEOPROF_WATCH_STRIDE * entry, unit << NEOPROF_WATCH_UNIT_SHIFT | 0x5a5a5a5a, strobe);
  }
  // An entry of WATCH as (unit, count), when all is counted.
  std::pair<uint64_t, uint64_t> watched(uint32_t entry) {
    device_->drain();
    const uint64_t said = read(NEOPROF_WATCH_OFFSET + NEOPROF_WATCH_STRIDE * entry);
    return {FIELD(said, WATCH_UNIT), FIELD(said, WATCH_COUNT)};
  }
  // Entries since the last call, as (unit, count).
  RingLog reports() {
    device_->drain();
    RingLog out;
    for (const auto& [index, entry] : ring_.log) {
      EXPECT_EQ(read(NEOPROF_HOTLIST_OFFSET + 8 * index), entry);
      out.emplace_back(static_cast<uint32_t>(FIELD(entry, HOTLIST_UNIT)), FIELD(entry, HOTLIST_COUNT));
    }
    ring_.log.clear();
    return out;
  }

  Recorder ring_;
  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(, Directed, testing::Values("rtl", "model"), [](const auto& test) { return test.param; });

TEST_P(Directed, ResetValuesAndIdentity) {
  EXPECT_EQ(read(NEOPROF_ID_OFFSET), NEOPROF_ID_INIT);
  EXPECT_EQ(FIELD(read(NEOPROF_ID_OFFSET), ID_WATCHED), NEOPROF_WATCH_COUNT);
  EXPECT_EQ(read(NEOPROF_COMMON_CAP0_OFFSET), NEOPROF_COMMON_CAP0_INIT);
  EXPECT_EQ(read(NEOPROF_COMMON_CAP1_OFFSET), NEOPROF_COMMON_CAP1_INIT);
  EXPECT_EQ(read(NEOPROF_CAP0_OFFSET), NEOPROF_CAP0_INIT);
  EXPECT_EQ(read(NEOPROF_CAP1_OFFSET), NEOPROF_CAP1_INIT);
  EXPECT_EQ(read(NEOPROF_CAP2_OFFSET), NEOPROF_CAP2_INIT);
  EXPECT_EQ(read(NEOPROF_CAP3_OFFSET), NEOPROF_CAP3_INIT);
  EXPECT_EQ(read(NEOPROF_CFG0_OFFSET), NEOPROF_CFG0_INIT);
  EXPECT_EQ(read(NEOPROF_CFG1_OFFSET), NEOPROF_CFG1_INIT);
  EXPECT_EQ(read(NEOPROF_CFG2_OFFSET), NEOPROF_CFG2_INIT);
  EXPECT_EQ(read(NEOPROF_STATUS_OFFSET), NEOPROF_STATUS_INIT);
  EXPECT_EQ(read(NEOPROF_RING_OFFSET), 0U);
  EXPECT_EQ(read(NEOPROF_HPA_BASE_OFFSET), kStraps.hpa_base);
  EXPECT_EQ(read(NEOPROF_HPA_SIZE_OFFSET), kStraps.hpa_size);
  EXPECT_EQ(read(NEOPROF_PEAK_OFFSET), kStraps.peak_lines_per_tick);
  EXPECT_EQ(read(NEOPROF_SERIAL_OFFSET), kStraps.serial);
  EXPECT_EQ(FIELD(read(NEOPROF_TRACKER_OFFSET), TRACKER_ROWS), Mid::kParams.rows);
  EXPECT_EQ(FIELD(read(NEOPROF_TRACKER_OFFSET), TRACKER_LOG2_WIDTH), Mid::kParams.log2_width);
  EXPECT_EQ(FIELD(read(NEOPROF_TRACKER_OFFSET), TRACKER_CANDIDATES), Mid::kParams.hot_entries);
}

// The strap makes a smaller device of the same memories: its width is in TRACKER, in ERROR and in what it can tell
// apart.
TEST(Straps, ChooseWidthAndHashes) {
  Straps straps = kStraps;
  for (const uint32_t width : {6U, 7U, 10U}) {
    straps.log2_width = width;
    for (straps.hash_seed = 0; straps.hash_seed < kHashSeeds; ++straps.hash_seed) {
      Rtl<Mid> rtl(straps, start_seed());
      Model model(Mid::kParams, straps);
      for (Device* device : {static_cast<Device*>(&rtl), static_cast<Device*>(&model)}) {
        Recorder ring;
        device->set_observer(&ring);
        EXPECT_EQ(FIELD(device->read(NEOPROF_TRACKER_OFFSET), TRACKER_LOG2_WIDTH), width);
        device->write(NEOPROF_BITMAP_OFFSET, ~0ULL, 0xff);
        device->write(NEOPROF_CFG1_OFFSET, 12 | 1ULL << NEOPROF_CFG1_EPOCH_SCALE_SHIFT, 0xff);
        device->write(NEOPROF_CFG0_OFFSET, 4 | NEOPROF_CFG0_ENABLE_MASK | 1ULL << 32, 0xff);
        // As many neighbouring pages as a row has counters: each has its own.
        for (uint64_t page = 0; page < 1ULL << width; ++page) {
          device->access((4096 + page) * kPage, false);
        }
        device->drain();
        device->tick();
        device->drain();
        device->write(NEOPROF_CTRL_OFFSET, 1, 1);
        EXPECT_EQ(FIELD(device->read(NEOPROF_OCCUPANCY_OFFSET), OCCUPANCY_UNITS), 1U << width);
        EXPECT_EQ(device->read(NEOPROF_ERROR_OFFSET), 3U) << "e requests for each counter";
        ASSERT_EQ(ring.log.size(), 1U << width);
        for (const auto& [index, entry] : ring.log) {
          EXPECT_EQ(FIELD(entry, HOTLIST_COUNT), 1U);
        }
        device->set_observer(nullptr);
      }
    }
  }
  straps.log2_width = 5;
  straps.hash_seed = 0;
  EXPECT_EQ(FIELD(Rtl<Mid>(straps, start_seed()).read(NEOPROF_TRACKER_OFFSET), TRACKER_LOG2_WIDTH), 10U)
      << "out of range";
  EXPECT_EQ(FIELD(Model(Mid::kParams, straps).read(NEOPROF_TRACKER_OFFSET), TRACKER_LOG2_WIDTH), 10U);
}

TEST_P(Directed, UnmappedReadsZeroAndIgnoresWrites) {
  for (uint32_t offset : {0x30U, 0x48U, 0x68U, 0x80U, 0x00b0U, 0x0ff8U, 0x90c0U, 0x91f8U, 0x9500U, 0xfff8U, 0x10000U}) {
    write(offset, ~0ULL);
    EXPECT_EQ(read(offset), 0U) << std::hex << offset;
  }
  for (uint32_t offset :
       {NEOPROF_CAP0_OFFSET, NEOPROF_ID_OFFSET, NEOPROF_SERIAL_OFFSET, NEOPROF_TICKS_OFFSET, NEOPROF_HOTLIST_OFFSET}) {
    const uint64_t before = read(offset);
    write(offset, ~0ULL);
    EXPECT_EQ(read(offset), before) << std::hex << offset;
  }
}

// Whoever builds a machine around the device may answer these; the device itself has no clock.
TEST_P(Directed, TheClockIsTheMachines) {
  EXPECT_EQ(FIELD(read(NEOPROF_ID_OFFSET), ID_CLOCK), 0U);
  configure(5, true);
  touch(7, 4);
  device_->drain();
  write(NEOPROF_CTRL_OFFSET, NEOPROF_CTRL_CLOCK_MASK);
  EXPECT_EQ(read(NEOPROF_CLOCK_OFFSET), 0U);
  EXPECT_EQ(read(NEOPROF_READS_OFFSET), 0U) << "only a snapshot latches counters";
  EXPECT_EQ(count(NEOPROF_READS_OFFSET), 4U);
  write(NEOPROF_CLOCK_OFFSET, ~0ULL);
  EXPECT_EQ(read(NEOPROF_CLOCK_OFFSET), 0U);
}

TEST_P(Directed, ByteStrobesWriteOnlyTheirBytes) {
  write(NEOPROF_CFG1_OFFSET, 0);
  for (int byte = 0; byte < 8; ++byte) {
    write(NEOPROF_CFG1_OFFSET, ~0ULL, static_cast<uint8_t>(1 << byte));
    EXPECT_EQ(read(NEOPROF_CFG1_OFFSET), ~0ULL >> (8 * (7 - byte)));
  }
  write(NEOPROF_CFG1_OFFSET, 0, 0);
  EXPECT_EQ(read(NEOPROF_CFG1_OFFSET), ~0ULL);
}

TEST_P(Directed, AlwaysOnReportsOnceAnEpoch) {
  configure(5, true);
  touch(7, 4);
  EXPECT_TRUE(reports().empty());
  touch(7, 20);
  EXPECT_EQ(reports(), (RingLog{{7, 5}}));
  end_epoch();
  touch(7, 20);
  EXPECT_EQ(reports(), (RingLog{{7, 5}}));
}

TEST_P(Directed, EpochModeReportsAtTheEndWithTheEstimateOfThen) {
  configure(3, false);
  touch(11, 3);
  touch(12, 9);
  touch(11, 40);
  touch(13, 2);
  EXPECT_TRUE(reports().empty());
  end_epoch();
  EXPECT_EQ(reports(), (RingLog{{11, 43}, {12, 9}}));
  end_epoch();
  EXPECT_TRUE(reports().empty());
}

TEST_P(Directed, ThresholdChangeLosesNoHistory) {
  configure(kNever, true);
  touch(21, 30);
  threshold(31);
  EXPECT_TRUE(reports().empty());
  touch(21);
  EXPECT_EQ(reports(), (RingLog{{21, 31}}));
}

TEST_P(Directed, ThresholdRaisedBeforeTheEndKeepsUnitsOffTheList) {
  configure(2, false);
  touch(31, 5);
  touch(32, 50);
  device_->drain();
  threshold(10);
  end_epoch();
  EXPECT_EQ(reports(), (RingLog{{32, 50}}));
  EXPECT_EQ(count(NEOPROF_HOT_OFFSET), 2U);
}

TEST_P(Directed, ThresholdZeroActsAsOne) {
  configure(0, true);
  touch(41);
  EXPECT_EQ(reports(), (RingLog{{41, 1}}));
}

TEST_P(Directed, HeadIsWrittenBy16BitWritesModuloTheRing) {
  configure(1, true);
  for (uint64_t page = 0; page < 10; ++page) {
    touch(page);
  }
  device_->drain();
  EXPECT_EQ(read(NEOPROF_RING_OFFSET), 10ULL << 16);
  write(NEOPROF_RING_OFFSET, 0xffff'0003, 0x03);
  EXPECT_EQ(read(NEOPROF_RING_OFFSET), 10ULL << 16 | 3);
  write(NEOPROF_RING_OFFSET, 0x0007'0009, 0x0c);
  EXPECT_EQ(read(NEOPROF_RING_OFFSET), 10ULL << 16 | 3) << "TAIL is the device's";
  write(NEOPROF_RING_OFFSET, 0x1005, 0x03);
  EXPECT_EQ(read(NEOPROF_RING_OFFSET), 10ULL << 16 | 5);
  write(NEOPROF_RING_OFFSET, 0x0100, 0x02);
  EXPECT_EQ(read(NEOPROF_RING_OFFSET), 10ULL << 16 | 0x105);
}

TEST_P(Directed, FullRingCountsLossesAndInterrupts) {
  configure(1, true, NEOPROF_CFG0_OVERFLOW_IRQ_EN_MASK);
  // 600 units an epoch, so that the hot filter holds them all.
  uint64_t reported = 0;
  for (int epoch = 0; epoch < 7; ++epoch) {
    for (uint64_t page = 0; page < 600; ++page) {
      touch(page);
    }
    end_epoch();
    reported += 600;
    EXPECT_EQ(device_->irq(), reported > 4095);
  }
  EXPECT_EQ(count(NEOPROF_REPORTED_OFFSET), 4095U);
  EXPECT_EQ(count(NEOPROF_LOST_RING_OFFSET), reported - 4095);
  EXPECT_EQ(FIELD(device_->ring(), RING_TAIL), 4095U);
  EXPECT_EQ(FIELD(read(NEOPROF_STATUS_OFFSET), STATUS_OVERFLOW), 1U);
  write(NEOPROF_STATUS_OFFSET, NEOPROF_STATUS_FILL_MASK);
  EXPECT_TRUE(device_->irq()) << "clearing FILL leaves OVERFLOW";
  write(NEOPROF_STATUS_OFFSET, NEOPROF_STATUS_OVERFLOW_MASK, 0x1f);
  EXPECT_TRUE(device_->irq()) << "its byte was not strobed";
  write(NEOPROF_STATUS_OFFSET, NEOPROF_STATUS_OVERFLOW_MASK, 0x20);
  EXPECT_FALSE(device_->irq());
  // One place free: one entry fits, at index 4095, and TAIL wraps.
  write(NEOPROF_RING_OFFSET, 1, 0x03);
  ring_.log.clear();
  touch(3);
  touch(5);
  device_->drain();
  ASSERT_EQ(ring_.log.size(), 1U);
  EXPECT_EQ(ring_.log[0].first, 4095U);
  EXPECT_EQ(FIELD(device_->ring(), RING_TAIL), 0U);
}

TEST_P(Directed, FillIsALevel) {
  write(NEOPROF_CFG2_OFFSET, 4);
  configure(1, true, NEOPROF_CFG0_FILL_IRQ_EN_MASK);
  const auto fill = [&] { return FIELD(read(NEOPROF_STATUS_OFFSET), STATUS_FILL) != 0; };
  for (uint64_t page = 0; page < 3; ++page) {
    touch(page);
  }
  device_->drain();
  EXPECT_FALSE(fill());
  EXPECT_FALSE(device_->irq());
  touch(3);
  device_->drain();
  EXPECT_TRUE(fill());
  EXPECT_TRUE(device_->irq());
  // A driver that drains, writes HEAD and then acknowledges; five more reports came while it drained.
  for (uint64_t page = 4; page < 9; ++page) {
    touch(page);
  }
  device_->drain();
  write(NEOPROF_RING_OFFSET, 4, 0x03);
  write(NEOPROF_STATUS_OFFSET, NEOPROF_STATUS_FILL_MASK);
  EXPECT_TRUE(fill()) << "five entries are in the list";
  EXPECT_TRUE(device_->irq());
  write(NEOPROF_RING_OFFSET, 6, 0x03);
  EXPECT_FALSE(fill()) << "three are";
  EXPECT_FALSE(device_->irq());
  write(NEOPROF_CFG2_OFFSET, 3);
  EXPECT_TRUE(fill()) << "the mark fell to what is there";
  write(NEOPROF_CFG0_OFFSET, 0, 0x02);
  EXPECT_FALSE(device_->irq()) << "disabled";
  EXPECT_TRUE(fill());
}

TEST_P(Directed, MessagesFollowEveryActThatLeavesWork) {
  write(NEOPROF_CFG2_OFFSET, 4);
  configure(1, true, NEOPROF_CFG0_FILL_IRQ_EN_MASK | NEOPROF_CFG0_OVERFLOW_IRQ_EN_MASK);
  for (uint64_t page = 0; page < 3; ++page) {
    touch(page);
  }
  device_->drain();
  EXPECT_EQ(device_->messages(), 0U);
  for (uint64_t page = 3; page < 9; ++page) {
    touch(page);
  }
  device_->drain();
  EXPECT_EQ(device_->messages(), 1U) << "one for the rise";
  write(NEOPROF_STATUS_OFFSET, NEOPROF_STATUS_FILL_MASK | NEOPROF_STATUS_OVERFLOW_MASK);
  EXPECT_EQ(device_->messages(), 1U) << "an acknowledgement alone does nothing about a level";
  write(NEOPROF_RING_OFFSET, 0, 0x03);
  EXPECT_EQ(device_->messages(), 1U) << "HEAD did not move";
  write(NEOPROF_RING_OFFSET, 4, 0x03);
  EXPECT_EQ(device_->messages(), 2U) << "five are left";
  write(NEOPROF_RING_OFFSET, 8, 0x03);
  EXPECT_EQ(device_->messages(), 2U);
  for (uint64_t page = 9; page < 20; ++page) {
    touch(page);
  }
  device_->drain();
  EXPECT_EQ(device_->messages(), 3U) << "the next fill";
  write(NEOPROF_CFG2_OFFSET, 0xffff);
  // Over the ring's end.
  for (int epoch = 0; epoch < 8; ++epoch) {
    end_epoch();
    for (uint64_t page = 0; page < 600; ++page) {
      touch(page);
    }
  }
  device_->drain();
  EXPECT_EQ(device_->messages(), 4U);
  write(NEOPROF_STATUS_OFFSET, NEOPROF_STATUS_OVERFLOW_MASK);
  EXPECT_EQ(device_->messages(), 4U);
  end_epoch();
  touch(1);
  device_->drain();
  EXPECT_EQ(device_->messages(), 5U) << "lost again";
}

TEST_P(Directed, DecayFadesAndChangesApplyToLaterEpochsOnly) {
  configure(kNever, false);
  write(NEOPROF_DECAY_OFFSET, 1, 1);
  touch(51, 80);
  end_epoch();
  end_epoch();  // 20
  touch(51, 1);
  write(NEOPROF_DECAY_OFFSET, 2, 1);
  end_epoch();  // 21 >> 2
  threshold(1);
  touch(51, 1);
  end_epoch();
  EXPECT_EQ(reports(), (RingLog{{51, 6}}));
}

TEST_P(Directed, DecayChangeRevivesNothing) {
  configure(1, false);
  touch(52, 1000);
  end_epoch();
  reports();
  write(NEOPROF_DECAY_OFFSET, 1, 1);
  touch(52, 1);
  end_epoch();
  EXPECT_EQ(reports(), (RingLog{{52, 1}}));
}

TEST_P(Directed, TagsWrapUnnoticed) {
  // Two tag bits: after 4 epochs a tag comes back. Without the scrubber a counter of then would seem to be of now.
  configure(1, false);
  for (uint64_t page = 0; page < 300; ++page) {
    touch(page, 3);
  }
  end_epoch();
  reports();
  for (int epoch = 0; epoch < 9; ++epoch) {
    touch(60'000 + static_cast<uint64_t>(epoch));
    end_epoch();
  }
  reports();
  for (uint64_t page = 0; page < 300; ++page) {
    touch(page);
    device_->drain();
    end_epoch();
    EXPECT_EQ(reports(), (RingLog{{static_cast<uint32_t>(page), 1}}));
  }
}

TEST_P(Directed, ScrubbingFadesNoFurther) {
  configure(kNever, false);
  write(NEOPROF_DECAY_OFFSET, 1, 1);
  touch(71, 32768);
  for (int epoch = 0; epoch < 13; ++epoch) {
    end_epoch();
  }
  threshold(1);
  touch(71);
  end_epoch();
  EXPECT_EQ(reports(), (RingLog{{71, 5}}));
}

TEST_P(Directed, ARequestRaisesOnlyTheCountersThatSayTheLeast) {
  const auto at = [](uint32_t row, uint64_t unit) { return hash_index(0, 10, row, unit); };
  const auto first = [&](const auto& is_wanted) {
    uint64_t unit = 0;
    while (!is_wanted(unit)) ++unit;
    return unit;
  };
  // Three units have a counter of row 0 together, and each another one of row 1. There the third has one with `other`.
  const uint64_t a = 1;
  const uint64_t b = first([&](uint64_t unit) { return at(0, unit) == at(0, a) && at(1, unit) != at(1, a); });
  const uint64_t c = first(
      [&](uint64_t unit) { return at(0, unit) == at(0, a) && at(1, unit) != at(1, a) && at(1, unit) != at(1, b); });
  const uint64_t other = first([&](uint64_t unit) { return at(1, unit) == at(1, c) && at(0, unit) != at(0, c); });
  configure(11, true);
  touch(a, 10);
  touch(b, 10);
  touch(other, 20);
  touch(c, 1);
  EXPECT_EQ(reports(), (RingLog{{other, 11}, {c, 11}})) << "if each request raised all rows, c would have 21";
}

TEST_P(Directed, CountersSaturateAndSaySo) {
  configure(65535, true);
  touch(81, 65536 + 99);
  EXPECT_EQ(reports(), (RingLog{{81, 65535}}));
  EXPECT_EQ(count(NEOPROF_SATURATED_OFFSET), 100U);
  threshold(65536);
  end_epoch();
  touch(81, 65536);
  EXPECT_TRUE(reports().empty()) << "over the counter's maximum never matches";
}

TEST_P(Directed, CountsReadsWritesFilteredAndSampled) {
  configure(kNever, true);
  device_->access(0, false);
  device_->access(0, true);
  device_->access(0, true);
  device_->access(64ULL << 30, true);  // past the bitmap
  write(NEOPROF_CFG0_OFFSET, 4, 1);    // reads only
  device_->access(0, true);
  device_->access(0, false);
  write(NEOPROF_CFG0_OFFSET, 2, 1);  // writes only, the non-TEE code
  device_->access(0, true);
  write(NEOPROF_CFG0_OFFSET, 7, 1);  // no such type
  device_->access(0, true);
  write(NEOPROF_CFG0_OFFSET, 6, 1);
  write(NEOPROF_BITMAP_OFFSET, ~2ULL);
  device_->access(256ULL << 20, false);
  EXPECT_EQ(count(NEOPROF_READS_OFFSET), 3U);
  EXPECT_EQ(count(NEOPROF_WRITES_OFFSET), 6U);
  EXPECT_EQ(count(NEOPROF_TRACKED_OFFSET), 5U);
  EXPECT_EQ(count(NEOPROF_FILTERED_OFFSET), 4U);
  write(NEOPROF_CFG0_OFFSET, 0, 0x04);
  touch(0, 5);
  EXPECT_EQ(count(NEOPROF_READS_OFFSET), 3U) << "disabled";
}

TEST_P(Directed, DownSampling) {
  configure(kNever, true);
  write(NEOPROF_CFG1_OFFSET, 3ULL << NEOPROF_CFG1_DOWNSAMPLING_SHIFT, 0x10);
  touch(1, 800);
  EXPECT_EQ(count(NEOPROF_TRACKED_OFFSET), 100U);
  EXPECT_EQ(count(NEOPROF_SAMPLED_OUT_OFFSET), 700U);
  write(NEOPROF_CFG0_OFFSET, 1ULL << NEOPROF_CFG0_RANDOM_DS_SHIFT, 0x02);
  touch(1, 80'000);
  const auto random = static_cast<double>(count(NEOPROF_TRACKED_OFFSET) - 100);
  EXPECT_NEAR(random, 10'000, 500);
}

TEST_P(Directed, LargeUnits) {
  configure(4, true);
  write(NEOPROF_CFG1_OFFSET, 21, 0x0f);
  for (uint64_t page = 0; page < 4; ++page) {
    touch(3 * 512 + 100 * page);
  }
  EXPECT_EQ(reports(), (RingLog{{3, 4}}));
}

TEST_P(Directed, SnapshotHoldsStillUntilTheNext) {
  configure(1, true);
  touch(1, 10);
  device_->drain();
  EXPECT_EQ(read(NEOPROF_TRACKED_OFFSET), 0U);
  EXPECT_EQ(count(NEOPROF_TRACKED_OFFSET), 10U);
  touch(1, 5);
  end_epoch();
  EXPECT_EQ(read(NEOPROF_TRACKED_OFFSET), 10U);
  EXPECT_EQ(read(NEOPROF_EPOCHS_OFFSET), 0U);
  EXPECT_EQ(read(NEOPROF_HISTOGRAM_OFFSET + 8 * 5), 0U);
  EXPECT_EQ(count(NEOPROF_EPOCHS_OFFSET), 1U);
  const uint64_t histogram = read(NEOPROF_HISTOGRAM_OFFSET + 8 * 5);  // 15 counts: bin 11
  EXPECT_EQ(FIELD(histogram, HISTOGRAM_ODD), 1U);
  for (int epoch = 0; epoch < 5; ++epoch) {
    touch(2, 100);
    end_epoch();
    EXPECT_EQ(read(NEOPROF_HISTOGRAM_OFFSET + 8 * 5), histogram);
  }
}

TEST_P(Directed, HistogramAndOccupancyAreExactWithoutCollisions) {
  configure(2000, false);
  std::mt19937_64 random(5);
  std::map<uint64_t, uint64_t> counts;
  // Few enough units for two rows of 1024; those that collide in both rows are left out.
  std::vector<uint64_t> order;
  std::map<std::pair<uint32_t, uint32_t>, int> taken;
  while (counts.size() < 60) {
    const uint64_t page = random() & 0xffffff;
    if (taken[{0, hash_index(0, 10, 0, page)}]++ == 0 && taken[{1, hash_index(0, 10, 1, page)}]++ == 0) {
      const uint64_t times = 1 + (random() % (counts.size() % 4 == 0 ? 3000 : 40));
      counts[page] = times;
      order.insert(order.end(), times, page);
    }
  }
  std::shuffle(order.begin(), order.end(), random);
  for (uint64_t page : order) {
    touch(page);
  }
  end_epoch();
  std::map<uint32_t, uint64_t> expected;
  uint64_t hot = 0;
  for (const auto& [page, times] : counts) {
    uint32_t bin = 0;
    uint64_t from = 0;
    for (uint64_t width = 1; width <= 128 && bin < 63; width *= 2) {
      for (int i = 0; i < 8 && from + width <= times && bin < 63; ++i) {
        from += width;
        ++bin;
      }
      if (from + width > times) {
        break;
      }
    }
    ++expected[bin];
    hot += times >= 2000;
  }
  const uint64_t occupancy = count(NEOPROF_OCCUPANCY_OFFSET);
  for (uint32_t bin = 0; bin < 64; ++bin) {
    const uint64_t word = read(NEOPROF_HISTOGRAM_OFFSET + 8 * (bin / 2));
    EXPECT_EQ(bin % 2 ? word >> 32 : word & 0xffffffff, expected[bin]) << "bin " << bin;
  }
  EXPECT_EQ(FIELD(occupancy, OCCUPANCY_UNITS), counts.size());
  EXPECT_EQ(FIELD(occupancy, OCCUPANCY_UPDATES), order.size());
  EXPECT_EQ(read(NEOPROF_HOT_OFFSET), hot);
  EXPECT_EQ(read(NEOPROF_ERROR_OFFSET), (order.size() * 2718282 + 1024 * 1000000 - 1) / (1024 * 1000000ULL));
  EXPECT_EQ(reports().size(), hot);
}

TEST_P(Directed, UnitsThatDoNotFitAreReportedAndCountedOnceAnEpoch) {
  configure(4, true);
  const std::vector<uint64_t> pages = pages_of_one_set(6, 9);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (uint64_t page : pages) {
      touch(page, 64);
    }
    EXPECT_EQ(reports().size(), 6U);
    EXPECT_EQ(count(NEOPROF_LOST_CANDIDATES_OFFSET), 2U * static_cast<uint64_t>(epoch + 1));
    end_epoch();
  }
}

TEST_P(Directed, UnitsThatWereHotWhenTheEpochBeganAreNotLostInSilence) {
  configure(16, true);
  write(NEOPROF_DECAY_OFFSET, 1, 1);
  const std::vector<uint64_t> pages = pages_of_one_set(6, 9);
  for (uint64_t page : pages) {
    touch(page, 100);
  }
  end_epoch();
  reports();
  const uint64_t before = count(NEOPROF_LOST_CANDIDATES_OFFSET);
  for (uint64_t page : pages) {
    touch(page, 10);  // 51 to 60
  }
  EXPECT_EQ(reports().size(), 6U);
  EXPECT_EQ(count(NEOPROF_LOST_CANDIDATES_OFFSET), before + 2);
}

TEST_P(Directed, UnitsThatALoweredThresholdMakesHotAreNotLostInSilence) {
  configure(kNever, true);
  const std::vector<uint64_t> pages = pages_of_one_set(6, 9);
  for (uint64_t page : pages) {
    touch(page, 33);
  }
  device_->drain();
  threshold(10);
  for (uint64_t page : pages) {
    touch(page, 30);
  }
  EXPECT_EQ(reports().size(), 6U);
  EXPECT_EQ(count(NEOPROF_LOST_CANDIDATES_OFFSET), 2U);
}

TEST_P(Directed, QueueLosesOnlyWhatDoesNotFit) {
  configure(1, false);
  for (uint64_t page = 0; page < 900; ++page) {
    touch(page * 33);
  }
  device_->drain();
  device_->tick();
  touch(5, 2000);  // the walk takes over 900 clocks, the queue holds 512
  device_->drain();
  const uint64_t lost = count(NEOPROF_LOST_TAP_OFFSET);
  EXPECT_GT(lost, 300U);
  EXPECT_LT(lost, 2000U);
  EXPECT_EQ(read(NEOPROF_READS_OFFSET), 2900U);
  EXPECT_EQ(read(NEOPROF_TRACKED_OFFSET), 2900U - lost);
}

TEST_P(Directed, EpochLengthFollowsScaleAndMultiplier) {
  configure(1, true);
  write(NEOPROF_CFG1_OFFSET, 2ULL << NEOPROF_CFG1_EPOCH_SCALE_SHIFT | 3ULL << NEOPROF_CFG1_EPOCH_MULT_SHIFT, 0xc0);
  for (int tick = 0; tick < 29; ++tick) {
    device_->tick();
  }
  write(NEOPROF_CFG1_OFFSET, 4ULL << NEOPROF_CFG1_EPOCH_MULT_SHIFT, 0xc0);  // scale 0 acts as 1
  EXPECT_EQ(count(NEOPROF_EPOCHS_OFFSET), 0U);
  end_epoch();
  EXPECT_EQ(count(NEOPROF_EPOCHS_OFFSET), 1U);
  for (int tick = 0; tick < 3; ++tick) {
    end_epoch();
  }
  write(NEOPROF_CFG1_OFFSET, 9ULL << NEOPROF_CFG1_EPOCH_MULT_SHIFT, 0xc0);
  EXPECT_EQ(count(NEOPROF_EPOCHS_OFFSET), 1U);
  end_epoch();
  EXPECT_EQ(count(NEOPROF_EPOCHS_OFFSET), 2U) << "a change applies from the next epoch";
  EXPECT_EQ(read(NEOPROF_TICKS_OFFSET), 34U);
}

TEST_P(Directed, ResetForgetsAllButTheConfiguration) {
  configure(3, true);
  write(NEOPROF_DECAY_OFFSET, 1);
  touch(91, 10);
  end_epoch();
  touch(91, 10);
  reports();
  count(NEOPROF_TICKS_OFFSET);
  const uint64_t cfg0 = read(NEOPROF_CFG0_OFFSET);
  write(NEOPROF_CFG0_OFFSET, NEOPROF_CFG0_RESET_MASK | NEOPROF_CFG0_ENABLE_MASK, 0x04);
  EXPECT_EQ(read(NEOPROF_CFG0_OFFSET), cfg0);
  EXPECT_EQ(read(NEOPROF_DECAY_OFFSET), 1U);
  EXPECT_EQ(read(NEOPROF_RING_OFFSET), 0U);
  EXPECT_EQ(FIELD(read(NEOPROF_STATUS_OFFSET), STATUS_OP_IN_PROGRESS), 0U);
  for (int round = 0; round < 2; ++round) {
    for (uint32_t offset = NEOPROF_TICKS_OFFSET; offset <= NEOPROF_HOT_OFFSET; offset += 8) {
      EXPECT_EQ(read(offset), 0U) << std::hex << offset;
    }
    for (uint32_t word = 0; word < NEOPROF_HISTOGRAM_COUNT; ++word) {
      EXPECT_EQ(read(NEOPROF_HISTOGRAM_OFFSET + 8 * word), 0U);
    }
    write(NEOPROF_CTRL_OFFSET, 1);
  }
  touch(91, 2);
  EXPECT_TRUE(reports().empty()) << "the sketch was not cleared";
  touch(91, 1);
  EXPECT_EQ(reports(), (RingLog{{91, 3}})) << "the hot filter was not cleared";
}

using Entry = std::pair<uint64_t, uint64_t>;

TEST_P(Directed, WatchCountsExactlyWhatTheSketchCannot) {
  configure(kNever, true);
  watch(0, 7);
  watch(1, 8);
  watch(63, 0xffffff);
  watch(62, 0x800007);
  // In successive clocks: the same unit, then others in turns, so that each is counted once the one before is written.
  touch(7, 3);
  touch(8);
  touch(7);
  touch(0xffffff);
  touch(7);
  touch(8, 2);
  device_->access(7 * kPage + 4095, true);
  touch(0xffffff);
  // Names that differ from these in one bit.
  for (uint32_t bit = 0; bit < 24; ++bit) {
    if (bit != 0 && bit != 23) {
      touch(7 ^ 1U << bit, 10);
    }
    touch(0xffffff ^ 1U << bit, 10);
  }
  touch(0x800007, 4);
  // As many units as the sketch has counters: it tells no unit apart any more.
  for (uint64_t page = 0; page < 1024; ++page) {
    touch(0x1000 + page, 20);
  }
  EXPECT_EQ(watched(0), Entry(7, 6));
  EXPECT_EQ(watched(1), Entry(8, 3));
  EXPECT_EQ(watched(62), Entry(0x800007, 4));
  EXPECT_EQ(watched(63), Entry(0xffffff, 2));
  EXPECT_EQ(watched(2), Entry(kNoUnit, 0));
  threshold(1);
  touch(7);
  EXPECT_GT(reports().at(0).second, 7U) << "or the sketch had it right as well";
  end_epoch();
  touch(7);
  write(NEOPROF_CTRL_OFFSET, NEOPROF_CTRL_SNAPSHOT_MASK);
  EXPECT_EQ(watched(0), Entry(7, 8)) << "neither an epoch's end nor a snapshot is anything to it";
}

TEST_P(Directed, EachEntryOfWatchHasItsOwnUnitAndCount) {
  configure(kNever, true);
  for (uint32_t entry = 0; entry < NEOPROF_WATCH_COUNT; ++entry) {
    watch(entry, 1000 + 37 * entry);
  }
  for (uint32_t turn = 0; turn < NEOPROF_WATCH_COUNT; ++turn) {
    for (uint32_t entry = turn; entry < NEOPROF_WATCH_COUNT; ++entry) {
      touch(1000 + 37 * entry);
    }
  }
  for (uint32_t entry = 0; entry < NEOPROF_WATCH_COUNT; ++entry) {
    EXPECT_EQ(watched(entry), Entry(1000 + 37 * entry, entry + 1));
  }
}

TEST_P(Directed, WatchIsLive) {
  configure(kNever, true);
  watch(9, 5);
  touch(5);
  EXPECT_EQ(read(NEOPROF_WATCH_OFFSET + 8 * 9), 5ULL << 32) << "it is written in the clock in which this one is read";
  EXPECT_EQ(read(NEOPROF_WATCH_OFFSET + 8 * 9), 5ULL << 32 | 1);
  touch(5, 8);
  EXPECT_EQ(read(NEOPROF_WATCH_OFFSET + 8 * 9), 5ULL << 32 | 8);
  EXPECT_EQ(read(NEOPROF_WATCH_OFFSET + 8 * 9), 5ULL << 32 | 9);
}

TEST_P(Directed, WatchCountsWhatDownSamplingLeavesOut) {
  configure(kNever, true);
  watch(0, 5);
  write(NEOPROF_CFG1_OFFSET, 8ULL << NEOPROF_CFG1_DOWNSAMPLING_SHIFT, 0x10);
  touch(5, 100);
  EXPECT_EQ(watched(0), Entry(5, 100));
  EXPECT_EQ(count(NEOPROF_TRACKED_OFFSET), 0U);
  touch(5, 500);
  EXPECT_EQ(watched(0), Entry(5, 600));
  EXPECT_EQ(count(NEOPROF_TRACKED_OFFSET), 2U);
  write(NEOPROF_CFG0_OFFSET, 1ULL << NEOPROF_CFG0_RANDOM_DS_SHIFT, 0x02);
  touch(5, 77);
  EXPECT_EQ(watched(0), Entry(5, 677));
}

TEST_P(Directed, WatchCountsOnlyWhatIsTracked) {
  configure(kNever, true);
  const uint64_t second = 256ULL << 20;  // where the second range begins
  watch(0, 5);
  watch(1, second / kPage);
  write(NEOPROF_CFG0_OFFSET, 4, 1);  // reads
  device_->access(5 * kPage, true);
  device_->access(5 * kPage, false);
  EXPECT_EQ(watched(0), Entry(5, 1));
  write(NEOPROF_CFG0_OFFSET, 5, 1);  // writes
  touch(5, 3);
  device_->access(5 * kPage, true);
  EXPECT_EQ(watched(0), Entry(5, 2));
  write(NEOPROF_CFG0_OFFSET, 7, 1);  // no such type
  touch(5, 3);
  write(NEOPROF_CFG0_OFFSET, 6, 1);
  device_->access((64ULL << 30) + 5 * kPage, false);  // past the bitmap, the same in the bits below
  EXPECT_EQ(watched(0), Entry(5, 2));
  device_->access(second, false);
  write(NEOPROF_BITMAP_OFFSET, ~2ULL);
  device_->access(second, false);
  touch(5);
  EXPECT_EQ(watched(0), Entry(5, 3));
  EXPECT_EQ(watched(1), Entry(second / kPage, 1));
  write(NEOPROF_CFG0_OFFSET, 0, 0x04);
  touch(5, 5);
  EXPECT_EQ(watched(0), Entry(5, 3)) << "disabled";
}

TEST_P(Directed, AWatchBeginsFromZeroWhereItsUnitIsWritten) {
  configure(kNever, true);
  watch(3, 5);
  watch(4, 6);
  touch(5, 9);
  touch(6, 2);
  device_->drain();
  write(NEOPROF_WATCH_OFFSET + 8 * 3, ~0ULL, 0x0f);
  write(NEOPROF_WATCH_OFFSET + 8 * 3, 77, 0x01);
  watch(3, 1234, 0);
  EXPECT_EQ(watched(3), Entry(5, 9)) << "COUNT is the device's";
  watch(3, 5);
  EXPECT_EQ(watched(3), Entry(5, 0)) << "the same unit, once more";
  touch(5, 4);
  EXPECT_EQ(watched(3), Entry(5, 4));
  watch(3, 8, 0xff);
  EXPECT_EQ(watched(3), Entry(8, 0)) << "with COUNT's bytes, which say nothing";
  touch(5, 4);
  touch(8, 3);
  EXPECT_EQ(watched(3), Entry(8, 3));
  EXPECT_EQ(watched(4), Entry(6, 2)) << "another entry's";
  watch(3, 0x1000000);
  EXPECT_EQ(watched(3), Entry(kNoUnit, 0)) << "past the last unit";
  touch(0, 3);
  touch(8, 3);
  EXPECT_EQ(watched(3), Entry(kNoUnit, 0));
  watch(3, 0);
  touch(0, 2);
  EXPECT_EQ(watched(3), Entry(0, 2)) << "unit 0 is one as any other";
  watch(3, kNoUnit);
  touch(0, 2);
  EXPECT_EQ(watched(3), Entry(kNoUnit, 0));
  watch(3, 0x80000000);
  EXPECT_EQ(watched(3), Entry(kNoUnit, 0));
}

TEST_P(Directed, ByteStrobesMergeIntoAWatchedUnit) {
  configure(kNever, true);
  watch(7, 0x123456);
  const uint64_t data = 0x00abcdef;
  const std::array<uint64_t, 4> merged = {0x1234ef, 0x12cdef, 0xabcdef, 0xabcdef};
  for (int byte = 0; byte < 4; ++byte) {
    const uint64_t named = watched(7).first;
    touch(named, 2);
    EXPECT_EQ(watched(7), Entry(named, 2));
    watch(7, data, static_cast<uint8_t>(0x10 << byte));
    EXPECT_EQ(watched(7), Entry(merged[static_cast<size_t>(byte)], 0));
  }
  touch(0xabcdef, 3);
  EXPECT_EQ(watched(7), Entry(0xabcdef, 3));
  watch(7, 0xff000000, 0x80);
  EXPECT_EQ(watched(7), Entry(kNoUnit, 0));
  // Into 0xffffffff, whatever the entry named before.
  watch(7, 0, 0x80);
  EXPECT_EQ(watched(7), Entry(0xffffff, 0));
  watch(7, kNoUnit);
  watch(7, 0x00000012, 0x90);
  EXPECT_EQ(watched(7), Entry(0xffff12, 0));
  watch(7, kNoUnit);
  watch(7, 0x00000012, 0x10);
  EXPECT_EQ(watched(7), Entry(kNoUnit, 0)) << "0xffffff12 is no unit";
  watch(7, 0, 0x80);
  EXPECT_EQ(watched(7), Entry(0xffffff, 0)) << "and left nothing behind";
}

TEST_P(Directed, AUnitWatchedTwiceIsCountedInTheLowerEntryOnly) {
  configure(kNever, true);
  watch(40, 3);
  touch(3, 2);
  watch(5, 3);
  watch(63, 3);
  touch(3, 4);
  EXPECT_EQ(watched(5), Entry(3, 4));
  EXPECT_EQ(watched(40), Entry(3, 2));
  EXPECT_EQ(watched(63), Entry(3, 0));
  watch(5, kNoUnit);
  touch(3, 8);
  EXPECT_EQ(watched(5), Entry(kNoUnit, 0));
  EXPECT_EQ(watched(40), Entry(3, 10)) << "now the lowest";
  EXPECT_EQ(watched(63), Entry(3, 0));
}

TEST_P(Directed, WatchOfLargeUnits) {
  configure(kNever, true);
  write(NEOPROF_CFG1_OFFSET, 21, 0x0f);
  watch(0, 3);
  watch(1, 3 * 512);
  for (uint64_t page = 0; page < 512; page += 73) {
    touch(3 * 512 + page);
  }
  touch(3);
  touch(4 * 512);
  EXPECT_EQ(watched(0), Entry(3, 8));
  EXPECT_EQ(watched(1), Entry(3 * 512, 0));
}

TEST_P(Directed, ResetAndPowerOnNameNothing) {
  const auto names_nothing = [&] {
    for (uint32_t entry = 0; entry < NEOPROF_WATCH_COUNT; ++entry) {
      EXPECT_EQ(watched(entry), Entry(kNoUnit, 0)) << "entry " << entry;
    }
  };
  names_nothing();
  configure(kNever, true);
  touch(0);
  touch(0xffffff);
  names_nothing();
  for (uint32_t entry = 0; entry < NEOPROF_WATCH_COUNT; ++entry) {
    watch(entry, entry);
    touch(entry, 2);
  }
  EXPECT_EQ(watched(63), Entry(63, 2));
  write(NEOPROF_CFG0_OFFSET, NEOPROF_CFG0_RESET_MASK | NEOPROF_CFG0_ENABLE_MASK, 0x04);
  names_nothing();
  for (uint32_t entry = 0; entry < NEOPROF_WATCH_COUNT; ++entry) {
    touch(entry, 2);
  }
  names_nothing();
  watch(63, 63);
  EXPECT_EQ(watched(63), Entry(63, 0)) << "what it counted before is forgotten";
  touch(63);
  EXPECT_EQ(watched(63), Entry(63, 1));
  watch(62, 0x00000000, 0x80);
  EXPECT_EQ(watched(62), Entry(0xffffff, 0)) << "so is what it named";
}

// On the bus itself, which the Device interface hides.
template <class Rig>
class BusOf : public testing::Test {
 protected:
  explicit BusOf(uint64_t threshold = kNever) {
    rtl_.set_observer(&ring_);
    for (uint32_t word = 0; word < NEOPROF_BITMAP_COUNT; ++word) {
      rtl_.write(NEOPROF_BITMAP_OFFSET + 8 * word, ~0ULL, 0xff);
    }
    rtl_.write(NEOPROF_CFG1_OFFSET,
               12 | 1ULL << NEOPROF_CFG1_MODE_SHIFT | 1ULL << NEOPROF_CFG1_EPOCH_SCALE_SHIFT |
                   1ULL << NEOPROF_CFG1_EPOCH_MULT_SHIFT,
               0xff);
    rtl_.write(NEOPROF_CFG0_OFFSET, 6 | NEOPROF_CFG0_ENABLE_MASK | threshold << 32, 0xff);
  }

  void threshold(uint64_t value) { rtl_.write(NEOPROF_CFG0_OFFSET, value << 32, 0xf0); }
  uint64_t count(uint32_t offset) {
    rtl_.write(NEOPROF_CTRL_OFFSET, 1, 1);
    return rtl_.read(offset);
  }
  uint64_t op() { return FIELD(rtl_.read(NEOPROF_STATUS_OFFSET), STATUS_OP_IN_PROGRESS); }

  // Ends an epoch; while that is worked on, each port has a read of another page from `first` on in each of `clocks`
  // clocks. They wait in the queue.
  void queue_up(uint64_t first, int clocks) {
    rtl_.tick();
    for (int i = 0; i < clocks; ++i) {
      rtl_.access((first + static_cast<uint64_t>(i)) * kPage, false);
    }
  }
  // Takes the address and the data of a write in one clock, and lets it be.
  void begin_write(uint32_t offset, uint64_t data, uint8_t strobe) {
    auto& top = rtl_.top();
    top.s_axil_awaddr_i = static_cast<uint16_t>(offset);
    top.s_axil_wdata_i = data;
    top.s_axil_wstrb_i = strobe;
    top.s_axil_awvalid_i = top.s_axil_wvalid_i = 1;
    rtl_.clock();
    top.s_axil_awvalid_i = top.s_axil_wvalid_i = 0;
  }
  // Clocks until the write has been answered.
  uint64_t end_write() {
    uint64_t clocks = 0;
    for (; !rtl_.top().s_axil_bvalid_o && clocks < 1'000'000; ++clocks) {
      rtl_.clock();
    }
    rtl_.clock();
    return clocks;
  }

  Rtl<Rig> rtl_{kStraps, start_seed()};
  Recorder ring_;
};
using Bus = BusOf<Mid>;

TEST_F(Bus, DisableEndsWhatWasAccepted) {
  threshold(1);
  queue_up(0, 300);
  begin_write(NEOPROF_CFG0_OFFSET, 0, 0x04);
  EXPECT_EQ(op(), 2U) << "the queue is not empty yet";
  rtl_.access(999 * kPage, false);
  end_write();
  EXPECT_EQ(FIELD(rtl_.status(), STATUS_ENABLED), 0U);
  EXPECT_EQ(op(), 0U);
  const size_t reported = ring_.log.size();
  EXPECT_EQ(reported, 300U) << "all that was accepted has been counted, and what came later has not";
  for (int clock = 0; clock < 2000; ++clock) {
    rtl_.clock();
  }
  EXPECT_EQ(ring_.log.size(), reported);
  EXPECT_EQ(count(NEOPROF_READS_OFFSET), 300U);
  EXPECT_EQ(rtl_.read(NEOPROF_TRACKED_OFFSET), 300U);
}

TEST_F(Bus, ConfigurationAppliesToRequestsAcceptedAfterTheWrite) {
  queue_up(0, 200);
  begin_write(NEOPROF_CFG0_OFFSET, 5, 0x01);  // writes only
  rtl_.set_request(0, true, false, kPage);
  const uint64_t clocks = end_write() + 1;
  rtl_.top().req_valid_i = 0;
  rtl_.drain();
  EXPECT_EQ(count(NEOPROF_TRACKED_OFFSET), 200U);
  EXPECT_EQ(rtl_.read(NEOPROF_FILTERED_OFFSET) + rtl_.read(NEOPROF_LOST_TAP_OFFSET), clocks);
  EXPECT_EQ(rtl_.read(NEOPROF_READS_OFFSET), 200U + clocks);
}

// Whether the tracker sees what comes before the write or down-sampling leaves all of it out.
TEST_F(Bus, AWatchCountsRequestsAcceptedAfterItsWrite) {
  for (const uint64_t sampling : {0, 8}) {
    for (int before = 0; before < 12; ++before) {
      rtl_.write(NEOPROF_CFG0_OFFSET, NEOPROF_CFG0_ENABLE_MASK | NEOPROF_CFG0_RESET_MASK, 0x04);
      rtl_.write(NEOPROF_CFG1_OFFSET, sampling << NEOPROF_CFG1_DOWNSAMPLING_SHIFT, 0x10);
      rtl_.write(NEOPROF_WATCH_OFFSET, 9ULL << 32, 0xf0);
      rtl_.write(NEOPROF_WATCH_OFFSET + 8, 9ULL << 32, 0xf0);
      rtl_.set_request(0, true, false, 9 * kPage);
      for (int i = 0; i < before; ++i) {
        rtl_.clock();
      }
      begin_write(NEOPROF_WATCH_OFFSET, 10ULL << 32, 0xf0);
      rtl_.set_request(0, true, false, 10 * kPage);
      const uint64_t clocks = end_write() + 1;
      rtl_.top().req_valid_i = 0;
      rtl_.drain();
      EXPECT_EQ(rtl_.read(NEOPROF_WATCH_OFFSET), 10ULL << 32 | clocks);
      EXPECT_EQ(rtl_.read(NEOPROF_WATCH_OFFSET + 8), 9ULL << 32)
          << "of those before, none came when entry 0 named something else";
    }
  }
}

// One unit in every clock, while an entry takes it away from a higher one and gives it back.
TEST_F(Bus, EachRequestUnderTrafficIsInOneWatch) {
  rtl_.write(NEOPROF_WATCH_OFFSET + 8 * 63, 9ULL << 32, 0xf0);
  rtl_.set_request(0, true, false, 9 * kPage);
  bool taken = false;
  uint64_t clocks = 0;    // since the last write
  uint64_t expected = 0;  // in the higher entry
  for (int i = 0; i < 41; ++i) {
    begin_write(NEOPROF_WATCH_OFFSET, (taken ? kNoUnit : 9ULL) << 32, 0xf0);
    expected += taken ? 0 : clocks + 1;
    taken = !taken;
    clocks = end_write() + 1;
    for (int clock = 0; clock < i % 7; ++clock) {
      rtl_.clock();
      ++clocks;
    }
  }
  rtl_.top().req_valid_i = 0;
  rtl_.drain();
  EXPECT_EQ(rtl_.read(NEOPROF_WATCH_OFFSET), 9ULL << 32 | clocks);
  EXPECT_EQ(rtl_.read(NEOPROF_WATCH_OFFSET + 8 * 63), 9ULL << 32 | expected);
  EXPECT_EQ(count(NEOPROF_LOST_TAP_OFFSET), 0U);
}

TEST_F(Bus, ResetLosesNoRequestInSilence) {
  threshold(1);
  queue_up(0, 100);
  begin_write(NEOPROF_CFG0_OFFSET, NEOPROF_CFG0_ENABLE_MASK | NEOPROF_CFG0_RESET_MASK, 0x04);
  // From here on requests come after the reset, and arrive while it waits and while it goes on.
  uint64_t sent = 0;
  const auto request = [&] {
    rtl_.access(7 * kPage, false);
    ++sent;
  };
  request();
  EXPECT_EQ(FIELD(rtl_.status(), STATUS_OP_IN_PROGRESS), 3U) << "it waits for what was accepted";
  while (!rtl_.top().s_axil_bvalid_o) {
    request();
    ASSERT_LT(sent, 1'000'000U);
  }
  for (int i = 0; i < 50; ++i) {
    request();
  }
  EXPECT_EQ(FIELD(rtl_.status(), STATUS_OP_IN_PROGRESS), 3U);
  rtl_.drain();
  EXPECT_EQ(op(), 0U);
  EXPECT_EQ(FIELD(rtl_.status(), STATUS_ENABLED), 1U);
  EXPECT_EQ(count(NEOPROF_READS_OFFSET), sent);
  EXPECT_EQ(rtl_.read(NEOPROF_TRACKED_OFFSET) + rtl_.read(NEOPROF_LOST_TAP_OFFSET), sent);
  EXPECT_GE(rtl_.read(NEOPROF_TRACKED_OFFSET), Mid::kParams.tap_depth) << "as many as the queue holds waited";
  EXPECT_EQ(rtl_.read(NEOPROF_REPORTED_OFFSET), 1U) << "page 7 alone: what was there before is forgotten";
}

TEST_F(Bus, SnapshotsAreOfOneEpoch) {
  for (uint64_t delay = 0; delay < 40; ++delay) {
    for (uint64_t i = 0; i < 400 * (delay + 1); ++i) {
      rtl_.access(i * kPage, false);
    }
    rtl_.drain();
    rtl_.tick();
    for (uint64_t clock = 0; clock < delay; ++clock) {
      rtl_.clock();
    }
    rtl_.post_write(NEOPROF_CTRL_OFFSET, 1, 1);
    const uint64_t updates = FIELD(rtl_.read(NEOPROF_OCCUPANCY_OFFSET), OCCUPANCY_UPDATES);
    EXPECT_EQ(rtl_.read(NEOPROF_ERROR_OFFSET), (updates * 178146 + (1ULL << 26) - 1) >> 26) << "delay " << delay;
    rtl_.drain();
  }
}

// Configuration written into full traffic: no request is lost, and each is counted wholly before or after the change.
TEST_F(Bus, ConfigurationChangesUnderTrafficLoseNothing) {
  auto& rtl = rtl_;
  rtl.write(NEOPROF_CFG0_OFFSET, 4 | NEOPROF_CFG0_ENABLE_MASK | kNever << 32, 0xff);
  rtl.set_request(0, true, false, kPage);
  constexpr int kChanges = 40;
  for (int i = 0; i < kChanges; ++i) {
    rtl.post_write(NEOPROF_CFG0_OFFSET, static_cast<uint64_t>(4 + i % 2), 1);
    for (int clock = 0; clock < 20; ++clock) {
      rtl.clock();
    }
  }
  const uint64_t sent = 20 * kChanges;
  rtl.top().req_valid_i = 0;
  rtl.drain();
  rtl.write(NEOPROF_CTRL_OFFSET, 1, 1);
  const uint64_t reads = rtl.read(NEOPROF_READS_OFFSET);
  EXPECT_GT(reads, sent);
  EXPECT_EQ(rtl.read(NEOPROF_LOST_TAP_OFFSET), 0U);
  EXPECT_EQ(rtl.read(NEOPROF_TRACKED_OFFSET) + rtl.read(NEOPROF_FILTERED_OFFSET), reads);
  EXPECT_GT(rtl.read(NEOPROF_FILTERED_OFFSET), sent / 4);
}

// The bus may be slow: valids apart, readies late. Nothing is done twice or forgotten.
TEST_F(Bus, SlowMasters) {
  auto& rtl = rtl_;
  auto& top = rtl.top();
  std::mt19937 random(7);
  uint64_t expected = 0;
  for (int i = 0; i < 200; ++i) {
    const uint64_t data = random() & 0xffff;
    top.s_axil_awaddr_i = NEOPROF_CFG2_OFFSET;
    top.s_axil_wdata_i = data;
    top.s_axil_wstrb_i = 3;
    top.s_axil_bready_i = 0;
    const bool address_first = random() % 2;
    (address_first ? top.s_axil_awvalid_i : top.s_axil_wvalid_i) = 1;
    for (unsigned wait = random() % 4; wait > 0; --wait) {
      rtl.clock();
      ASSERT_EQ(top.s_axil_bvalid_o, 0);
    }
    top.s_axil_awvalid_i = 1;
    top.s_axil_wvalid_i = 1;
    top.eval();
    ASSERT_TRUE(top.s_axil_awready_o && top.s_axil_wready_o);
    rtl.clock();
    top.s_axil_awvalid_i = 0;
    top.s_axil_wvalid_i = 0;
    for (unsigned wait = 2 + random() % 4; wait > 0; --wait) {
      rtl.clock();
    }
    ASSERT_EQ(top.s_axil_bvalid_o, 1);
    ASSERT_EQ(top.s_axil_bresp_o, 0);
    top.s_axil_bready_i = 1;
    rtl.clock();
    expected = data;
    top.s_axil_rready_i = 0;
    top.s_axil_araddr_i = NEOPROF_CFG2_OFFSET;
    top.s_axil_arvalid_i = 1;
    rtl.clock();
    top.s_axil_arvalid_i = 0;
    for (unsigned wait = 2 + random() % 4; wait > 0; --wait) {
      rtl.clock();
    }
    ASSERT_EQ(top.s_axil_rvalid_o, 1);
    ASSERT_EQ(top.s_axil_rdata_o, expected);
    top.s_axil_rready_i = 1;
    rtl.clock();
    ASSERT_EQ(top.s_axil_rvalid_o, 0);
  }
}

// At full size the queue is deep enough for the longest epoch end: as many hot units as the hot filter holds, looked up
// and reported while a request arrives in every clock.
TEST(FullSize, EpochEndLosesNothingAtOneRequestAClock) {
  Rtl<Full> rtl(kStraps);
  Recorder ring;
  rtl.set_observer(&ring);
  rtl.write(NEOPROF_BITMAP_OFFSET, ~0ULL, 0xff);
  rtl.write(NEOPROF_CFG1_OFFSET, 12 | 1ULL << NEOPROF_CFG1_EPOCH_SCALE_SHIFT, 0xff);
  rtl.write(NEOPROF_CFG0_OFFSET, 6 | NEOPROF_CFG0_ENABLE_MASK | 1ULL << NEOPROF_CFG0_THRESHOLD_SHIFT, 0xff);
  // Neighbouring pages fill the sets of the hot filter evenly: its hash is linear.
  for (uint64_t page = 0; page < 4096; ++page) {
    rtl.access(page * kPage, false);
  }
  rtl.drain();
  rtl.tick();
  rtl.set_request(0, true, false, 0);
  for (int clock = 0; clock < 20'000; ++clock) {
    rtl.clock();
  }
  rtl.top().req_valid_i = 0;
  rtl.drain();
  rtl.write(NEOPROF_CTRL_OFFSET, 1, 1);
  EXPECT_EQ(rtl.read(NEOPROF_HOT_OFFSET), 4096U);
  EXPECT_EQ(ring.log.size(), 4095U);
  EXPECT_EQ(rtl.read(NEOPROF_LOST_RING_OFFSET), 1U);
  EXPECT_EQ(rtl.read(NEOPROF_LOST_TAP_OFFSET), 0U);
  EXPECT_EQ(rtl.read(NEOPROF_TRACKED_OFFSET), rtl.read(NEOPROF_READS_OFFSET));
}

// A reset forgets by the tags of the counters: it takes no longer than an epoch's end.
TEST(FullSize, ResetTakesNoLongerThanAnEpochsEnd) {
  Rtl<Full> rtl(kStraps);
  const uint64_t before = rtl.cycles();
  rtl.write(NEOPROF_CFG0_OFFSET, NEOPROF_CFG0_RESET_MASK, 0x04);
  EXPECT_LT(rtl.cycles() - before, 6200U);
}

int rank(std::vector<uint64_t> columns) {
  int rank = 0;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i] == 0) {
      continue;
    }
    ++rank;
    const uint64_t low = columns[i] & -columns[i];
    for (size_t j = i + 1; j < columns.size(); ++j) {
      columns[j] ^= columns[j] & low ? columns[i] : 0;
    }
  }
  return rank;
}

// What `row` makes of each of `n` neighbouring key bits from `first` on.
std::vector<uint64_t> columns(uint32_t seed, uint32_t width, uint32_t row, uint32_t first, uint32_t n) {
  std::vector<uint64_t> out;
  for (uint32_t bit = first; bit < first + n; ++bit) {
    out.push_back(hash_index(seed, width, row, 1ULL << bit));
  }
  return out;
}

// Pages of an aligned range, at any stride that is a power of two, share no counter and fill all sets as long as they
// can.
TEST(Hash, EveryWindowOfEveryRowIsInjective) {
  for (uint32_t seed = 0; seed < kHashSeeds; ++seed) {
    for (uint32_t row = 0; row < kHashRows; ++row) {
      for (uint32_t width = row < kLostHashRow ? 6 : 1; width <= 24; ++width) {
        for (uint32_t first = 0; first + width <= 24; ++first) {
          EXPECT_EQ(rank(columns(seed, width, row, first, width)), static_cast<int>(width))
              << "seed " << seed << ", row " << row << ", width " << width << ", key bits from " << first;
        }
      }
    }
  }
}

// Any two rows of the tracker together tell all units apart that differ within twice the width; from a width of 12 on
// these are all units of the 64 GiB that the range bitmap covers.
TEST(Hash, RowsTogetherTellAllUnitsApart) {
  for (uint32_t seed = 0; seed < kHashSeeds; ++seed) {
    for (uint32_t width = 6; width <= 24; ++width) {
      const uint32_t window = std::min(24U, 2 * width);
      for (uint32_t a = 0; a < kLostHashRow; ++a) {
        for (uint32_t b = 0; b < a; ++b) {
          for (uint32_t first = 0; first + window <= 24; ++first) {
            auto both = columns(seed, width, a, first, window);
            const auto other = columns(seed, width, b, first, window);
            for (size_t i = 0; i < both.size(); ++i) {
              both[i] |= other[i] << 32;
            }
            ASSERT_EQ(rank(both), static_cast<int>(window)) << "seed " << seed << ", rows " << a << " and " << b;
          }
        }
      }
    }
  }
}

TEST(Model, RefusesParametersOutOfRange) {
  ModelParams params;
  params.hot_entries = 100;
  EXPECT_THROW(Model(params, kStraps), std::invalid_argument);
}

}  // namespace
}  // namespace neoprof::test
