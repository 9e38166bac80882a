// SPDX-License-Identifier: Apache-2.0
// One block of device memory cut up by the arena; a thread and two streams' worth of batches a direction. A batch takes
// what is queued, up to a limit: pieces of registered host memory go directly, by one kernel where they are many and
// small and by the device's copy engines where they are large; other host memory goes through pinned staging.
#include "engine/tiers/cuda/cuda_tier.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/arena.h"
#include "engine/tiers/cuda/cuda_check.h"
#include "engine/tiers/cuda/device_scope.h"
#include "engine/tiers/cuda/scatter.h"

namespace neotier::engine {

namespace {

using cuda::as_status;
using cuda::CopyItem;
using cuda::DeviceScope;

constexpr size_t kBatch = 64;          // transfers
constexpr uint32_t kMostItems = 1024;  // pieces of one kernel
constexpr size_t kFewItems = 4;
constexpr size_t kInFlight = 2;  // batches a direction: one is copied while the next is staged

// What one direction works with at a time.
struct Lane {
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
  std::byte* staging = nullptr;
  CopyItem* items = nullptr;  // small ones, for the kernel
  uint32_t nr_items = 0;
  std::vector<CopyItem> large;
  // In flight:
  std::vector<std::pair<Transfer*, Status>> transfers;
  struct Unstage {
    std::byte* to;
    const std::byte* from;
    uint64_t bytes;
  };
  std::vector<Unstage> unstage;  // reads: out of staging once the stream has passed
  Status failed;                 // of a call that was for all of them
  bool recorded = false;         // `done` is behind the last copy; else only the whole stream is
};

class CudaTier final : public Tier {
 public:
  CudaTier(const CudaOptions& options, uint64_t capacity) : options_(options), arena_(capacity) {
    info_.name = options.name;
    info_.kind = TierKind::kGpu;
    info_.capacity_bytes = arena_.capacity_bytes();
    info_.alignment = 16;
  }
  ~CudaTier() override;
  Status start();

  const TierInfo& info() const override { return info_; }
  TierUsage usage() const override { return arena_.usage(); }
  Result<Extent> allocate(const Key&, uint64_t bytes) override;
  void free(Extent extent) override { (void)arena_.free(extent); }
  std::byte* map(Extent) override { return nullptr; }
  std::byte* address(Extent extent) override { return base_ + Arena::offset_of(extent); }
  size_t submit(std::span<Transfer* const> transfers) override;
  void cancel(Transfer& transfer) override;
  size_t poll() override { return 0; }
  bool in_service() const override {
    std::lock_guard lock(mutex_);
    return in_service_;
  }
  Status come_back() override;
  Result<std::vector<Recovered>> recover() override { return std::vector<Recovered>(); }
  bool register_host(std::span<std::byte> memory);
  void unregister_host(std::span<std::byte> memory);

 private:
  struct Direction {
    std::deque<Transfer*> queue;
    std::condition_variable work;
    std::array<Lane, kInFlight> lanes;
    std::thread thread;
  };
  void run(Direction& direction, Op op);
  // Issues the batch's copies; what cannot be issued ends with its status when the batch does.
  void issue(Lane& lane, Op op);
  Status issue_one(Lane& lane, Transfer& transfer, uint64_t& staged);
  // Asks for what has been gathered, and forgets it.
  Status send(Lane& lane);
  void finish(Lane& lane);
  Status check(const Transfer& transfer) const;
  bool registered(const std::byte* data, uint64_t bytes) const;
  Status note(cudaError_t error, const char* what);

  const CudaOptions options_;
  TierInfo info_;
  Arena arena_;
  cuda::DeviceContext context_;  // callers keep their own device
  std::byte* base_ = nullptr;
  mutable std::mutex mutex_;
  bool stop_ = false, in_service_ = false;
  std::vector<std::span<std::byte>> host_;
  std::array<Direction, 2> directions_;  // by Op: reads, writes
};

Status CudaTier::start() {
  const auto step = [&](cudaError_t error, const char* what) {
    return as_status(error, "tier " + info_.name + ": " + what);
  };
  if (Status s = step(context_.open(options_.device), "device"); !s) return Status(Code::kGone, s.what());
  const DeviceScope scope(context_);
  void* memory = nullptr;
  if (Status s = step(cudaMalloc(&memory, arena_.capacity_bytes()), "memory of the device"); !s) return s;
  base_ = static_cast<std::byte*>(memory);
  for (Direction& direction : directions_) {
    for (Lane& lane : direction.lanes) {
      lane.transfers.reserve(kBatch);
      void *staging = nullptr, *items = nullptr;
      if (Status s = step(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "stream"); !s) return s;
      if (Status s =
              step(cudaEventCreateWithFlags(&lane.done, cudaEventDisableTiming | cudaEventBlockingSync), "event");
          !s)
        return s;
      if (Status s =
              step(cudaHostAlloc(&staging, options_.staging_bytes / kInFlight, cudaHostAllocPortable), "pinned memory");
          !s)
        return s;
      lane.staging = static_cast<std::byte*>(staging);
      if (Status s = step(cudaHostAlloc(&items, kMostItems * sizeof(CopyItem), cudaHostAllocPortable), "pinned memory");
          !s)
        return s;
      lane.items = static_cast<CopyItem*>(items);
    }
  }
  in_service_ = true;
  directions_[0].thread = std::thread([this] { run(directions_[0], Op::kRead); });
  directions_[1].thread = std::thread([this] { run(directions_[1], Op::kWrite); });
  return {};
}

CudaTier::~CudaTier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  for (Direction& direction : directions_) direction.work.notify_all();
  const DeviceScope scope(context_);
  for (Direction& direction : directions_) {
    if (direction.thread.joinable()) direction.thread.join();
    for (Lane& lane : direction.lanes) {
      if (lane.items) cudaFreeHost(lane.items);
      if (lane.staging) cudaFreeHost(lane.staging);
      if (lane.done) cudaEventDestroy(lane.done);
      if (lane.stream) cudaStreamDestroy(lane.stream);
    }
  }
  for (const auto& memory : host_) cudaHostUnregister(memory.data());
  if (base_) cudaFree(base_);
}

bool CudaTier::register_host(std::span<std::byte> memory) {
  const DeviceScope scope(context_);
  if (cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  std::lock_guard lock(mutex_);
  host_.push_back(memory);
  return true;
}

void CudaTier::unregister_host(std::span<std::byte> memory) {
  {
    std::lock_guard lock(mutex_);
    if (std::erase_if(host_, [&](const std::span<std::byte>& m) { return m.data() == memory.data(); }) == 0) return;
  }
  const DeviceScope scope(context_);
  (void)cudaHostUnregister(memory.data());
}

bool CudaTier::registered(const std::byte* data, uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  return std::any_of(host_.begin(), host_.end(), [&](const std::span<std::byte>& m) {
    return data >= m.data() && data + bytes <= m.data() + m.size();
  });
}

Result<Extent> CudaTier::allocate(const Key&, uint64_t bytes) {
  if (bytes == 0 || bytes > UINT32_MAX)
    return Status(Code::kInvalid, "tier " + info_.name + ": an object has 1 to 4294967295 bytes");
  if (!in_service()) return Status(Code::kGone, "tier " + info_.name + " is out of service");
  const Extent extent = arena_.allocate(bytes);
  if (extent == kNoExtent) return Status(Code::kFull, "tier " + info_.name + " has no room");
  return extent;
}

size_t CudaTier::submit(std::span<Transfer* const> transfers) {
  size_t taken = 0;
  try {
    std::lock_guard lock(mutex_);
    for (; taken < transfers.size(); taken++)
      directions_[transfers[taken]->op == Op::kRead ? 0 : 1].queue.push_back(transfers[taken]);
  } catch (const std::bad_alloc&) {
    // As where a queue is full.
  }
  for (Direction& direction : directions_) direction.work.notify_one();
  return taken;
}

void CudaTier::cancel(Transfer& transfer) {
  {
    std::lock_guard lock(mutex_);
    auto& queue = directions_[transfer.op == Op::kRead ? 0 : 1].queue;
    const auto it = std::find(queue.begin(), queue.end(), &transfer);
    if (it == queue.end()) return;
    queue.erase(it);
  }
  transfer.done(transfer, Status(Code::kCancelled, "cancelled"));
}

Status CudaTier::note(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  // Left there, the next launch would take it for its own.
  (void)cudaGetLastError();
  Status status = status_of(cuda::code_of(error),
                            [&] { return "tier " + info_.name + ": " + what + ": " + cudaGetErrorString(error); });
  if (cuda::is_fatal(error)) {
    std::lock_guard lock(mutex_);
    in_service_ = false;
  }
  return status;
}

Status CudaTier::come_back() {
  // A context that is broken stays so for the life of the process, and with it the objects' bytes.
  const DeviceScope scope(context_);
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) return note(error, "device");
  std::lock_guard lock(mutex_);
  in_service_ = true;
  return {};
}

Status CudaTier::check(const Transfer& transfer) const {
  if (!in_service()) return Status(Code::kGone, "tier " + info_.name + " is out of service");
  if (transfer.op == Op::kFlush) return Status(Code::kUnsupported, "a GPU's memory is not durable");
  if (!arena_.holds(transfer.extent)) return Status(Code::kInvalid, "tier " + info_.name + ": no such extent");
  const uint64_t bytes = bytes_of(transfer.pieces), room = Arena::bytes_of(transfer.extent);
  if (transfer.offset > room || bytes > room - transfer.offset)
    return Status(Code::kInvalid, "tier " + info_.name + ": beyond the extent's end");
  return {};
}

Status CudaTier::send(Lane& lane) {
  cudaError_t error = cudaSuccess;
  std::array<void*, cuda::kBatchAtOnce> to;
  std::array<const void*, cuda::kBatchAtOnce> from;
  std::array<size_t, cuda::kBatchAtOnce> bytes;
  for (size_t at = 0; at < lane.large.size() && error == cudaSuccess; at += cuda::kBatchAtOnce) {
    const size_t count = std::min(lane.large.size() - at, cuda::kBatchAtOnce);
    for (size_t i = 0; i < count; i++) {
      to[i] = lane.large[at + i].to;
      from[i] = lane.large[at + i].from;
      bytes[i] = lane.large[at + i].bytes;
    }
    error = cuda::copy_batch(to.data(), from.data(), bytes.data(), count, lane.stream);
  }
  if (error != cudaSuccess) {
    // Nothing of the rest is asked for.
  } else if (lane.nr_items <= kFewItems) {
    for (uint32_t i = 0; i < lane.nr_items && error == cudaSuccess; i++)
      error =
          cudaMemcpyAsync(lane.items[i].to, lane.items[i].from, lane.items[i].bytes, cudaMemcpyDefault, lane.stream);
  } else {
    error = cuda::scatter(lane.items, lane.nr_items, lane.stream);
  }
  lane.large.clear();
  lane.nr_items = 0;
  return note(error, "copy");
}

Status CudaTier::issue_one(Lane& lane, Transfer& transfer, uint64_t& staged) {
  if (Status status = check(transfer); !status) return status;
  const bool write = transfer.op == Op::kWrite;
  std::byte* device = base_ + Arena::offset_of(transfer.extent) + transfer.offset;
  const uint64_t room = options_.staging_bytes / kInFlight;
  for (const Piece& piece : transfer.pieces) {
    uint64_t at = 0;
    while (at < piece.bytes) {
      std::byte* host = piece.data + at;
      uint64_t bytes = piece.bytes - at;
      if (!registered(host, bytes)) {
        if (staged == room) {
          // Staging is full: what is in it has to pass first.
          // Other transfers' pieces may be among them, so that what fails here fails them as well.
          lane.failed = send(lane);
          if (Status s = note(cudaStreamSynchronize(lane.stream), "copy"); lane.failed) lane.failed = s;
          if (!lane.failed) return lane.failed;
          for (const Lane::Unstage& u : lane.unstage) std::memcpy(u.to, u.from, u.bytes);
          lane.unstage.clear();
          staged = 0;
        }
        bytes = std::min(bytes, room - staged);
        std::byte* pinned = lane.staging + staged;
        if (write) {
          std::memcpy(pinned, host, bytes);
        } else {
          lane.unstage.push_back({host, pinned, bytes});
        }
        host = pinned;
        staged += bytes;
      }
      std::byte* const to = write ? device : host;
      const std::byte* const from = write ? host : device;
      if (bytes < cuda::kSmallPiece && lane.nr_items < kMostItems) {
        lane.items[lane.nr_items++] = {to, from, bytes};
      } else {
        lane.large.push_back({to, from, bytes});
      }
      device += bytes;
      at += bytes;
    }
  }
  return {};
}

void CudaTier::issue(Lane& lane, Op) {
  uint64_t staged = 0;
  lane.failed = Status::ok();
  lane.recorded = false;
  for (auto& [transfer, status] : lane.transfers) {
    if (!lane.failed) break;
    try {
      status = issue_one(lane, *transfer, staged);
    } catch (const std::bad_alloc&) {
      lane.failed = no_memory();
    }
  }
  if (lane.failed) lane.failed = send(lane);
  lane.large.clear();
  lane.nr_items = 0;
  if (!lane.failed) return;
  const cudaError_t error = cudaEventRecord(lane.done, lane.stream);
  lane.recorded = error == cudaSuccess;
  if (!lane.recorded) lane.failed = note(error, "copy");
}

void CudaTier::finish(Lane& lane) {
  // Copies that were issued before a call failed are made all the same, to and from the callers' memory.
  const cudaError_t waited = lane.recorded ? cudaEventSynchronize(lane.done) : cudaStreamSynchronize(lane.stream);
  Status passed = note(waited, "copy");
  if (!lane.failed) passed = lane.failed;
  if (passed.is_ok()) {
    for (const Lane::Unstage& u : lane.unstage) std::memcpy(u.to, u.from, u.bytes);
  }
  lane.unstage.clear();
  // done() may submit, not end the tier: the lane is this thread's.
  for (auto& [transfer, status] : lane.transfers) transfer->done(*transfer, status.is_ok() ? passed : status);
  lane.transfers.clear();
}

void CudaTier::run(Direction& direction, Op op) {
  const DeviceScope scope(context_);
  // Used in turn: of `busy`, the first is the one that was begun first.
  size_t next = 0, busy = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (busy == 0) direction.work.wait(lock, [&] { return stop_ || !direction.queue.empty(); });
    if (direction.queue.empty() && busy == 0) return;
    if (!direction.queue.empty() && busy < kInFlight) {
      Lane& lane = direction.lanes[next];
      while (!direction.queue.empty() && lane.transfers.size() < kBatch) {
        lane.transfers.emplace_back(direction.queue.front(), Status());
        direction.queue.pop_front();
      }
      lock.unlock();
      issue(lane, op);
      lock.lock();
      next = (next + 1) % kInFlight;
      busy++;
      continue;
    }
    Lane& lane = direction.lanes[(next + kInFlight - busy) % kInFlight];
    lock.unlock();
    finish(lane);
    lock.lock();
    busy--;
  }
}

}  // namespace

bool cuda_available() {
  int devices = 0;
  const bool there = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  (void)cudaGetLastError();
  return there;
}

Result<std::unique_ptr<Tier>> open_cuda_tier(const CudaOptions& options) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  (void)cudaGetLastError();
  if (error != cudaSuccess || options.device >= devices) {
    return Status(Code::kGone,
                  "tier " + options.name + ": no GPU " + std::to_string(options.device) + " (" +
                      (error == cudaSuccess ? std::to_string(devices) + " are there" : cudaGetErrorString(error)) +
                      "); nvidia-smi lists them, stand-in=yes imitates one");
  }
  auto tier = std::make_unique<CudaTier>(options, options.capacity_bytes);
  if (tier->info().capacity_bytes == 0)
    return Status(Code::kInvalid, "tier " + options.name + ": less than a page of 64 KiB");
  if (Status started = tier->start(); !started) return started;
  return std::unique_ptr<Tier>(std::move(tier));
}

bool cuda_register_host(Tier& tier, std::span<std::byte> memory) {
  auto* cuda_tier = dynamic_cast<CudaTier*>(&tier);
  return cuda_tier && cuda_tier->register_host(memory);
}

void cuda_unregister_host(Tier& tier, std::span<std::byte> memory) {
  if (auto* cuda_tier = dynamic_cast<CudaTier*>(&tier)) cuda_tier->unregister_host(memory);
}

}  // namespace neotier::engine
