// SPDX-License-Identifier: Apache-2.0
// Runs read back from JSON, grouped for a report.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hil/html_report.h"

namespace neotier::hil {

// The number at a JSON pointer such as "/llc_misses/cxl", or nothing.
std::optional<double> number_at(const report::Json& json, const std::string& pointer);
// The text there; numbers as they are written; "-" where there is neither.
std::string text_at(const report::Json& json, const std::string& pointer);
// The numbers of an array; nothing where it is no array of numbers.
std::optional<std::vector<double>> numbers_at(const report::Json& json, const std::string& pointer);

struct Spread {
  double mean, low, high;
};

// The runs of one policy with one set of knobs, one a seed.
struct PolicyRuns {
  std::string label;  // the policy, and its knobs where there are some
  std::string policy;
  std::vector<const report::Json*> runs;      // of a program that ended with status 0
  std::vector<const report::Json*> verdicts;  // that failed

  std::optional<Spread> spread(const std::function<std::optional<double>(const report::Json&)>& value) const;
  std::optional<Spread> spread(const std::string& pointer, double scale = 1) const;
  // The first run that was sampled, or null.
  const report::Json* sampled() const;
};

struct Group {
  std::string title;                 // the program, short
  std::string program;               // its command line
  const report::Json* first;         // of its runs: settings that all share
  std::vector<PolicyRuns> policies;  // the fastest references first, the slowest last

  const PolicyRuns* find(const std::string& policy) const;
};

std::vector<Group> group_runs(const std::vector<LoadedRun>& runs);

}  // namespace neotier::hil
