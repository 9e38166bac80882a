// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// neoprof-bench: how fast the Verilated NeoProf runs at full size, in requests and clocks a second.
#include <zstd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "neoprof_device.h"
#include "neoprof_regs.h"
#include "neotier/standard_output.h"

namespace {

constexpr const char* kUsage =
    "usage: neoprof-bench [--json] [--accesses N] [--trace FILE.u64[.zst]]\n"
    "  --json        one JSON object on stdout instead of a table\n"
    "  --accesses N  requests of each stream, 1 to 1000000000 (default 5000000)\n"
    "  --trace FILE  run this trace too: little-endian u64 records, byte address with bit 0 = write\n";
constexpr uint64_t kPages = 1 << 18;         // 1 GiB of 4 KiB pages
constexpr uint64_t kAccessesPerTick = 2000;  // 1.28 GB/s of 64-byte lines
// Measured once with Verilator 5.006 on the machine that NeoTier is developed on; not measured by this program.
constexpr double kPublishedClocksPerSecond = 14'800;

struct Stream {
  std::string name;
  std::vector<uint64_t> accesses;  // address, bit 0 = write
};

struct Result {
  std::string device, stream;
  uint64_t accesses, clocks;
  double wall_s, cpu_s;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Stream uniform(uint64_t count) {
  std::mt19937_64 random(1);
  Stream stream{"uniform", std::vector<uint64_t>(count)};
  for (auto& access : stream.accesses) {
    access = (random() % kPages) << 12 | (random() & 0xfc1);
  }
  return stream;
}

// Page of rank r with probability about 1 / r, ranks scattered over the pages.
Stream zipf(uint64_t count) {
  std::mt19937_64 random(2);
  Stream stream{"zipf", std::vector<uint64_t>(count)};
  for (auto& access : stream.accesses) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    const auto rank = static_cast<uint64_t>(std::pow(static_cast<double>(kPages), u)) - 1;
    access = (rank * 0x9e3779b1ULL % kPages) << 12 | (random() & 0xfc1);
  }
  return stream;
}

Stream load_trace(const std::string& path, uint64_t limit) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(path + ": cannot be read");
  }
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (path.ends_with(".zst")) {
    std::vector<char> plain;
    std::vector<char> chunk(ZSTD_DStreamOutSize());
    const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(), &ZSTD_freeDStream);
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    size_t state = 1;
    while (in.pos < in.size && plain.size() < limit * 8) {
      ZSTD_outBuffer out{chunk.data(), chunk.size(), 0};
      state = ZSTD_decompressStream(stream.get(), &out, &in);
      if (ZSTD_isError(state)) {
        throw std::runtime_error(path + ": " + ZSTD_getErrorName(state));
      }
      plain.insert(plain.end(), chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(out.pos));
    }
    if (in.pos == in.size && state != 0 && plain.size() < limit * 8) {
      throw std::runtime_error(path + ": ends in the middle of a zstd frame");
    }
    bytes = std::move(plain);
  } else if (bytes.size() % 8 != 0) {
    throw std::runtime_error(path + ": its size is not a multiple of 8 bytes");
  }
  Stream trace{"trace", std::vector<uint64_t>(std::min<uint64_t>(limit, bytes.size() / 8))};
  if (trace.accesses.empty()) {
    throw std::runtime_error(path + ": no records");
  }
  std::memcpy(trace.accesses.data(), bytes.data(), trace.accesses.size() * 8);
  return trace;
}

Result run(const char* name, neoprof::Device& device, const Stream& stream) {
  for (uint32_t word = 0; word < NEOPROF_BITMAP_COUNT; ++word) {
    device.write(NEOPROF_BITMAP_OFFSET + 8 * word, ~0ULL, 0xff);
  }
  device.write(NEOPROF_CFG0_OFFSET,
               NEOPROF_CFG0_TRACK_RESET | NEOPROF_CFG0_ENABLE_MASK | NEOPROF_CFG0_RESET_MASK |
                   64ULL << NEOPROF_CFG0_THRESHOLD_SHIFT,
               0xff);
  const uint64_t clocks = device.cycles();
  const auto wall = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  for (std::span<const uint64_t> left(stream.accesses); !left.empty();) {
    const auto before_tick = left.first(std::min<size_t>(kAccessesPerTick, left.size()));
    device.accesses(before_tick);
    if (before_tick.size() == kAccessesPerTick) {
      device.tick();
    }
    left = left.subspan(before_tick.size());
  }
  device.drain();
  return {name,
          stream.name,
          stream.accesses.size(),
          device.cycles() - clocks,
          std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count(),
          cpu_seconds() - cpu};
}

int run_all(bool json, uint64_t accesses, const std::string& trace) {
  std::vector<Stream> streams = {zipf(accesses), uniform(accesses)};
  if (!trace.empty()) {
    streams.push_back(load_trace(trace, accesses));
  }
  std::vector<Result> results;
  for (const auto& stream : streams) {
    results.push_back(run("rtl", *neoprof::make_rtl_device({}), stream));
    results.push_back(run("model", *neoprof::make_model_device({}), stream));
  }
  if (json) {
    std::printf("{\"sketch\": \"2 x 512K x 16\", \"published_neoprof_clocks_per_s\": %.0f, \"runs\": [",
                kPublishedClocksPerSecond);
    for (size_t i = 0; i < results.size(); ++i) {
      const Result& r = results[i];
      std::printf(
          "%s\n  {\"device\": \"%s\", \"stream\": \"%s\", \"accesses\": %llu, \"clocks\": %llu, \"wall_s\": %.4f, "
          "\"cpu_s\": %.4f}",
          i == 0 ? "" : ",", r.device.c_str(), r.stream.c_str(), static_cast<unsigned long long>(r.accesses),
          static_cast<unsigned long long>(r.clocks), r.wall_s, r.cpu_s);
    }
    std::printf("\n]}\n");
    return 0;
  }
  std::printf("NeoProf, count-min sketch of 2 x 512K x 16 bits, simulated (host speed, not a hardware figure)\n\n");
  std::printf("%-7s %-8s %12s %14s %14s %16s\n", "device", "stream", "accesses", "accesses/s", "clocks/s",
              "accesses/CPU-s");
  for (const Result& r : results) {
    const auto n = static_cast<double>(r.accesses);
    std::printf("%-7s %-8s %12.0f %14.0f %14.0f %16.0f\n", r.device.c_str(), r.stream.c_str(), n, n / r.wall_s,
                static_cast<double>(r.clocks) / r.wall_s, n / r.cpu_s);
  }
  std::printf(
      "\nReference: the published NeoProf RTL of the same size, Verilator 5.006, measured earlier on NeoTier's\n"
      "development machine and not in this run: %.0f clocks/s\n",
      kPublishedClocksPerSecond);
  return 0;
}

int run(int argc, char** argv) {
  bool json = false;
  uint64_t accesses = 5'000'000;
  std::string trace;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--help" || arg == "-h") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (arg == "--json") {
      json = true;
    } else if (arg == "--accesses" && i + 1 < argc) {
      const std::string_view text = argv[++i];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), accesses);
      if (error != std::errc{} || end != text.data() + text.size() || accesses < 1 || accesses > 1'000'000'000) {
        std::fprintf(stderr, "neoprof-bench: --accesses %s: not a number from 1 to 1000000000\n", argv[i]);
        return 2;
      }
    } else if (arg == "--trace" && i + 1 < argc) {
      trace = argv[++i];
    } else {
      std::fprintf(stderr, "neoprof-bench: '%s' is not understood or lacks its value\n%s", argv[i], kUsage);
      return 2;
    }
  }
  try {
    return run_all(json, accesses, trace);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "neoprof-bench: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  neotier_open_standard_streams();
  return neotier_finish_output("neoprof-bench", run(argc, argv));
}
