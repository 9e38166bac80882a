// SPDX-License-Identifier: Apache-2.0
#include "kv/stager.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace neotier::kv {

using engine::Code;
using engine::CopyLane;
using engine::DeviceMark;
using engine::Status;
using engine::Ticket;

namespace {

// Between looks at the device: a chunk of some MiB is copied within the first; a stream of the caller's that copies
// come after may take long.
constexpr std::chrono::microseconds kShortestNap{50}, kLongestNap{1000};
// Beyond any deadline that a caller means, and within what a clock counts.
constexpr uint64_t kLongestWaitMs = 86400000;

uint64_t layer_bytes(const BlockLayout& layout, uint32_t layer) {
  const BlockPiece& last = layout.pieces()[layout.end_piece(layer) - 1];
  return last.offset + last.bytes - layout.pieces()[layout.first_piece(layer)].offset;
}

}  // namespace

void Bell::ring() {
  {
    const std::lock_guard lock(mutex_);
    rung_ = true;
  }
  changed_.notify_all();
}

class StagedBlocks::Arrivals : public engine::EndListener {
 public:
  Arrivals(std::shared_ptr<Bell> bell, size_t reads) : bell_(std::move(bell)), left_(reads) {}
  void ended() override {
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) bell_->ring();
  }
  bool all() const { return left_.load(std::memory_order_acquire) == 0; }

 private:
  const std::shared_ptr<Bell> bell_;
  std::atomic<size_t> left_;
};

StagedBlocks::StagedBlocks(StagingLane lane, std::vector<Block> blocks, std::span<std::byte* const> into, size_t stride)
    : lane_(std::move(lane)),
      blocks_(std::move(blocks)),
      into_(into),
      stride_(stride),
      end_(blocks_.size()),
      layers_(lane_.layout.layers()) {}

StagedBlocks::~StagedBlocks() {
  cancel_reads();
  for (const Chunk& chunk : chunks_)
    for (const Section& section : chunk.sections)
      for (const engine::TicketRef& read : section.reads) (void)read->wait();
  if (chunks_.empty()) return;
  if (std::any_of(chunks_.begin(), chunks_.end(), [](const Chunk& chunk) { return chunk.copied; }))
    lane_.copies.drain(CopyLane::kStagedIn);
  for (const Chunk& chunk : chunks_) lane_.staging.give_back(chunk.slot);
  lane_.bell->ring();
}

const StagedBlocks::Layer* StagedBlocks::wait(uint32_t layer, uint64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  const auto told = [&] { return layers_told_ > layer; };
  if (timeout_ms > kLongestWaitMs) {
    told_.wait(lock, told);
  } else if (!told_.wait_for(lock, std::chrono::milliseconds(timeout_ms), told)) {
    return nullptr;
  }
  return &layers_[layer];
}

void StagedBlocks::cancel() {
  cancelled_ = true;
  lane_.bell->ring();
}

StagedBlocks::Turn StagedBlocks::turn() {
  bool moved = false;
  try {
    if (cancelled_ && !stopped_) stop();
    // What this gives back in the end is another's before it is its own again.
    moved |= fetch();
    moved |= send_on();
    moved |= let_go();
    tell();
  } catch (const std::bad_alloc&) {
    moved = true;
    fail(engine::no_memory());
    tell();  // asks for no memory now
  }
  if (moved) return Turn::kMoved;
  if (chunks_.empty()) return sent_layer_ == layers_.size() ? Turn::kEnded : Turn::kWaiting;
  return chunks_.front().mark ? Turn::kCopying : Turn::kWaiting;
}

// The layer that is on its way keeps what has been sent of it.
void StagedBlocks::stop() {
  stopped_ = true;
  if (sent_layer_ == layers_.size()) return;
  error_ = {Code::kCancelled, "the load was cancelled"};
  end_ = std::min(end_, sent_at_);
  tell();
  end_ = 0;
  cancel_reads();
}

void StagedBlocks::cancel_reads() {
  for (const Chunk& chunk : chunks_)
    for (size_t i = chunk.sent; i < chunk.sections.size(); i++) lane_.engine.cancel(chunk.sections[i].reads);
}

// One slot's worth, where there is a slot.
bool StagedBlocks::fetch() {
  while (read_layer_ < layers_.size() && read_at_ >= end_) {
    read_layer_++;
    read_at_ = 0;
  }
  if (read_layer_ == layers_.size()) return false;
  Chunk& chunk = chunks_.emplace_back();
  chunk.slot = lane_.staging.take(Staging::For::kLoad);
  if (!chunk.slot) {
    chunks_.pop_back();
    return false;
  }
  chunk.sections = next_sections(chunk.slot);
  bool all = true;
  for (const Section& section : chunk.sections) {
    const uint64_t bytes = layer_bytes(lane_.layout, section.layer);
    const uint64_t offset = lane_.layout.pieces()[lane_.layout.first_piece(section.layer)].offset;
    for (size_t i = section.first; all && i < section.end; i++) {
      try {
        lane_.engine.get_async(blocks_[i].key, offset, {section.at + (i - section.first) * bytes, bytes},
                               section.reads[i - section.first], false);
      } catch (const std::bad_alloc&) {
        all = false;
      }
    }
    // A read that was not asked for has ended.
    for (const engine::TicketRef& read : section.reads) (void)read->listen(section.arrivals);
  }
  if (!all) fail(engine::no_memory());
  return true;
}

std::vector<StagedBlocks::Section> StagedBlocks::next_sections(std::byte* slot) {
  std::vector<Section> sections;
  uint32_t layer = read_layer_;
  size_t at = read_at_;
  for (uint64_t used = 0; layer < layers_.size();) {
    const uint64_t bytes = layer_bytes(lane_.layout, layer);
    const size_t nr = std::min<size_t>(end_ - at, (lane_.staging.slot_bytes() - used) / bytes);
    if (nr == 0) break;
    Section& section = sections.emplace_back();
    section = {layer, at, at + nr, slot + used, {}, std::make_shared<Arrivals>(lane_.bell, nr)};
    // A section's tickets lie together: they come and go at once.
    const std::shared_ptr<Ticket[]> tickets = std::make_unique<Ticket[]>(nr);
    section.reads.reserve(nr);
    for (size_t i = 0; i < nr; i++) section.reads.emplace_back(tickets, &tickets[i]);
    used += nr * bytes;
    at += nr;
    if (at < end_) break;
    layer++;
    at = 0;
  }
  read_layer_ = layer;
  read_at_ = at;
  return sections;
}

// What has come, in order.
bool StagedBlocks::send_on() {
  bool moved = false;
  for (Chunk& chunk : chunks_) {
    for (; chunk.sent < chunk.sections.size() && chunk.sections[chunk.sent].arrivals->all(); chunk.sent++) {
      take(chunk, chunk.sections[chunk.sent]);
      tell();
      moved = true;
    }
    if (chunk.sent < chunk.sections.size()) break;
  }
  flush();
  std::shared_ptr<DeviceMark> mark;
  for (Chunk& chunk : chunks_) {
    if (chunk.sent < chunk.sections.size()) break;
    if (!chunk.copied || chunk.mark) continue;
    if (!mark) {
      auto made = lane_.copies.mark(CopyLane::kStagedIn);
      if (!made) {
        fail(made.status());
        return true;
      }
      mark = std::move(*made);
    }
    chunk.mark = mark;
  }
  return moved;
}

void StagedBlocks::take(Chunk& chunk, const Section& section) {
  if (section.layer < sent_layer_) return;  // it ended before these blocks
  const BlockLayout& layout = lane_.layout;
  const size_t first_piece = layout.first_piece(section.layer), end_piece = layout.end_piece(section.layer);
  const uint64_t bytes = layer_bytes(layout, section.layer), offset = layout.pieces()[first_piece].offset;
  asked_.reserve(asked_.size() + (section.end - section.first) * (end_piece - first_piece));
  for (size_t i = section.first; i < std::min(section.end, end_); i++) {
    if (Status came = section.reads[i - section.first]->wait_ns(0); !came) {
      end_ = i;
      error_ = std::move(came);
      break;
    }
    const std::byte* const from = section.at + (i - section.first) * bytes;
    for (size_t k = first_piece; k < end_piece; k++) {
      const BlockPiece& piece = layout.pieces()[k];
      asked_.push_back({into_[k * stride_ + blocks_[i].number], from + (piece.offset - offset), piece.bytes});
    }
    chunk.copied = true;
  }
  sent_at_ = section.end;
}

void StagedBlocks::flush() {
  if (asked_.empty()) return;
  Status asked = lane_.copies.copy(CopyLane::kStagedIn, asked_);
  asked_.clear();
  if (!asked) fail(std::move(asked));
}

// Slots that the device has read.
bool StagedBlocks::let_go() {
  bool some = false;
  while (!chunks_.empty() && chunks_.front().sent == chunks_.front().sections.size()) {
    const Chunk& chunk = chunks_.front();
    if (chunk.copied) {
      Status passed = lane_.copies.wait(*chunk.mark, 0);
      if (passed.code() == Code::kTimeout) break;
      if (!passed) fail(std::move(passed));
    }
    lane_.staging.give_back(chunk.slot);
    chunks_.pop_front();
    some = true;
  }
  return some;
}

// Of layers that are whole, as far as they will ever be.
void StagedBlocks::tell() {
  while (sent_layer_ < layers_.size() && sent_at_ >= end_) {
    std::unique_ptr<DeviceMark> mark;
    if (end_ > 0) flush();
    if (end_ > 0) {
      auto made = lane_.copies.mark(CopyLane::kStagedIn);
      if (made) {
        mark = std::move(*made);
      } else {
        fail(made.status());
      }
    }
    {
      const std::lock_guard lock(mutex_);
      Layer& layer = layers_[sent_layer_];
      layer.status = error_;
      layer.mark = std::move(mark);
      layer.good = broken_ ? 0 : end_ < blocks_.size() ? blocks_[end_].number : SIZE_MAX;
      layers_told_ = ++sent_layer_;
    }
    told_.notify_all();
    sent_at_ = 0;
  }
}

// The device reads no slot any more when it returns.
void StagedBlocks::fail(Status status) {
  end_ = 0;
  error_ = std::move(status);
  broken_ = true;
  asked_.clear();
  lane_.copies.drain(CopyLane::kStagedIn);
  for (Chunk& chunk : chunks_) {
    chunk.copied = false;
    chunk.mark.reset();
  }
  cancel_reads();
}

Stager::~Stager() {
  {
    const std::lock_guard lock(bell_->mutex_);
    stop_ = true;
  }
  bell_->changed_.notify_all();
  thread_.join();
}

void Stager::add(StagedBlocks& blocks) {
  {
    const std::lock_guard lock(bell_->mutex_);
    all_.push_back(&blocks);
  }
  bell_->ring();
}

void Stager::remove(const StagedBlocks& blocks) {
  std::unique_lock lock(bell_->mutex_);
  std::erase(all_, &blocks);
  bell_->rung_ = true;  // turns are counted anew
  not_busy_.wait(lock, [&] { return busy_ != &blocks; });
}

void Stager::run() {
  std::unique_lock lock(bell_->mutex_);
  size_t next = 0, idle = 0;  // idle: turns since one moved; as many as there are loads: none can
  bool copying = false;
  auto nap = kShortestNap;
  while (!stop_) {
    if (std::exchange(bell_->rung_, false)) idle = 0;
    if (idle >= all_.size()) {
      const auto woken = [&] { return stop_ || bell_->rung_; };
      if (copying) {
        bell_->changed_.wait_for(lock, nap, woken);
        nap = std::min(2 * nap, kLongestNap);
      } else {
        bell_->changed_.wait(lock, woken);
      }
      idle = 0;
      copying = false;
      continue;
    }
    if (next >= all_.size()) next = 0;
    StagedBlocks* const one = all_[next++];
    busy_ = one;
    lock.unlock();
    const StagedBlocks::Turn turn = one->turn();
    lock.lock();
    busy_ = nullptr;
    not_busy_.notify_all();
    if (turn == StagedBlocks::Turn::kEnded && std::erase(all_, one) > 0) next--;
    copying |= turn == StagedBlocks::Turn::kCopying;
    idle++;
    // Where one has left, the others' turns are counted anew.
    if (turn == StagedBlocks::Turn::kMoved || turn == StagedBlocks::Turn::kEnded) {
      idle = 0;
      nap = kShortestNap;
    }
  }
}

}  // namespace neotier::kv
