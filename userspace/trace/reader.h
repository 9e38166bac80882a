// SPDX-License-Identifier: Apache-2.0
// Reads memory traces (forms: trace/writer.h). Files are untrusted: every fault is one line that names the file and the
// place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace neotier::trace {

// Not thread-safe. Memory does not grow with the trace (zstd: the frame's window, at most 128 MiB, `zstd --long=27`).
class Reader {
 public:
  // Throws std::runtime_error if the file cannot be opened or does not look like its name says.
  explicit Reader(const std::filesystem::path& file);
  ~Reader();

  // The next records, valid until the next call; empty at the end. Throws std::runtime_error on a file that is
  // truncated, damaged or no trace.
  std::span<const uint64_t> next();

  // How far it is in the file, from 0 to 1.
  double progress() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace neotier::trace
