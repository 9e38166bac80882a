// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/memory/memory_tier.h"

#include <fmt/format.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "engine/tiers/memory/page_nodes.h"
#include "util/host_memory.h"

namespace neotier::engine {

namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr std::chrono::seconds kNodesAge{1};

// mbind to that node alone; false where the kernel or a container does not permit it.
bool bind(void* memory, size_t bytes, int node) {
  bitmask* nodes = numa_allocate_nodemask();
  numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
  const long result = mbind(memory, bytes, MPOL_BIND, nodes->maskp, nodes->size + 1, 0);
  numa_free_nodemask(nodes);
  return result == 0;
}

}  // namespace

std::vector<int> nodes_without_processors() {
  std::vector<int> found;
  if (numa_available() < 0) return found;
  bitmask* cpus = numa_allocate_cpumask();
  for (int node = 0; node <= numa_max_node(); node++) {
    if (numa_node_size64(node, nullptr) > 0 && numa_node_to_cpus(node, cpus) == 0 && numa_bitmask_weight(cpus) == 0)
      found.push_back(node);
  }
  numa_free_cpumask(cpus);
  return found;
}

MemoryTier::MemoryTier(MemoryTierOptions options) : options_(std::move(options)), arena_(options_.capacity_bytes) {
  info_.name = options_.name;
  info_.kind = options_.kind;
  info_.capacity_bytes = arena_.capacity_bytes();
  if (info_.capacity_bytes == 0)
    throw std::runtime_error(fmt::format("tier {}: {} bytes are less than a page of {}", options_.name,
                                         options_.capacity_bytes, Arena::kPage));
  const bool numa = numa_available() >= 0;
  node_ = options_.node;
  if (options_.kind == TierKind::kCxl) {
    const std::vector<int> far = nodes_without_processors();
    if (node_ < 0 && !far.empty()) node_ = far.front();
    info_.stand_in = std::find(far.begin(), far.end(), node_) == far.end();
  }
  if (options_.kind == TierKind::kGpu) info_.stand_in = true;
  if (options_.mode == MemoryMode::kKernel) {
    if (options_.kind != TierKind::kCxl)
      throw std::runtime_error(fmt::format("tier {}: mode kernel is for cxl tiers: this one is none", options_.name));
    if (node_ < 0)
      throw std::runtime_error(fmt::format(
          "tier {}: mode kernel needs a memory node, and no node is without processors here; name one (node), or bind",
          options_.name));
    if (options_.huge_pages == HugePages::kExplicit)
      throw std::runtime_error(fmt::format(
          "tier {}: mode kernel with explicit huge pages: the kernel does not move these; none or transparent",
          options_.name));
    info_.kernel_moves = true;
  }
  if (node_ >= 0 && (!numa || node_ > numa_max_node() || numa_node_size64(node_, nullptr) <= 0))
    throw std::runtime_error(
        fmt::format("tier {}: no NUMA node {} with memory; numactl --hardware lists them", options_.name, node_));
  // Pages are taken as they are touched: what cannot be there would only be missed then, and end the process.
  const uint64_t machine = host_memory_bytes();
  const uint64_t most =
      node_ < 0 ? machine : std::min<uint64_t>(machine, static_cast<uint64_t>(numa_node_size64(node_, nullptr)));
  if (info_.capacity_bytes > most)
    throw std::runtime_error(fmt::format("tier {}: {} bytes; {} has {} of memory in all", options_.name,
                                         options_.capacity_bytes,
                                         node_ < 0 ? "this machine" : fmt::format("NUMA node {}", node_), most));

  mapped_bytes_ = (info_.capacity_bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = MAP_FAILED;
  std::string pages = "4 KiB pages";
  if (options_.huge_pages == HugePages::kExplicit) {
    memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    pages = "2 MiB pages of the system's pool";
  }
  if (memory == MAP_FAILED) {
    memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      throw std::runtime_error(
          fmt::format("tier {}: cannot map {} bytes: {}", options_.name, mapped_bytes_, std::strerror(errno)));
    if (options_.huge_pages != HugePages::kNone) {
      const bool advised = madvise(memory, mapped_bytes_, MADV_HUGEPAGE) == 0;
      pages = advised ? "transparent huge pages" : "4 KiB pages: the kernel has no transparent huge ones";
      if (options_.huge_pages == HugePages::kExplicit) pages += ", the system's pool being too small (vm.nr_hugepages)";
    } else if (info_.kernel_moves) {
      // Or khugepaged would gather pages again that were moved one by one. Kernels without it have nothing to refuse.
      (void)madvise(memory, mapped_bytes_, MADV_NOHUGEPAGE);
    }
  }
  base_ = static_cast<std::byte*>(memory);
  const unsigned threads =
      options_.threads ? options_.threads : std::clamp(std::thread::hardware_concurrency() / 2, 1u, 4u);
  std::string where = "not bound to a node";
  if (info_.kernel_moves) {
    if (const int error = take_pages_on(base_, info_.capacity_bytes, node_, threads)) {
      munmap(base_, mapped_bytes_);
      throw std::runtime_error(
          fmt::format("tier {}: mode kernel: cannot take {} bytes on node {}: {}; see to the room there, and that "
                      "mbind is permitted",
                      options_.name, info_.capacity_bytes, node_, std::strerror(error)));
    }
    where = fmt::format("began on node {}, moved by the kernel", node_);
  } else if (node_ >= 0) {
    where = bind(memory, mapped_bytes_, node_) ? fmt::format("node {}", node_)
                                               : fmt::format("node {} wanted, but mbind is not permitted", node_);
  }
  copy_ = best_copy();
  notes_ = fmt::format("{}, {}, {} copy threads, {}{}", where, pages, threads, copy_name(copy_),
                       !info_.stand_in                   ? ""
                       : options_.kind == TierKind::kGpu ? "; a stand-in for a GPU's memory, which there is none of"
                                                         : "; a stand-in: this machine has no CXL memory node");
  for (unsigned i = 0; i < threads; i++) threads_.emplace_back([this] { work(); });
}

MemoryTier::~MemoryTier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  munmap(base_, mapped_bytes_);
}

Result<Extent> MemoryTier::allocate(const Key&, uint64_t bytes) {
  if (bytes == 0 || bytes > UINT32_MAX)
    return Status(Code::kInvalid, fmt::format("tier {}: {} bytes are not in 1 .. {}", info_.name, bytes, UINT32_MAX));
  if (!in_service()) return Status(Code::kGone, fmt::format("tier {} is out of service", info_.name));
  const Extent extent = arena_.allocate(bytes);
  if (extent == kNoExtent)
    return Status(Code::kFull, fmt::format("tier {} has no room for {} bytes", info_.name, bytes));
  return extent;
}

void MemoryTier::free(Extent extent) { (void)arena_.free(extent); }

std::byte* MemoryTier::map(Extent extent) {
  return options_.kind == TierKind::kGpu ? nullptr : base_ + Arena::offset_of(extent);
}

std::vector<NodeBytes> MemoryTier::nodes() const {
  if (!info_.kernel_moves) return {};
  const std::lock_guard lock(nodes_mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now >= nodes_until_) {
    nodes_ = sample_nodes(base_, info_.capacity_bytes, nodes_random_);
    nodes_until_ = now + kNodesAge;
  }
  return nodes_;
}

// As a stand-in for a GPU: what plays the device's address is one of this process, for tests to compute on.
std::byte* MemoryTier::address(Extent extent) { return base_ + Arena::offset_of(extent); }

size_t MemoryTier::submit(std::span<Transfer* const> transfers) {
  size_t taken = 0;
  try {
    std::lock_guard lock(mutex_);
    for (; taken < transfers.size(); taken++) queue_.push_back(transfers[taken]);
  } catch (const std::bad_alloc&) {
    // As where a queue is full: the rest comes again.
  }
  if (taken == 1) {
    work_.notify_one();
  } else {
    work_.notify_all();
  }
  return taken;
}

void MemoryTier::cancel(Transfer& transfer) {
  {
    std::lock_guard lock(mutex_);
    const auto it = std::find(queue_.begin(), queue_.end(), &transfer);
    if (it == queue_.end()) return;
    queue_.erase(it);
  }
  transfer.done(transfer, Status(Code::kCancelled, "cancelled"));
}

bool MemoryTier::in_service() const {
  std::lock_guard lock(mutex_);
  return in_service_;
}

void MemoryTier::set_present(bool present) {
  std::lock_guard lock(mutex_);
  present_ = present;
  if (!present) in_service_ = false;
}

Status MemoryTier::come_back() {
  std::lock_guard lock(mutex_);
  if (!present_) return Status(Code::kGone, fmt::format("tier {}: its memory is withdrawn", info_.name));
  in_service_ = true;
  return {};
}

Status MemoryTier::check(const Transfer& transfer) const {
  if (!in_service()) return Status(Code::kGone, fmt::format("tier {} is out of service", info_.name));
  if (transfer.op == Op::kFlush) return Status(Code::kUnsupported, "memory is not durable");
  if (!arena_.holds(transfer.extent)) return Status(Code::kInvalid, fmt::format("tier {}: no such extent", info_.name));
  const uint64_t bytes = bytes_of(transfer.pieces), room = Arena::bytes_of(transfer.extent);
  if (transfer.offset > room || bytes > room - transfer.offset)
    return Status(Code::kInvalid,
                  fmt::format("tier {}: {} bytes at {} of an extent of {}", info_.name, bytes, transfer.offset, room));
  return {};
}

Status MemoryTier::copy(Transfer& transfer) {
  Status status = check(transfer);
  if (status.is_ok() && options_.before_copy) {
    status = options_.before_copy(transfer.op);
    if (status.is_ok()) status = check(transfer);
  }
  if (!status.is_ok()) return status;
  std::byte* at = base_ + Arena::offset_of(transfer.extent) + transfer.offset;
  for (const Piece& piece : transfer.pieces) {
    if (piece.bytes == 0) continue;
    if (transfer.op == Op::kWrite) {
      copy_(at, piece.data, piece.bytes);
    } else {
      copy_(piece.data, at, piece.bytes);
    }
    at += piece.bytes;
  }
  return {};
}

void MemoryTier::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Transfer* transfer = queue_.front();
    queue_.pop_front();
    lock.unlock();
    Status status = no_memory();
    try {
      status = copy(*transfer);
    } catch (const std::bad_alloc&) {
      // Its error had no room for words.
    }
    transfer->done(*transfer, std::move(status));
    lock.lock();
  }
}

}  // namespace neotier::engine
