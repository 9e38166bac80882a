// SPDX-License-Identifier: GPL-2.0-or-later
// Writes the requests of the region of interest to a trace file while they happen (format: trace/writer.h). Addresses
// are host physical. Not thread-safe.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "trace/writer.h"

namespace neotier::hil {

class Recorder {
 public:
  // Only what reaches CXL memory, or both tiers. Throws std::runtime_error if `file` cannot be written.
  Recorder(const std::string& file, bool all_memory) : all_memory_(all_memory), writer_(std::in_place, file) {}

  void line(uint64_t hpa, bool cxl, bool is_write) {
    if (!writer_ || !(cxl || all_memory_)) return;
    try {
      writer_->put(hpa | (is_write ? trace::kWriteBit : 0));
    } catch (const std::exception& error) {
      give_up(error);
    }
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
  // The guest goes on; the command finds no file and shows this line.
  void give_up(const std::exception& error) {
    std::fprintf(stderr, "neotier plugin: recording: %s\n", error.what());
    writer_.reset();
  }

  bool all_memory_;
  std::optional<trace::Writer> writer_;
};

}  // namespace neotier::hil
