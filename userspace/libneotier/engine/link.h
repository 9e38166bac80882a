// SPDX-License-Identifier: Apache-2.0
// What a link between two tiers is like: measured at start, tracked afterwards. Everything that is decided by time
// (load or recompute, which tier a victim goes to, how much background traffic there may be) asks here.
//
// Model: t(size) = (latency + size / bandwidth) x correction(size class); the first two from probes of two sizes, the
// corrections an EWMA of observed over predicted, per power of four of the size. Times are of one transfer from its
// submission to its completion, so a device that is shared with others looks slow, as it is. Many at once are another
// thing, since transfers overlap: for those the time between two moments at which nothing is under way is followed.
//
// Thread safety: none; the engine's lock.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/histogram.h"
#include "engine/index.h"
#include "engine/time_model.h"

namespace neotier::engine {

class Link {
 public:
  // What two probes said. Before the first one: 10 us, 1 GB/s.
  void set_measured(uint64_t small_bytes, uint64_t small_ns, uint64_t large_bytes, uint64_t large_ns);
  // A transfer that completed.
  void observe(uint64_t size, uint64_t ns);
  // Without what is queued.
  uint64_t predict_ns(uint64_t size) const;
  // With what is queued or under way before it.
  uint64_t predict_finish_ns(uint64_t size) const;

  // What many transfers at once said, after set_measured().
  void set_measured_batch(uint64_t batch_bytes, uint64_t ns);
  // A transfer begins, or has ended; where it has failed, or was held back, nothing is learned of its batch.
  void began(uint64_t now_ns);
  void ended(uint64_t size, uint64_t now_ns, bool usual);
  // Until `size` more bytes are there, in as many transfers at once as one likes; with what is queued before them.
  uint64_t predict_batch_ns(uint64_t size) const;

  double latency_ns() const { return latency_ns_ * correction(4096); }
  // Of large transfers.
  double bytes_per_s() const { return bytes_per_s_ / correction(1 << 20); }
  bool measured() const { return measured_; }

  // Bytes accepted on this link and not yet there.
  void queued(uint64_t size) { queued_bytes_ += size; }
  void unqueued(uint64_t size) { queued_bytes_ -= size; }
  uint64_t queued_bytes() const { return queued_bytes_; }

  // Token bucket of background traffic. Demand takes tokens without asking, so what it uses comes off the others'
  // share. `rate`: bytes/s, 0: no limit. Burst: what `rate` gives in 2 ms, at least `chunk`.
  void set_limit(uint64_t rate) { limit_ = rate; }
  uint64_t limit() const { return limit_; }
  bool may_take(uint64_t now_ns, uint64_t chunk);
  void take(uint64_t now_ns, uint64_t size);
  // When may_take() will be true, if nothing else happens.
  uint64_t ready_ns(uint64_t now_ns, uint64_t chunk) const;

  uint64_t transfers = 0, bytes = 0;  // completed
  // Of reads into the caller's memory: from the call until the first byte is asked of the tier, and until all are
  // there.
  Histogram waited, took;

 private:
  static constexpr size_t kClasses = 8;
  static constexpr double kBatchNoiseNs = 20000;
  static size_t size_class(uint64_t size);
  double correction(uint64_t size) const { return corrections_[size_class(size)]; }
  double model_ns(uint64_t size) const;
  double burst(uint64_t chunk) const;
  void refill(uint64_t now_ns, uint64_t chunk);

  double latency_ns_ = 10000, bytes_per_s_ = 1e9;
  std::array<double, kClasses> corrections_{1, 1, 1, 1, 1, 1, 1, 1};
  bool measured_ = false;
  uint64_t queued_bytes_ = 0;
  TimeModel batch_{10000, 1, kBatchNoiseNs};
  struct {
    uint64_t begun_ns = 0, bytes = 0, under_way = 0;
    bool usual = true;
  } now_;
  uint64_t limit_ = 0, refilled_ns_ = 0;
  double tokens_ = 0;
};

// One for each ordered pair of ends; kHost is an end.
class Links {
 public:
  explicit Links(size_t tiers) : ends_(tiers + 1), links_(ends_ * ends_) {}
  Link& at(TierId from, TierId to) { return links_[end(from) * ends_ + end(to)]; }
  const Link& at(TierId from, TierId to) const { return links_[end(from) * ends_ + end(to)]; }

 private:
  size_t end(TierId id) const { return id == kHost ? ends_ - 1 : id; }
  size_t ends_;
  std::vector<Link> links_;
};

}  // namespace neotier::engine
