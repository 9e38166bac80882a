// SPDX-License-Identifier: Apache-2.0
// A load into a GPU's memory (gpu_memory.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/tiers/cuda/device_copies.h"
#include "kv/kv_store.h"

namespace neotier::kv {

class GpuMemory;

// Blocks that lie where the device can read are copied from there from the beginning on, layer by layer; of the others
// a layer is sent on once it has come to staging and somebody waits for it.
class GpuLoad final : public Loading, private Landing {
 public:
  GpuLoad(GpuMemory& gpu, std::span<std::byte* const> into, size_t keys);
  ~GpuLoad() override;
  // Once, before all else.
  engine::Status start(SessionId session, std::span<const engine::Key> keys, uint32_t first_position,
                       const PlanOptions* decide, void* stream);

  size_t blocks() const override { return host_->blocks(); }
  const LoadPlan& plan() const override { return host_->plan(); }
  size_t good_blocks() const override { return good_; }
  void cancel() override;
  engine::Status notify(const std::shared_ptr<engine::CompletionQueue>& queue, uint64_t tag) override;
  engine::Status notify_layers(const std::shared_ptr<engine::CompletionQueue>& queue, uint64_t tag) override;
  engine::Status wait_layer(uint32_t layer, uint64_t timeout_ms) override;
  engine::Status let_wait(void* stream, uint32_t layer, uint64_t timeout_ms) override;
  engine::Status wait(uint64_t timeout_ms) override;

 private:
  struct Direct {
    size_t block;
    const std::byte* from;
    bool own;  // the host's memory, which this device reaches
  };
  struct Layer {
    bool posted = false, asked = false;  // of the blocks that are copied directly; the feeder's until `asked`
    engine::Status status;
    std::unique_ptr<engine::DeviceMark> direct, staged;
    bool sent = false;
  };

  bool take(size_t block, const std::byte* data, const std::byte* device) override;
  std::byte* room(size_t block) override;
  void add(uint32_t layer, size_t block, const std::byte* from, std::vector<engine::DeviceCopy>& copies) const;
  // In the feeder's thread.
  engine::Status ask_for(uint32_t layer);
  // Until the layer has come to where the device can read it, and its copies have been asked for.
  engine::Status send(uint32_t number, uint64_t timeout_ms);
  template <typename Wait>
  engine::Status arrive(uint32_t number, uint64_t timeout_ms, Wait wait);
  // Of what the device did nothing is known any more.
  engine::Status broken(engine::Status status);

  GpuMemory& gpu_;
  const size_t keys_;
  const std::vector<std::byte*> into_;
  std::vector<Direct> direct_;
  std::vector<std::pair<size_t, std::byte*>> staged_;
  std::vector<Layer> layers_;
  size_t good_ = 0;
  std::atomic<bool> cancelled_{false};
  std::unique_ptr<Load> host_;
};

}  // namespace neotier::kv
