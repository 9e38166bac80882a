// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/ssd/segments.h"

#include <algorithm>

namespace neotier::engine::ssd {

Segments::Segments(const Geometry& geometry) : geometry_(geometry), all_(geometry.segments) {
  low_ = std::max<size_t>(2, all_.size() / 32) + kReserve;
  free_.reserve(all_.size());
  dying_.reserve(all_.size());
}

bool Segments::room(Head head, uint64_t blocks) const {
  const uint64_t size = geometry_.segment_blocks();
  const size_t kept = head == kUser ? kReserve : 0;
  const uint64_t usable = free_.size() > kept ? free_.size() - kept : 0;
  const uint64_t rest = open_[head].segment == kNone ? 0 : size - open_[head].next;
  // A chunk that does not fit leaves up to 15 blocks at a segment's end.
  const uint64_t crossed = blocks / (size - kChunkBlocks) + 2;
  return blocks <= (rest > kChunkBlocks ? rest - kChunkBlocks : 0) ||
         blocks + crossed * kChunkBlocks <= rest + usable * size;
}

void Segments::close(uint32_t segment, uint64_t commits_started) {
  all_[segment].state = State::kClosed;
  vacate(segment * geometry_.segment_blocks() + geometry_.first_block(), 0, commits_started);
}

uint32_t Segments::place(Head head, uint32_t count, uint32_t slot) {
  Open& open = open_[head];
  if (open.segment != kNone && open.next + count > geometry_.segment_blocks()) {
    close(open.segment, commits_started_);
    open.segment = kNone;
  }
  if (open.segment == kNone) {
    open = {free_.back(), 0};
    free_.pop_back();
    all_[open.segment].state = State::kOpen;
  }
  Segment& segment = all_[open.segment];
  if (segment.slots.empty() || segment.slots.back() != slot) segment.slots.push_back(slot);
  const uint32_t block = geometry_.first_block() + open.segment * geometry_.segment_blocks() + open.next;
  open.next += count;
  segment.wanted += count;
  segment.writing++;
  return block;
}

void Segments::vacate(uint32_t block, uint32_t count, uint64_t commits_started) {
  commits_started_ = commits_started;
  const uint32_t index = geometry_.segment_of(block);
  Segment& segment = all_[index];
  segment.wanted -= count;
  if (segment.wanted > 0 || segment.state != State::kClosed) return;
  segment.state = State::kDying;
  segment.died = commits_started;
  dying_.push_back(index);
}

void Segments::release(uint64_t finished) {
  std::erase_if(dying_, [&](uint32_t index) {
    Segment& segment = all_[index];
    if (segment.died >= finished || segment.pins > 0 || segment.writing > 0) return false;
    segment.state = State::kFree;
    segment.bad = false;
    segment.slots.clear();
    // First in, first out spreads the wear.
    free_.insert(free_.begin(), index);
    return true;
  });
}

std::optional<uint32_t> Segments::victim() const {
  std::optional<uint32_t> best;
  for (uint32_t i = 0; i < all_.size(); i++) {
    const Segment& segment = all_[i];
    if (segment.state != State::kClosed || segment.bad || segment.writing > 0) continue;
    if (!best || segment.wanted < all_[*best].wanted) best = i;
  }
  if (best && all_[*best].wanted + kChunkBlocks > geometry_.segment_blocks()) return std::nullopt;
  return best;
}

void Segments::claim(uint32_t block, uint32_t count, uint32_t slot) {
  Segment& segment = of(block);
  segment.state = State::kClosed;
  segment.wanted += count;
  if (segment.slots.empty() || segment.slots.back() != slot) segment.slots.push_back(slot);
}

void Segments::settle() {
  free_.clear();
  for (uint32_t i = static_cast<uint32_t>(all_.size()); i-- > 0;)
    if (all_[i].state == State::kFree) free_.push_back(i);
}

}  // namespace neotier::engine::ssd
