// SPDX-License-Identifier: Apache-2.0
#include "bench/memory_bench.h"

#include <fmt/format.h>
#include <numa.h>
#include <numaif.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <thread>

#include "engine/mapped_array.h"
#include "util/median.h"

namespace neotier::engine {

namespace {

constexpr size_t kBatch = 256;
constexpr int kLatencySamples = 400;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Submits transfers in batches and keeps the tier busy until all have ended.
class Run {
 public:
  Run(Tier& tier, Op op, const std::vector<Extent>& extents, std::byte* memory, uint64_t piece) : tier_(tier) {
    pieces_.reserve(extents.size());
    for (size_t i = 0; i < extents.size(); i++) {
      pieces_.push_back({memory + i * piece, piece});
      Transfer& t = transfers_.emplace_back();
      t.op = op;
      t.extent = extents[i];
      t.pieces = {&pieces_.back(), 1};
      t.done = [this](Transfer&, const Status& status) {
        std::lock_guard lock(mutex_);
        if (!status.is_ok()) error_ = status;
        // Woken once a batch, or the benchmark would measure its own wake-ups.
        if (++done_ % kBatch == 0 || done_ == transfers_.size()) changed_.notify_one();
      };
    }
  }
  double seconds() {
    std::vector<Transfer*> all;
    for (Transfer& t : transfers_) all.push_back(&t);
    const auto begin = std::chrono::steady_clock::now();
    for (size_t sent = 0; sent < all.size();) {
      const size_t most = std::min(kBatch, all.size() - sent);
      sent += tier_.submit({all.data() + sent, most});
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return done_ + kBatch >= sent; });
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ == transfers_.size(); });
    if (!error_.is_ok()) throw std::runtime_error(error_.what());
    return seconds_since(begin);
  }

 private:
  Tier& tier_;
  std::vector<Piece> pieces_;
  std::deque<Transfer> transfers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t done_ = 0;
  Status error_;
};

double memcpy_seconds(const std::vector<std::byte*>& to, const std::byte* from, uint64_t piece, unsigned threads) {
  const auto begin = std::chrono::steady_clock::now();
  const auto part = [&](unsigned id) {
    for (size_t i = id; i < to.size(); i += threads) std::memcpy(to[i], from + i * piece, piece);
  };
  std::vector<std::thread> others;
  for (unsigned id = 1; id < threads; id++) others.emplace_back(part, id);
  part(0);
  for (std::thread& thread : others) thread.join();
  return seconds_since(begin);
}

}  // namespace

MemoryFigures bench_memory(MemoryTierOptions tier_options, const MemoryBenchOptions& options) {
  tier_options.capacity_bytes = std::max(tier_options.capacity_bytes, options.set_bytes + (64 << 20));
  if (tier_options.threads == 0) tier_options.threads = std::clamp(std::thread::hardware_concurrency() / 2, 1u, 4u);
  MemoryTier tier(tier_options);
  MemoryFigures figures;
  figures.info = tier.info();
  figures.notes = tier.notes();
  figures.threads = tier_options.threads;
  MappedArray<std::byte> memory(options.set_bytes);
  std::memset(memory.data(), 0x5a, memory.size());

  for (const uint64_t piece : {uint64_t{64} << 10, uint64_t{256} << 10, uint64_t{1} << 20}) {
    std::vector<Extent> extents;
    std::vector<std::byte*> places;
    for (uint64_t at = 0; at + piece <= options.set_bytes; at += piece) {
      const Result<Extent> extent = tier.allocate(Key{}, piece);
      if (!extent) throw std::runtime_error(extent.status().what());
      extents.push_back(*extent);
      places.push_back(tier.map(*extent));
    }
    std::vector<double> writes, reads, plain;
    const double bytes = static_cast<double>(extents.size() * piece);
    for (unsigned round = 0; round <= options.rounds; round++) {
      if (options.stop()) throw std::runtime_error("interrupted");
      options.progress(
          fmt::format("{}: pieces of {} KiB, round {} of {}", tier.info().name, piece >> 10, round, options.rounds));
      const double w = bytes / Run(tier, Op::kWrite, extents, memory.data(), piece).seconds();
      const double c = bytes / memcpy_seconds(places, memory.data(), piece, figures.threads);
      const double r = bytes / Run(tier, Op::kRead, extents, memory.data(), piece).seconds();
      if (round == 0) continue;  // pages are touched for the first time
      writes.push_back(w);
      plain.push_back(c);
      reads.push_back(r);
    }
    figures.copies.push_back({piece, median(writes), median(reads), median(plain)});
    for (const Extent extent : extents) tier.free(extent);
  }

  const Result<Extent> page = tier.allocate(Key{}, 4096);
  if (!page) throw std::runtime_error(page.status().what());
  for (const Op op : {Op::kRead, Op::kWrite}) {
    std::vector<double> times;
    for (int i = 0; i < kLatencySamples; i++)
      times.push_back(Run(tier, op, {*page}, memory.data(), 4096).seconds() * 1e9);
    (op == Op::kRead ? figures.read_latency_ns : figures.write_latency_ns) = median(times);
  }
  return figures;
}

MovePagesFigures bench_move_pages(const MemoryBenchOptions& options) {
  constexpr uint64_t kPage = 4096, kPages = 512;
  MovePagesFigures figures;
  if (numa_available() < 0) {
    figures.not_run = "the kernel has no NUMA";
    return figures;
  }
  const std::vector<int> far = nodes_without_processors();
  for (int node = 0; node <= numa_max_node() && figures.from < 0; node++) {
    if (numa_node_size64(node, nullptr) > 0 && std::find(far.begin(), far.end(), node) == far.end())
      figures.from = node;
  }
  for (int node = 0; node <= numa_max_node() && figures.to < 0; node++) {
    const bool wanted = far.empty() ? node != figures.from : node == far.front();
    if (wanted && numa_node_size64(node, nullptr) > 0) figures.to = node;
  }
  if (figures.from < 0 || figures.to < 0) {
    figures.not_run = "this machine has one NUMA node: there is nowhere to move pages to";
    return figures;
  }
  const uint64_t bytes = std::min<uint64_t>(options.set_bytes, 64 << 20);
  const auto deleter = [bytes](std::byte* p) { numa_free(p, bytes); };
  const auto on_node = [&](int node) {
    return std::unique_ptr<std::byte, decltype(deleter)>(static_cast<std::byte*>(numa_alloc_onnode(bytes, node)),
                                                         deleter);
  };
  const auto source = on_node(figures.from), target = on_node(figures.to);
  if (!source || !target) {
    figures.not_run = "no memory on the two nodes";
    return figures;
  }
  std::memset(source.get(), 1, bytes);
  std::memset(target.get(), 2, bytes);
  const auto copied = std::chrono::steady_clock::now();
  std::memcpy(target.get(), source.get(), bytes);
  figures.memcpy_bytes_per_s = static_cast<double>(bytes) / seconds_since(copied);
  const auto begin = std::chrono::steady_clock::now();
  uint64_t moved = 0;
  for (uint64_t at = 0; at < bytes; at += kPage * kPages) {
    void* pages[kPages];
    int nodes[kPages], status[kPages];
    const uint64_t count = std::min(kPages, (bytes - at) / kPage);
    for (uint64_t i = 0; i < count; i++) {
      pages[i] = source.get() + at + i * kPage;
      nodes[i] = figures.to;
    }
    if (move_pages(0, count, pages, nodes, status, MPOL_MF_MOVE) < 0) {
      figures.not_run = fmt::format("move_pages: {}", std::strerror(errno));
      return figures;
    }
    moved += static_cast<uint64_t>(std::count(status, status + count, figures.to));
  }
  figures.bytes_per_s = static_cast<double>(moved * kPage) / seconds_since(begin);
  return figures;
}

}  // namespace neotier::engine
