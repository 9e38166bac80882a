// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/cuda/device_copies.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "engine/tiers/cuda/cuda_check.h"
#include "engine/tiers/cuda/device_scope.h"
#include "engine/tiers/cuda/scatter.h"

namespace neotier::engine {

namespace {

using cuda::DeviceContext;
using cuda::DeviceScope;

// Which method: docs/decisions/0060-gpu-memory.md has what each was measured to do.
constexpr size_t kFewPieces = 4;  // so many are a call each

class Pinned final : public PinnedMemory {
 public:
  Pinned(std::shared_ptr<DeviceContext> context, std::byte* data, uint64_t bytes) : context_(std::move(context)) {
    bytes_ = {data, bytes};
  }
  ~Pinned() override {
    const DeviceScope scope(*context_);
    cudaFreeHost(bytes_.data());
  }

 private:
  const std::shared_ptr<DeviceContext> context_;
};

class Mark final : public DeviceMark {
 public:
  Mark(std::shared_ptr<DeviceContext> context, cudaEvent_t event) : event_(event), context_(std::move(context)) {}
  ~Mark() override {
    const DeviceScope scope(*context_);
    cudaEventDestroy(event_);
  }
  cudaEvent_t event_;

 private:
  const std::shared_ptr<DeviceContext> context_;
};

class Copies final : public DeviceCopies {
 public:
  explicit Copies(int device) : device_(device) {}
  ~Copies() override;
  Status start();

  int device() const override { return device_; }
  Status after(CopyLane lane, void* stream) override;
  Status copy(CopyLane lane, std::span<const DeviceCopy> copies, CopyMethod method) override;
  Result<std::unique_ptr<DeviceMark>> mark(CopyLane lane) override;
  Status wait(const DeviceMark& mark, uint64_t timeout_ms) override;
  void drain(CopyLane lane) override {
    const DeviceScope scope(*context_);
    (void)note(cudaStreamSynchronize(streams_[static_cast<size_t>(lane)]), "copies");
  }
  Status let_wait(void* stream, const DeviceMark& mark) override;
  Result<std::unique_ptr<PinnedMemory>> pinned(uint64_t bytes) override;
  bool register_host(std::span<std::byte> memory) override;
  bool registered(const std::byte* data, uint64_t bytes) const override;
  Result<std::byte*> allocate(uint64_t bytes) override;

 private:
  Status note(cudaError_t error, const char* what) const {
    if (error == cudaSuccess) return {};
    (void)cudaGetLastError();  // the caller's own next call is not to find it
    return status_of(cuda::code_of(error),
                     [&] { return "GPU " + std::to_string(device_) + ": " + what + ": " + cudaGetErrorString(error); });
  }
  Status not_captured(cudaStream_t stream) const {
    cudaStreamCaptureStatus status{};
    if (Status s = note(cudaStreamIsCapturing(stream, &status), "stream"); !s) return s;
    if (status == cudaStreamCaptureStatusNone) return {};
    return {Code::kInvalid, "GPU " + std::to_string(device_) +
                                ": the stream is being captured into a graph; copies of ours are no part of graphs"};
  }

  const int device_;
  const std::shared_ptr<DeviceContext> context_ = std::make_shared<DeviceContext>();
  std::array<cudaStream_t, kCopyLanes> streams_{};
  mutable std::mutex mutex_;
  std::vector<std::span<std::byte>> host_, own_host_;  // registered; of those, by this
  std::vector<void*> memory_;
};

Status Copies::start() {
  if (Status s = note(context_->open(device_), "device"); !s)
    return {Code::kGone, s.what() + "; nvidia-smi lists those that are there"};
  const DeviceScope scope(*context_);
  // Before the caller's kernels where a processor becomes free: a copy's kernel is short, and has the link to fill.
  int least = 0, greatest = 0;
  if (Status s = note(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream"); !s) return s;
  for (cudaStream_t& stream : streams_)
    if (Status s = note(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "stream"); !s) return s;
  return {};
}

Copies::~Copies() {
  const DeviceScope scope(*context_);
  for (cudaStream_t stream : streams_) {
    if (!stream) continue;
    (void)cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  for (const auto& memory : own_host_) cudaHostUnregister(memory.data());
  for (void* memory : memory_) cudaFree(memory);
  (void)cudaGetLastError();
}

Status Copies::after(CopyLane lane, void* stream) {
  const DeviceScope scope(*context_);
  auto* const theirs = static_cast<cudaStream_t>(stream);
  if (Status s = not_captured(theirs); !s) return s;
  cudaEvent_t event = nullptr;
  if (Status s = note(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event"); !s) return s;
  Status status = note(cudaEventRecord(event, theirs), "event");
  if (status) status = note(cudaStreamWaitEvent(streams_[static_cast<size_t>(lane)], event, 0), "event");
  cudaEventDestroy(event);  // once it has passed
  return status;
}

Status Copies::copy(CopyLane lane, std::span<const DeviceCopy> copies, CopyMethod method) {
  if (copies.empty()) return {};
  const DeviceScope scope(*context_);
  auto* const stream = streams_[static_cast<size_t>(lane)];
  if (method == CopyMethod::kChosen) {
    uint64_t bytes = 0;
    for (const DeviceCopy& copy : copies) bytes += copy.bytes;
    method = copies.size() <= kFewPieces                 ? CopyMethod::kEach
             : bytes / copies.size() < cuda::kSmallPiece ? CopyMethod::kKernel
                                                         : CopyMethod::kBatch;
  }
  if (method == CopyMethod::kEach) {
    for (const DeviceCopy& copy : copies)
      if (Status s = note(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, stream), "copy"); !s)
        return s;
    return {};
  }
  if (method == CopyMethod::kBatch) {
    std::array<void*, cuda::kBatchAtOnce> to;
    std::array<const void*, cuda::kBatchAtOnce> from;
    std::array<size_t, cuda::kBatchAtOnce> bytes;
    for (size_t at = 0; at < copies.size(); at += cuda::kBatchAtOnce) {
      const size_t count = std::min(copies.size() - at, cuda::kBatchAtOnce);
      for (size_t i = 0; i < count; i++) {
        to[i] = copies[at + i].to;
        from[i] = copies[at + i].from;
        bytes[i] = copies[at + i].bytes;
      }
      if (Status s = note(cuda::copy_batch(to.data(), from.data(), bytes.data(), count, stream), "copies"); !s)
        return s;
    }
    return {};
  }
  static_assert(sizeof(DeviceCopy) == sizeof(cuda::CopyItem));
  for (size_t at = 0; at < copies.size(); at += cuda::kItemsByValue) {
    const std::span<const DeviceCopy> some = copies.subspan(at, std::min(copies.size() - at, cuda::kItemsByValue));
    const auto* items = reinterpret_cast<const cuda::CopyItem*>(some.data());
    if (Status s = note(cuda::scatter_by_value(items, some.size(), stream), "copies"); !s) return s;
  }
  return {};
}

Result<std::unique_ptr<DeviceMark>> Copies::mark(CopyLane lane) {
  const DeviceScope scope(*context_);
  cudaEvent_t event = nullptr;
  if (Status s = note(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event"); !s) return s;
  std::unique_ptr<DeviceMark> mark = std::make_unique<Mark>(context_, event);
  if (Status s = note(cudaEventRecord(event, streams_[static_cast<size_t>(lane)]), "event"); !s) return s;
  return mark;
}

Status Copies::wait(const DeviceMark& mark, uint64_t timeout_ms) {
  using Clock = std::chrono::steady_clock;
  const DeviceScope scope(*context_);
  const auto begin = Clock::now();
  const auto deadline =
      timeout_ms > 86400000 ? Clock::time_point::max() : begin + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const cudaError_t error = cudaEventQuery(static_cast<const Mark&>(mark).event_);
    if (error != cudaErrorNotReady) return note(error, "copy");
    (void)cudaGetLastError();
    const auto now = Clock::now();
    if (now >= deadline) return {Code::kTimeout, "GPU " + std::to_string(device_) + ": copies are still under way"};
    // Most are there within some ten microseconds; who waits for longer is not to keep a processor busy.
    if (now - begin > std::chrono::microseconds(200)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Status Copies::let_wait(void* stream, const DeviceMark& mark) {
  const DeviceScope scope(*context_);
  auto* const theirs = static_cast<cudaStream_t>(stream);
  if (Status s = not_captured(theirs); !s) return s;
  return note(cudaStreamWaitEvent(theirs, static_cast<const Mark&>(mark).event_, 0), "event");
}

Result<std::unique_ptr<PinnedMemory>> Copies::pinned(uint64_t bytes) {
  const DeviceScope scope(*context_);
  void* memory = nullptr;
  if (Status s = note(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "pinned memory"); !s)
    return Status(s.code() == Code::kFull ? Code::kNoMemory : s.code(), s.what());
  return std::unique_ptr<PinnedMemory>(std::make_unique<Pinned>(context_, static_cast<std::byte*>(memory), bytes));
}

bool Copies::register_host(std::span<std::byte> memory) {
  const DeviceScope scope(*context_);
  const cudaError_t error = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  (void)cudaGetLastError();
  // By a GPU tier, which outlives this.
  if (error != cudaSuccess && error != cudaErrorHostMemoryAlreadyRegistered) return false;
  const std::lock_guard lock(mutex_);
  host_.push_back(memory);
  if (error == cudaSuccess) own_host_.push_back(memory);
  return true;
}

bool Copies::registered(const std::byte* data, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(host_.begin(), host_.end(), [&](const std::span<std::byte>& m) {
    return data >= m.data() && bytes <= m.size() && data <= m.data() + (m.size() - bytes);
  });
}

Result<std::byte*> Copies::allocate(uint64_t bytes) {
  const DeviceScope scope(*context_);
  void* memory = nullptr;
  if (Status s = note(cudaMalloc(&memory, bytes), "memory"); !s) return s;
  const std::lock_guard lock(mutex_);
  memory_.push_back(memory);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Result<std::unique_ptr<DeviceCopies>> open_device_copies(int device) {
  auto copies = std::make_unique<Copies>(device);
  if (Status started = copies->start(); !started) return started;
  return std::unique_ptr<DeviceCopies>(std::move(copies));
}

}  // namespace neotier::engine
