// SPDX-License-Identifier: Apache-2.0
#include "kv/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv/gpu_load.h"

namespace neotier::kv {

using engine::Code;
using engine::CopyLane;
using engine::DeviceCopy;
using engine::Key;
using engine::Result;
using engine::Status;

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kForever = UINT64_MAX;

Status not_so_many(const KvStore& store, size_t addresses, size_t keys) {
  return {Code::kInvalid,
          fmt::format("{} addresses for {} blocks of {} pieces", addresses, keys, store.layout().nr_pieces())};
}

bool as_many(const KvStore& store, size_t addresses, size_t keys) {
  return keys <= SIZE_MAX / store.layout().nr_pieces() && addresses == keys * store.layout().nr_pieces();
}

}  // namespace

Result<std::unique_ptr<GpuMemory>> GpuMemory::open(KvStore& store, int device, uint64_t staging_bytes) {
  auto copies = engine::open_device_copies(device);
  if (!copies) return copies.status();
  std::unique_ptr<GpuMemory> gpu(new GpuMemory(store, std::move(*copies)));
  const uint64_t block = (store.block_bytes() + kPage - 1) / kPage * kPage;
  const uint64_t blocks = std::max(staging_bytes / block, uint64_t{1}) + Staging::kForLoadsAlone;
  auto staging = gpu->copies_->pinned(blocks * block);
  if (!staging) return staging.status();
  gpu->staging_ = std::make_unique<Staging>(std::move(*staging), store.block_bytes());
  // Where it is not permitted, blocks go through staging. Not CXL memory: to register memory pins it, and what lies in
  // a movable zone, as such memory does, is moved to DRAM for that.
  for (const std::span<std::byte> range : store.engine().ranges(engine::TierKind::kDram))
    (void)gpu->copies_->register_host(range);
  return gpu;
}

Result<std::unique_ptr<Loading>> GpuMemory::load(SessionId session, std::span<const Key> keys,
                                                 std::span<std::byte* const> into, uint32_t first_position,
                                                 const PlanOptions* decide, void* stream) {
  if (!as_many(store_, into.size(), keys.size())) return not_so_many(store_, into.size(), keys.size());
  auto load = std::make_unique<GpuLoad>(*this, into, keys.size());
  if (Status started = load->start(session, keys, first_position, decide, stream); !started) return started;
  return std::unique_ptr<Loading>(std::move(load));
}

Result<std::unique_ptr<Save>> GpuMemory::save(SessionId session, std::span<const Key> keys,
                                              std::span<const std::byte* const> from, uint32_t first_position) {
  if (!as_many(store_, from.size(), keys.size())) return not_so_many(store_, from.size(), keys.size());
  std::unique_ptr<Save> save(new Save(*this, session, keys, first_position));
  save->from_.assign(from.begin(), from.end());
  save->layers_ = std::vector<Save::Layer>(store_.layout().layers());
  save->slots_.reserve(keys.size());
  while (save->slots_.size() < keys.size()) {
    std::byte* const slot = staging_->take(Staging::For::kSave);
    if (!slot) break;
    save->slots_.push_back(slot);
  }
  return save;
}

void GpuMemory::give_back(std::byte* slot) {
  staging_->give_back(slot);
  stager_.bell()->ring();
}

Save::~Save() {
  // A copy that is asked for writes to staging, and reads the caller's memory.
  (void)settle();
  const bool some = std::any_of(layers_.begin(), layers_.end(), [](const Layer& layer) { return layer.posted; });
  if (some && !finished_) gpu_.copies_->drain(CopyLane::kOut);
  for (std::byte* slot : slots_) gpu_.give_back(slot);
}

Status Save::settle() {
  Status first;
  for (const Layer& layer : layers_) {
    if (!layer.posted) continue;
    gpu_.feeder_.wait(layer.asked);
    if (first.is_ok()) first = layer.status;
  }
  return first;
}

Status Save::layer(uint32_t layer, void* stream) {
  if (layer >= layers_.size()) return {Code::kInvalid, fmt::format("layer {} of {}", layer, layers_.size())};
  if (layers_[layer].posted) return {Code::kExists, fmt::format("layer {} has been saved", layer)};
  if (Status s = gpu_.copies_->after(CopyLane::kOut, stream); !s) return s;
  const auto ask = [this, layer]() -> Status {
    const BlockLayout& layout = gpu_.store_.layout();
    std::vector<DeviceCopy> copies;
    copies.reserve(slots_.size() * (layout.end_piece(layer) - layout.first_piece(layer)));
    for (size_t i = layout.first_piece(layer); i < layout.end_piece(layer); i++) {
      const BlockPiece& piece = layout.pieces()[i];
      for (size_t block = 0; block < slots_.size(); block++)
        copies.push_back({slots_[block] + piece.offset, from_[i * keys_.size() + block], piece.bytes});
    }
    return gpu_.copies_->copy(CopyLane::kOut, copies);
  };
  gpu_.feeder_.post(ask, layers_[layer].asked, layers_[layer].status);
  layers_[layer].posted = true;
  return {};
}

Status Save::behind(void* stream) {
  if (Status asked = settle(); !asked) return asked;
  auto mark = gpu_.copies_->mark(CopyLane::kOut);
  return mark ? gpu_.copies_->let_wait(stream, **mark) : mark.status();
}

StoreResult Save::finish() {
  StoreResult result;
  const bool all = std::all_of(layers_.begin(), layers_.end(), [](const Layer& layer) { return layer.posted; });
  if (finished_ || !all) {
    result.status = {Code::kInvalid, finished_ ? "the save has been finished" : "a layer of the save is missing"};
    return result;
  }
  result.status = settle();
  if (!result.status) return result;
  auto mark = gpu_.copies_->mark(CopyLane::kOut);
  result.status = mark ? gpu_.copies_->wait(**mark, kForever) : mark.status();
  if (!result.status) return result;
  finished_ = true;
  const BlockLayout& layout = gpu_.store_.layout();
  std::vector<const std::byte*> pieces;
  pieces.reserve(slots_.size() * layout.nr_pieces());
  for (const BlockPiece& piece : layout.pieces())
    for (const std::byte* slot : slots_) pieces.push_back(slot + piece.offset);
  return gpu_.store_.store(session_, std::span(keys_).first(slots_.size()), pieces, first_position_);
}

}  // namespace neotier::kv
