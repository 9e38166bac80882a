// SPDX-License-Identifier: Apache-2.0
#include "kv/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

namespace neotier::kv {

using engine::Code;
using engine::CopyLane;
using engine::DeviceCopy;
using engine::DeviceMark;
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

Staging::Staging(std::unique_ptr<engine::PinnedMemory> memory, uint64_t block_bytes) : memory_(std::move(memory)) {
  const uint64_t each = (block_bytes + kPage - 1) / kPage * kPage;
  const std::span<std::byte> bytes = memory_->bytes();
  slots_ = bytes.size() / each;
  free_.reserve(slots_);
  for (size_t i = slots_; i-- > 0;) free_.push_back(bytes.data() + i * each);
}

std::byte* Staging::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  std::byte* const slot = free_.back();
  free_.pop_back();
  return slot;
}

void Staging::give_back(std::byte* slot) {
  const std::lock_guard lock(mutex_);
  free_.push_back(slot);  // there is room: it came from there
}

size_t Staging::free_slots() const {
  const std::lock_guard lock(mutex_);
  return free_.size();
}

Feeder::~Feeder() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  thread_.join();
}

void Feeder::post(std::function<Status()> ask, bool& asked, Status& status) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(ask), &asked, &status});
  }
  work_.notify_one();
}

void Feeder::wait(const bool& asked) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return asked; });
}

void Feeder::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    Status status;
    try {
      status = job.ask();
    } catch (const std::bad_alloc&) {
      status = engine::no_memory();
    }
    lock.lock();
    *job.status = std::move(status);
    *job.asked = true;
    done_.notify_all();
  }
}

// Blocks that lie where the device can read are copied from there from the beginning on, layer by layer; of the others
// a layer is sent on once it has come to staging and somebody waits for it.
class GpuLoad final : public Loading, private Landing {
 public:
  GpuLoad(GpuMemory& gpu, std::span<std::byte* const> into, size_t keys)
      : gpu_(gpu), keys_(keys), into_(into.begin(), into.end()), layers_(gpu.store_.layout().layers()) {}
  ~GpuLoad() override {
    if (host_) host_->cancel();
    cancelled_ = true;
    for (const Layer& layer : layers_)
      if (layer.posted) gpu_.feeder_.wait(layer.asked);
    // What has been asked for reads what the pins hold, and writes to the caller's memory.
    for (const CopyLane lane : {CopyLane::kIn, CopyLane::kStagedIn}) gpu_.copies_->drain(lane);
    host_.reset();
    for (const auto& [block, slot] : staged_) gpu_.staging_->give_back(slot);
  }

  Status start(SessionId session, std::span<const Key> keys, uint32_t first_position, const PlanOptions* decide,
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

  size_t blocks() const override { return host_->blocks(); }
  const LoadPlan& plan() const override { return host_->plan(); }
  size_t good_blocks() const override { return good_; }
  void cancel() override {
    cancelled_ = true;
    host_->cancel();
  }
  Status notify(const std::shared_ptr<engine::CompletionQueue>&, uint64_t) override { return no_queue(); }
  Status notify_layers(const std::shared_ptr<engine::CompletionQueue>&, uint64_t) override { return no_queue(); }

  Status wait_layer(uint32_t layer, uint64_t timeout_ms) override {
    return arrive(layer, timeout_ms,
                  [&](const DeviceMark& mark, uint64_t left_ms) { return gpu_.copies_->wait(mark, left_ms); });
  }
  Status let_wait(void* stream, uint32_t layer, uint64_t timeout_ms) override {
    return arrive(layer, timeout_ms,
                  [&](const DeviceMark& mark, uint64_t) { return gpu_.copies_->let_wait(stream, mark); });
  }
  Status wait(uint64_t timeout_ms) override {
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

 private:
  struct Direct {
    size_t block;
    const std::byte* from;
    bool own;  // the host's memory, which this device reaches
  };
  struct Layer {
    bool posted = false, asked = false;  // of the blocks that are copied directly; the feeder's until `asked`
    Status status;
    std::unique_ptr<DeviceMark> direct, staged;
    bool sent = false;
  };
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

  bool take(size_t block, const std::byte* data, const std::byte* device) override {
    const bool own = data && gpu_.copies_->registered(data, gpu_.store_.block_bytes());
    if (!own && (data || !device)) return false;
    direct_.push_back({block, own ? data : device, own});
    return true;
  }
  std::byte* room(size_t block) override {
    staged_.reserve(staged_.size() + 1);
    std::byte* const slot = gpu_.staging_->take();
    if (slot) staged_.emplace_back(block, slot);
    return slot;
  }
  void add(uint32_t layer, size_t block, const std::byte* from, std::vector<DeviceCopy>& copies) const {
    const BlockLayout& layout = gpu_.store_.layout();
    for (size_t i = layout.first_piece(layer); i < layout.end_piece(layer); i++) {
      const BlockPiece& piece = layout.pieces()[i];
      copies.push_back({into_[i * keys_ + block], from + piece.offset, piece.bytes});
    }
  }
  // In the feeder's thread.
  Status ask_for(uint32_t layer) {
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
  static Status no_queue() {
    return {Code::kUnsupported, "a load into a GPU's memory has no place in a queue; let its stream wait"};
  }

  // Until the layer has come to where the device can read it, and its copies have been asked for.
  Status send(uint32_t number, uint64_t timeout_ms) {
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
  Status arrive(uint32_t number, uint64_t timeout_ms, Wait wait) {
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
  // Of what the device did nothing is known any more.
  Status broken(Status status) {
    good_ = 0;
    return status;
  }

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

Result<std::unique_ptr<GpuMemory>> GpuMemory::open(KvStore& store, int device, uint64_t staging_bytes) {
  auto copies = engine::open_device_copies(device);
  if (!copies) return copies.status();
  std::unique_ptr<GpuMemory> gpu(new GpuMemory(store, std::move(*copies)));
  const uint64_t block = (store.block_bytes() + kPage - 1) / kPage * kPage;
  auto staging = gpu->copies_->pinned(std::max(staging_bytes / block, uint64_t{1}) * block);
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
    std::byte* const slot = staging_->take();
    if (!slot) break;
    save->slots_.push_back(slot);
  }
  return save;
}

Save::~Save() {
  // A copy that is asked for writes to staging, and reads the caller's memory.
  (void)settle();
  const bool some = std::any_of(layers_.begin(), layers_.end(), [](const Layer& layer) { return layer.posted; });
  if (some && !finished_) gpu_.copies_->drain(CopyLane::kOut);
  for (std::byte* slot : slots_) gpu_.staging_->give_back(slot);
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
