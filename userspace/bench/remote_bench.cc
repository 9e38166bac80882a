// SPDX-License-Identifier: Apache-2.0
#include "bench/remote_bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "engine/tiers/remote/remote_tier.h"
#include "engine/tiers/remote/remote_url.h"
#include "util/median.h"
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

// Transfers of whole values, so many always under way.
class Transfers {
 public:
  Transfers(Tier& tier, const RemoteBenchOptions& options) : tier_(tier), memory_(options.depth * kMiB) {
    std::mt19937_64 random(1);
    for (size_t i = 0; i < memory_.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(memory_.data() + i, &word, 8);
    }
    for (uint64_t i = 0; i < options.values; i++) {
      Key key;
      std::memcpy(key.bytes, &i, sizeof i);
      const Result<Extent> extent = tier.allocate(key, kMiB);
      if (!extent) throw std::runtime_error(extent.status().what());
      extents_.push_back(*extent);
    }
    for (unsigned i = 0; i < options.depth; i++) {
      Lane& lane = *lanes_.emplace_back(std::make_unique<Lane>());
      lane.piece = {memory_.data() + i * kMiB, kMiB};
      lane.transfer.pieces = std::span(&lane.piece, 1);
      lane.transfer.done = [this](Transfer& transfer, const Status& status) { next(transfer, status); };
    }
  }

  // Bytes a second.
  double run(Op op, uint64_t count) {
    left_ = count;
    active_ = static_cast<unsigned>(lanes_.size());
    const auto begin = Clock::now();
    for (auto& lane : lanes_) {
      lane->transfer.op = op;
      start(lane->transfer);
    }
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return active_ == 0; });
    if (!status_) throw std::runtime_error(status_.what());
    return static_cast<double>(count * kMiB) / seconds_since(begin);
  }

 private:
  struct Lane {
    Transfer transfer;
    Piece piece;
  };
  void start(Transfer& transfer) {
    {
      const std::lock_guard lock(mutex_);
      if (left_ == 0 || !status_) {
        if (--active_ == 0) idle_.notify_all();
        return;
      }
      left_--;
      transfer.extent = extents_[at_++ % extents_.size()];
    }
    Transfer* const one = &transfer;
    // The queue is deeper than this.
    if (tier_.submit(std::span(&one, 1)) != 1) std::abort();
  }
  void next(Transfer& transfer, const Status& status) {
    {
      const std::lock_guard lock(mutex_);
      if (!status) status_ = status;
    }
    start(transfer);
  }

  Tier& tier_;
  std::vector<std::byte> memory_;
  std::vector<Extent> extents_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::mutex mutex_;
  std::condition_variable idle_;
  uint64_t left_ = 0, at_ = 0;
  unsigned active_ = 0;
  Status status_;
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
    for (uint64_t i = 0; i < options.blocks; i++) {
      Key& key = keys_.emplace_back();
      std::memcpy(key.bytes, &i, sizeof i);
      const Result<Extent> extent = lookups_->allocate(key, kLookedUp);
      if (!extent) throw std::runtime_error(extent.status().what());
      entries_.push_back(*extent);
      write(*lookups_, *extent, bytes);
    }
    finder_ = make_remote_tier(tier);
  }
  ~Bench() {
    for (const Extent entry : entries_) lookups_->free(entry);
  }

  RemoteBenchResult run() {
    RemoteBenchResult result;
    result.benchmark = version();
    for (const char* name : kSeries) result.series.push_back({name, {}, {}});
    Transfers transfers(*tier_, options_);
    transfers.run(Op::kWrite, options_.values);
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
  static void write(Tier& tier, Extent extent, std::span<std::byte> bytes) {
    const Piece piece{bytes.data(), bytes.size()};
    std::mutex mutex;
    std::condition_variable ended;
    bool over = false;
    Status result;
    Transfer transfer;
    transfer.op = Op::kWrite;
    transfer.extent = extent;
    transfer.pieces = std::span(&piece, 1);
    transfer.done = [&](Transfer&, const Status& status) {
      const std::lock_guard lock(mutex);
      result = status;
      over = true;
      ended.notify_all();
    };
    Transfer* const one = &transfer;
    tier.submit(std::span(&one, 1));
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return over; });
    if (!result) throw std::runtime_error(result.what());
  }

  std::vector<double> measure_ours(Transfers& transfers) {
    std::vector<double> figures{transfers.run(Op::kWrite, options_.transfers),
                                transfers.run(Op::kRead, options_.transfers)};
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
  std::vector<Extent> entries_;  // of lookups_
  std::unique_ptr<Tier> tier_, lookups_, finder_;
};

}  // namespace

double RemoteBenchSeries::our_median() const { return median(ours); }
double RemoteBenchSeries::their_median() const { return median(theirs); }

RemoteBenchResult bench_remote(const RemoteBenchOptions& options) { return Bench(options).run(); }

}  // namespace neotier::engine
