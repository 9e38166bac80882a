// SPDX-License-Identifier: Apache-2.0
// A load into a GPU's memory (gpu_memory.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/tiers/cuda/device_copies.h"
#include "kv/kv_store.h"
#include "kv/stager.h"

namespace neotier::kv {

class GpuMemory;

// Blocks that lie where the device can read are copied from there from the beginning on, layer by layer. The others go
// through staging.
class GpuLoad final : public Loading {
 public:
  // into: [piece * keys.size() + block].
  GpuLoad(GpuMemory& gpu, std::span<std::byte* const> into, size_t keys);
  ~GpuLoad() override;
  // Once, before all else.
  engine::Status start(SessionId session, std::span<const engine::Key> keys, uint32_t first_position,
                       const PlanOptions* decide, void* stream);

  size_t blocks() const override { return pins_->blocks(); }
  const LoadPlan& plan() const override { return pins_->plan(); }
  size_t good_blocks() const override { return pins_->good(); }
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
  // Of the blocks that are copied directly; the feeder's until `asked`.
  struct Layer {
    bool posted = false, asked = false;
    engine::Status status;
    std::unique_ptr<engine::DeviceMark> mark;
  };

  std::optional<Direct> direct(size_t block) const;
  // In the feeder's thread.
  engine::Status ask_for(uint32_t layer);
  template <typename Wait>
  engine::Status arrive(uint32_t number, uint64_t timeout_ms, Wait wait);

  GpuMemory& gpu_;
  const size_t keys_;
  const std::vector<std::byte*> into_;
  std::vector<Direct> direct_;
  std::vector<Layer> layers_;
  std::atomic<bool> cancelled_{false};
  std::unique_ptr<Pins> pins_;
  std::unique_ptr<StagedBlocks> staged_;  // NULL: there are none
};

}  // namespace neotier::kv
