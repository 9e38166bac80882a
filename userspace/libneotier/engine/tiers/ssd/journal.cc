// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/ssd/journal.h"

#include <algorithm>
#include <cstring>

namespace neotier::engine::ssd {

namespace {
constexpr size_t kPayload = kFrameBytes - sizeof(FrameHeader);
}

int64_t run_now(File& file, std::span<Access> accesses) {
  for (Access& access : accesses) access.start(file);
  std::vector<Io*> ended;
  int64_t first = 0;
  for (size_t left = accesses.size(); left > 0;) {
    ended.clear();
    file.wait(ended, true);
    for (Io* io : ended) {
      auto& access = static_cast<Access&>(*io);
      if (access.go_on(file)) continue;
      left--;
      if (access.result < 0 && first == 0) first = access.result;
    }
  }
  return first;
}

Journal::Journal(const Geometry& geometry, std::byte* memory, Index index)
    : geometry_(geometry), memory_(memory), index_(std::move(index)) {
  // What commits will want: they are made by a thread that nobody calls.
  payload_.reserve(kFrameBytes);
  for (Access& frame : frames_) {
    frame.owner = Access::Owner::kJournal;
    frame.list.reserve(1);
  }
  sync_.owner = Access::Owner::kJournal;
}

FrameHeader Journal::expected(const Cursor& cursor) const {
  FrameHeader header;
  header.file_id = geometry_.file_id;
  header.epoch = cursor.epoch;
  header.sequence = cursor.sequence;
  header.previous = cursor.previous;
  header.session = session_;
  return header;
}

Status Journal::format(File& file) {
  durable_ = {.epoch = 1};
  last_epoch_ = 1;
  FrameHeader header = expected(durable_);
  header.flags = kCheckpointBegin | kCheckpointEnd;
  durable_.previous = seal_frame(memory_, header);
  durable_.sequence = 1;
  durable_.used = kBlock;
  // The second area must not begin with what lay there.
  std::memset(memory_ + kBlock, 0, kBlock);
  Access writes[2];
  for (unsigned area = 0; area < 2; area++)
    writes[area].prepare(IoOp::kWrite, area_offset(area), memory_ + area * kBlock, kBlock, -1);
  if (const int64_t failed = run_now(file, writes); failed < 0)
    return {Code::kIo, std::string("the journal cannot be written: ") + std::strerror(static_cast<int>(-failed))};
  Access sync;
  sync.prepare(IoOp::kSync, 0);
  if (const int64_t failed = run_now(file, std::span(&sync, 1)); failed < 0)
    return {Code::kIo, std::string("the journal cannot be made durable: ") + std::strerror(static_cast<int>(-failed))};
  return Status::ok();
}

// ---- recovery

Status Journal::load(File& file, const Apply& apply) {
  struct First {
    unsigned area;
    uint64_t epoch;
  };
  std::vector<First> areas;
  for (unsigned area = 0; area < 2; area++) {
    Access read;
    read.prepare(IoOp::kRead, area_offset(area), memory_, kFrameBytes, -1);
    if (const int64_t failed = run_now(file, std::span(&read, 1)); failed < 0)
      return {Code::kIo, std::string("the journal cannot be read: ") + std::strerror(static_cast<int>(-failed))};
    FrameHeader header;
    std::memcpy(&header, memory_, sizeof header);
    const auto found = check_frame(std::span(memory_, kFrameBytes), expected({area, header.epoch, 0, 0, 0}));
    if (found && (found->flags & kCheckpointBegin)) areas.push_back({area, header.epoch});
  }
  std::sort(areas.begin(), areas.end(), [](const First& a, const First& b) { return a.epoch > b.epoch; });
  for (const First& first : areas) {
    last_epoch_ = std::max(last_epoch_, first.epoch);
    // Nothing is applied before the checkpoint is known to be complete.
    Result<bool> complete = load_area(file, first.area, first.epoch, nullptr);
    if (!complete) return complete.status();
    if (!*complete) continue;
    complete = load_area(file, first.area, first.epoch, &apply);
    return complete.status();
  }
  return {Code::kCorrupt,
          "no complete index is left in the journal; its objects are lost: remove the file to begin anew"};
}

Result<bool> Journal::load_area(File& file, unsigned area, uint64_t epoch, const Apply* apply) {
  constexpr size_t kWindow = 4 << 20, kReads = 4;
  const Memory window = make_memory(kWindow);
  Cursor cursor{area, epoch, 0, 0, 0};
  size_t begin = 0, end = 0;
  uint64_t read_to = 0;
  bool complete = false;
  while (true) {
    if (end - begin < kFrameBytes && read_to < geometry_.journal_area_bytes) {
      std::memmove(window.get(), window.get() + begin, end - begin);
      end -= begin;
      begin = 0;
      const uint64_t bytes = std::min<uint64_t>(kWindow - end, geometry_.journal_area_bytes - read_to);
      std::array<Access, kReads> reads;
      size_t count = 0;
      const uint64_t each = blocks_of((bytes + kReads - 1) / kReads) * kBlock;
      for (uint64_t at = 0; at < bytes; at += each)
        reads[count++].prepare(IoOp::kRead, area_offset(area) + read_to + at, window.get() + end + at,
                               std::min(each, bytes - at), -1);
      if (const int64_t failed = run_now(file, std::span(reads.data(), count)); failed < 0)
        return Status(Code::kIo,
                      std::string("the journal cannot be read: ") + std::strerror(static_cast<int>(-failed)));
      end += bytes;
      read_to += bytes;
    }
    const auto frame = check_frame(std::span(window.get() + begin, end - begin), expected(cursor));
    if (!frame) break;
    if (apply != nullptr) {
      std::span<const std::byte> records(window.get() + begin + sizeof(FrameHeader), frame->payload);
      Record record;
      const std::byte* places = nullptr;
      bool damaged = false;
      while (take_record(records, geometry_, record, places, damaged)) (*apply)(record, places);
      if (damaged)
        return Status(Code::kCorrupt, "a record in the journal makes no sense; remove the file to begin anew");
    }
    complete = complete || (frame->flags & kCheckpointEnd);
    // To know that a checkpoint is complete its end is enough.
    if (complete && apply == nullptr) return true;
    cursor.previous = frame->hash;
    cursor.sequence++;
    cursor.used += frame_bytes(frame->payload);
    begin += frame_bytes(frame->payload);
  }
  if (complete) durable_ = cursor;
  return complete;
}

// ---- commits

bool Journal::fits(size_t bytes) const {
  // Frames may end early, by up to the largest record of a write: some 600 bytes of 256 KiB.
  const uint64_t frames = bytes / (kPayload - (4 << 10)) + 1;
  return durable_.used + frames * kFrameBytes <= geometry_.journal_area_bytes;
}

void Journal::commit(File& file) {
  batch_.insert(batch_.end(), pending_.begin(), pending_.end());
  started_++;
  pending_.clear();
  batch_at_ = 0;
  result_ = 0;
  sync_failed_ = false;
  exhausted_ = false;
  begin_ = true;
  checkpoint_ = !fits(batch_.size());
  working_ = durable_;
  if (checkpoint_) working_ = {1 - durable_.area, ++last_epoch_, 0, 0, 0};
  enter(file, checkpoint_ ? Phase::kIndex : Phase::kData);
}

void Journal::sync(File& file) {
  sync_.prepare(IoOp::kSync, 0);
  under_way_++;
  sync_.start(file);
}

void Journal::enter(File& file, Phase phase) {
  phase_ = phase;
  if (phase == Phase::kData || phase == Phase::kSync)
    sync(file);
  else if (phase != Phase::kIdle)
    write_frames(file);
}

// False: no frame is left in this phase.
bool Journal::next_payload(std::vector<std::byte>& payload, uint32_t& flags) {
  payload.clear();
  flags = 0;
  if (phase_ == Phase::kEnd) {
    flags = kCheckpointEnd;
    return !std::exchange(exhausted_, true);
  }
  if (exhausted_) return false;
  if (phase_ == Phase::kIndex) {
    const bool begin = std::exchange(begin_, false);
    if (begin) flags = kCheckpointBegin;
    exhausted_ = !index_(payload, kPayload, begin);
    return begin || !payload.empty();
  }
  // Whole records of the batch.
  const size_t first = batch_at_;
  while (batch_at_ < batch_.size()) {
    std::span<const std::byte> rest(batch_.data() + batch_at_, batch_.size() - batch_at_);
    const uint64_t before = rest.size();
    Record record;
    const std::byte* places = nullptr;
    bool damaged = false;
    take_record(rest, geometry_, record, places, damaged);
    const uint64_t bytes = before - rest.size();
    if (batch_at_ + bytes - first > kPayload) break;
    batch_at_ += bytes;
  }
  payload.assign(batch_.begin() + static_cast<ptrdiff_t>(first), batch_.begin() + static_cast<ptrdiff_t>(batch_at_));
  return !payload.empty();
}

void Journal::write_frames(File& file) {
  for (size_t i = 0; i < kBuffers && result_ == 0; i++) {
    if (busy_[i]) continue;
    uint32_t flags = 0;
    if (!next_payload(payload_, flags)) return;
    const uint64_t bytes = frame_bytes(payload_.size());
    if (working_.used + bytes > geometry_.journal_area_bytes) {
      result_ = -ENOSPC;  // plan_geometry() and fits() make room; a file of other proportions may not have it
      return;
    }
    std::byte* const memory = memory_ + i * kFrameBytes;
    std::memcpy(memory + sizeof(FrameHeader), payload_.data(), payload_.size());
    FrameHeader header = expected(working_);
    header.payload = static_cast<uint32_t>(payload_.size());
    header.flags = flags;
    working_.previous = seal_frame(memory, header);
    frames_[i].prepare(IoOp::kWrite, area_offset(working_.area) + working_.used, memory, bytes, -1);
    working_.sequence++;
    working_.used += bytes;
    busy_[i] = true;
    under_way_++;
    frames_[i].start(file);
  }
}

bool Journal::ended(File& file, Access& access) {
  under_way_--;
  if (access.op == IoOp::kWrite) busy_[static_cast<size_t>(&access - frames_.data())] = false;
  if (access.result < 0 && result_ == 0) {
    result_ = access.result;
    sync_failed_ = access.op == IoOp::kSync;
  }
  if (result_ == 0 && access.op == IoOp::kWrite) write_frames(file);
  if (under_way_ > 0) return false;
  if (result_ < 0) {
    phase_ = Phase::kIdle;
    return true;
  }
  switch (phase_) {
    case Phase::kIndex:
      enter(file, Phase::kData);
      return false;
    case Phase::kData:
      exhausted_ = false;
      enter(file, checkpoint_ ? Phase::kEnd : Phase::kFrames);
      if (under_way_ > 0) return false;
      // Nothing was noted, or there was no room.
      if (result_ == 0) {
        enter(file, Phase::kSync);
        return false;
      }
      phase_ = Phase::kIdle;
      return true;
    case Phase::kFrames:
    case Phase::kEnd:
      enter(file, Phase::kSync);
      return false;
    case Phase::kSync:
    case Phase::kIdle:
      break;
  }
  phase_ = Phase::kIdle;
  durable_ = working_;
  finished_ = started_;
  checkpoints_ += checkpoint_;
  batch_.clear();
  return true;
}

void Journal::for_each_pending(const Apply& apply) const {
  for (const auto* records : {&batch_, &pending_}) {
    std::span<const std::byte> rest(*records);
    Record record;
    const std::byte* places = nullptr;
    bool damaged = false;
    while (take_record(rest, geometry_, record, places, damaged)) apply(record, places);
  }
}

}  // namespace neotier::engine::ssd
