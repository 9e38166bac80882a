// SPDX-License-Identifier: Apache-2.0
// Programs that are each one shape of memory use, for what GUPS does not have: equal heat, a hot set that keeps
// jumping, bursts, growth and freeing, chains of pointers. Anonymous memory, one thread, no input; the same accesses
// from a seed.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "neotier/mark.h"
#include "neotier/standard_output.h"
#include "random.h"

namespace {

using neotier::Random;

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kWordsPerPage = kPageBytes / 8;
constexpr uint32_t kPagesPerMib = (1 << 20) / kPageBytes;

struct Settings {
  uint32_t mib = 0;
  uint64_t accesses = 0;
  uint64_t seed = 1;
  uint64_t every = 0;  // accesses between two changes of the hot set
};

// Whole pages from the kernel, given back at the end of its life.
class Pages {
 public:
  explicit Pages(uint32_t count) : count_(count) {
    void* p = mmap(nullptr, count * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    words_ = static_cast<uint64_t*>(p);
  }
  Pages(Pages&& other) noexcept : words_(std::exchange(other.words_, nullptr)), count_(other.count_) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(words_, other.words_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Pages() {
    if (words_) munmap(words_, count_ * kPageBytes);
  }
  uint32_t count() const { return count_; }
  uint64_t* page(uint32_t n) { return words_ + n * kWordsPerPage; }
  uint64_t words() const { return count_ * kWordsPerPage; }
  void fill() {
    for (uint64_t i = 0; i < words(); ++i) words_[i] = i;
  }

 private:
  uint64_t* words_ = nullptr;
  uint32_t count_;
};

// Where `--roi-after ready` begins: all memory that the shape keeps is there.
void ready() {
  std::puts("shapes: ready");
  std::fflush(stdout);
  const neotier_marker marker = neotier_marker_open();
  neotier_mark_phase(&marker, "work");
}

std::vector<uint32_t> shuffled(uint32_t n, Random& random) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

// Read-modify-write of a random word in one of `pages`.
uint64_t update(Pages& table, const uint32_t* pages, uint32_t count, uint64_t n, Random& random) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t x = random.next();
    sum += table.page(pages[(x >> 32) * count >> 32])[x % kWordsPerPage] ^= x;
  }
  return sum;
}

// Sweeps over edges that are all read once a sweep, as PageRank does; ranks are an eighteenth of the memory.
uint64_t pagerank(const Settings& s, Random random) {
  constexpr uint32_t kDegree = 32;
  constexpr uint32_t kNear = 1024;
  const auto vertices =
      static_cast<uint32_t>((uint64_t{s.mib} << 20) / (kDegree * sizeof(uint32_t) + 2 * sizeof(float)));
  std::vector<float> rank(vertices), next(vertices);
  std::vector<uint32_t> source(uint64_t{vertices} * kDegree);
  for (uint64_t e = 0; e < source.size(); ++e) {
    // As in graphs of the web, most neighbours are near: seven of eight.
    const uint64_t x = random.next();
    source[e] = static_cast<uint32_t>((x & 7 ? e / kDegree + (x >> 32) % kNear : x >> 32) % vertices);
  }
  // Ranks that begin equal would stay so: each vertex has as many neighbours.
  for (float& one : rank) one = static_cast<float>(random.below(1000)) / 500;
  ready();
  uint64_t left = s.accesses;
  while (left > 0) {
    for (uint32_t v = 0; v < vertices && left > 0; ++v) {
      const auto edges = static_cast<uint32_t>(std::min<uint64_t>(left, kDegree));
      float sum = 0;
      for (uint32_t e = 0; e < edges; ++e) sum += rank[source[uint64_t{v} * kDegree + e]];
      next[v] = 0.15f + 0.85f * sum / kDegree;
      left -= edges;
    }
    rank.swap(next);
  }
  return static_cast<uint64_t>(1e3 * std::accumulate(rank.begin(), rank.end(), 0.0));
}

// 90 % of the updates go to an eighth of the pages, which is drawn anew again and again.
uint64_t jump(const Settings& s, Random random) {
  Pages table(s.mib * kPagesPerMib);
  table.fill();
  std::vector<uint32_t> order = shuffled(table.count(), random);
  ready();
  uint64_t sum = 0;
  for (uint64_t left = s.accesses; left > 0;) {
    const uint64_t n = std::min(left, s.every);
    constexpr uint64_t kBatch = 10;
    for (uint64_t done = 0; done < n; done += kBatch) {
      const uint64_t batch = std::min(kBatch, n - done);
      sum += update(table, order.data(), table.count() / 8, batch - batch / kBatch, random);
      sum += update(table, order.data(), table.count(), batch / kBatch, random);
    }
    left -= n;
    order = shuffled(table.count(), random);
  }
  return sum;
}

// All updates go to 4 MiB for a while, then to other 4 MiB: what was hot is cold when it has been counted.
uint64_t burst(const Settings& s, Random random) {
  Pages table(s.mib * kPagesPerMib);
  table.fill();
  std::vector<uint32_t> hot(4 * kPagesPerMib);
  ready();
  uint64_t sum = 0;
  for (uint64_t left = s.accesses; left > 0;) {
    const uint64_t n = std::min(left, s.every);
    for (uint32_t& page : hot) page = random.below(table.count());
    sum += update(table, hot.data(), static_cast<uint32_t>(hot.size()), n, random);
    left -= n;
  }
  return sum;
}

// Parts of 1 MiB come and go: eight times from a quarter of the memory to all of it and back; the newest eighth is hot.
uint64_t grow(const Settings& s, Random random) {
  std::vector<Pages> parts;
  const uint32_t least = std::max(s.mib / 4, 1u);
  const auto add = [&] {
    parts.emplace_back(kPagesPerMib);
    parts.back().fill();
  };
  while (parts.size() < least) add();
  ready();
  const uint64_t steps = uint64_t{16} * std::max(s.mib - least, 1u);
  bool rising = true;
  uint64_t sum = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    if (parts.size() >= s.mib) rising = false;
    if (parts.size() <= least) rising = true;
    if (rising) {
      add();
    } else {
      parts.erase(parts.begin() + random.below(static_cast<uint32_t>(parts.size())));
    }
    const uint64_t n = s.accesses * (step + 1) / steps - s.accesses * step / steps;
    const auto live = static_cast<uint32_t>(parts.size());
    const uint32_t young = std::max(live / 8, 1u);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t x = random.next();
      const uint64_t part = x % 10 ? live - 1 - ((x >> 32) * young >> 32) : (x >> 32) * live >> 32;
      sum += parts[part].page((x >> 16) % kPagesPerMib)[x % kWordsPerPage] ^= x;
    }
  }
  return sum;
}

// Each access waits for the one before: a ring through every line of an eighth of the pages, and one through the rest.
// Seven hops of eight are in the former.
uint64_t chase(const Settings& s, Random random) {
  Pages table(s.mib * kPagesPerMib);
  constexpr uint32_t kLines = kPageBytes / 64;
  const std::vector<uint32_t> order = shuffled(table.count(), random);
  const uint32_t hot = table.count() / 8;
  const auto line = [&](uint64_t n) { return table.page(order[n / kLines]) + n % kLines * 8; };
  // Sattolo 1986: a random permutation that is one cycle. Lines [first, last) of `order`.
  const auto ring = [&](uint64_t first, uint64_t last) {
    for (uint64_t i = first; i < last; ++i) *line(i) = reinterpret_cast<uint64_t>(line(i));
    for (uint64_t i = last - 1; i > first; --i)
      std::swap(*line(i), *line(first + random.below(static_cast<uint32_t>(i - first))));
    return line(first);
  };
  const uint64_t* at[2] = {ring(0, uint64_t{hot} * kLines),
                           ring(uint64_t{hot} * kLines, uint64_t{table.count()} * kLines)};
  ready();
  uint64_t sum = 0;
  for (uint64_t i = 0; i < s.accesses; ++i) {
    const uint64_t*& here = at[i % 8 == 7];
    here = reinterpret_cast<const uint64_t*>(*here);
    sum += static_cast<uint64_t>(here - table.page(0));
  }
  return sum;
}

struct Shape {
  const char* name;
  const char* text;
  uint64_t (*run)(const Settings&, Random);
  uint64_t every;  // the default; 0: nothing changes
};

constexpr Shape kShapes[] = {
    {"pagerank", "sweeps over the edges of a graph: all pages but the ranks' are equally hot", pagerank, 0},
    {"jump", "90 % of the updates to an eighth of the pages, drawn anew every --every updates", jump, 5000000},
    {"burst", "all updates to 4 MiB of pages, drawn anew every --every updates", burst, 200000},
    {"grow", "parts of 1 MiB come and go between a quarter of --mib and all; the newest are hot", grow, 0},
    {"chase", "chains of pointers: seven hops of eight through an eighth of the pages", chase, 0},
};

int run(int argc, char** argv) {
  CLI::App app{"One shape of memory use a subcommand.\n\nexample:\n  shapes burst --mib 144 --accesses 40000000"};
  app.require_subcommand(1);
  Settings settings;
  const Shape* chosen = nullptr;
  for (const Shape& shape : kShapes) {
    CLI::App* one = app.add_subcommand(shape.name, shape.text);
    one->add_option("--mib", settings.mib, "memory, MiB")->required()->check(CLI::Range(8, 1 << 17));
    one->add_option("--accesses", settings.accesses, "accesses once the memory is filled")
        ->required()
        ->check(CLI::Range(uint64_t{1000}, uint64_t{1} << 40));
    one->add_option("--seed", settings.seed, "seed")->capture_default_str()->envname("NEOTIER_SEED");
    if (shape.every)
      one->add_option("--every", settings.every,
                      "accesses between two changes of what is hot; default " + std::to_string(shape.every))
          ->check(CLI::Range(uint64_t{1000}, uint64_t{1} << 40));
    one->callback([&chosen, &shape] { chosen = &shape; });
  }
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("shapes: ") + error.what() + "; --help shows what is possible\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (settings.every == 0) settings.every = chosen->every;
  try {
    const uint64_t checksum = chosen->run(settings, Random{settings.seed});
    std::printf("shapes: %s, %u MiB, %llu accesses, checksum %016llx\n", chosen->name, settings.mib,
                static_cast<unsigned long long>(settings.accesses), static_cast<unsigned long long>(checksum));
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "shapes: no memory for --mib %u; choose less\n", settings.mib);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  neotier_open_standard_streams();
  return neotier_finish_output("shapes", run(argc, argv));
}
