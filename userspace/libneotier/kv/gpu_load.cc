// SPDX-License-Identifier: Apache-2.0
#include "kv/gpu_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

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
  if (host_) host_->cancel();
  cancelled_ = true;
  for (const Layer& layer : layers_)
    if (layer.posted) gpu_.feeder_.wait(layer.asked);
  // What has been asked for reads what the pins hold, and writes to the caller's memory.
  for (const CopyLane lane : {CopyLane::kIn, CopyLane::kStagedIn}) gpu_.copies_->drain(lane);
  host_.reset();
  for (const auto& [block, slot] : staged_) gpu_.staging_->give_back(slot);
}

Status GpuLoad::start(SessionId session, std::span<const Key> keys, uint32_t first_position, const PlanOptions* decide,
                      void* stream) {
  for (const CopyLane lane : {CopyLane::kIn, CopyLane::kStagedIn})
    if (Status s = gpu_.copies_->after(lane, stream); !s) return s;
  auto load = gpu_.store_.load(session, keys, static_cast<Landing&>(*this), first_position, decide);
  if (!load) return load.status();
  host_ = std::move(*load);
  good_ = host_->blocks();
  if (direct_.empty()) return {};
  for (uint32_t layer = 0; layer < layers_.size(); layer++) {
    gpu_.feeder_.post([this, layer] { return ask_for(layer); }, layers_[layer].asked, layers_[layer].status);
    layers_[layer].posted = true;
  }
  return {};
}

void GpuLoad::cancel() {
  cancelled_ = true;
  host_->cancel();
}

Status GpuLoad::notify(const std::shared_ptr<engine::CompletionQueue>&, uint64_t) { return no_queue(); }
Status GpuLoad::notify_layers(const std::shared_ptr<engine::CompletionQueue>&, uint64_t) { return no_queue(); }

bool GpuLoad::take(size_t block, const std::byte* data, const std::byte* device) {
  const bool own = data && gpu_.copies_->registered(data, gpu_.store_.block_bytes());
  if (!own && (data || !device)) return false;
  direct_.push_back({block, own ? data : device, own});
  return true;
}

std::byte* GpuLoad::room(size_t block) {
  staged_.reserve(staged_.size() + 1);
  std::byte* const slot = gpu_.staging_->take();
  if (slot) staged_.emplace_back(block, slot);
  return slot;
}

void GpuLoad::add(uint32_t layer, size_t block, const std::byte* from, std::vector<DeviceCopy>& copies) const {
  const BlockLayout& layout = gpu_.store_.layout();
  for (size_t i = layout.first_piece(layer); i < layout.end_piece(layer); i++) {
    const BlockPiece& piece = layout.pieces()[i];
    copies.push_back({into_[i * keys_ + block], from + piece.offset, piece.bytes});
  }
}

Status GpuLoad::ask_for(uint32_t layer) {
  if (cancelled_) return {Code::kCancelled, "the load was cancelled"};
  for (const bool own : {true, false}) {
    std::vector<DeviceCopy> copies;
    for (const Direct& direct : direct_)
      if (direct.own == own) add(layer, direct.block, direct.from, copies);
    if (copies.empty()) continue;
    // What another device may have is the driver's to copy; a kernel of this one may not reach it.
    const auto method = own ? engine::CopyMethod::kChosen : engine::CopyMethod::kEach;
    if (Status s = gpu_.copies_->copy(CopyLane::kIn, copies, method); !s) return s;
  }
  auto mark = gpu_.copies_->mark(CopyLane::kIn);
  if (!mark) return mark.status();
  layers_[layer].direct = std::move(*mark);
  return {};
}

Status GpuLoad::send(uint32_t number, uint64_t timeout_ms) {
  Status first = host_->wait_layer(number, timeout_ms);
  if (number >= layers_.size() || first.code() == Code::kTimeout) return first;
  good_ = std::min(good_, host_->good_blocks());
  Layer& layer = layers_[number];
  if (layer.posted) gpu_.feeder_.wait(layer.asked);
  if (!layer.status) return broken(layer.status);
  if (layer.sent) return first;
  std::vector<DeviceCopy> copies;
  for (const auto& [block, slot] : staged_)
    if (block < good_) add(number, block, slot, copies);
  if (!copies.empty()) {
    Status sent = gpu_.copies_->copy(CopyLane::kStagedIn, copies);
    if (sent) {
      auto mark = gpu_.copies_->mark(CopyLane::kStagedIn);
      sent = mark.status();
      if (mark) layer.staged = std::move(*mark);
    }
    if (!sent) return broken(std::move(sent));
  }
  layer.sent = true;
  return first;
}

template <typename Wait>
Status GpuLoad::arrive(uint32_t number, uint64_t timeout_ms, Wait wait) {
  const Deadline deadline(timeout_ms);
  Status first = send(number, timeout_ms);
  if (number >= layers_.size() || good_ == 0 || first.code() == Code::kTimeout) return first;
  for (const auto* mark : {&layers_[number].direct, &layers_[number].staged}) {
    if (!*mark) continue;
    Status passed = wait(**mark, deadline.left_ms());
    if (passed.code() == Code::kTimeout) return passed;
    if (!passed) return broken(std::move(passed));
  }
  return first;
}

Status GpuLoad::broken(Status status) {
  good_ = 0;
  return status;
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
  // Who only looks from time to time gets all sent on that has come.
  for (uint32_t layer = 0; layer < layers_.size(); layer++) (void)send(layer, 0);
  Status first;
  for (uint32_t layer = 0; layer < layers_.size(); layer++) {
    Status status = wait_layer(layer, deadline.left_ms());
    if (status.code() == Code::kTimeout) return status;
    if (first.is_ok()) first = status;
  }
  return first;
}

}  // namespace neotier::kv
