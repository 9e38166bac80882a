// SPDX-License-Identifier: Apache-2.0
// neotier bench tiers, remote, gpu
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "bench/gpu_bench.h"
#include "bench/remote_bench.h"
#include "bench/ssd_bench.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/progress.h"
#include "util/size.h"
#include "util/temporary_folder.h"

namespace fs = std::filesystem;

namespace neotier::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string ssd, size = "2G", json, memory = "512M", links = "gpu=64M,dram=64M,cxl=64M";
  engine::SsdBenchOptions options;
};

bool is_rate(const engine::SsdBenchSeries& series) { return series.name.ends_with("_rate"); }

Json to_json(const Arguments& a, const engine::SsdBenchResult& r) {
  Json j;
  j["file"] = a.ssd;
  j["file_bytes"] = r.file_bytes;
  j["method"] = r.method;
  j["fio"] = r.fio_version;
  j["depth"] = 32;
  j["seconds"] = a.options.seconds;
  j["rounds"] = a.options.rounds;
  j["bandwidth_set_bytes"] = r.bandwidth_set_bytes;
  j["rate_set_bytes"] = r.rate_set_bytes;
  for (const auto& series : r.series) j[series.name + "_vs_fio"] = series.ratio();
  for (const auto& series : r.series)
    j[series.name] = {{"unit", is_rate(series) ? "1/s" : "B/s"},
                      {"ours_median", series.our_median()},
                      {"fio_median", series.fio_median()},
                      {"ours", series.ours},
                      {"fio", series.fio}};
  j["write_amplification"] = r.write_amplification;
  if (r.recovered_objects) {
    j["recovered_objects"] = r.recovered_objects;
    j["recovery_s"] = r.recovery_s;
  }
  return j;
}

Json bench_ssd_tier(Arguments& a) {
  Progress progress;
  const uint64_t bytes = parse_size(a.size);
  // A file that is not there is made for the measurement and goes with it.
  std::optional<TemporaryFolder> temporary;
  a.options.file = a.ssd;
  if (!fs::exists(a.ssd)) {
    const fs::path folder = fs::absolute(a.ssd).parent_path();
    if (!fs::is_directory(folder)) throw std::runtime_error(fmt::format("--ssd: no folder {}", folder.string()));
    if (const fs::space_info space = fs::space(folder); bytes > space.available)
      throw std::runtime_error(
          fmt::format("--size {}: {} are free in {}", a.size, format_size(space.available), folder.string()));
    temporary.emplace("neotier-tier", folder);
    a.options.file = *temporary / "tier";
    note(fmt::format("making {} of {}; it goes again", a.options.file, format_size(bytes)));
  }
  a.options.file_bytes = bytes;
  a.options.progress = [&](const std::string& what) { progress.show(what); };
  a.options.cancelled = interrupted;
  engine::SsdBenchResult r;
  try {
    r = engine::bench_ssd(a.options);
  } catch (...) {
    progress.clear();
    throw;
  }
  progress.clear();
  fmt::print("ssd {} ({}), by {}, against {}; depth 32, {} rounds of {} s in turn, medians\n", a.ssd,
             format_size(r.file_bytes), r.method, r.fio_version, a.options.rounds, a.options.seconds);
  for (const auto& s : r.series)
    fmt::print("{:<24} ours {:>10.1f}   fio {:>10.1f} {:<8} ours/fio {:.3f}\n",
               is_rate(s) ? "4 KiB random, " + s.name.substr(0, s.name.find('_')) : "1 MiB, " + s.name,
               s.our_median() * (is_rate(s) ? 1e-3 : 1e-6), s.fio_median() * (is_rate(s) ? 1e-3 : 1e-6),
               is_rate(s) ? "k/s" : "MB/s", s.ratio());
  fmt::print("write amplification of the random writes {:.2f}\n", r.write_amplification);
  if (r.recovered_objects) fmt::print("recovery: {} objects in {:.3f} s\n", r.recovered_objects, r.recovery_s);
  return to_json(a, r);
}

int tiers_command(Arguments& a) {
  OutputFile out("--json", a.json);
  const uint64_t set = parse_size(a.memory);
  catch_interrupts();
  Json json = Json::object();
  if (set > 0) json = bench_memory_tiers(set, a.links);
  if (!a.ssd.empty()) json["ssd"] = bench_ssd_tier(a);
  if (json.empty()) throw std::runtime_error("nothing to measure: give --ssd FILE, or --memory above 0");
  if (out) out.finish(pretty(json));
  return 0;
}

struct RemoteArguments {
  std::string json;
  engine::RemoteBenchOptions options;
};

bool is_time(const engine::RemoteBenchSeries& series) { return series.name.find("_p") != std::string::npos; }

int remote_command(RemoteArguments& a) {
  OutputFile out("--json", a.json);
  catch_interrupts();
  Progress progress;
  a.options.progress = [&](const std::string& what) { progress.show(what); };
  a.options.cancelled = interrupted;
  engine::RemoteBenchResult r;
  try {
    r = engine::bench_remote(a.options);
  } catch (...) {
    progress.clear();
    throw;
  }
  progress.clear();
  fmt::print("remote {}, against {}; {} under way, {} connections, {} rounds in turn, medians\n",
             a.options.url.empty() ? "(a server of its own)" : a.options.url, r.benchmark, a.options.depth,
             a.options.connections, a.options.rounds);
  Json j;
  j["benchmark"] = r.benchmark;
  j["depth"] = a.options.depth;
  j["connections"] = a.options.connections;
  j["rounds"] = a.options.rounds;
  j["transfers"] = a.options.transfers;
  j["values"] = a.options.values;
  j["lookups"] = a.options.lookups;
  j["blocks"] = a.options.blocks;
  for (const auto& s : r.series) {
    const bool time = is_time(s);
    fmt::print("{:<24} ours {:>10.1f}   theirs {:>10.1f} {:<8} ours/theirs {:.3f}\n",
               !time                          ? "1 MiB, " + s.name
               : s.name.starts_with("lookup") ? "look-up, " + s.name.substr(7)
                                              : fmt::format("{} look-ups, {}", a.options.blocks, s.name.substr(8)),
               s.our_median() * (time ? 1e6 : 1e-6), s.their_median() * (time ? 1e6 : 1e-6), time ? "us" : "MB/s",
               s.ratio());
    j[s.name] = {{"unit", time ? "s" : "B/s"},
                 {"ours_median", s.our_median()},
                 {"theirs_median", s.their_median()},
                 {"ours", s.ours},
                 {"theirs", s.theirs}};
  }
  if (out) out.finish(pretty(j));
  return 0;
}

void add_bench_remote(CLI::App& bench, int& status) {
  auto a = std::make_shared<RemoteArguments>();
  CLI::App* remote = bench.add_subcommand("remote", "Measure the remote tier beside redis-benchmark");
  remote->footer(
      "examples:\n  neotier bench remote --json remote.json\n  neotier bench remote --url redis://cache-1:6379\n"
      "redis-benchmark (or valkey-benchmark) runs on the same server, in turn.");
  remote->add_option("--url", a->options.url, "The server; without it one is started on this machine, and goes again")
      ->type_name("redis://HOST:PORT|unix:/PATH");
  remote->add_option("--values", a->options.values, "Values of 1 MiB that are written and read")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  remote->add_option("--transfers", a->options.transfers, "Values that each measurement moves")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000000));
  remote->add_option("--lookups", a->options.lookups, "Look-ups of each measurement, one after the other")
      ->capture_default_str()
      ->check(CLI::Range(100, 100000000));
  remote->add_option("--blocks", a->options.blocks, "Blocks of a request, which are looked up at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  remote->add_option("--depth", a->options.depth, "Transfers under way at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 512));
  remote->add_option("--connections", a->options.connections, "Connections of the tier")
      ->capture_default_str()
      ->check(CLI::Range(1, 16));
  remote->add_option("--rounds", a->options.rounds, "Rounds, of which the medians are taken")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  add_json(*remote, a->json);
  remote->callback([a, &status] { status = remote_command(*a); });
}

struct GpuArguments {
  std::string json, size = "1G";
  engine::GpuBenchOptions options;
};

int gpu_command(GpuArguments& a) {
  OutputFile out("--json", a.json);
  catch_interrupts();
  a.options.bytes = parse_size(a.size);
  if (a.options.bytes < a.options.pieces.back())
    throw std::runtime_error(fmt::format("--size {}: at least {}", a.size, format_size(a.options.pieces.back())));
  Progress progress;
  a.options.progress = [&](const std::string& what) { progress.show(what); };
  a.options.cancelled = interrupted;
  std::vector<engine::GpuBenchSeries> all;
  try {
    all = engine::bench_gpu(a.options);
  } catch (...) {
    progress.clear();
    throw;
  }
  progress.clear();
  fmt::print("GPU {}: {} between its memory and the host's, in pieces in no order; {} rounds in turn, medians\n",
             a.options.device, format_size(a.options.bytes), a.options.rounds);
  fmt::print("{:<4} {:>10}  {:<7} {:>12} {:>9} {:>20}\n", "way", "piece", "method", "speed", "of whole",
             "asking, a piece");
  Json series = Json::array();
  double whole = 0;
  for (const auto& s : all) {
    const uint64_t pieces = s.piece_bytes == 0 ? 1 : a.options.bytes / s.piece_bytes;
    if (s.piece_bytes == 0) whole = s.median_rate();
    fmt::print("{:<4} {:>10}  {:<7} {:>7.2f} GB/s {:>9.3f} {:>17.3f} us\n", s.way,
               format_size(s.piece_bytes == 0 ? a.options.bytes : s.piece_bytes), s.method, s.median_rate() * 1e-9,
               s.median_rate() / whole, s.median_cpu_s() * 1e6 / static_cast<double>(pieces));
    series.push_back({{"way", s.way},
                      {"piece_bytes", s.piece_bytes},
                      {"method", s.method},
                      {"bytes_per_s_median", s.median_rate()},
                      {"of_whole", s.median_rate() / whole},
                      {"bytes_per_s", s.bytes_per_s},
                      {"asking_s", s.cpu_s}});
  }
  if (out)
    out.finish(pretty(Json{
        {"device", a.options.device}, {"bytes", a.options.bytes}, {"rounds", a.options.rounds}, {"series", series}}));
  return 0;
}

void add_bench_gpu(CLI::App& bench, int& status) {
  auto a = std::make_shared<GpuArguments>();
  CLI::App* gpu = bench.add_subcommand("gpu", "Measure copies to and from a GPU's memory, by each method");
  gpu->footer(
      "examples:\n  neotier bench gpu\n  neotier bench gpu --device 1 --size 4G --json gpu.json\n"
      "'whole' is one copy of the driver's, 'chosen' is what loading and saving of KV blocks uses.");
  gpu->add_option("--device", a->options.device, "Number of the GPU")
      ->capture_default_str()
      ->check(CLI::Range(0, 1023));
  gpu->add_option("--size", a->size, "What each measurement moves")->capture_default_str()->type_name("SIZE");
  gpu->add_option("--rounds", a->options.rounds, "Rounds, of which the medians are taken")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  add_json(*gpu, a->json);
  gpu->callback([a, &status] { status = gpu_command(*a); });
}

}  // namespace

void add_bench(CLI::App& app, int& status) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->group(kMachine);
  bench->footer("example:\n  neotier bench tiers --memory 64M --seconds .2");
  auto a = std::make_shared<Arguments>();
  CLI::App* tiers = bench->add_subcommand("tiers", "Measure latency and bandwidth of the engine's tiers");
  tiers->footer(
      "examples:\n  neotier bench tiers --json tiers.json\n  neotier bench tiers --memory 0 --ssd "
      "/mnt/nvme/bench.tier\n"
      "fio runs on the same file, in turn. The objects of an SSD tier's file that is given are removed.");
  tiers->add_option("--ssd", a->ssd, "File of an SSD tier. Where it is not there, one beside it is made and goes again")
      ->type_name("FILE");
  tiers->add_option("--size", a->size, "Size of a file that is made")->capture_default_str()->type_name("SIZE");
  tiers
      ->add_option("--memory", a->memory,
                   "Memory that the memory tiers are measured with, more than the caches; 0: not them")
      ->type_name("SIZE")
      ->capture_default_str();
  tiers->add_option("--links", a->links, "Tiers whose links are probed, as `neotier tiers` takes them")
      ->type_name("KIND=SIZE,...")
      ->capture_default_str();
  tiers->add_option("--seconds", a->options.seconds, "Seconds of each measurement")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  tiers->add_option("--rounds", a->options.rounds, "Rounds, of which the medians are taken")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  tiers
      ->add_option("--recover-objects", a->options.recovery_objects,
                   "Also store so many objects of 4 KiB in FILE.recovery, and time their recovery")
      ->check(CLI::Range(1, 100000000));
  add_json(*tiers, a->json);
  add_bench_remote(*bench, status);
  add_bench_gpu(*bench, status);
  add_bench_engine(*bench, status);
  add_bench_compute(*bench, status);
  tiers->callback([a, &status] { status = tiers_command(*a); });
}

}  // namespace neotier::cli
