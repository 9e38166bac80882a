// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/synthetic.h"

#include <fmt/format.h>

#include <random>
#include <stdexcept>

namespace neotier::pages {

namespace {

using trace::Field;

constexpr uint32_t kDramPages = 24'576, kPages = 61'440, kLowPages = 256;
constexpr uint32_t kHotPages = kPages / 8;
constexpr uint64_t kBasePs = 240, kInstructions = 20, kFillsAStep = 8;

class Maker {
 public:
  Maker(uint64_t fills, uint64_t seed) : fills_(fills), random_(seed) {
    const auto set = [&](Field field, uint64_t value) { r_.fields[static_cast<size_t>(field)] = value; };
    set(Field::kVersion, trace::kRecordingVersion);
    set(Field::kShift, 1);
    set(Field::kCxlBase, uint64_t{1} << 32);
    set(Field::kCxlBytes, uint64_t{2} * kPages << 12);
    set(Field::kDramLatencyPs, 90'000);
    set(Field::kCxlLatencyPs, 250'000);
    set(Field::kDramServicePs, 3'300);
    set(Field::kCxlServicePs, 6'400);
    set(Field::kMlp, 4);
    set(Field::kDramFreePages, kDramPages);
    set(Field::kCxlFreePages, uint64_t{2} * kPages);
    set(Field::kMmioReadPs, 800'000);
    set(Field::kBasePs, kBasePs);
    set(Field::kManagedNormal, kDramPages);
    set(Field::kManagedCxl, uint64_t{2} * kPages);
    set(Field::kDramPresentPages, kDramPages);
    set(Field::kMinFreeKib, 4 * kLowPages);
    set(Field::kWatermarkScale, 10);
    set(Field::kTieringWatermarkScale, 100);
    set(Field::kReservePages, kDramPages / 100);
    set(Field::kBatchPages, kDramPages / 1024);
    for (uint32_t page = 0; page < kPages; ++page) {
      r_.pages.push_back({.cxl = page >= kDramPages - kLowPages, .movable = true, .evictable = true, .fresh = true});
      r_.steps.push_back(step_of(Step::kNew, page));
      fill(page);
      pass(1000);
    }
  }

  // pick(i): the page of fill i.
  template <class Pick>
  Recording run(Pick pick) {
    for (uint64_t i = 0; i < fills_; ++i) {
      fill(static_cast<uint32_t>(pick(i)));
      if (i % kFillsAStep == kFillsAStep - 1) pass(kInstructions * kFillsAStep);
    }
    pass(1);
    return std::move(r_);
  }
  uint64_t below(uint64_t n) { return random_() % n; }
  uint64_t fills() const { return fills_; }

 private:
  void fill(uint32_t page) {
    r_.steps.push_back(step_of(Step::kFill, page));
    ++r_.fills[r_.pages[page].cxl];
  }
  void pass(uint64_t instructions) {
    r_.steps.push_back(step_of(Step::kTime, 0));
    r_.steps.push_back(static_cast<uint32_t>(instructions));
    r_.steps.push_back(static_cast<uint32_t>(instructions * kBasePs));
    r_.instructions += instructions;
  }

  Recording r_;
  const uint64_t fills_;
  std::mt19937_64 random_;  // the same on every machine, as std::uniform_int_distribution is not
};

// Nine fills of ten from kHotPages pages beginning at `first`, the others from all.
uint64_t hot(Maker& maker, uint64_t first) {
  return maker.below(10) == 0 ? maker.below(kPages) : (first + maker.below(kHotPages)) % kPages;
}

}  // namespace

const std::vector<SyntheticKind>& synthetic_kinds() {
  static const std::vector<SyntheticKind> kKinds = {
      {"hot", "nine fills of ten from an eighth of the pages, which lies in CXL memory"},
      {"jump", "as hot; half-way the hot eighth is another one"},
      {"drift", "as hot; the hot eighth moves on through all pages"},
      {"settled", "as hot, but the hot eighth is in DRAM: nothing to win"},
      {"flat", "fills from all pages alike"},
      {"stream", "all pages in order, again and again"},
  };
  return kKinds;
}

Recording make_synthetic(const std::string& kind, uint64_t fills, uint64_t seed) {
  Maker maker(fills, seed);
  constexpr uint64_t kFirst = kPages - kHotPages;
  if (kind == "hot") return maker.run([&](uint64_t) { return hot(maker, kFirst); });
  if (kind == "jump")
    return maker.run([&](uint64_t i) { return hot(maker, i < fills / 2 ? kFirst : kFirst - 2 * kHotPages); });
  if (kind == "drift") return maker.run([&](uint64_t i) { return hot(maker, kPages * i / fills); });
  if (kind == "settled") return maker.run([&](uint64_t) { return hot(maker, kHotPages); });
  if (kind == "flat") return maker.run([&](uint64_t) { return maker.below(kPages); });
  // Two lines of a page at a time: an odd stride touches all of its lines in the end.
  if (kind == "stream") return maker.run([&](uint64_t i) { return i / 2 % kPages; });
  std::string known;
  for (const SyntheticKind& one : synthetic_kinds()) known += (known.empty() ? "" : ", ") + std::string(one.name);
  throw std::runtime_error(fmt::format("no synthetic recording '{}'; there are: {}", kind, known));
}

}  // namespace neotier::pages
