// SPDX-License-Identifier: Apache-2.0
// Recordings made by hand, for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "replay/pages/recording.h"
#include "trace/recording.h"
#include "trace/writer.h"
#include "util/temporary_folder.h"

namespace neotier::pages {

class RecordingFile {
 public:
  static constexpr uint64_t kCxlBase = uint64_t{1} << 32, kCxlBytes = uint64_t{64} << 20;
  static constexpr uint64_t kDramPs = 90'000, kCxlPs = 250'000, kMlp = 4, kDramFree = 1000;
  enum Begin { kHeader, kBare };

  explicit RecordingFile(Begin begin = kHeader) : bare_(begin == kBare) {
    using trace::Field;
    if (bare_) return;
    for (const auto& [field, value] :
         std::vector<std::pair<Field, uint64_t>>{{Field::kVersion, trace::kRecordingVersion},
                                                 {Field::kShift, 1},
                                                 {Field::kCxlBase, kCxlBase},
                                                 {Field::kCxlBytes, kCxlBytes},
                                                 {Field::kDramLatencyPs, kDramPs},
                                                 {Field::kCxlLatencyPs, kCxlPs},
                                                 {Field::kDramServicePs, 640},
                                                 {Field::kCxlServicePs, 3200},
                                                 {Field::kMlp, kMlp},
                                                 {Field::kDramFreePages, kDramFree},
                                                 {Field::kDramPresentPages, kDramFree},
                                                 {Field::kReservePages, 62},
                                                 {Field::kBatchPages, 64},
                                                 {Field::kCxlFreePages, kCxlBytes >> 12},
                                                 {Field::kMmioReadPs, 800'000},
                                                 {Field::kBasePs, 240}}) {
      put(trace::header_of(field, value));
    }
  }

  void put(uint64_t word) { words_.push_back(word); }
  void line(uint64_t address, bool is_write = false, bool by_kernel = false) {
    put(address | (is_write ? trace::kWriteBit : 0) | (by_kernel ? trace::kKernelBit : 0));
    if (!is_write) ++fills_[address >= kCxlBase];
  }
  void clear(uint64_t page) {
    for (uint64_t line = 0; line < 64; ++line) this->line(page + line * 64, false, true);
  }
  void time(uint64_t instructions, uint64_t base_ps) { put(trace::time_of(instructions, base_ps)); }
  void accessed(uint64_t page) { put(trace::accessed_of(page / 16, uint64_t{1} << page % 16)); }
  void state(trace::Record what, uint64_t page) { put(trace::pages_of(what, page / 16, uint64_t{1} << page % 16)); }
  void leave_out_totals() { bare_ = true; }
  void forget_a_fill() { --fills_[0]; }
  // What the last cache was asked for; without it the recording is an older one.
  void asked(uint64_t l2_misses) { l2_misses_ = l2_misses; }

  Recording read() {
    using trace::Field;
    const TemporaryFolder folder("neotier-recording-test");
    const std::filesystem::path file = folder.path() / "a.rec";
    trace::Writer writer(file);
    for (const uint64_t word : words_) writer.put(word);
    if (!bare_) {
      writer.put(trace::header_of(Field::kEndModelledNs, 1));
      writer.put(trace::header_of(Field::kEndDramFills, fills_[0]));
      writer.put(trace::header_of(Field::kEndCxlFills, fills_[1]));
      if (l2_misses_ != 0) writer.put(trace::header_of(Field::kEndL2Misses, l2_misses_));
    }
    writer.finish();
    return read_recording(file);
  }

 private:
  bool bare_;
  std::vector<uint64_t> words_;
  uint64_t fills_[2] = {0, 0}, l2_misses_ = 0;
};

}  // namespace neotier::pages
