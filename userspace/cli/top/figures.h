// SPDX-License-Identifier: Apache-2.0
// Two samples made into what a person, or a program, wants to know: levels now, and rates between them.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "cli/top/sample.h"
#include "kernel/why.h"

namespace neotier::top {

struct TierRow {
  std::string name, kind, policy;
  bool in_service = true, stand_in = false;
  double used = 0, capacity = 0;  // bytes
  uint64_t objects = 0;
  uint64_t loads = 0;  // since the daemon began: reads into a caller's memory
  double load_p50_ns = 0, load_p99_ns = 0;
  std::vector<std::pair<int64_t, double>> nodes;  // where the kernel moves its pages: node, bytes by a sample
};

struct LinkRow {
  std::string from, to;
  double bandwidth = 0, flow = 0;  // bytes/s: what it can do as measured, what goes over it now
  double latency_ns = 0, queued = 0;
};

struct ClientRow {
  uint64_t id = 0;
  std::string name;
  int64_t pid = 0, uid = 0;
  double requests = 0, received = 0, sent = 0;  // a second
  uint64_t pins = 0, in_flight = 0;
  double pinned = 0;
};

struct Figures {
  double seconds = 0;  // between the samples; 0: there was one, and no rate is known
  bool has_daemon = false;
  std::string problem;
  int64_t pid = 0;
  double uptime_s = 0;
  uint64_t objects = 0, max_objects = 0, pins = 0, jobs = 0, max_clients = 0;
  std::vector<TierRow> tiers;
  std::vector<LinkRow> links;  // those with most to do first
  std::vector<ClientRow> clients;
  double hit_rate = -1;                 // of the uses between the samples; below 0: there was none
  std::map<std::string, double> rates;  // of the engine's and the daemon's counters, a second
  bool has_kernel = false;
  kernel::Snapshot kernel;
  std::map<std::string, double> kernel_rates;  // of stats/, a second
  kernel::Why why;                             // between the samples; without a summary where there was one
};

// `before` may be an empty sample. Text from outside is made printable.
Figures make_figures(const Sample& before, const Sample& now);

// All of it, rates included.
nlohmann::ordered_json to_json(const Figures& figures, const std::string& socket);

// The latest values of some figures, for sparklines.
class History {
 public:
  void add(const Figures& figures);
  // Oldest first; empty: no such series.
  const std::deque<double>& series(const std::string& name) const;

 private:
  static constexpr size_t kMost = 256;
  std::map<std::string, std::deque<double>> series_;
};

}  // namespace neotier::top
