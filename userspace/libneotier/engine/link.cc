// SPDX-License-Identifier: Apache-2.0
#include "engine/link.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace neotier::engine {

namespace {

constexpr double kEwma = 1.0 / 8;
// A single transfer may be late by any factor (the thread was not scheduled); the model moves no further than this at
// once.
constexpr double kMostAtOnce = 8;
constexpr uint64_t kLongBatch = 64 << 20;

}  // namespace

size_t Link::size_class(uint64_t size) {
  // 4 KiB and less, 16 KiB, ... 64 MiB and more.
  const int log4 = static_cast<int>(std::bit_width(std::max<uint64_t>(size, 1) - 1) + 1) / 2;
  return static_cast<size_t>(std::clamp(log4 - 6, 0, static_cast<int>(kClasses) - 1));
}

double Link::model_ns(uint64_t size) const { return latency_ns_ + static_cast<double>(size) / bytes_per_s_ * 1e9; }

void Link::set_measured(uint64_t small_bytes, uint64_t small_ns, uint64_t large_bytes, uint64_t large_ns) {
  const double more_bytes = static_cast<double>(large_bytes - small_bytes);
  // Where the small one was late, as on a busy machine, their difference says nothing.
  const double least_ns = std::max(1.0, static_cast<double>(large_ns) / 4);
  const double more_ns = std::max(least_ns, static_cast<double>(large_ns) - static_cast<double>(small_ns));
  bytes_per_s_ = more_bytes / more_ns * 1e9;
  latency_ns_ = std::max(1.0, static_cast<double>(small_ns) - static_cast<double>(small_bytes) / bytes_per_s_ * 1e9);
  corrections_.fill(1);
  batch_ = TimeModel(latency_ns_, 1e9 / bytes_per_s_, kBatchNoiseNs);
  measured_ = true;
}

void Link::set_measured_batch(uint64_t batch_bytes, uint64_t ns) {
  // No more than one after the other, and no less than what one byte in a hundred would take.
  const double one = 1e9 / bytes_per_s_;
  const double each = (static_cast<double>(ns) - latency_ns_) / static_cast<double>(batch_bytes);
  batch_ = TimeModel(latency_ns_, std::clamp(each, one / 100, one), kBatchNoiseNs);
}

void Link::began(uint64_t now_ns) {
  if (now_.under_way++ == 0) now_ = {now_ns, 0, 1, true};
}

void Link::ended(uint64_t size, uint64_t now_ns, bool usual) {
  now_.usual &= usual;
  now_.bytes += size;
  // One that never rests is cut, so that something is learned of it.
  if (--now_.under_way > 0 && now_.bytes < kLongBatch) return;
  if (now_.usual && now_ns > now_.begun_ns)
    batch_.observe(1, static_cast<double>(now_.bytes), static_cast<double>(now_ns - now_.begun_ns));
  now_ = {now_ns, 0, now_.under_way, true};
}

uint64_t Link::predict_batch_ns(uint64_t size) const {
  return static_cast<uint64_t>(std::llround(batch_.predict_ns(1, static_cast<double>(queued_bytes_ + size))));
}

void Link::observe(uint64_t size, uint64_t ns) {
  transfers++;
  bytes += size;
  double& correction = corrections_[size_class(size)];
  const double seen = std::max(1.0, static_cast<double>(ns)) / model_ns(size);
  correction += (std::clamp(seen, correction / kMostAtOnce, correction * kMostAtOnce) - correction) * kEwma;
}

uint64_t Link::predict_ns(uint64_t size) const {
  return static_cast<uint64_t>(std::llround(model_ns(size) * correction(size)));
}

uint64_t Link::predict_finish_ns(uint64_t size) const {
  return predict_ns(size) + static_cast<uint64_t>(static_cast<double>(queued_bytes_) / bytes_per_s() * 1e9);
}

double Link::burst(uint64_t chunk) const {
  return std::max(static_cast<double>(limit_) * 0.002, static_cast<double>(chunk));
}

void Link::refill(uint64_t now_ns, uint64_t chunk) {
  if (now_ns > refilled_ns_) {
    tokens_ += static_cast<double>(now_ns - refilled_ns_) * 1e-9 * static_cast<double>(limit_);
    refilled_ns_ = now_ns;
  }
  tokens_ = std::min(tokens_, burst(chunk));
}

bool Link::may_take(uint64_t now_ns, uint64_t chunk) {
  if (limit_ == 0) return true;
  refill(now_ns, chunk);
  return tokens_ >= static_cast<double>(chunk);
}

void Link::take(uint64_t now_ns, uint64_t size) {
  if (limit_ == 0) return;
  refill(now_ns, size);
  // Demand may run it into debt, but not for longer than 100 ms.
  tokens_ = std::max(tokens_ - static_cast<double>(size), -0.1 * static_cast<double>(limit_));
}

uint64_t Link::ready_ns(uint64_t now_ns, uint64_t chunk) const {
  if (limit_ == 0) return now_ns;
  const double missing = static_cast<double>(chunk) - tokens_;
  if (missing <= 0) return now_ns;
  return refilled_ns_ + static_cast<uint64_t>(missing / static_cast<double>(limit_) * 1e9) + 1;
}

}  // namespace neotier::engine
