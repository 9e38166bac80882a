// SPDX-License-Identifier: Apache-2.0
// The remote tier against redis-benchmark (valkey-benchmark) on the same server.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "util/median.h"

namespace neotier::engine {

struct RemoteBenchOptions {
  std::string url;            // redis://HOST[:PORT] or unix:/PATH; empty: a server is started, and goes again
  uint64_t values = 64;       // of 1 MiB, that are written and read
  uint64_t transfers = 1024;  // each measurement
  uint64_t lookups = 20000;   // each measurement
  uint64_t blocks = 64;       // of a request, that are looked up at once
  unsigned depth = 32;        // transfers under way; redis-benchmark's clients
  unsigned connections = 2;   // ours
  unsigned rounds = 5;
  std::function<void(const std::string&)> progress;
  std::function<bool()> cancelled;
};

// What each round came to, ours and the other's taken in turn.
struct RemoteBenchSeries {
  std::string
      name;  // "write", "read" (bytes/s of values of 1 MiB), "lookup_p50", "lookup_p99" (s; one key, one after the
             // other), "request_p50", "request_p99" (s; all blocks of a request, one request after the other)
  std::vector<double> ours, theirs;
  double our_median() const { return median(ours); }
  double their_median() const { return median(theirs); }
  double ratio() const { return our_median() / their_median(); }
};

struct RemoteBenchResult {
  std::string benchmark;  // what was measured against, and its version
  std::vector<RemoteBenchSeries> series;
};

// Throws std::runtime_error with one line: no server, no redis-benchmark, an I/O error, cancelled.
RemoteBenchResult bench_remote(const RemoteBenchOptions& options);

}  // namespace neotier::engine
