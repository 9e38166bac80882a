// SPDX-License-Identifier: Apache-2.0
// GUPS with a hot set: random read-modify-write updates of 8-byte words, 90 % of them to a seeded random subset of the
// table's 4 KiB pages, which jumps once (the convergence test of HeMem and NeoMem). Runs anywhere; on the emulated
// machine it also marks its phases, its windows and its hot set.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "neotier/mark.h"
#include "neotier/standard_output.h"
#include "random.h"

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kWordsPerPage = kPageBytes / 8;
constexpr uint32_t kHotShare = 3865470566u;  // 0.9 x 2^32

using neotier::Random;

struct Gups {
  uint64_t* table;
  uint32_t pages;
  std::vector<uint32_t> hot;
  Random random;
  neotier_marker marker;

  void update(uint64_t n) {
    const uint32_t* hot_pages = hot.data();
    const uint64_t hot_count = hot.size();
    Random r = random;
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t x = r.next();
      const uint64_t high = x >> 32;
      const uint64_t page =
          static_cast<uint32_t>(x) < kHotShare ? hot_pages[high * hot_count >> 32] : high * pages >> 32;
      table[page * kWordsPerPage + (x & (kWordsPerPage - 1))] ^= x;
    }
    random = r;
  }

  void mark_hot() {
    std::vector<uint64_t> bitmap((pages + 63) / 64);
    for (uint32_t page : hot) bitmap[page / 64] |= uint64_t{1} << page % 64;
    neotier_mark_hot(&marker, table, bitmap.data(), pages);
  }
};

// MAP_FAILED: it cannot be had. A pool is a new file, which goes with the program.
void* map_table(const std::string& pool, uint64_t bytes) {
  if (pool.empty())
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const int fd = open(pool.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return MAP_FAILED;
  unlink(pool.c_str());
  void* memory = ftruncate(fd, static_cast<off_t>(bytes))
                     ? MAP_FAILED
                     : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return memory;
}

int run(int argc, char** argv) {
  std::string pool;
  uint64_t table_mib = 0, hot_mib = 0, updates = 0, seed = 1, windows = 400;
  double jump_at = 0.5;
  CLI::App app{
      "GUPS with a hot set that jumps.\n\nexample:\n  gups --table 480 --hot 64 --updates 100000000 --jump-at 0.5"};
  app.add_option("--table", table_mib, "size of the table, MiB")->required()->check(CLI::Range(1, 1 << 20));
  app.add_option("--hot", hot_mib, "size of the hot set, MiB")->required()->check(CLI::Range(1, 1 << 20));
  app.add_option("--updates", updates, "number of updates")->required()->check(CLI::Range(1000u, ~0u));
  app.add_option("--jump-at", jump_at, "fraction of the updates after which the hot set jumps; 1: never")
      ->capture_default_str()
      ->check(CLI::Range(0.05, 1.0));
  app.add_option("--seed", seed, "seed")->capture_default_str()->envname("NEOTIER_SEED");
  app.add_option("--pool", pool, "a file to be made, say in /dev/shm: the table is shared memory");
  app.add_option("--windows", windows, "parts of the run whose ends are marked")
      ->capture_default_str()
      ->check(CLI::Range(20, 2000));
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("gups: ") + error.what() + "; --help shows what is possible\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (hot_mib * 2 > table_mib) {
    std::fprintf(stderr, "gups: --hot %llu is over half of --table %llu: the hot set could not jump to other pages\n",
                 static_cast<unsigned long long>(hot_mib), static_cast<unsigned long long>(table_mib));
    return 2;
  }

  const uint64_t bytes = table_mib << 20;
  void* memory = map_table(pool, bytes);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "gups: cannot map a table of %llu MiB%s%s: %s; choose %s\n",
                 static_cast<unsigned long long>(table_mib), pool.empty() ? "" : " in ", pool.c_str(),
                 std::strerror(errno), pool.empty() ? "a smaller --table" : "another --pool, or a smaller --table");
    return 1;
  }
  Gups gups{
      static_cast<uint64_t*>(memory), static_cast<uint32_t>(bytes / kPageBytes), {}, {seed}, neotier_marker_open()};

  neotier_mark_phase(&gups.marker, "fill");
  for (uint64_t i = 0; i < bytes / 8; ++i) gups.table[i] = i;

  // The first hot set is the head of a shuffled list of pages, the second one the part behind it.
  const uint32_t hot_pages = static_cast<uint32_t>((hot_mib << 20) / kPageBytes);
  std::vector<uint32_t> order(gups.pages);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = 0; i < 2 * hot_pages; ++i) std::swap(order[i], order[i + gups.random.below(gups.pages - i)]);
  gups.hot.assign(order.begin(), order.begin() + hot_pages);
  gups.mark_hot();
  std::printf("gups: table of %llu MiB filled\n", static_cast<unsigned long long>(table_mib));
  std::fflush(stdout);
  neotier_mark_phase(&gups.marker, "updates");

  const uint64_t jump = jump_at < 1 ? static_cast<uint64_t>(jump_at * static_cast<double>(windows)) : windows;
  const uint64_t settled = jump - jump / 4;
  for (uint64_t w = 0; w < windows; ++w) {
    if (w == settled) neotier_mark_phase(&gups.marker, "settled");
    if (w == jump) {
      gups.hot.assign(order.begin() + hot_pages, order.begin() + 2 * hot_pages);
      gups.mark_hot();
      neotier_mark_phase(&gups.marker, "jump");
    }
    gups.update(updates * (w + 1) / windows - updates * w / windows);
    neotier_mark(&gups.marker, NEOTIER_MARK_WINDOW, updates * (w + 1) / windows);
  }
  neotier_mark_phase(&gups.marker, "end");

  uint64_t sum = 0;
  for (uint64_t i = 0; i < bytes / 8; i += kWordsPerPage) sum += gups.table[i];
  std::printf("gups: %llu updates, table %llu MiB, hot %llu MiB, checksum %016llx\n",
              static_cast<unsigned long long>(updates), static_cast<unsigned long long>(table_mib),
              static_cast<unsigned long long>(hot_mib), static_cast<unsigned long long>(sum));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  neotier_open_standard_streams();
  return neotier_finish_output("gups", run(argc, argv));
}
