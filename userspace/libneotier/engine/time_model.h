// SPDX-License-Identifier: Apache-2.0
// How long work takes that is told by two quantities: t = first * x + second * y, in ns, both coefficients followed as
// times are seen. A link's batch of transfers: x = 1, y = its bytes. Computing KV blocks: x = blocks, y = the sum of
// their positions.
//
// A Kalman filter on the coefficients relative to a guess. Each time is weighed by itself, so that short work counts,
// but for what work of any length is late by: the scheduler's noise. What was seen is forgotten slowly: a link that
// slows down is followed within some ten batches.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace neotier::engine {

class TimeModel {
 public:
  // The guess, ns for 1 of x and 1 of y; both > 0. noise_ns: what any work may be late by.
  TimeModel(double first, double second, double noise_ns) : first_(first), second_(second), noise_ns_(noise_ns) {}

  double first() const { return first_ * at_[0]; }
  double second() const { return second_ * at_[1]; }
  double predict_ns(double x, double y) const { return first() * x + second() * y; }
  uint64_t seen() const { return seen_; }

  // Work that took `ns` > 0. One time that is late by any factor (a thread was not scheduled) moves it by a bounded
  // step.
  void observe(double x, double y, double ns) {
    const double expected = predict_ns(x, y);
    if (!(expected > 0) || !(ns > 0)) return;
    seen_++;
    const double time = std::clamp(ns, expected / kMostAtOnce, expected * kMostAtOnce);
    // One that is off by so much is an accident, and three of them, one after the other and the same way, a change:
    // what was learned before says nothing any more. A server that has become slow would be waited for many times else.
    const double beyond = kSurprise * noise_ns_;  // what any work may be late by is no surprise
    surprises_ = ns > expected * kSurprise + beyond   ? std::max(surprises_, 0) + 1
                 : ns * kSurprise + beyond < expected ? std::min(surprises_, 0) - 1
                                                      : 0;
    if (surprises_ >= kSurprises || surprises_ <= -kSurprises)
      p_ = {{{kLeastSure * at_[0] * at_[0], 0}, {0, kLeastSure * at_[1] * at_[1]}}};
    // In units of the time itself: seen is 1, with such an error.
    const double error = kError + noise_ns_ / ns;
    const std::array<double, 2> h{first_ * x / time, second_ * y / time};
    for (int i = 0; i < 2; i++) {
      p_[i][i] += kDrift * at_[i] * at_[i];
      // A row and its column together: what is known of one by the other stays true.
      const double most = kLeastSure * std::max(1.0, at_[i] * at_[i]);
      if (p_[i][i] <= most) continue;
      const double less = std::sqrt(most / p_[i][i]);
      p_[0][1] *= less;
      p_[1][0] *= less;
      p_[i][i] = most;
    }
    const std::array<double, 2> ph{p_[0][0] * h[0] + p_[0][1] * h[1], p_[1][0] * h[0] + p_[1][1] * h[1]};
    const double s = h[0] * ph[0] + h[1] * ph[1] + error * error;
    const double off = 1 - (h[0] * at_[0] + h[1] * at_[1]);
    for (int i = 0; i < 2; i++) at_[i] = std::max(at_[i] + ph[i] / s * off, kLeast);
    const std::array<std::array<double, 2>, 2> old = p_;
    for (int i = 0; i < 2; i++)
      for (int j = 0; j < 2; j++) p_[i][j] = old[i][j] - ph[i] * ph[j] / s;
  }

 private:
  static constexpr double kMostAtOnce = 8, kError = 0.1, kDrift = 0.003, kLeastSure = 100, kLeast = 1e-3, kSurprise = 2;
  static constexpr int kSurprises = 3;

  double first_, second_, noise_ns_;
  std::array<double, 2> at_{1, 1};  // of the guess
  std::array<std::array<double, 2>, 2> p_{{{kLeastSure, 0}, {0, kLeastSure}}};
  int surprises_ = 0;  // in a row; below 0: sooner than expected
  uint64_t seen_ = 0;
};

}  // namespace neotier::engine
