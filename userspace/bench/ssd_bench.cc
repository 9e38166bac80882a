// SPDX-License-Identifier: Apache-2.0
#include "bench/ssd_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "bench/steady_load.h"
#include "engine/tiers/ssd/ssd_tier.h"
#include "util/median.h"
#include "util/process.h"

namespace neotier::engine {

namespace {

using Clock = std::chrono::steady_clock;
constexpr unsigned kDepth = 32;
constexpr uint64_t kMiB = 1 << 20;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

[[noreturn]] void fail(const Status& status) { throw std::runtime_error(status.what()); }

struct Kind {
  const char* name;
  bool write, random;
};
constexpr Kind kKinds[] = {
    {"write", true, false}, {"read", false, false}, {"write_rate", true, true}, {"read_rate", false, true}};

class Bench {
 public:
  explicit Bench(const SsdBenchOptions& options) : options_(options), memory_(kDepth * kMiB + 4096) {
    std::mt19937_64 random(1);
    // Page-aligned, as a server's pools are; random, so that no medium makes less of it.
    aligned_ = std::span(memory_).subspan((4096 - reinterpret_cast<uintptr_t>(memory_.data()) % 4096) % 4096);
    for (size_t i = 0; i + 8 <= aligned_.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(aligned_.data() + i, &word, 8);
    }
  }

  SsdBenchResult run() {
    result_.fio_version = fio_version();
    prepare();
    for (const Kind& kind : kKinds) result_.series.push_back({kind.name, {}, {}});
    for (unsigned round = 0; round < options_.rounds; round++) {
      for (const bool rate : {false, true}) {
        // In turn, and each first in every other round.
        for (const bool ours : {round % 2 == 0, round % 2 != 0}) {
          tell(fmt::format("round {} of {}: {}, {}", round + 1, options_.rounds, rate ? "4 KiB random" : "1 MiB",
                           ours ? "ours" : "fio"));
          ours ? measure_ours(rate) : measure_fio(rate);
        }
      }
    }
    result_.write_amplification = asked_ ? static_cast<double>(written_) / static_cast<double>(asked_) : 1;
    if (options_.recovery_objects) measure_recovery();
    return result_;
  }

 private:
  void tell(const std::string& what) {
    if (options_.cancelled && options_.cancelled()) throw std::runtime_error("interrupted");
    if (options_.progress) options_.progress(what);
  }
  std::unique_ptr<SsdTier> open(uint64_t bytes) {
    SsdOptions options;
    options.path = options_.file;
    options.file_bytes = bytes;
    options.max_extents = bytes / 4096 / 4;
    options.host_memory = {aligned_.first(aligned_.size() / 4096 * 4096)};
    Result<std::unique_ptr<SsdTier>> tier = SsdTier::open(std::move(options));
    if (!tier) fail(tier.status());
    return std::move(*tier);
  }
  // What fio has written over.
  static void clear(SsdTier& tier) {
    Result<std::vector<Recovered>> objects = tier.recover();
    if (!objects) fail(objects.status());
    for (const Recovered& object : *objects) tier.free(object.extent);
  }
  void prepare() {
    tell("making the file");
    std::unique_ptr<SsdTier> tier;
    {
      SsdOptions existing;
      existing.path = options_.file;
      existing.create = false;
      Result<std::unique_ptr<SsdTier>> opened = SsdTier::open(std::move(existing));
      if (!opened && opened.status().code() != Code::kNotFound) fail(opened.status());
      tier = opened ? std::move(*opened) : open(options_.file_bytes);
    }
    result_.method = tier->stats().method;
    clear(*tier);
    const uint64_t capacity = tier->info().capacity_bytes;
    tier.reset();
    result_.file_bytes = std::filesystem::file_size(options_.file);
    result_.bandwidth_set_bytes = std::min<uint64_t>(capacity / 2, result_.file_bytes / 2) / kMiB * kMiB;
    result_.rate_set_bytes = std::min<uint64_t>(256 * kMiB, result_.bandwidth_set_bytes / 2);
    if (result_.bandwidth_set_bytes < 64 * kMiB)
      throw std::runtime_error(options_.file + ": too small to measure on; give --size 256M or more and another file");
    // Every block once: what a file system does at a first write is not the medium's.
    tell("writing the file once");
    std::unique_ptr<SsdTier> whole = open(0);
    SteadyLoad(*whole, kMiB, capacity / kMiB, kDepth, aligned_).run_once(Op::kWrite);
    clear(*whole);
    whole.reset();
  }
  void measure_ours(bool rate) {
    const std::unique_ptr<SsdTier> tier = open(0);
    clear(*tier);
    const uint64_t bytes = rate ? 4096 : kMiB;
    SteadyLoad load(*tier, bytes, (rate ? result_.rate_set_bytes : result_.bandwidth_set_bytes) / bytes, kDepth,
                    aligned_);
    load.run_once(Op::kWrite);
    const SsdStats before = tier->stats();
    for (size_t i = rate ? 2 : 0; i < (rate ? 4 : 2); i++) {
      const double accesses =
          load.run_for(kKinds[i].write ? Op::kWrite : Op::kRead, kKinds[i].random, options_.seconds);
      result_.series[i].ours.push_back(rate ? accesses : accesses * static_cast<double>(bytes));
      if (!kKinds[i].write || !rate) continue;
      const SsdStats after = tier->stats();
      asked_ += after.bytes_written - before.bytes_written;
      written_ += after.bytes_written - before.bytes_written + after.bytes_cleaned - before.bytes_cleaned;
    }
    clear(*tier);
  }
  void measure_fio(bool rate) {
    const uint64_t set = rate ? result_.rate_set_bytes : result_.bandwidth_set_bytes;
    for (size_t i = rate ? 2 : 0; i < (rate ? 4 : 2); i++) {
      const CommandResult ran = run_command(
          {"fio", "--name=neotier", "--filename=" + options_.file, "--allow_file_create=0",
           std::string("--rw=") + (kKinds[i].random ? "rand" : "") + (kKinds[i].write ? "write" : "read"),
           rate ? "--bs=4k" : "--bs=1m", fmt::format("--iodepth={}", kDepth), "--direct=1", "--ioengine=io_uring",
           "--numjobs=1", "--norandommap", fmt::format("--offset={}", result_.file_bytes / 4 / kMiB * kMiB),
           fmt::format("--size={}", set), fmt::format("--runtime={}ms", static_cast<uint64_t>(options_.seconds * 1000)),
           "--time_based", "--output-format=json"});
      const size_t begin = ran.output.find('{');
      const auto json = begin == std::string::npos
                            ? nlohmann::json()
                            : nlohmann::json::parse(ran.output.substr(begin), nullptr, /*allow_exceptions=*/false);
      if (ran.exit_code != 0 || !json.is_object() || !json.contains("jobs"))
        throw std::runtime_error("fio failed: " + ran.output.substr(0, ran.output.find('\n')));
      const auto& job = json["jobs"][0][kKinds[i].write ? "write" : "read"];
      result_.series[i].fio.push_back(rate ? job["iops"].get<double>() : job["bw_bytes"].get<double>());
    }
  }
  static std::string fio_version() {
    try {
      const CommandResult ran = run_command({"fio", "--version"});
      if (ran.exit_code == 0) return ran.output.substr(0, ran.output.find('\n'));
    } catch (const std::runtime_error&) {
      // Said below.
    }
    throw std::runtime_error("fio is needed to measure against and is not installed: apt install fio");
  }
  void measure_recovery() {
    tell(fmt::format("storing {} objects to find them again", options_.recovery_objects));
    const std::string path = options_.file + ".recovery";
    SsdOptions options;
    options.path = path;
    options.max_extents = options_.recovery_objects;
    options.file_bytes = options_.recovery_objects * 4096 / 8 * 10 + options_.recovery_objects * 256 + (512 << 20);
    {
      Result<std::unique_ptr<SsdTier>> tier = SsdTier::open(options);
      if (!tier) fail(tier.status());
      try {
        SteadyLoad(**tier, 4096, options_.recovery_objects, kDepth, aligned_).run_once(Op::kWrite);
      } catch (...) {
        tier->reset();
        std::filesystem::remove(path);
        throw;
      }
    }
    tell("finding them");
    const auto begin = Clock::now();
    Result<std::unique_ptr<SsdTier>> tier = SsdTier::open(options);
    if (!tier) fail(tier.status());
    result_.recovered_objects = (*tier)->recover()->size();
    result_.recovery_s = seconds_since(begin);
    tier->reset();
    std::filesystem::remove(path);
  }

  const SsdBenchOptions& options_;
  std::vector<std::byte> memory_;
  std::span<std::byte> aligned_;
  SsdBenchResult result_;
  uint64_t asked_ = 0, written_ = 0;
};

}  // namespace

double SsdBenchSeries::our_median() const { return median(ours); }
double SsdBenchSeries::fio_median() const { return median(fio); }

SsdBenchResult bench_ssd(const SsdBenchOptions& options) { return Bench(options).run(); }

}  // namespace neotier::engine
