// SPDX-License-Identifier: Apache-2.0
#include "kv/gpu_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "kv/gpu_memory.h"

namespace neotier::kv {

using engine::Code;
using engine::CopyLane;
using engine::DeviceCopy;
using engine::DeviceMark;
using engine::Key;
using engine::Status;

namespace {

constexpr uint64_t kForever = UINT64_MAX;

class Deadline {
 public:
  explicit Deadline(uint64_t timeout_ms) : timeout_ms_(timeout_ms), begin_(std::chrono::steady_clock::now()) {}
  uint64_t left_ms() const {
    const auto gone =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin_).count();
    return timeout_ms_ == kForever ? kForever : timeout_ms_ - std::min<uint64_t>(timeout_ms_, gone);
  }

 private:
  const uint64_t timeout_ms_;
  const std::chrono::steady_clock::time_point begin_;
};

Status no_queue() {
  return {Code::kUnsupported, "a load into a GPU's memory has no place in a queue; let its stream wait"};
}

}  // namespace

GpuLoad::GpuLoad(GpuMemory& gpu, std::span<std::byte* const> into, size_t keys)
    : gpu_(gpu), keys_(keys), into_(into.begin(), into.end()), layers_(gpu.store_.layout().layers()) {}

GpuLoad::~GpuLoad() {
  cancelled_ = true;
  for (const Layer& layer : layers_)
    if (layer.posted) gpu_.feeder_.wait(layer.asked);
  if (staged_) gpu_.stager_.remove(*staged_);
  staged_.reset();
  // What has been asked for reads what the pins hold, and writes to the caller's memory.
  gpu_.copies_->drain(CopyLane::kIn);
}

Status GpuLoad::start(SessionId session, std::span<const Key> keys, uint32_t first_position, const PlanOptions* decide,
                      void* stream) {
  for (const CopyLane lane : {CopyLane::kIn, CopyLane::kStagedIn})
    if (Status s = gpu_.copies_->after(lane, stream); !s) return s;
  auto pins = gpu_.store_.pin(session, keys, first_position, decide);
  if (!pins) return pins.status();
  pins_ = std::move(*pins);
  std::vector<StagedBlocks::Block> staged;
  for (size_t block = 0; block < blocks(); block++) {
    if (const auto one = direct(block)) {
      direct_.push_back(*one);
    } else {
      staged.push_back({block, keys[block]});
    }
  }
  if (!staged.empty()) {
    staged_ = std::make_unique<StagedBlocks>(
        StagingLane{gpu_.store_.engine(), gpu_.store_.layout(), *gpu_.copies_, *gpu_.staging_, gpu_.stager_.bell()},
        std::move(staged), into_, keys_);
    gpu_.stager_.add(*staged_);
  }
  if (direct_.empty()) return {};
  for (uint32_t layer = 0; layer < layers_.size(); layer++) {
    gpu_.feeder_.post([this, layer] { return ask_for(layer); }, layers_[layer].asked, layers_[layer].status);
    layers_[layer].posted = true;
  }
  return {};
}

void GpuLoad::cancel() {
  cancelled_ = true;
  pins_->give_up();
  if (staged_) staged_->cancel();
}

Status GpuLoad::notify(const std::shared_ptr<engine::CompletionQueue>&, uint64_t) { return no_queue(); }
Status GpuLoad::notify_layers(const std::shared_ptr<engine::CompletionQueue>&, uint64_t) { return no_queue(); }

std::optional<GpuLoad::Direct> GpuLoad::direct(size_t block) const {
  const engine::PinResult& place = pins_->places()[block];
  if (place.data) {
    if (!gpu_.copies_->registered(place.data, gpu_.store_.block_bytes())) return std::nullopt;
    return Direct{block, place.data, true};
  }
  if (place.device) return Direct{block, place.device, false};
  return std::nullopt;
}

Status GpuLoad::ask_for(uint32_t layer) {
  if (cancelled_) return {Code::kCancelled, "the load was cancelled"};
  const BlockLayout& layout = gpu_.store_.layout();
  for (const bool own : {true, false}) {
    std::vector<DeviceCopy> copies;
    for (const Direct& direct : direct_) {
      if (direct.own != own) continue;
      for (size_t i = layout.first_piece(layer); i < layout.end_piece(layer); i++) {
        const BlockPiece& piece = layout.pieces()[i];
        copies.push_back({into_[i * keys_ + direct.block], direct.from + piece.offset, piece.bytes});
      }
    }
    if (copies.empty()) continue;
    // What another device may have is the driver's to copy; a kernel of this one may not reach it.
    const auto method = own ? engine::CopyMethod::kChosen : engine::CopyMethod::kEach;
    if (Status s = gpu_.copies_->copy(CopyLane::kIn, copies, method); !s) return s;
  }
  auto mark = gpu_.copies_->mark(CopyLane::kIn);
  if (!mark) return mark.status();
  layers_[layer].mark = std::move(*mark);
  return {};
}

template <typename Wait>
Status GpuLoad::arrive(uint32_t number, uint64_t timeout_ms, Wait wait) {
  if (number >= layers_.size()) return {Code::kInvalid, fmt::format("layer {} of {}", number, layers_.size())};
  const Deadline deadline(timeout_ms);
  const StagedBlocks::Layer* staged = nullptr;
  if (staged_ && !(staged = staged_->wait(number, timeout_ms)))
    return {Code::kTimeout, "blocks are still on their way to the host"};
  // Of what the device did nothing is known any more.
  const auto broken = [&](Status status) {
    pins_->arrived(number, 0);
    return status;
  };
  const Layer& layer = layers_[number];
  if (layer.posted) gpu_.feeder_.wait(layer.asked);
  if (!layer.status) return broken(layer.status);
  const size_t good = staged ? std::min(staged->good, blocks()) : blocks();
  for (const DeviceMark* mark : {layer.mark.get(), staged ? staged->mark.get() : nullptr}) {
    if (!mark || good == 0) continue;
    Status passed = wait(*mark, deadline.left_ms());
    if (passed.code() == Code::kTimeout) return passed;
    if (!passed) return broken(std::move(passed));
  }
  pins_->arrived(number, good);  // not before: a load that is given up goes by what has
  return staged ? staged->status : Status();
}

Status GpuLoad::wait_layer(uint32_t layer, uint64_t timeout_ms) {
  return arrive(layer, timeout_ms,
                [&](const DeviceMark& mark, uint64_t left_ms) { return gpu_.copies_->wait(mark, left_ms); });
}

Status GpuLoad::let_wait(void* stream, uint32_t layer, uint64_t timeout_ms) {
  return arrive(layer, timeout_ms,
                [&](const DeviceMark& mark, uint64_t) { return gpu_.copies_->let_wait(stream, mark); });
}

Status GpuLoad::wait(uint64_t timeout_ms) {
  const Deadline deadline(timeout_ms);
  Status first;
  for (uint32_t layer = 0; layer < layers_.size(); layer++) {
    Status status = wait_layer(layer, deadline.left_ms());
    if (status.code() == Code::kTimeout) return status;
    if (first.is_ok()) first = status;
  }
  return first;
}

}  // namespace neotier::kv
