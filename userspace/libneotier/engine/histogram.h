// SPDX-License-Identifier: Apache-2.0
// How long something took, by powers of two: 1 us and less, 2 us, ... 67 s, and more. Adding is a few instructions and
// takes no memory; a quantile is exact to its bucket, inside which times are taken as spread evenly.
//
// Thread safety: of Histogram none, copies are plain values; SharedHistogram: all calls from any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace neotier::engine {

class Histogram {
 public:
  static constexpr size_t kBuckets = 28;  // the last one: more than the one before it
  static constexpr uint64_t kFirstNs = 1000;

  static size_t bucket_of(uint64_t ns) {
    const uint64_t us = ns / kFirstNs + (ns % kFirstNs != 0);
    return std::min(us <= 1 ? 0 : static_cast<size_t>(std::bit_width(us - 1)), kBuckets - 1);
  }
  void add(uint64_t ns, uint64_t times = 1) { add_to(bucket_of(ns), times, ns * times); }
  // So many in a bucket, which together took so long.
  void add_to(size_t bucket, uint64_t times, uint64_t sum_ns) {
    buckets_[bucket] += times;
    count_ += times;
    sum_ns_ += sum_ns;
  }
  // Upper end of a bucket; of the last one, that of the one before it.
  static uint64_t end_ns(size_t bucket) { return kFirstNs << std::min(bucket, kBuckets - 2); }
  uint64_t in(size_t bucket) const { return buckets_[bucket]; }
  uint64_t count() const { return count_; }
  uint64_t sum_ns() const { return sum_ns_; }
  // share: 0 .. 1. 0 where nothing was added.
  uint64_t quantile_ns(double share) const {
    if (count_ == 0) return 0;
    const double wanted = share * static_cast<double>(count_);
    double before = 0;
    for (size_t i = 0; i < kBuckets; i++) {
      const auto here = static_cast<double>(buckets_[i]);
      if (here > 0 && before + here >= wanted) {
        const double begin = i == 0 ? 0 : static_cast<double>(end_ns(i - 1)), end = static_cast<double>(end_ns(i));
        return static_cast<uint64_t>(begin + (end - begin) * std::max(0.0, wanted - before) / here);
      }
      before += here;
    }
    return end_ns(kBuckets - 1);
  }

 private:
  std::array<uint64_t, kBuckets> buckets_{};
  uint64_t count_ = 0, sum_ns_ = 0;
};

// One that many threads add to: each to a part of its own, as long as there are no more threads than parts.
class SharedHistogram {
 public:
  void add(uint64_t ns) {
    Part& part = parts_[part_of_thread()];
    part.buckets[Histogram::bucket_of(ns)].fetch_add(1, std::memory_order_relaxed);
    part.sum_ns.fetch_add(ns, std::memory_order_relaxed);
  }
  Histogram read() const {
    Histogram all;
    for (const Part& part : parts_) {
      for (size_t i = 0; i < Histogram::kBuckets; i++)
        all.add_to(i, part.buckets[i].load(std::memory_order_relaxed), 0);
      all.add_to(0, 0, part.sum_ns.load(std::memory_order_relaxed));
    }
    return all;
  }

 private:
  static constexpr size_t kParts = 16;
  struct alignas(64) Part {
    std::array<std::atomic<uint64_t>, Histogram::kBuckets> buckets{};
    std::atomic<uint64_t> sum_ns{0};
  };
  static size_t part_of_thread() {
    static std::atomic<size_t> threads{0};
    thread_local const size_t mine = threads.fetch_add(1, std::memory_order_relaxed) % kParts;
    return mine;
  }
  std::array<Part, kParts> parts_;
};

}  // namespace neotier::engine
