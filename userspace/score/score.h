// SPDX-License-Identifier: Apache-2.0
// Placement decisions of three kinds, each scored as the share of what an oracle that knows the future would have won:
// promotion laws on recorded pages, placement policies on KV blocks and on experts.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "replay/pages/recording.h"
#include "replay/pages/replay.h"
#include "replay/routing_trace.h"
#include "replay/trace.h"

namespace neotier::score {

struct Row {
  std::string kind;     // pages, kv or experts
  std::string trace;    // its name
  std::string setting;  // what besides the trace: a tracker, a capacity
  std::string policy;
  double base = 0;     // pages: 1, of `none`; else the hit rate of LRU
  double figure = 0;   // pages: speed-up over `none`; else the hit rate
  double oracle = 0;   // pages: of the costed oracle, a plan that can be carried out; else of Belady's bound
  double at_most = 0;  // no plan in the same room does better
  // Of the way from base to oracle, of logarithms for pages; below 0: worse than base. Nothing where the oracle wins
  // less than 1 % (pages) or .01 (hit rates), because such a share would be of noise.
  std::optional<double> share;
};

std::optional<double> share_of_speedup(double figure, double oracle);
std::optional<double> share_of_rate(double base, double figure, double oracle);

struct Options {
  std::vector<std::string> laws = {"placebo", "payback", "fixed", "neomem"};  // names or shared libraries
  std::string tracker = "device";
  // A law is scored for itself: nothing bounds its loss, unless a parameter says so.
  pages::Params params = {.loss_ppm = NEOTIER_LEDGER_NO_BOUND};
  std::vector<std::string> kv = {"hazard"}, experts = {"learned"};  // names or shared libraries
  std::vector<uint32_t> kv_percent = {5, 20};                       // room, of the trace's distinct blocks, 1 .. 100
  std::vector<uint32_t> expert_percent = {25, 50};                  // room, of a layer's experts, 1 .. 100
  unsigned threads = 1;
};

// Throws std::runtime_error with one line for a policy of no known name, or a library that is none.
void check(const Options& options);

// A row for each setting and policy. Throw std::runtime_error as check(), or where a policy breaks the rules of its
// ABI.
std::vector<Row> score(const std::string& name, const pages::Recording& recording, const Options& options);
std::vector<Row> score(const std::string& name, const replay::KvTrace& trace, const Options& options);
std::vector<Row> score(const std::string& name, const replay::RoutingTrace& trace, const Options& options);

// Of a policy, over all of its rows.
struct Mean {
  std::string kind, policy;
  double worst = 0;             // least figure over base
  std::optional<double> share;  // mean of the rows that have one
  size_t shares = 0, rows = 0;
};
// In the order in which policies first appear.
std::vector<Mean> means(const std::vector<Row>& rows);

nlohmann::ordered_json to_json(const Row& row);
nlohmann::ordered_json to_json(const Mean& mean);

}  // namespace neotier::score
