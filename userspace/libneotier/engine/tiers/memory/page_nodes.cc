// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/memory/page_nodes.h"

#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <thread>

namespace neotier::engine {

namespace {

// On the stack. The kernel holds the lock of the address space for 16 of them at a time.
constexpr size_t kAskedAtOnce = 256;
// A thread's turn: small enough that threads end together, and of whole huge pages.
constexpr uint64_t kTurn = uint64_t{64} << 20;
// MADV_POPULATE_WRITE, which older headers do not name.
constexpr int kPopulateWrite = 23;

uint64_t page_bytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

// 0 or an errno value.
int populate(std::byte* memory, uint64_t bytes) {
  while (madvise(memory, bytes, kPopulateWrite) != 0) {
    if (errno == EAGAIN || errno == EINTR) continue;
    // Kernels before 5.14.
    if (errno != EINVAL) return errno;
    for (uint64_t at = 0; at < bytes; at += page_bytes()) static_cast<volatile std::byte*>(memory)[at] = std::byte{0};
    return 0;
  }
  return 0;
}

}  // namespace

bool ask_kernel(std::span<void*> pages, int* nodes) {
  return move_pages(0, pages.size(), pages.data(), nullptr, nodes, 0) >= 0;
}

std::vector<NodeBytes> sample_nodes(std::byte* memory, uint64_t bytes, std::mt19937_64& random, const AskNodes& ask) {
  const uint64_t page = page_bytes(), pages = bytes / page, asked = std::min<uint64_t>(pages, kSampledPages);
  std::map<int, uint64_t> found;
  void* at[kAskedAtOnce];
  int nodes[kAskedAtOnce];
  for (uint64_t first = 0; first < asked; first += kAskedAtOnce) {
    const size_t count = std::min<uint64_t>(kAskedAtOnce, asked - first);
    for (size_t i = 0; i < count; i++) {
      const uint64_t begin = (first + i) * pages / asked, end = (first + i + 1) * pages / asked;
      at[i] = memory + (begin + random() % (end - begin)) * page;
    }
    if (!ask({at, count}, nodes)) return {};
    for (size_t i = 0; i < count; i++) {
      if (nodes[i] >= 0) found[nodes[i]]++;
    }
  }
  std::vector<NodeBytes> result;
  for (const auto& [node, count] : found)
    result.push_back({node, static_cast<uint64_t>(static_cast<double>(count) / static_cast<double>(asked) *
                                                  static_cast<double>(pages * page))});
  return result;
}

int take_pages_on(std::byte* memory, uint64_t bytes, int node, unsigned threads) {
  const std::unique_ptr<bitmask, void (*)(bitmask*)> nodes(numa_allocate_nodemask(), numa_free_nodemask);
  numa_bitmask_setbit(nodes.get(), static_cast<unsigned>(node));
  if (mbind(memory, bytes, MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0) != 0) return errno;
  std::atomic<uint64_t> next{0};
  std::atomic<int> failed{0};
  const auto take = [&] {
    while (failed == 0) {
      const uint64_t at = next.fetch_add(kTurn);
      if (at >= bytes) return;
      if (const int error = populate(memory + at, std::min(kTurn, bytes - at))) failed = error;
    }
  };
  {
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < threads && i * kTurn < bytes; i++) others.emplace_back(take);
    take();
  }
  if (failed) return failed;
  return mbind(memory, bytes, MPOL_DEFAULT, nullptr, 0, 0) == 0 ? 0 : errno;
}

}  // namespace neotier::engine
