// SPDX-License-Identifier: Apache-2.0
#include "bench/engine_bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "kv/kv_store.h"
#include "util/cpu_clock.h"

namespace neotier::engine {

namespace {

constexpr uint64_t kObjectBytes = 65536;
constexpr size_t kBatch = 1000;

// Gives out numbers and completes transfers at once.
class NoBytesTier final : public Tier {
 public:
  NoBytesTier(std::string name, TierKind kind, uint64_t capacity) {
    info_.name = std::move(name);
    info_.kind = kind;
    info_.capacity_bytes = capacity;
    info_.stand_in = true;
  }
  const TierInfo& info() const override { return info_; }
  TierUsage usage() const override { return {used_, used_ / kObjectBytes}; }
  Result<Extent> allocate(const Key&, uint64_t bytes) override {
    if (used_ + bytes > info_.capacity_bytes) return Status(Code::kFull, "full");
    used_ += bytes;
    return next_++;
  }
  void free(Extent) override { used_ -= kObjectBytes; }
  std::byte* map(Extent) override { return nullptr; }
  size_t submit(std::span<Transfer* const> transfers) override {
    for (Transfer* t : transfers) t->done(*t, Status());
    return transfers.size();
  }
  void cancel(Transfer&) override {}
  size_t poll() override { return 0; }
  bool in_service() const override { return true; }
  Status come_back() override { return {}; }
  Result<std::vector<Recovered>> recover() override { return std::vector<Recovered>(); }

 private:
  TierInfo info_;
  uint64_t used_ = 0;
  Extent next_ = 0;
};

Key key_of(uint64_t n) {
  // As a hash would be: nothing about neighbours is alike.
  uint64_t x = n * 0x9e3779b97f4a7c15u + 1;
  Key key;
  for (int i = 0; i < 2; i++) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    std::memcpy(key.bytes + 8 * i, &x, 8);
  }
  return key;
}

uint64_t resident_bytes() {
  uint64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

template <typename Body>
double mean_ns(uint64_t count, Body body) {
  const double begin = cpu_seconds();
  for (uint64_t i = 0; i < count; i++) body(i);
  return (cpu_seconds() - begin) * 1e9 / static_cast<double>(count);
}

// A thread's time but for what it waited for a processor: what else runs on the machine is not what is measured.
// Waiting for a lock counts. The kernel tells it to the tick; where it does not, this is wall time.
double undisturbed_seconds() {
  uint64_t ran_ns = 0, waited_ns = 0;
  std::ifstream("/proc/thread-self/schedstat") >> ran_ns >> waited_ns;
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  return now.count() - static_cast<double>(waited_ns) * 1e-9;
}

// Keys looked up a second by so many threads at once. Each calls `body(thread, from)` for each `each` keys of `keys`,
// in a ring from a place of its own; it returns how many of them were found.
template <typename Body>
double lookups_per_s(size_t keys, size_t each, unsigned threads, const Body& body) {
  std::barrier start(threads);
  std::atomic<size_t> found{0};
  std::vector<double> took(threads);
  std::vector<std::jthread> all;
  const size_t calls = keys / each;
  for (unsigned t = 0; t < threads; t++) {
    all.emplace_back([&, t] {
      size_t mine = 0;
      start.arrive_and_wait();
      const double begin = undisturbed_seconds();
      for (size_t i = 0, at = calls / threads * t; i < calls; i++, at = at + 1 == calls ? 0 : at + 1)
        mine += body(t, at * each);
      took[t] = undisturbed_seconds() - begin;
      found += mine;
    });
  }
  all.clear();
  if (found != calls * each * threads) throw std::runtime_error("a lookup found nothing");
  double rate = 0;
  for (const double seconds : took) rate += static_cast<double>(calls * each) / seconds;
  return rate;
}

// Taken in turn, medians: what else runs on the machine is the same for both.
template <typename Body>
LookupFigures bench_lookups(size_t keys, size_t each, const Body& body) {
  constexpr int kRuns = 7;
  std::vector<double> one, two, ratio;
  for (int run = 0; run < kRuns; run++) {
    one.push_back(lookups_per_s(keys, each, 1, body));
    two.push_back(lookups_per_s(keys, each, 2, body));
    ratio.push_back(two.back() / one.back());
  }
  for (auto* of : {&one, &two, &ratio}) std::sort(of->begin(), of->end());
  return {one[kRuns / 2], ratio[kRuns / 2]};
}

// Look-ups of prompts by a KV store's sessions: again by one that has begun this request, so that the policies are told
// of nothing, or by one that had another and begins this one.
void bench_kv_lookups(Engine& engine, const std::vector<Key>& keys, EngineFigures& figures) {
  constexpr size_t kPrompt = 32;
  kv::StoreOptions options;
  options.layers = 1;
  options.layer_bytes = kObjectBytes;
  options.recompute_ns = 1000000000;
  kv::KvStore store(engine, options);
  const kv::TenantId tenant = store.tenant("bench", 0);
  const auto sessions = [&](size_t nr) {
    std::vector<kv::SessionId> all(nr);
    for (kv::SessionId& session : all) session = *store.open_session(tenant, 0);
    return all;
  };
  const auto look = [&](kv::SessionId session, size_t from) {
    const auto found = store.lookup(session, std::span(keys).subspan(from, kPrompt));
    return found ? *found : 0;
  };
  // One a thread and prompt.
  const std::vector<kv::SessionId> again = sessions(2 * (keys.size() / kPrompt)), other = sessions(2);
  const auto look_again = [&](unsigned thread, size_t from) { return look(again[from / kPrompt * 2 + thread], from); };
  (void)lookups_per_s(keys.size(), kPrompt, 2, look_again);
  figures.kv_lookups = bench_lookups(keys.size(), kPrompt, look_again);
  figures.kv_requests =
      bench_lookups(keys.size(), kPrompt, [&](unsigned thread, size_t from) { return look(other[thread], from); });
}

}  // namespace

EngineFigures bench_engine(const EngineBenchOptions& options) {
  if (options.objects < 10 * kBatch)
    throw std::runtime_error(fmt::format("{} objects: give at least {}", options.objects, 10 * kBatch));
  const auto step = [&](const std::string& what) {
    if (options.stop()) throw std::runtime_error("interrupted");
    options.progress(what);
  };
  const uint64_t resident = resident_bytes();
  // A third in DRAM, two thirds and some room in CXL memory and on the SSD.
  const uint64_t dram = options.objects / 3;
  std::vector<TierSetup> tiers(3);
  const char* const names[] = {"dram", "cxl", "ssd"};
  const TierKind kinds[] = {TierKind::kDram, TierKind::kCxl, TierKind::kSsd};
  const uint64_t capacities[] = {dram, options.objects / 3, options.objects};
  for (size_t i = 0; i < 3; i++) {
    tiers[i].tier = std::make_unique<NoBytesTier>(names[i], kinds[i], capacities[i] * kObjectBytes);
    tiers[i].policy = options.policy;
    tiers[i].object_bytes = kObjectBytes;
  }
  EngineConfig config;
  config.max_objects = options.objects;
  config.seed = options.seed;
  config.events = 1 << 16;
  config.measure = config.thread = false;
  config.knobs.promote_heat = 0;
  config.knobs.hysteresis_ms = 0;
  config.knobs.high_watermark = config.knobs.low_watermark = 1;
  Engine engine(config, std::move(tiers));
  Catalogue& catalogue = engine.catalogue();

  // By hand, as recovery does: a put would measure the mover, which has its own figure.
  for (uint64_t n = 0; n < options.objects; n++) {
    if (n % 1000000 == 0) step(fmt::format("{} of {} objects", n, options.objects));
    const Key key = key_of(n);
    const Result<Handle> handle = catalogue.index().add(key);
    if (!handle) throw std::runtime_error(handle.status().what());
    catalogue[*handle].bytes = kObjectBytes;
    catalogue[*handle].recompute = encode_cost(1000000000);
    TierId at = n < dram ? 0 : n < 2 * dram ? 1 : 2;
    const Result<Extent> extent = catalogue.tier(at).allocate(key, kObjectBytes);
    if (!extent) throw std::runtime_error(extent.status().what());
    catalogue.insert_copy(*handle, at, *extent, 0, true);
  }
  EngineFigures figures;
  figures.objects = options.objects;
  figures.policy = options.policy;
  figures.record_bytes = sizeof(Record);
  figures.bytes_per_object = catalogue.bytes_per_object();
  figures.resident_bytes_per_object =
      static_cast<double>(resident_bytes() - resident) / static_cast<double>(options.objects);

  std::mt19937_64 random(options.seed);
  std::vector<Key> keys(options.operations);
  for (Key& key : keys) key = key_of(random() % options.objects);
  uint64_t sum = 0;
  step("lookups");
  figures.index_ns =
      mean_ns(options.operations, [&](uint64_t i) { sum += catalogue[catalogue.index().find(keys[i])].bytes; });
  if (sum != options.operations * kObjectBytes) throw std::runtime_error("a lookup found nothing");
  figures.lookups = bench_lookups(keys.size(), 1, [&](unsigned, size_t at) {
    return engine.lookup_prefix({&keys[at], 1});
  });
  figures.use_ns = mean_ns(options.operations, [&](uint64_t i) { (void)engine.touch(keys[i]); });
  for (Key& key : keys) key = key_of(options.objects + random() % options.objects);
  figures.miss_ns = mean_ns(options.operations, [&](uint64_t i) { sum += engine.lookup_prefix({&keys[i], 1}); });

  for (Key& key : keys) key = key_of(random() % options.objects);
  step("look-ups of a KV store");
  bench_kv_lookups(engine, keys, figures);

  step("plans");
  std::vector<Planned> plan;
  uint64_t planned = 0;
  const uint64_t rounds = std::max<uint64_t>(1, options.operations / 64);
  const double round_ns = mean_ns(rounds, [&](uint64_t) {
    plan.clear();
    engine.planner().make_room(0, 0, 64 * kObjectBytes, MoveClass::kDemand, 0, plan);
    planned += plan.size();
    // Used: they go to the front, and the next round sees others.
    for (const Planned& p : plan) (void)catalogue.use_alone(p.object, 0);
  });
  figures.plan_ns = round_ns * static_cast<double>(rounds) / static_cast<double>(planned);

  step("moves");
  // Down from DRAM, one after the other; CXL memory is full, so half of the moves make a second one on to the SSD.
  std::vector<Key> batch(kBatch);
  const uint64_t batches = std::min(options.operations, dram / 2) / kBatch;
  const uint64_t before = engine.status().counters.moves;
  const double batch_ns = mean_ns(batches, [&](uint64_t b) {
    for (size_t i = 0; i < kBatch; i++) batch[i] = key_of(b * kBatch + i);
    const TicketRef ticket = engine.move(batch, "cxl", MoveClass::kDemand);
    while (ticket->progress().pending > 0) engine.step();
  });
  const uint64_t moves = engine.status().counters.moves - before;
  if (moves < batches * kBatch) throw std::runtime_error(fmt::format("{} of {} moves", moves, batches * kBatch));
  figures.move_ns = batch_ns * static_cast<double>(batches) / static_cast<double>(moves);
  return figures;
}

}  // namespace neotier::engine
