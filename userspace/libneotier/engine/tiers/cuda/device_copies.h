// SPDX-License-Identifier: Apache-2.0
// Copies between a GPU's memory and the host's for who computes on that GPU: asked for in the order of the caller's own
// stream, made on streams of ours. No CUDA header is needed to use it; a stream is a cudaStream_t as void *.
//
// The caller's thread keeps its current device and whatever it captures: calls here are made in the device's primary
// context, which is put on the thread's stack of contexts and taken off again, and in relaxed capture mode. No call but
// wait() waits for the device.
//
// Thread safety: all calls from any thread. A mark belongs to one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/status.h"

namespace neotier::engine {

// Each has a stream of its own, so that none waits for what another one has to do.
enum class CopyLane : uint8_t { kIn, kStagedIn, kOut };
inline constexpr size_t kCopyLanes = 3;

struct DeviceCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

// Makes a batch of copies; measured against each other by `neotier bench gpu`.
enum class CopyMethod : uint8_t {
  kChosen,  // by the size of the pieces
  kEach,    // a call of the driver's for each
  kBatch,   // one call of the driver's for all, copy engines make them
  kKernel,  // a kernel of ours, on the GPU's processors
};

// A point in a stream of copies.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
};

class PinnedMemory {
 public:
  virtual ~PinnedMemory() = default;
  std::span<std::byte> bytes() const { return bytes_; }

 protected:
  std::span<std::byte> bytes_;
};

class DeviceCopies {
 public:
  virtual ~DeviceCopies() = default;
  virtual int device() const = 0;
  // Copies that are asked for later wait for what `stream` has now. kInvalid: it is being captured into a graph.
  virtual Status after(CopyLane lane, void* stream) = 0;
  // Starts the copies, in any order among themselves; after those asked for before
  // in that lane. Host memory that is not registered
  // is read or written before the call returns, or when the driver likes: do not use such. An error: some of them may
  // still be made, until a mark that is set later has passed.
  virtual Status copy(CopyLane lane, std::span<const DeviceCopy> copies, CopyMethod method = CopyMethod::kChosen) = 0;
  // Passes when all copies asked for so far in that lane are made.
  virtual Result<std::unique_ptr<DeviceMark>> mark(CopyLane lane) = 0;
  // kTimeout: not yet. kGone: the device answers nothing any more.
  virtual Status wait(const DeviceMark& mark, uint64_t timeout_ms) = 0;
  // Until all copies asked for so far in that lane are made, or the device answers nothing any more. Needs no memory.
  virtual void drain(CopyLane lane) = 0;
  // What `stream` gets later waits for the mark. kInvalid: it is being captured into a graph.
  virtual Status let_wait(void* stream, const DeviceMark& mark) = 0;
  // kNoMemory: not so much. Copies to and from it run at the speed of the link.
  virtual Result<std::unique_ptr<PinnedMemory>> pinned(uint64_t bytes) = 0;
  // Host memory that copies then reach directly, until it is unregistered or this goes. False: not permitted.
  virtual bool register_host(std::span<std::byte> memory) = 0;
  virtual bool registered(const std::byte* data, uint64_t bytes) const = 0;
  // Of the device: memory that is freed with it; for benchmarks and tests. kFull: not so much.
  virtual Result<std::byte*> allocate(uint64_t bytes) = 0;
};

// kGone: no such device or no driver; kUnsupported: built without CUDA.
Result<std::unique_ptr<DeviceCopies>> open_device_copies(int device);

}  // namespace neotier::engine
