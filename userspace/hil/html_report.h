// SPDX-License-Identifier: Apache-2.0
// Runs of `neotier hil run | compare --json` as one HTML page.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/page.h"

namespace neotier::hil {

// One run as its file has it: docs/hil.md has the keys. `policy`, `program` and either `modelled_ns` or `verdict` are
// there and have the right type; all else may be missing or nonsense, and is then shown as '-'.
struct LoadedRun {
  std::filesystem::path file;
  nlohmann::ordered_json json;
};

// Files are untrusted. Throws std::runtime_error with one line that names the file and what is wrong.
std::vector<LoadedRun> load_runs(const std::vector<std::filesystem::path>& files);

// Runs of one program with the same settings make one section; those that differ only in their seed are one line with
// its spread.
report::Page html_report(const std::vector<LoadedRun>& runs);

}  // namespace neotier::hil
