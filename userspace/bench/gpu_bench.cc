// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>

#include "engine/tiers/cuda/device_copies.h"
#include "engine/tiers/memory/memory_tier.h"
#include "util/size.h"

namespace neotier::engine {

namespace {

void must(const Status& status) {
  if (!status.is_ok()) throw std::runtime_error(status.what());
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Method {
  const char* name;
  CopyMethod method;
};
constexpr Method kMethods[] = {{"each", CopyMethod::kEach},
                               {"batch", CopyMethod::kBatch},
                               {"kernel", CopyMethod::kKernel},
                               {"chosen", CopyMethod::kChosen}};

// Of `bytes`, in no order, as blocks of a cache lie.
std::vector<DeviceCopy> scattered(std::byte* to, std::byte* from, uint64_t bytes, uint64_t piece) {
  std::vector<uint64_t> places(bytes / piece);
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), std::mt19937_64(1));
  std::vector<DeviceCopy> copies;
  for (uint64_t i = 0; i < places.size(); i++) copies.push_back({to + i * piece, from + places[i] * piece, piece});
  return copies;
}

}  // namespace

std::vector<GpuBenchSeries> bench_gpu(const GpuBenchOptions& options) {
  auto opened = open_device_copies(options.device);
  if (!opened) throw std::runtime_error(opened.status().what());
  DeviceCopies& copies = **opened;
  const auto memory = copies.allocate(options.bytes);
  if (!memory) throw std::runtime_error(memory.status().what());
  MemoryTierOptions tier_options;
  tier_options.name = "dram";
  tier_options.capacity_bytes = options.bytes;
  MemoryTier tier(tier_options);
  const std::span<std::byte> host = tier.range();
  if (!copies.register_host(host))
    throw std::runtime_error(
        fmt::format("host memory of {} cannot be registered; look at ulimit -l", format_size(host.size())));
  std::mt19937_64 random(7);
  for (size_t i = 0; i + 8 <= options.bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(host.data() + i, &word, sizeof word);
  }
  // Warm, and known: the device has the host's bytes.
  const DeviceCopy whole{*memory, host.data(), options.bytes};
  const auto through = [&](CopyLane lane) {
    auto mark = copies.mark(lane);
    must(mark.status());
    must(copies.wait(**mark, 60000));
  };
  must(copies.copy(CopyLane::kIn, {&whole, 1}));
  through(CopyLane::kIn);

  std::vector<GpuBenchSeries> all;
  for (const CopyLane lane : {CopyLane::kIn, CopyLane::kOut}) {
    const std::string name = lane == CopyLane::kIn ? "in" : "out";
    std::byte *const to = lane == CopyLane::kIn ? *memory : host.data(), *const from =
                                                                             to == *memory ? host.data() : *memory;
    const auto run = [&](GpuBenchSeries& series, std::span<const DeviceCopy> list, CopyMethod method) {
      const double begin = seconds();
      must(copies.copy(lane, list, method));
      series.cpu_s.push_back(seconds() - begin);
      through(lane);
      series.bytes_per_s.push_back(static_cast<double>(options.bytes) / (seconds() - begin));
    };
    const size_t first = all.size();
    all.push_back({name, "whole", 0, {}, {}});
    std::vector<std::vector<DeviceCopy>> lists;
    for (const uint64_t piece : options.pieces) {
      for (const Method& method : kMethods) all.push_back({name, method.name, piece, {}, {}});
      lists.push_back(scattered(to, from, options.bytes, piece));
    }
    // Each method once before it is timed: the driver loads a kernel when it is first launched.
    for (unsigned round = 0; round <= options.rounds; round++) {
      if (options.cancelled && options.cancelled()) throw std::runtime_error("cancelled");
      if (options.progress) options.progress(fmt::format("{}, round {} of {}", name, round, options.rounds));
      const DeviceCopy one{to, from, options.bytes};
      size_t at = first;
      run(all[at++], {&one, 1}, CopyMethod::kEach);
      for (const auto& list : lists)
        for (const Method& method : kMethods) run(all[at++], list, method.method);
      if (round > 0) continue;
      for (size_t i = first; i < all.size(); i++) all[i].bytes_per_s.clear(), all[i].cpu_s.clear();
    }
  }
  return all;
}

}  // namespace neotier::engine
