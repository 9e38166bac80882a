// SPDX-License-Identifier: Apache-2.0
// Reads memory in one of three ways, to see what an access costs: in order (stream), each address from the read before
// (chase), or at addresses that depend on no read (gather). Runs anywhere; on the emulated machine it also marks its
// phases and windows.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "neotier/mark.h"
#include "neotier/standard_output.h"

namespace {

enum class Kind { kStream, kChase, kGather };

struct Options {
  Kind kind = Kind::kStream;
  uint64_t size_mib = 0, hot_mib = 0, count = 0, stride = 64, seed = 1, windows = 20;
  bool time = false;
};

uint64_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 32;
}

// A part of the buffer and where reading it has come to.
class Part {
 public:
  // `bytes` of memory from `base`. Slot i is at `base + i x stride`, and 64 bytes further for each slot if a slot is a
  // page, so that not all are in the same sets of the caches. `word` of the slot is this part's.
  Part(char* base, uint64_t bytes, const Options& options, uint64_t word)
      : base_(base), stride_(options.stride), slots_(bytes / options.stride), word_(word), random_(options.seed) {
    if (options.kind == Kind::kChase) link();
    position_ = at(0);
  }

  uint64_t stream(uint64_t n) {
    uint64_t sum = 0, slot = slot_;
    while (n > 0) {
      const uint64_t run = std::min(n, slots_ - slot);
      const char* from = base_ + slot * stride_;
      const char* end = from + run * stride_;
      for (const char* p = from; p != end; p += stride_) sum += *reinterpret_cast<const uint64_t*>(p);
      n -= run;
      slot = slot + run == slots_ ? 0 : slot + run;
    }
    slot_ = slot;
    return sum;
  }

  uint64_t chase(uint64_t n) {
    char* p = position_;
    for (; n > 0; --n) p = *reinterpret_cast<char**>(p);
    position_ = p;
    return static_cast<uint64_t>(p - base_);
  }

  uint64_t gather(uint64_t n) {
    uint64_t sum = 0, random = random_;
    for (; n > 0; --n) sum += *reinterpret_cast<const uint64_t*>(at(next_random(random) * slots_ >> 32));
    random_ = random;
    return sum;
  }

 private:
  char* at(uint64_t slot) const {
    const uint64_t skew = stride_ >= 4096 ? slot % 64 * 64 : 0;
    return base_ + slot * stride_ + skew + word_ * 8;
  }

  // One cycle through all slots, in random order.
  void link() {
    std::vector<uint32_t> order(slots_);
    std::iota(order.begin(), order.end(), 0u);
    for (uint64_t i = slots_ - 1; i > 0; --i) std::swap(order[i], order[next_random(random_) * (i + 1) >> 32]);
    for (uint64_t i = 0; i < slots_; ++i) *reinterpret_cast<char**>(at(order[i])) = at(order[(i + 1) % slots_]);
  }

  char* base_;
  uint64_t stride_, slots_, word_, random_;
  uint64_t slot_ = 0;
  char* position_;
};

uint64_t read(Part& part, Kind kind, uint64_t n) {
  switch (kind) {
    case Kind::kStream:
      return part.stream(n);
    case Kind::kChase:
      return part.chase(n);
    case Kind::kGather:
      break;
  }
  return part.gather(n);
}

int run(int argc, char** argv) {
  Options o;
  std::string kind;
  CLI::App app{
      "Reads memory in order, by pointers, or at random.\n\nexample:\n  membench chase --size 64 --count 10000000"};
  app.add_option("kind", kind,
                 "stream: in order; chase: each address from the read before; gather: random, independent")
      ->required()
      ->check(CLI::IsMember({"stream", "chase", "gather"}));
  app.add_option("--size", o.size_mib, "memory, MiB")->required()->check(CLI::Range(1, 1 << 16));
  app.add_option("--hot", o.hot_mib, "the last MiB of it get 9 of 10 reads; 0: all alike")->capture_default_str();
  app.add_option("--count", o.count, "reads")->required()->check(CLI::Range(1000ull, 1ull << 40));
  app.add_option("--stride", o.stride, "bytes from one read's line to the next one's; 4096: one a page")
      ->capture_default_str()
      ->check(CLI::IsMember({64, 128, 256, 512, 1024, 2048, 4096}));
  app.add_option("--seed", o.seed, "seed")->capture_default_str()->envname("NEOTIER_SEED");
  app.add_flag("--time", o.time, "print the ns that a read took by the machine's clock");
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("membench: ") + error.what() + "; --help shows what is possible\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  o.kind = kind == "stream" ? Kind::kStream : kind == "chase" ? Kind::kChase : Kind::kGather;
  if (o.hot_mib >= o.size_mib) {
    std::fprintf(stderr, "membench: --hot %llu has to be less than --size %llu\n",
                 static_cast<unsigned long long>(o.hot_mib), static_cast<unsigned long long>(o.size_mib));
    return 2;
  }
  const uint64_t bytes = o.size_mib << 20, hot_bytes = o.hot_mib << 20;
  constexpr uint64_t kHuge = 2 << 20;  // so that huge pages can back all of it
  void* memory =
      mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "membench: cannot map %llu MiB; choose a smaller --size\n",
                 static_cast<unsigned long long>(o.size_mib));
    return 1;
  }
  char* base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + kHuge - 1) & ~uintptr_t{kHuge - 1});

  neotier_marker marker = neotier_marker_open();
  neotier_mark_phase(&marker, "fill");
  for (uint64_t i = 0; i < bytes; i += 4096) base[i] = 1;
  Part all(base, bytes, o, 0);
  std::optional<Part> hot;
  if (hot_bytes != 0) hot.emplace(base + bytes - hot_bytes, hot_bytes, o, 1);
  std::printf("membench: memory of %llu MiB filled\n", static_cast<unsigned long long>(o.size_mib));
  std::fflush(stdout);

  neotier_mark_phase(&marker, "read");
  const auto begin = std::chrono::steady_clock::now();
  uint64_t sum = 0;
  for (uint64_t w = 0; w < o.windows; ++w) {
    if (w == o.windows / 2) neotier_mark_phase(&marker, "settled");
    const uint64_t n = o.count * (w + 1) / o.windows - o.count * w / o.windows;
    const uint64_t n_hot = hot_bytes != 0 ? n - n / 10 : 0;
    if (n_hot != 0) sum += read(*hot, o.kind, n_hot);
    sum += read(all, o.kind, n - n_hot);
    neotier_mark(&marker, NEOTIER_MARK_WINDOW, o.count * (w + 1) / o.windows);
  }
  const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
  neotier_mark_phase(&marker, "end");
  std::printf("membench: %llu reads (%s), checksum %016llx\n", static_cast<unsigned long long>(o.count), kind.c_str(),
              static_cast<unsigned long long>(sum));
  if (o.time) std::printf("membench: %.2f ns a read\n", ns / static_cast<double>(o.count));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  neotier_open_standard_streams();
  return neotier_finish_output("membench", run(argc, argv));
}
