// SPDX-License-Identifier: Apache-2.0
#include "bench/remote_bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "bench/steady_load.h"
#include "engine/tiers/remote/remote_tier.h"
#include "engine/tiers/remote/remote_url.h"
#include "util/process.h"
#include "util/temporary_folder.h"

namespace fs = std::filesystem;

namespace neotier::engine {

namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t kMiB = 1 << 20, kLookedUp = 4096;
constexpr const char* kSeries[] = {"write", "read", "lookup_p50", "lookup_p99", "request_p50", "request_p99"};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The first of these programs that is there.
std::string find_program(std::initializer_list<const char*> names) {
  for (const char* folder : {"/usr/local/bin", "/usr/bin"}) {
    for (const char* name : names) {
      const fs::path path = fs::path(folder) / name;
      if (access(path.c_str(), X_OK) == 0) return path;
    }
  }
  return "";
}

// A server of the bench's own, on a socket in a folder that goes with it.
class OwnServer {
 public:
  OwnServer() : folder_("neotier-bench") {
    // redis-tools of Debian has the server under another name; it goes by what it is called as.
    const std::string program = find_program({"valkey-server", "redis-server", "valkey-check-rdb", "redis-check-rdb"});
    if (program.empty()) throw std::runtime_error("no server to start: apt install redis-tools, or give --url");
    fs::create_symlink(program, folder_ / "redis-server");
    child_.emplace(std::vector<std::string>{folder_ / "redis-server", "--port", "0", "--unixsocket", socket(), "--save",
                                            "", "--appendonly", "no", "--dir", folder_.path()},
                   folder_ / "log");
    for (int i = 0; i < 1000 && !fs::exists(socket()); i++) {
      if (child_->ended()) throw std::runtime_error("the server did not start");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  std::string socket() const { return folder_ / "socket"; }

 private:
  TemporaryFolder folder_;
  std::optional<Child> child_;
};

class Bench {
 public:
  explicit Bench(const RemoteBenchOptions& options) : options_(options) {
    program_ = find_program({"valkey-benchmark", "redis-benchmark"});
    if (program_.empty())
      throw std::runtime_error("redis-benchmark is needed to measure against: apt install redis-tools");
    std::string url = options.url;
    if (url.empty()) url = "unix:" + own_.emplace().socket();
    RemoteOptions tier;
    try {
      remote::read_url(url, tier.client);
    } catch (const std::invalid_argument& error) {
      throw std::runtime_error(fmt::format("--url: {}", error.what()));
    }
    if (tier.client.cluster || tier.client.tls || !tier.client.password.empty())
      throw std::runtime_error("--url: one server, without TLS and password, as redis-benchmark is told of none");
    address_ = tier.client.addresses.front();
    tier.client.connections = options.connections;
    tier.client.timeout_ms = 60000;
    tier.capacity_bytes = (options.values + 2) * (kMiB + 4096);
    tier.ttl_s = 3600;
    tier_ = make_remote_tier(tier);
    if (!tier_->in_service()) throw std::runtime_error(fmt::format("no server at {}", to_string(address_)));
    // What is looked up: others see it, so it is of a namespace.
    tier.space = "neotier-bench";
    tier.capacity_bytes = options.blocks * 2 * kLookedUp;
    tier.client.connections = 1;
    lookups_ = make_remote_tier(tier);
    std::vector<std::byte> bytes(kLookedUp);
    entries_.emplace(*lookups_, kLookedUp, options.blocks, 1, bytes).run_once(Op::kWrite);
    for (uint64_t i = 0; i < options.blocks; i++) keys_.push_back(SteadyLoad::key_of(i));
    finder_ = make_remote_tier(tier);
  }
  ~Bench() {
    for (const Extent entry : entries_->extents()) lookups_->free(entry);
  }

  RemoteBenchResult run() {
    RemoteBenchResult result;
    result.benchmark = version();
    for (const char* name : kSeries) result.series.push_back({name, {}, {}});
    std::mt19937_64 random(1);
    std::vector<std::byte> memory(options_.depth * kMiB);
    for (size_t i = 0; i < memory.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(memory.data() + i, &word, 8);
    }
    SteadyLoad transfers(*tier_, kMiB, options_.values, options_.depth, memory);
    transfers.run_once(Op::kWrite);
    for (unsigned round = 0; round < options_.rounds; round++) {
      // In turn, and each first in every other round.
      for (const bool ours : {round % 2 == 0, round % 2 != 0}) {
        tell(fmt::format("round {} of {}: {}", round + 1, options_.rounds, ours ? "ours" : "redis-benchmark"));
        const std::vector<double> figures = ours ? measure_ours(transfers) : measure_theirs();
        for (size_t i = 0; i < figures.size(); i++)
          (ours ? result.series[i].ours : result.series[i].theirs).push_back(figures[i]);
      }
    }
    return result;
  }

 private:
  // Requests are fewer than look-ups of one key by this factor: they take longer.
  static uint64_t keys_of(size_t keys) { return std::max<uint64_t>(1, keys / 16); }
  void tell(const std::string& what) {
    if (options_.cancelled && options_.cancelled()) throw std::runtime_error("interrupted");
    if (options_.progress) options_.progress(what);
  }
  std::vector<double> measure_ours(SteadyLoad& transfers) {
    std::vector<double> figures{transfers.run(Op::kWrite, options_.transfers) * kMiB,
                                transfers.run(Op::kRead, options_.transfers) * kMiB};
    for (const size_t keys : {size_t{1}, keys_.size()}) {
      std::vector<double> took(options_.lookups / keys_of(keys));
      for (double& one : took) {
        const auto begin = Clock::now();
        const std::vector<Found> found = finder_->find(std::span(keys_).first(keys), 60000);
        one = seconds_since(begin);
        if (found.size() != keys) throw std::runtime_error("a look-up did not find what is there");
        for (const Found& each : found) finder_->free(each.extent);
      }
      std::sort(took.begin(), took.end());
      figures.push_back(took[took.size() / 2]);
      figures.push_back(took[took.size() * 99 / 100]);
    }
    return figures;
  }

  std::vector<double> measure_theirs() {
    const std::string values = std::to_string(options_.values), depth = std::to_string(options_.depth);
    const std::string transfers = std::to_string(options_.transfers);
    const std::vector<std::string> large{"-d", std::to_string(kMiB), "-n", transfers, "-c", depth, "-r", values};
    const auto set = csv("SET", large), get = csv("GET", large);
    // An entry's size, one client: one look-up after the other, or one request.
    const std::string size = std::to_string(remote::kEntryBytes), keys = std::to_string(keys_.size());
    csv("SET", {"-d", size, "-n", std::to_string(keys_.size() * 20), "-c", "1", "-r", keys});
    const auto one = csv("GET", {"-d", size, "-n", std::to_string(options_.lookups), "-c", "1", "-r", keys});
    const uint64_t asked = options_.lookups / keys_of(keys_.size()) * keys_.size();
    const auto all = csv("GET", {"-d", size, "-n", std::to_string(asked), "-c", "1", "-P", keys, "-r", keys});
    return {set.at(0) * kMiB, get.at(0) * kMiB, one.at(3) * 1e-3, one.at(5) * 1e-3, all.at(3) * 1e-3, all.at(5) * 1e-3};
  }

  // rps, and ms: average, least, p50, p95, p99, most.
  std::vector<double> csv(const std::string& test, const std::vector<std::string>& more) {
    std::vector<std::string> argv{program_};
    if (address_.port == 0) {
      argv.insert(argv.end(), {"-s", address_.host});
    } else {
      argv.insert(argv.end(), {"-h", address_.host, "-p", std::to_string(address_.port)});
    }
    argv.insert(argv.end(), {"-t", test == "SET" ? "set" : "get", "--csv", "--precision", "3"});
    argv.insert(argv.end(), more.begin(), more.end());
    const CommandResult ran = run_command(argv);
    std::istringstream lines(ran.output);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("\"" + test + "\",")) continue;
      std::vector<double> figures;
      std::istringstream words(line.substr(test.size() + 3));
      for (std::string word; std::getline(words, word, ',');) figures.push_back(std::stod(word.substr(1)));
      if (figures.size() == 7) return figures;
    }
    throw std::runtime_error(
        fmt::format("{} said nothing of {}: {}", program_, test, ran.output.substr(0, ran.output.find('\n'))));
  }
  std::string version() {
    const CommandResult ran = run_command({program_, "--version"});
    return ran.output.substr(0, ran.output.find('\n'));
  }

  const RemoteBenchOptions& options_;
  std::string program_;
  std::optional<OwnServer> own_;
  remote::Address address_;
  std::vector<Key> keys_;
  std::unique_ptr<Tier> tier_, lookups_, finder_;
  std::optional<SteadyLoad> entries_;  // of lookups_
};

}  // namespace

RemoteBenchResult bench_remote(const RemoteBenchOptions& options) { return Bench(options).run(); }

}  // namespace neotier::engine
