// SPDX-License-Identifier: Apache-2.0
// A GPU's memory, that blocks of a store are loaded into and saved from: what a connector of a serving engine calls
// where its cache lies on a GPU.
//
// Loading. What lies in DRAM goes from where it lies to the GPU, without a copy on the host; what lies on another GPU
// tier likewise. Anything else comes to pinned memory first ("staging") and goes on from there, layer by layer
// (kv/stager.h).
// Saving. Layers go to staging as they are computed, whole blocks from there to the tiers: one copy on the host, which
// nobody waits for who computes.
//
// Thread safety: all calls from any thread; a load or a save belongs to one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/tiers/cuda/device_copies.h"
#include "kv/feeder.h"
#include "kv/kv_store.h"
#include "kv/stager.h"
#include "kv/staging.h"

namespace neotier::kv {

class GpuMemory;

// Layers of blocks on their way out of a GPU's memory. What has been copied by then is nothing unless it is finished.
class Save {
 public:
  // Waits for copies that are being made.
  ~Save();
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  // Leading blocks of those asked for that there was staging for; the others are not saved.
  size_t blocks() const { return slots_.size(); }
  // What `stream` has now writes the layer of all blocks: starts to copy it when that has passed. kExists: a second
  // time; kInvalid: no such layer, or the stream is being captured.
  engine::Status layer(uint32_t layer, void* stream);
  // What `stream` gets later comes after the copies that were started: it may overwrite the blocks.
  engine::Status behind(void* stream);
  // Waits until all layers are copied, then stores the blocks, as KvStore::store() does. Once; kInvalid where a layer
  // is missing.
  StoreResult finish();

 private:
  friend class GpuMemory;
  Save(GpuMemory& gpu, SessionId session, std::span<const engine::Key> keys, uint32_t first_position)
      : gpu_(gpu), session_(session), keys_(keys.begin(), keys.end()), first_position_(first_position) {}

  GpuMemory& gpu_;
  const SessionId session_;
  std::vector<engine::Key> keys_;
  const uint32_t first_position_;
  std::vector<const std::byte*> from_;  // [piece][block]
  std::vector<std::byte*> slots_;       // by block
  struct Layer {
    bool posted = false, asked = false;
    engine::Status status;
  };
  std::vector<Layer> layers_;
  // Of those posted: until they have been asked for. The first error.
  engine::Status settle();
  bool finished_ = false;
};

class GpuMemory {
 public:
  // Registers the engine's DRAM with the device, which pins it, and allocates `staging_bytes` of pinned memory, at
  // least one block's, and one block more for loads alone. The store must outlive it. kGone: no such device or no
  // driver; kNoMemory; kUnsupported: built without CUDA.
  static engine::Result<std::unique_ptr<GpuMemory>> open(KvStore& store, int device, uint64_t staging_bytes);

  // As KvStore::load(); into: [piece * keys.size() + block], addresses of the GPU's, which must stay until the load is
  // gone. It is written to after what `stream` has now. How much staging there is does not matter: more than that goes
  // through it in parts, without the caller.
  engine::Result<std::unique_ptr<Loading>> load(SessionId session, std::span<const engine::Key> keys,
                                                std::span<std::byte* const> into, uint32_t first_position,
                                                const PlanOptions* decide, void* stream);
  // from: as `into`. The addresses are read from after each Save::layer().
  engine::Result<std::unique_ptr<Save>> save(SessionId session, std::span<const engine::Key> keys,
                                             std::span<const std::byte* const> from, uint32_t first_position);
  const Staging& staging() const { return *staging_; }

 private:
  friend class Save;
  friend class GpuLoad;
  void give_back(std::byte* slot);
  GpuMemory(KvStore& store, std::unique_ptr<engine::DeviceCopies> copies) : store_(store), copies_(std::move(copies)) {}

  KvStore& store_;
  const std::unique_ptr<engine::DeviceCopies> copies_;
  std::unique_ptr<Staging> staging_;  // after copies_: goes before
  Feeder feeder_;
  Stager stager_;
};

}  // namespace neotier::kv
