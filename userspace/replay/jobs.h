// SPDX-License-Identifier: Apache-2.0
// Many replays: in parallel, interruptible, and going on where an interrupted sweep ended.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace neotier::replay {

struct Job {
  std::string key;  // names the result in the store; of jobs of one key the first is run
  // Called in any thread. Throws std::runtime_error; "interrupted" or anything else once `cancel` is set.
  std::function<nlohmann::ordered_json(const std::atomic<bool>& cancel)> run;
};

// Runs the jobs whose results `store` lacks, `parallel` at a time, in their order, and returns all results by key. The
// store, where its name is not empty, is JSON Lines: the sweep's identity, then a result a line, written as each job
// ends; a line cut short is run again. A store of another identity (other trace, options or build) is begun anew.
// `done` is called in the caller's thread, a few times a second, with the number of results and of keys. Throws
// std::runtime_error: the first job's that failed, a store that cannot be written, or, where `cancel` was set, one line
// that says how to go on.
std::map<std::string, nlohmann::ordered_json> run_jobs(const std::vector<Job>& jobs, const std::string& identity,
                                                       const std::filesystem::path& store, unsigned parallel,
                                                       const std::atomic<bool>& cancel,
                                                       const std::function<void(size_t, size_t)>& done);

// What changes when this program is built anew, for identities.
std::string build_identity();

}  // namespace neotier::replay
