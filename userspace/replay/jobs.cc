// SPDX-License-Identifier: Apache-2.0
#include "replay/jobs.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "util/output_file.h"

namespace neotier::replay {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::map<std::string, Json> read_store(const fs::path& store, const std::string& identity) {
  std::ifstream in(store);
  std::string line;
  std::map<std::string, Json> results;
  const auto next = [&] {
    // A line without its end was cut short.
    if (!std::getline(in, line) || in.eof()) return Json(nullptr);
    return Json::parse(line, nullptr, false);
  };
  const Json head = next();
  if (!head.is_object() || head.value("sweep", "") != identity) return results;
  for (Json entry = next(); entry.is_object() && entry.contains("key") && entry["key"].is_string(); entry = next())
    results[entry["key"].get<std::string>()] = entry["result"];
  return results;
}

std::string line_of(const std::string& key, const Json& result) {
  return Json{{"key", key}, {"result", result}}.dump() + "\n";
}

class Store {
 public:
  // What is known is written as a whole first: no cut line stays in the middle.
  Store(const fs::path& path, const std::string& identity, const std::map<std::string, Json>& known) : path_(path) {
    if (path.empty()) return;
    std::string text = Json{{"sweep", identity}}.dump() + "\n";
    for (const auto& [key, result] : known) text += line_of(key, result);
    write_file(path, text);
    out_.open(path, std::ios::app);
    if (!out_) throw std::runtime_error(fmt::format("cannot write {}", path.string()));
  }
  void add(const std::string& key, const Json& result) {
    if (path_.empty()) return;
    out_ << line_of(key, result);
    if (!out_.flush()) throw std::runtime_error(fmt::format("cannot write {}", path_.string()));
  }

 private:
  fs::path path_;
  std::ofstream out_;
};

}  // namespace

std::map<std::string, Json> run_jobs(const std::vector<Job>& jobs, const std::string& identity,
                                     const fs::path& store_path, unsigned parallel, const std::atomic<bool>& cancel,
                                     const std::function<void(size_t, size_t)>& done) {
  std::map<std::string, Json> results;
  std::vector<const Job*> todo;
  std::set<std::string> keys;
  {
    const auto known = read_store(store_path, identity);
    for (const Job& job : jobs) {
      if (!keys.insert(job.key).second) continue;
      if (const auto found = known.find(job.key); found != known.end()) {
        results.insert(*found);
      } else {
        todo.push_back(&job);
      }
    }
  }
  Store store(store_path, identity, results);
  std::mutex mutex;
  std::condition_variable changed;
  std::exception_ptr failure;
  std::atomic<bool> stop = cancel.load();
  std::atomic<size_t> next = 0;
  size_t workers_left = std::max(1u, parallel);
  const auto work = [&] {
    for (;;) {
      const size_t i = next++;
      if (i >= todo.size() || stop) break;
      try {
        const Json result = todo[i]->run(stop);
        const std::lock_guard lock(mutex);
        store.add(todo[i]->key, result);
        results[todo[i]->key] = result;
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure && !stop) failure = std::current_exception();
        stop = true;
      }
      changed.notify_one();
    }
    const std::lock_guard lock(mutex);
    workers_left--;
    changed.notify_one();
  };
  std::vector<std::jthread> workers;
  for (size_t i = 0; i < std::max(1u, parallel); i++) workers.emplace_back(work);
  {
    std::unique_lock lock(mutex);
    while (workers_left > 0) {
      changed.wait_for(lock, std::chrono::milliseconds(200));
      if (cancel) stop = true;
      done(results.size(), keys.size());
    }
  }
  workers.clear();
  if (failure) std::rethrow_exception(failure);
  if (results.size() < keys.size()) {
    if (store_path.empty()) throw std::runtime_error("interrupted; nothing was written");
    throw std::runtime_error(fmt::format("interrupted; {} of {} runs are in {}, the same command goes on from there",
                                         results.size(), keys.size(), store_path.string()));
  }
  return results;
}

std::string build_identity() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  return fmt::format("{} {}", fs::file_size(program, ignored),
                     fs::last_write_time(program, ignored).time_since_epoch().count());
}

}  // namespace neotier::replay
