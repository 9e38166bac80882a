// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// The golden model of NeoProf: what the RTL must do, bit for bit and clock for clock, said in another way.
//
// Abstraction. The RTL is a pipeline in which a request's effects are spread over nine clocks, with forwarding, lazy
// decay by epoch tags and a scrubber. The model has none of that. A request has its whole effect in the clock in which
// it leaves the tap queue, counters carry their exact history, and time is arithmetic: an epoch's end is carried out at
// once and only the clock at which the queue may be served again is computed. This is exact because
//  - requests enter the tracker in queue order, one a clock, and forwarding makes the RTL behave as if each finished
//    before the next began;
//  - the RTL starts an epoch's end only once the pipeline is empty, and serves no request until the end is complete;
//  - the host's writes of configuration wait for the same condition;
//  - all that can be seen in between is the hotlist ring (STATUS, RING, interrupt), whose entries the model therefore
//    publishes a fixed number of clocks after their cause, and the counts of WATCH, from which a read leaves out what
//    is still on its way.
// The clock counts are the constants at the top of neoprof_model.cc; the RTL modules state the same numbers.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "neoprof_device.h"
#include "neoprof_hash.h"
#include "neoprof_regs.h"

namespace neoprof {

// The RTL's parameters, same names; defaults as hw/CMakeLists.txt builds the device that users of it get. All counts
// but `rows` and `channels` that are sizes of memories are powers of two.
struct ModelParams {
  uint32_t channels = 1;        // 1 to 8
  uint32_t rows = 2;            // 1 to 8
  uint32_t log2_width = 19;     // counters in a row, log2; 6 to 24
  uint32_t min_log2_width = 6;  // the least that Straps::log2_width may choose; 6 to log2_width
  uint32_t hash_seeds = 4;      // that Straps::hash_seed may choose from; 1 to 4
  uint32_t counter_bits = 16;   // 2 to 16
  uint32_t hot_entries = 4096;  // units the hot filter holds; at least 8
  uint32_t tap_depth = 8192;    // requests a channel's queue holds; at least 2
  uint32_t tag_bits = 8;        // of the RTL's epoch tag; here it only sets how long the scrubber works; 2 to 16
};

// One channel's request port in one clock.
struct Request {
  bool valid = false;
  bool write = false;
  uint64_t dpa = 0;  // bytes
};

// The index, of `width` bits, that function `row` of family `seed` gives `key`: the remainder of a division of
// polynomials over GF(2). Long division; a Model has it in tables.
constexpr uint32_t hash_index(uint32_t seed, uint32_t width, uint32_t row, uint64_t key) {
  const uint64_t polynomial = kHashPolynomials[seed][width][row];
  for (int bit = 63; bit >= static_cast<int>(width); --bit) {
    if ((key >> bit) & 1) {
      key ^= polynomial << (static_cast<uint32_t>(bit) - width);
    }
  }
  return static_cast<uint32_t>(key);
}

class Model final : public Device {
 public:
  // Powered up and out of reset. Throws std::invalid_argument when a parameter is out of its range.
  Model(const ModelParams& params, const Straps& straps);

  // One clock with the given request ports (params.channels of them) and tick line.
  void step(const Request* requests, bool tick);
  [[nodiscard]] bool idle() const;

  void access(uint64_t dpa, bool is_write) override;
  void accesses(std::span<const uint64_t> requests) override;
  void tick() override;
  void drain() override;
  void write(uint32_t offset, uint64_t data, uint8_t strobe) override;
  uint64_t read(uint32_t offset) override;
  [[nodiscard]] uint64_t status() const override;
  [[nodiscard]] uint64_t ring() const override;
  [[nodiscard]] bool irq() const override;
  [[nodiscard]] uint64_t messages() const override { return messages_; }
  [[nodiscard]] uint64_t cycles() const override { return now_; }
  void set_observer(RingObserver* observer) override { observer_ = observer; }

 private:
  static constexpr uint32_t kRingEntries = 4096;
  static constexpr uint32_t kBins = 64;
  static constexpr uint32_t kWays = 4;
  static constexpr size_t kBurst = 256;  // requests that are carried out together
  static constexpr uint64_t kWrite = 1;  // bit of a request
  static constexpr uint64_t kNoUnit = 0xffffffff;
  // A request that leaves the queue in clock t is in its unit's COUNT at the end of clock t + kWatchClocks.
  static constexpr uint64_t kWatchClocks = 2;
  static constexpr uint32_t kWatchChains = 4096;

  struct Counter {
    uint64_t faded : 48 = 0;  // how far time had faded counters when this one was last written, in bits of shift
    uint64_t count : 16 = 0;
  };
  struct Set {
    uint32_t nr = 0;
    std::array<uint64_t, kWays> units{};  // the first `nr`
  };
  struct Report {
    uint64_t clock;
    uint64_t entry;
  };
  struct Counts {
    uint64_t ticks = 0, epochs = 0, reads = 0, writes = 0, tracked = 0, filtered = 0, sampled_out = 0, reported = 0;
    uint64_t lost_tap = 0, lost_ring = 0, lost_candidates = 0, saturated = 0;
    uint64_t occupancy = 0, error = 0, hot = 0;  // of the last complete epoch, as their registers show them
    std::array<uint32_t, kBins> histogram{};     // of the last complete epoch
  };

  struct Watched {
    uint64_t unit = kNoUnit;
    uint32_t count = 0;  // with what is on its way
    uint8_t next = 0;    // as Model::watch_chains_
  };
  struct WatchHit {
    uint64_t clock = 0;
    size_t entry = NEOPROF_WATCH_COUNT;
  };

  // What CFG0 and CFG1 say of a request.
  struct Tracking {
    bool reads = false, writes = false;
    uint32_t unit_shift = 12;
    uint64_t threshold = 1;
  };

  // Requests as accesses() has them.
  [[nodiscard]] bool is_filtered(uint64_t request) const;
  void request_at_tracker(uint64_t request);
  void track(uint64_t request);
  void watch(uint64_t unit);
  void name_watched(size_t entry, uint64_t unit);
  [[nodiscard]] uint64_t watched(size_t entry) const;
  void prefetch(uint64_t request) const;
  void burst(std::span<const uint64_t> requests);
  void publish_until(uint64_t clock);
  void publish_due();
  void tell_host();
  void candidate(uint64_t unit, uint64_t before, uint64_t after);
  [[nodiscard]] bool is_lost_again(uint64_t unit, uint64_t before, uint64_t after);
  [[nodiscard]] std::array<bool, 2> causes() const;
  [[nodiscard]] uint64_t level() const { return (tail_ + kRingEntries - head_) % kRingEntries; }
  void end_epoch();
  void publish(uint64_t entry);
  void reset();
  [[nodiscard]] bool passes_sampling();
  [[nodiscard]] uint32_t index(uint32_t row, uint64_t unit) const;
  [[nodiscard]] uint64_t scrub_entries() const;
  [[nodiscard]] uint64_t value(const Counter& counter) const;
  [[nodiscard]] uint64_t estimate(uint64_t unit) const;
  [[nodiscard]] Tracking tracking() const;
  [[nodiscard]] uint64_t epoch_ticks() const;

  const ModelParams params_;
  const Straps straps_;
  const uint32_t log2_width_;  // in force
  const uint64_t count_max_;
  RingObserver* observer_ = nullptr;

  // Time, in clocks.
  uint64_t now_ = 0;
  uint64_t serves_from_ = 0;  // the queue is served from this clock on; before it an epoch's end or reset is going on
  uint64_t pipe_empty_from_ = 0;   // no request is in flight from this clock on, in the tracker and after it
  uint64_t watch_empty_from_ = 0;  // likewise in the watch table, which sees those that down-sampling leaves out too

  // Configuration as written.
  uint64_t cfg0_, cfg1_, cfg2_, decay_ = 0;
  Tracking tracking_;
  std::array<uint64_t, 4> bitmap_{};

  std::vector<std::deque<uint64_t>> queues_;  // requests as accesses() has them
  uint32_t next_channel_ = 0;
  uint32_t sample_count_ = 0;
  uint32_t sample_lfsr_ = 0;

  // The hash functions in use, tracker's rows first, then kLostHashRow and kHotHashRow, by the key's bytes.
  std::array<std::array<std::array<uint32_t, 256>, 3>, kHashRows> hashes_{};
  std::vector<std::vector<Counter>> rows_;
  uint64_t faded_ = 0;
  uint64_t mass_ = 0;  // what the counters of a row add up to
  uint64_t epoch_updates_ = 0;
  uint64_t epoch_units_ = 0;
  std::array<uint32_t, kBins> entered_{}, left_{};

  std::vector<Set> sets_;                            // the hot filter
  std::vector<std::optional<uint64_t>> lost_units_;  // of this epoch; at most one an index
  bool lost_any_ = false;
  std::vector<uint64_t> hot_list_;  // in order of insertion

  // WATCH. Its entries are in chains by the low bits of their units, the lowest entry of a unit first, so that a
  // request for a unit that is not watched mostly ends at an empty chain. 0 ends a chain, n + 1 is entry n.
  std::array<Watched, NEOPROF_WATCH_COUNT> watched_{};
  std::array<uint8_t, kWatchChains> watch_chains_{};
  bool watch_any_ = false;
  std::array<WatchHit, kWatchClocks> watch_hits_{};  // by clock

  uint64_t epoch_elapsed_ = 0;
  uint64_t epoch_length_ = 0;

  std::array<uint64_t, kRingEntries> ring_{};
  uint32_t head_ = 0, tail_ = 0;
  bool overflow_ = false;
  std::array<bool, 2> told_{};  // causes of which the host has been sent a message
  uint64_t messages_ = 0;
  std::deque<Report> reports_;  // on their way to the ring

  Counts live_, snapshot_;
};

}  // namespace neoprof
