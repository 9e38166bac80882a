// SPDX-License-Identifier: Apache-2.0
// The SSD tier against fio on the same file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace neotier::engine {

struct SsdBenchOptions {
  std::string file;                  // made if it is not there; an SSD tier's, and its objects are removed
  uint64_t file_bytes = 2ull << 30;  // of a new file
  double seconds = 2;                // each measurement
  unsigned rounds = 5;
  uint64_t recovery_objects = 0;  // so many objects of 4 KiB are stored and found again; 0: not measured
  std::function<void(const std::string&)> progress;
  std::function<bool()> cancelled;
};

// Of one kind of access: what each round came to, ours and fio's taken in turn.
struct SsdBenchSeries {
  std::string name;  // "read", "write" (bytes/s), "read_rate", "write_rate" (accesses/s)
  std::vector<double> ours, fio;
  double our_median() const;
  double fio_median() const;
  double ratio() const { return our_median() / fio_median(); }
};

struct SsdBenchResult {
  std::string method, fio_version;
  uint64_t file_bytes = 0;
  uint64_t bandwidth_set_bytes = 0, rate_set_bytes = 0;  // what each kind goes over
  // 1 MiB, sequential (write, read) and 4 KiB, random (write_rate, read_rate); depth 32.
  std::vector<SsdBenchSeries> series;
  double write_amplification = 1;  // of ours: bytes written to the file, of the cleaner too, over those asked
  uint64_t recovered_objects = 0;
  double recovery_s = 0;  // open() and recover() of those
};

// Throws std::runtime_error with one line: no fio, a file that is not an SSD tier's, an I/O error, cancelled.
SsdBenchResult bench_ssd(const SsdBenchOptions& options);

}  // namespace neotier::engine
