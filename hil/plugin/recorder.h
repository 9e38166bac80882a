// SPDX-License-Identifier: GPL-2.0-or-later
// Writes the requests of the region of interest to a trace file while they happen (format: trace/writer.h; with time:
// trace/recording.h). Addresses are host physical. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hil/plugin/struct_page.h"
#include "neotier/mailbox.h"
#include "trace/recording.h"
#include "trace/writer.h"

namespace neotier::hil {

class Recorder {
 public:
  struct Options {
    std::string file;
    bool all_memory = false;  // else only what reaches CXL memory
    bool timed = false;       // a recording: all memory, with time, Accessed bits and states of pages
  };
  using Header = std::vector<std::pair<trace::Field, uint64_t>>;

  // Throws std::runtime_error if the file cannot be written.
  explicit Recorder(const Options& options) : options_(options), writer_(std::in_place, options.file) {}

  // The region begins; `header` is a recording's. `now` as line() gets it.
  struct Now {
    uint64_t instructions = 0, base_ps = 0;  // base: modelled time without stalls of fills
  };
  void begin(const Header& header, const FrameCensus& census, const Now& now) {
    if (!options_.timed) return;
    for (const auto& [field, value] : header) put(trace::header_of(field, value));
    states_.assign(census.states.size(), FrameState::kOther);
    owners_.assign(census.states.size(), 0);
    put_states(census);
    written_ = now;
    ticks_ = 0;
  }

  bool timed() const { return options_.timed && writer_; }

  void line(uint64_t hpa, bool cxl, bool is_write, bool by_kernel, const Now& now) {
    if (!writer_ || !(cxl || options_.all_memory || options_.timed)) return;
    if (options_.timed && now.base_ps - written_.base_ps >= kTimeStepPs) put_time(now);
    put(hpa | (is_write ? trace::kWriteBit : 0) | (options_.timed && by_kernel ? trace::kKernelBit : 0));
  }

  // Any access to a page, whether or not a cache had the line. Only where timed().
  void accessed(uint64_t hpa) {
    const uint64_t page = hpa >> 12;
    if (page >> 6 >= accessed_.size()) accessed_.resize(std::max(page / 64 + 1, accessed_.size() * 2));
    accessed_[page >> 6] |= uint64_t{1} << (page & 63);
  }

  // 100 us of guest time have passed. `census` is called where its answer is wanted.
  void tick(const Now& now, const std::function<FrameCensus()>& census) {
    if (!timed() || ++ticks_ % kAccessedTicks != 0) return;
    put_time(now);
    put_accessed();
    put_states(census());
  }

  void end(const Header& totals, const Now& now) {
    if (!timed()) return;
    put_time(now);
    put_accessed();
    for (const auto& [field, value] : totals) put(trace::header_of(field, value));
  }

  // The file is whole, under its own name, after this; or there is none.
  void finish() {
    if (!writer_) return;
    try {
      writer_->finish();
    } catch (const std::exception& error) {
      give_up(error);
    }
    writer_.reset();
  }

 private:
  static constexpr uint64_t kTimeStepPs = 250'000;  // between two lines that are told apart in time
  static constexpr uint64_t kAccessedTicks = 100;   // 10 ms

  void put(uint64_t record) {
    if (!writer_) return;
    try {
      writer_->put(record);
    } catch (const std::exception& error) {
      give_up(error);
    }
  }

  void put_time(const Now& now) {
    uint64_t instructions = now.instructions - written_.instructions, base_ps = now.base_ps - written_.base_ps;
    while (instructions != 0 || base_ps != 0) {
      const uint64_t i = std::min(instructions, trace::kTimeField), ps = std::min(base_ps, trace::kTimeField);
      put(trace::time_of(i, ps));
      instructions -= i;
      base_ps -= ps;
    }
    written_ = now;
  }

  void put_accessed() {
    for (size_t word = 0; word < accessed_.size(); ++word) {
      if (accessed_[word] == 0) continue;
      for (unsigned part = 0; part < 4; ++part) {
        const uint64_t mask = accessed_[word] >> (16 * part) & 0xffff;
        if (mask != 0) put(trace::accessed_of(word * 4 + part, mask));
      }
      accessed_[word] = 0;
    }
  }

  // Those that are not what they were at the last census.
  void put_states(const FrameCensus& census) {
    constexpr auto kStates = static_cast<size_t>(FrameState::kStates);
    constexpr std::array<trace::Record, kStates> kRecords = {trace::Record::kOther, trace::Record::kFree,
                                                             trace::Record::kAnonymous, trace::Record::kFile,
                                                             trace::Record::kCached};
    const size_t frames = std::min(states_.size(), census.states.size());
    for (size_t group = 0; group * 16 < frames; ++group) {
      std::array<uint64_t, kStates> masks{};
      for (size_t frame = group * 16; frame < std::min(frames, group * 16 + 16); ++frame) {
        if (states_[frame] == census.states[frame]) continue;
        states_[frame] = census.states[frame];
        masks[static_cast<size_t>(states_[frame])] |= uint64_t{1} << frame % 16;
      }
      for (size_t state = 0; state < masks.size(); ++state) {
        if (masks[state] != 0) put(trace::pages_of(kRecords[state], group, masks[state]));
      }
    }
    for (size_t frame = 0; frame < std::min(frames, census.owners.size()); ++frame) {
      if (owners_[frame] == census.owners[frame]) continue;
      owners_[frame] = census.owners[frame];
      if (owners_[frame] != 0) put(trace::owner_of(frame, owners_[frame]));
    }
  }

  // The guest goes on; the command finds no file and shows this line.
  void give_up(const std::exception& error) {
    std::fprintf(stderr, "neotier plugin: recording: %s\n", error.what());
    writer_.reset();
  }

  Options options_;
  std::optional<trace::Writer> writer_;
  Now written_;  // as of the last kTime
  uint64_t ticks_ = 0;
  std::vector<uint64_t> accessed_;  // bit for each page
  // As they were told last.
  std::vector<FrameState> states_;
  std::vector<uint32_t> owners_;
};

}  // namespace neotier::hil
