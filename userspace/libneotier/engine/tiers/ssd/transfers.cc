// SPDX-License-Identifier: Apache-2.0
// Reads and writes. A transfer is done window by window; all that a window needs (chunks that nobody else writes, room
// in the log, bounce buffers) is taken at once or not at all, so that none waits while it holds something.
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "engine/tiers/ssd/store.h"

namespace neotier::engine {

using ssd::Access;
using ssd::chunk_blocks;
using ssd::kBlock;
using ssd::kChunk;
using ssd::Place;

namespace {

// 32 bits of XXH3 a chunk. Kept apart from the data, in the journal: bytes that an earlier owner left, or that were
// written elsewhere by mistake, fail it like torn ones.
uint32_t checksum(const std::byte* data, size_t bytes) { return static_cast<uint32_t>(XXH3_64bits(data, bytes)); }

}  // namespace

// ---- which bytes

std::pair<uint32_t, uint32_t> SsdTier::Store::covered(const Request& request, uint32_t chunk) const {
  const uint64_t begin = uint64_t{chunk} * kChunk, offset = request.transfer->offset;
  const uint64_t from = std::max(begin, offset);
  const uint64_t to = std::min<uint64_t>(begin + content(request, chunk), offset + request.bytes);
  return {static_cast<uint32_t>(from - begin), static_cast<uint32_t>(to - begin)};
}

void SsdTier::Store::slice(const Request& request, uint32_t chunk, uint32_t from, uint32_t to,
                           std::vector<iovec>& into) const {
  uint64_t skip = uint64_t{chunk} * kChunk + from - request.transfer->offset, left = to - from;
  for (const Piece& piece : request.transfer->pieces) {
    if (left == 0) return;
    if (skip >= piece.bytes) {
      skip -= piece.bytes;
      continue;
    }
    const uint64_t bytes = std::min(piece.bytes - skip, left);
    std::byte* const data = piece.data + skip;
    if (!into.empty() && static_cast<std::byte*>(into.back().iov_base) + into.back().iov_len == data)
      into.back().iov_len += bytes;
    else
      into.push_back({data, bytes});
    skip = 0;
    left -= bytes;
  }
}

bool SsdTier::Store::direct(const Request& request, uint32_t chunk) const {
  const auto [from, to] = covered(request, chunk);
  if (from != 0 || to != content(request, chunk) || to % kBlock != 0) return false;
  std::vector<iovec>& parts = slices_;
  parts.clear();
  slice(request, chunk, from, to, parts);
  // An access has 16 chunks and at most 1024 parts (IOV_MAX).
  return parts.size() <= 32 && std::all_of(parts.begin(), parts.end(), [](const iovec& part) {
           return reinterpret_cast<uintptr_t>(part.iov_base) % kBlock == 0 && part.iov_len % kBlock == 0;
         });
}

uint32_t SsdTier::Store::sum_of(const Request& request, uint32_t chunk) const {
  std::vector<iovec>& parts = slices_;
  parts.clear();
  slice(request, chunk, 0, content(request, chunk), parts);
  if (parts.size() == 1) return checksum(static_cast<std::byte*>(parts[0].iov_base), parts[0].iov_len);
  XXH3_64bits_reset(hash_.get());
  for (const iovec& part : parts) XXH3_64bits_update(hash_.get(), part.iov_base, part.iov_len);
  return static_cast<uint32_t>(XXH3_64bits_digest(hash_.get()));
}

// `out`: from the bounce buffer to the caller's memory.
void SsdTier::Store::copy(const Request& request, uint32_t chunk, std::byte* bounce, bool out) const {
  const auto [from, to] = covered(request, chunk);
  std::vector<iovec>& parts = slices_;
  parts.clear();
  slice(request, chunk, from, to, parts);
  std::byte* at = bounce + from;
  for (const iovec& part : parts) {
    std::memcpy(out ? part.iov_base : at, out ? at : part.iov_base, part.iov_len);
    at += part.iov_len;
  }
}

void SsdTier::Store::corrupt(Request& request, uint32_t chunk) {
  const auto [from, to] = covered(request, chunk);
  if (!request.write()) {
    // What failed is not left where the caller could take it for data.
    std::vector<iovec>& parts = slices_;
    parts.clear();
    slice(request, chunk, from, to, parts);
    for (const iovec& part : parts) std::memset(part.iov_base, 0, part.iov_len);
  }
  count_.corrupt_chunks++;
  request.status = status_of(Code::kCorrupt, [&] {
    return info_.name + ": " + options_.path + ": bytes " + std::to_string(uint64_t{chunk} * kChunk) + " to " +
           std::to_string(uint64_t{chunk} * kChunk + content(request, chunk) - 1) +
           " of an object fail their checksum; compute it again";
  });
}

int SsdTier::Store::registered(const std::byte* memory, uint64_t bytes) const {
  for (size_t i = 0; i < registered_.size(); i++) {
    const auto* const base = static_cast<const std::byte*>(registered_[i].iov_base);
    if (memory >= base && memory + bytes <= base + registered_[i].iov_len) return static_cast<int>(i);
  }
  return -1;
}

// ---- from submission to the window's accesses

void SsdTier::Store::begin(Transfer& transfer) {
  if (gone_) return complete(transfer, gone_status());
  uint32_t state = kQueued;
  if (transfer.op == Op::kFlush) {
    if (!transfer.state.compare_exchange_strong(state, kStarted))
      return complete(transfer, Status(Code::kCancelled, info_.name + ": cancelled before it began"));
    flushes_next_.push_back(&transfer);
    return;
  }
  if (free_requests_.empty()) {
    if (free_requests_.capacity() <= requests_.size()) free_requests_.reserve(2 * requests_.size() + 16);
    free_requests_.push_back(&requests_.emplace_back());
  }
  Request& request = *free_requests_.back();
  request.transfer = &transfer;
  request.bytes = bytes_of(transfer.pieces);
  request.status = {};
  request.count = 0;
  request.slot = static_cast<uint32_t>(transfer.extent);
  request.generation = static_cast<uint32_t>(transfer.extent >> 32);
  {
    const std::lock_guard lock(mutex_);
    const auto* const entry = table_.find(transfer.extent);
    request.extent_bytes = entry ? entry->bytes : 0;
  }
  if (request.extent_bytes == 0) return complete(transfer, Status(Code::kInvalid, info_.name + ": no such extent"));
  if (transfer.offset > request.extent_bytes || request.bytes > request.extent_bytes - transfer.offset)
    return complete(transfer, Status(Code::kInvalid, info_.name + ": beyond the extent's " +
                                                         std::to_string(request.extent_bytes) + " bytes"));
  if (request.bytes == 0) return complete(transfer, Status::ok());
  free_requests_.pop_back();
  request.next = static_cast<uint32_t>(transfer.offset / kChunk);
  request.end = static_cast<uint32_t>((transfer.offset + request.bytes - 1) / kChunk + 1);
  if (go_on(request) != Stall::kNone) stalled_.push_back(&request);
}

SsdTier::Store::Stall SsdTier::Store::go_on(Request& request) {
  try {
    return take_window(request);
  } catch (const std::bad_alloc&) {
    if (room_waiter_ == &request) room_waiter_ = nullptr;
    if (bounce_waiter_ == &request) bounce_waiter_ = nullptr;
    request.status = no_memory();
    finish(request);
    return Stall::kNone;
  }
}

SsdTier::Store::Stall SsdTier::Store::take_window(Request& request) {
  const uint32_t count = std::min(window_chunks_, request.end - request.next);
  uint64_t blocks = 0;
  size_t bounces = 0;
  for (uint32_t chunk = request.next; chunk < request.next + count; chunk++) {
    if (request.write()) {
      if (!writing_.empty() && writing_.contains(chunk_id(request.slot, chunk))) return Stall::kChunk;
      blocks += chunk_blocks(request.extent_bytes, chunk);
    }
    bounces += !direct(request, chunk);
  }
  if (request.write() &&
      ((room_waiter_ != nullptr && room_waiter_ != &request) || !segments_.room(ssd::Segments::kUser, blocks))) {
    if (room_waiter_ == nullptr) room_waiter_ = &request;
    return Stall::kRoom;
  }
  if (bounces > 0 && ((bounce_waiter_ != nullptr && bounce_waiter_ != &request) || bounces > bounces_.size())) {
    if (bounce_waiter_ == nullptr) bounce_waiter_ = &request;
    return Stall::kBounce;
  }
  // From here on nothing stalls it.
  if (room_waiter_ == &request) room_waiter_ = nullptr;
  if (bounce_waiter_ == &request) bounce_waiter_ = nullptr;
  uint32_t state = kQueued;
  if (!request.transfer->state.compare_exchange_strong(state, kStarted) && state == kCancelled) {
    request.status = status_of(Code::kCancelled, [this] { return info_.name + ": cancelled before it began"; });
    request.next = request.end;
    finish(request);
    return Stall::kNone;
  }
  request.first = request.next;
  request.count = count;
  request.next += count;
  {
    const std::lock_guard lock(mutex_);
    auto* const entry = table_.find(request.slot, request.generation);
    for (uint32_t i = 0; i < count; i++) request.old[i] = entry ? entry->places()[request.first + i] : Place{};
  }
  if (request.write()) place_window(request);
  for (uint32_t i = 0; i < count; i++)
    if (request.old[i].block != 0) segments_.pin(request.old[i].number());
  issue(request);
  return Stall::kNone;
}

// All of the window's chunks, or std::bad_alloc and none.
void SsdTier::Store::place_window(Request& request) {
  uint32_t placed = 0;
  try {
    for (; placed < request.count; placed++) {
      const uint32_t chunk = request.first + placed;
      writing_.insert(chunk_id(request.slot, chunk));
      request.places[placed] = {
          segments_.place(ssd::Segments::kUser, chunk_blocks(request.extent_bytes, chunk), request.slot), 0};
    }
  } catch (const std::bad_alloc&) {
    for (uint32_t i = 0; i <= placed; i++) writing_.erase(chunk_id(request.slot, request.first + i));
    for (uint32_t i = 0; i < placed; i++) {
      segments_.written(request.places[i].number());
      segments_.vacate(request.places[i].number(), chunk_blocks(request.extent_bytes, request.first + i),
                       journal_.started());
    }
    throw;
  }
}

SsdTier::Store::Run& SsdTier::Store::new_run(Request& request, uint32_t first) {
  if (free_runs_.empty()) {
    if (free_runs_.capacity() <= runs_.size()) free_runs_.reserve(2 * runs_.size() + 16);
    free_runs_.push_back(&runs_.emplace_back());
  }
  Run& run = *free_runs_.back();
  free_runs_.pop_back();
  run.owner = Access::Owner::kRun;
  run.request = &request;
  run.first = first;
  run.count = 1;
  run.bounce = nullptr;
  run.old = false;
  request.under_way++;
  return run;
}

void SsdTier::Store::start_run(Run& run) {
  run.buffer =
      run.list.size() == 1 ? registered(static_cast<std::byte*>(run.list[0].iov_base), run.list[0].iov_len) : -1;
  start(run);
}

void SsdTier::Store::issue(Request& request) {
  request.under_way = 1;
  Run* unstarted = nullptr;
  try {
    issue_from(request, unstarted);
  } catch (const std::bad_alloc&) {
    request.status = no_memory();
    if (unstarted) release(*unstarted);
  }
  if (--request.under_way == 0) window_ended(request);
}

// `unstarted`: a run that was taken and not started when it throws.
void SsdTier::Store::issue_from(Request& request, Run*& unstarted) {
  const bool write = request.write();
  auto& places = write ? request.places : request.old;
  for (uint32_t i = 0; i < request.count; i++) {
    const uint32_t chunk = request.first + i;
    if (!write && places[i].block == 0) {  // never written
      const auto [from, to] = covered(request, chunk);
      std::vector<iovec>& parts = slices_;
      parts.clear();
      slice(request, chunk, from, to, parts);
      for (const iovec& part : parts) std::memset(part.iov_base, 0, part.iov_len);
      continue;
    }
    Run& run = new_run(request, i);
    unstarted = &run;
    const uint64_t at = uint64_t{places[i].number()} * kBlock;
    if (direct(request, chunk)) {
      run.prepare(write ? IoOp::kWrite : IoOp::kRead, at);
      for (uint32_t n = 0;; n++) {
        if (write) places[i].sum = sum_of(request, request.first + i);
        slice(request, request.first + i, 0, content(request, request.first + i), run.list);
        run.count = n + 1;
        if (run.count == kMaxRun || i + 1 == request.count || places[i + 1].block == 0 ||
            places[i + 1].number() != places[i].number() + ssd::kChunkBlocks || !direct(request, request.first + i + 1))
          break;
        i++;
      }
      unstarted = nullptr;
      start_run(run);
      continue;
    }
    run.bounce = bounces_.back();
    bounces_.pop_back();
    const uint64_t bytes = uint64_t{chunk_blocks(request.extent_bytes, chunk)} * kBlock;
    if (!write) {
      run.prepare(IoOp::kRead, at, run.bounce, bytes, -1);
      unstarted = nullptr;
      start_run(run);
      continue;
    }
    const auto [from, to] = covered(request, chunk);
    const bool partial = from != 0 || to != content(request, chunk);
    if (partial && request.old[i].block != 0) {
      run.old = true;
      run.prepare(IoOp::kRead, uint64_t{request.old[i].number()} * kBlock, run.bounce, bytes, -1);
      unstarted = nullptr;
      start_run(run);
      continue;
    }
    std::memset(run.bounce, 0, bytes);
    merge_and_write(run);
    unstarted = nullptr;
  }
}

void SsdTier::Store::merge_and_write(Run& run) {
  Request& request = *run.request;
  const uint32_t chunk = request.first + run.first;
  const uint64_t bytes = uint64_t{chunk_blocks(request.extent_bytes, chunk)} * kBlock;
  copy(request, chunk, run.bounce, false);
  Place& place = request.places[run.first];
  place.sum = checksum(run.bounce, bytes);
  run.old = false;
  run.prepare(IoOp::kWrite, uint64_t{place.number()} * kBlock, run.bounce, bytes, -1);
  start_run(run);
}

// ---- from an access's end to the transfer's

void SsdTier::Store::release(Run& run) {
  if (run.bounce != nullptr) bounces_.push_back(run.bounce);
  free_runs_.push_back(&run);
  Request& request = *run.request;
  if (--request.under_way == 0) window_ended(request);
}

void SsdTier::Store::run_ended(Run& run) {
  try {
    if (goes_on(run)) return;
  } catch (const std::bad_alloc&) {
    run.request->status = no_memory();
  }
  release(run);
}

// Whether it was started again.
bool SsdTier::Store::goes_on(Run& run) {
  Request& request = *run.request;
  if (run.result < 0) {
    request.status = failure(run.result, run.op == IoOp::kRead ? "a read" : "a write");
    return false;
  }
  failures_in_a_row_ = 0;
  (run.op == IoOp::kRead ? count_.bytes_read : count_.bytes_written) += run.total;
  if (run.op == IoOp::kRead) {
    for (uint32_t i = run.first; i < run.first + run.count; i++) {
      const uint32_t chunk = request.first + i;
      const uint32_t found = run.bounce == nullptr
                                 ? sum_of(request, chunk)
                                 : checksum(run.bounce, uint64_t{chunk_blocks(request.extent_bytes, chunk)} * kBlock);
      if (found != request.old[i].sum)
        corrupt(request, chunk);
      else if (run.old) {
        merge_and_write(run);
        return true;
      } else if (run.bounce != nullptr)
        copy(request, chunk, run.bounce, true);
    }
  }
  return false;
}

// Only the first and the last chunk can be written in part.
void SsdTier::Store::make_room_for_holes(const Request& request) {
  for (const uint32_t chunk : {request.first, request.first + request.count - 1}) {
    const auto [from, to] = covered(request, chunk);
    if (to - from == content(request, chunk)) continue;
    Holes& ranges = holes_[chunk_id(request.slot, chunk)];
    ranges.reserve(ranges.size() + 1);
  }
}

// True where a partial write leaves something of the chunk unwritten. After make_room_for_holes() it needs no memory.
bool SsdTier::Store::note_holes(uint64_t id, const Place& old, uint32_t from, uint32_t to, uint32_t content) {
  if (to - from == content || (old.block != 0 && !old.holes())) {
    holes_.erase(id);
    return false;
  }
  Holes& ranges = holes_[id];
  ranges.emplace_back(from, to);
  std::sort(ranges.begin(), ranges.end());
  size_t last = 0;
  for (size_t i = 1; i < ranges.size(); i++) {
    if (ranges[i].first <= ranges[last].second)
      ranges[last].second = std::max(ranges[last].second, ranges[i].second);
    else
      ranges[++last] = ranges[i];
  }
  ranges.resize(last + 1);
  if (ranges[0] != std::pair{uint32_t{0}, content}) return true;
  holes_.erase(id);
  return false;
}

void SsdTier::Store::apply(Request& request) {
  ssd::Record record;
  try {
    journal_.make_room(sizeof record + request.count * sizeof(Place));
    make_room_for_holes(request);
  } catch (const std::bad_alloc&) {
    request.status = no_memory();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    auto* const entry = table_.find(request.slot, request.generation);
    if (entry == nullptr) {
      request.status =
          status_of(Code::kInvalid, [this] { return info_.name + ": the extent was freed while it was written"; });
      return;
    }
    record = record_of(request.slot, request.first, request.count);
    for (uint32_t i = 0; i < request.count; i++) {
      const uint32_t chunk = request.first + i;
      // The cleaner may have moved it since the window began.
      Place& place = entry->places()[chunk];
      request.old[i] = place;
      const auto [from, to] = covered(request, chunk);
      if (note_holes(chunk_id(request.slot, chunk), place, from, to, content(request, chunk)))
        request.places[i].block |= Place::kHoles;
      place = request.places[i];
    }
  }
  journal_.note(record, request.places.data());
  for (uint32_t i = 0; i < request.count; i++)
    if (request.old[i].block != 0)
      segments_.vacate(request.old[i].number(), chunk_blocks(request.extent_bytes, request.first + i),
                       journal_.started());
}

void SsdTier::Store::window_ended(Request& request) {
  for (uint32_t i = 0; i < request.count; i++)
    if (request.old[i].block != 0) segments_.unpin(request.old[i].number());
  if (request.write()) {
    if (request.status) apply(request);
    for (uint32_t i = 0; i < request.count; i++) {
      writing_.erase(chunk_id(request.slot, request.first + i));
      segments_.written(request.places[i].number());
      if (!request.status)
        segments_.vacate(request.places[i].number(), chunk_blocks(request.extent_bytes, request.first + i),
                         journal_.started());
    }
  }
  if (!request.status || request.next == request.end) return finish(request);
  // Behind those that have waited longer.
  stalled_.push_back(&request);
  ready_ = true;
}

void SsdTier::Store::finish(Request& request) {
  Transfer& transfer = *request.transfer;
  free_requests_.push_back(&request);
  complete(transfer, std::move(request.status));
}

void SsdTier::Store::retry_stalled() {
  for (size_t left = stalled_.size(); left > 0; left--) {
    Request& request = *stalled_.pop_front();
    const bool gone = gone_;
    if (gone || request.transfer->state == kCancelled) {
      if (room_waiter_ == &request) room_waiter_ = nullptr;
      if (bounce_waiter_ == &request) bounce_waiter_ = nullptr;
      request.status = gone
                           ? gone_status()
                           : status_of(Code::kCancelled, [this] { return info_.name + ": cancelled before it began"; });
      finish(request);
    } else if (go_on(request) != Stall::kNone) {
      stalled_.push_back(&request);
    }
  }
}

}  // namespace neotier::engine
