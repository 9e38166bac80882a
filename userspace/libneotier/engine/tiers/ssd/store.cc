// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/ssd/store.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "engine/tiers/ssd/superblock.h"

namespace neotier::engine {

using ssd::Access;
using ssd::kBlock;
using ssd::Place;
using ssd::Record;

namespace {

constexpr size_t kCommitBytes = 1 << 20;  // of records: so many are not left to the next flush

}  // namespace

// ---- opening

SsdTier::Store::Store(SsdOptions options, std::unique_ptr<File> file, const ssd::Geometry& geometry)
    : options_(std::move(options)),
      file_system_(options_.file_system),
      geometry_(geometry),
      table_(geometry.max_extents),
      memory_(ssd::make_memory((kBounces + kMoves) * ssd::kChunk + ssd::Journal::kMemoryBytes)),
      segments_(geometry),
      journal_(geometry, memory_.get() + (kBounces + kMoves) * ssd::kChunk,
               [this](std::vector<std::byte>& to, size_t limit, bool begin) { return emit_index(to, limit, begin); }),
      method_(file->method()) {
  info_.name = options_.name;
  info_.kind = TierKind::kSsd;
  info_.durable = true;
  info_.capacity_bytes = geometry_.capacity_bytes;
  info_.alignment = kBlock;
  // A quarter of what the cleaner can always make free, so that a window finds room in a full tier.
  const uint64_t spare = (geometry_.segments * geometry_.segment_bytes - geometry_.capacity_bytes) / kBlock;
  window_chunks_ = static_cast<uint32_t>(std::clamp<uint64_t>(spare / 4 / ssd::kChunkBlocks, 3, kMaxWindow + 2) - 2);
  for (size_t i = 0; i < kBounces; i++) bounces_.push_back(memory_.get() + i * ssd::kChunk);
  for (size_t i = 0; i < kMoves; i++) moves_[i].memory = memory_.get() + (kBounces + i) * ssd::kChunk;
  freed_.reserve(kFreedAtOnce);
  freed_now_.reserve(kFreedAtOnce);
  for (Move& move : moves_) move.list.reserve(1);
  reset_file(std::move(file));
}

void SsdTier::Store::reset_file(std::unique_ptr<File> file) {
  constexpr uint64_t kRegisteredMost = 1 << 30;
  registered_ = {{memory_.get(), (kBounces + kMoves) * ssd::kChunk + ssd::Journal::kMemoryBytes}};
  for (const std::span<std::byte> host : options_.host_memory)
    for (uint64_t at = 0; at < host.size(); at += kRegisteredMost)
      registered_.push_back({host.data() + at, std::min<uint64_t>(kRegisteredMost, host.size() - at)});
  // RLIMIT_MEMLOCK may allow our own 5.5 MiB and no more.
  if (!file->register_buffers(registered_)) {
    registered_.resize(1);
    if (!file->register_buffers(registered_)) registered_.clear();
  }
  const std::lock_guard lock(mutex_);
  file_ = std::move(file);
}

Result<std::unique_ptr<SsdTier::Store>> SsdTier::Store::open(SsdOptions options) {
  if (options.path.empty()) return Status(Code::kInvalid, "an SSD tier needs a path");
  if (options.queue_depth == 0) return Status(Code::kInvalid, options.path + ": a queue of no depth");
  if (!options.file_system) options.file_system = posix_file_system();
  FileSystem& system = *options.file_system;
  if (system.exists(options.path)) {
    Result<std::unique_ptr<File>> file = system.open(options.path);
    if (!file) return file.status();
    uint32_t version = 0;
    Result<ssd::Geometry> geometry = ssd::read_superblock(**file, options.path, version);
    if (!geometry) return geometry.status();
    if (options.file_bytes != 0 && options.file_bytes / kBlock * kBlock != geometry->file_bytes)
      return Status(Code::kInvalid, options.path + ": was made with " + std::to_string(geometry->file_bytes) +
                                        " bytes, not " + std::to_string(options.file_bytes) +
                                        "; leave the size out, or remove the file to begin anew");
    auto store = std::make_unique<Store>(std::move(options), std::move(*file), *geometry);
    if (Status loaded = store->load(); !loaded) return loaded;
    // Before any record is written that only this version knows. What lies there now both versions read alike.
    if (version != ssd::kVersion) {
      if (Status made = ssd::write_superblock(*store->file_, *geometry, store->options_.path); !made) return made;
    }
    store->thread_ = std::thread([&store = *store] { store.run(); });
    return store;
  }
  if (!options.create) return Status(Code::kNotFound, options.path + ": no such file");
  Result<ssd::Geometry> geometry = ssd::plan_geometry(options.file_bytes, options.max_extents);
  if (!geometry) return Status(geometry.status().code(), options.path + ": " + geometry.status().what());
  const std::string path = options.path, part = path + ".part";
  Result<std::unique_ptr<File>> file = system.create(part, geometry->file_bytes);
  // Killed between its last write and its name, a start leaves one that is whole.
  if (!file && file.status().code() == Code::kExists && erase_unused(options, part))
    file = system.create(part, geometry->file_bytes);
  if (!file) return file.status();
  auto store = std::make_unique<Store>(std::move(options), std::move(*file), *geometry);
  if (Status made = store->journal_.format(*store->file_); !made) return Status(made.code(), part + ": " + made.what());
  if (Status made = ssd::write_superblock(*store->file_, *geometry, part); !made) return made;
  if (Status named = system.rename(part, path); !named) return named;
  store->segments_.settle();
  store->thread_ = std::thread([&store = *store] { store.run(); });
  return store;
}

// Erases a tier that holds nothing, so that create() may take its place; every other file stays as it is.
bool SsdTier::Store::erase_unused(const SsdOptions& options, const std::string& path) {
  Result<std::unique_ptr<File>> file = options.file_system->open(path);
  if (!file) return false;
  uint32_t version = 0;
  const Result<ssd::Geometry> geometry = ssd::read_superblock(**file, path, version);
  if (!geometry) return false;
  SsdOptions of_it = options;
  of_it.path = path;
  Store store(std::move(of_it), std::move(*file), *geometry);
  return store.load() && store.table_.extents() == 0 && ssd::erase_superblock(*store.file_, path);
}

Status SsdTier::Store::load() {
  // A checkpoint is written while objects come and go, so somewhat more than fits may be named; not any amount.
  const uint64_t most_blocks = 4 * geometry_.capacity_bytes / kBlock;
  bool absurd = false;
  const Status loaded = journal_.load(*file_, [&](const Record& record, const std::byte* places) {
    absurd = absurd || table_.used_blocks() > most_blocks;
    if (absurd) return;
    table_.seen(record.generation);
    if (record.type == Record::kFree) {
      if (table_.find(record.slot, record.generation) != nullptr) table_.remove(record.slot);
      return;
    }
    auto* entry = table_.find(record.slot, record.generation);
    if (entry == nullptr || entry->bytes != record.bytes) {
      table_.set(record.slot, record.generation, record.key, record.bytes);
      entry = table_.find(record.slot, record.generation);
    }
    table_.note(record.slot) = record.note;
    std::memcpy(entry->places() + record.first, places, record.count * sizeof(Place));
  });
  if (!loaded) return {loaded.code(), options_.path + ": " + loaded.what()};
  if (absurd)
    return {Code::kCorrupt, options_.path + ": the journal names more than the file holds; remove it to begin anew"};
  for (uint32_t slot = 0; slot < table_.slots(); slot++) {
    auto& entry = table_.at(slot);
    if (entry.bytes == 0) continue;
    const std::span<Place> places(entry.places(), entry.chunks());
    // Written in part when the end came: as good as nothing.
    if (std::any_of(places.begin(), places.end(), [](const Place& p) { return p.block == 0 || p.holes(); })) {
      table_.remove(slot);
      continue;
    }
    for (uint32_t chunk = 0; chunk < places.size(); chunk++)
      segments_.claim(places[chunk].number(), ssd::chunk_blocks(entry.bytes, chunk), slot);
  }
  table_.fill_free_list();
  segments_.settle();
  return Status::ok();
}

SsdTier::Store::~Store() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    file_->wake();
  }
  thread_.join();
}

// ---- calls from outside

TierUsage SsdTier::Store::usage() const {
  const std::lock_guard lock(mutex_);
  return {table_.used_blocks() * kBlock, table_.extents()};
}

Result<Extent> SsdTier::Store::allocate(const Key& key, uint64_t bytes) {
  if (gone_) return gone_status();
  if (bytes == 0 || bytes > ssd::kMaxExtentBytes || bytes > geometry_.capacity_bytes)
    return Status(Code::kInvalid,
                  info_.name + ": an object of " + std::to_string(bytes) + " bytes; 1 to " +
                      std::to_string(std::min<uint64_t>(ssd::kMaxExtentBytes, geometry_.capacity_bytes)) + " fit");
  const std::lock_guard lock(mutex_);
  if ((table_.used_blocks() + ssd::blocks_of(bytes)) * kBlock > geometry_.capacity_bytes)
    return Status(Code::kFull, info_.name + ": full");
  const uint32_t slot = table_.add(key, static_cast<uint32_t>(bytes));
  if (slot == UINT32_MAX)
    return Status(Code::kFull, info_.name + ": the file was made for " + std::to_string(geometry_.max_extents) +
                                   " objects, and has them; make it with a larger max_extents");
  return ssd::ExtentTable::name(slot, table_.at(slot).generation);
}

void SsdTier::Store::free(Extent extent) {
  const std::lock_guard lock(mutex_);
  auto* const entry = table_.find(extent);
  if (entry == nullptr) return;
  while (freed_.size() == freed_.capacity()) {
    try {
      freed_.reserve(2 * freed_.capacity());
    } catch (const std::bad_alloc&) {
      // It takes them without needing any.
      file_->wake();
      mutex_.unlock();
      std::this_thread::yield();
      mutex_.lock();
    }
  }
  Freed freed{{}, entry->bytes, entry->chunks() > 1 ? Place{} : entry->one, nullptr};
  freed.record.type = Record::kFree;
  freed.record.slot = static_cast<uint32_t>(extent);
  freed.record.generation = entry->generation;
  freed.many = table_.take(freed.record.slot);
  freed_.push_back(std::move(freed));
  if (sleeping_) {
    sleeping_ = false;
    file_->wake();
  }
}

void SsdTier::Store::describe(Extent extent, Note note) {
  const std::lock_guard lock(mutex_);
  auto* const entry = table_.find(extent);
  const auto slot = static_cast<uint32_t>(extent);
  if (entry == nullptr || table_.note(slot) == note) return;
  // Before its bytes it goes with the record of the write.
  if (entry->places()[0].block != 0) {
    try {
      described_.push_back(extent);
    } catch (const std::bad_alloc&) {
      return;
    }
  }
  table_.note(slot) = note;
  if (sleeping_) {
    sleeping_ = false;
    file_->wake();
  }
}

size_t SsdTier::Store::submit(std::span<Transfer* const> transfers) {
  const std::lock_guard lock(mutex_);
  const size_t most = std::min(transfers.size(), options_.queue_depth - taken_);
  size_t taken = 0;
  try {
    for (; taken < most; taken++) {
      transfers[taken]->state = kQueued;
      submitted_.push_back(transfers[taken]);
    }
  } catch (const std::bad_alloc&) {
    // As where the queue is full.
  }
  taken_ += taken;
  if (taken > 0 && sleeping_) {
    sleeping_ = false;
    file_->wake();
  }
  return taken;
}

void SsdTier::Store::cancel(Transfer& transfer) {
  uint32_t state = kQueued;
  if (!transfer.state.compare_exchange_strong(state, kCancelled)) return;
  const std::lock_guard lock(mutex_);
  cancels_ = true;
  file_->wake();
}

Status SsdTier::Store::come_back() {
  std::unique_lock lock(mutex_);
  if (!gone_) return Status::ok();
  back_wanted_ = true;
  back_.reset();
  file_->wake();
  back_changed_.wait(lock, [this] { return back_.has_value(); });
  return *back_;
}

Result<std::vector<Recovered>> SsdTier::Store::recover() {
  std::vector<Recovered> found;
  const std::lock_guard lock(mutex_);
  found.reserve(table_.extents());
  for (uint32_t slot = 0; slot < table_.slots(); slot++) {
    const auto& entry = table_.at(slot);
    if (entry.bytes != 0)
      found.push_back({entry.key, ssd::ExtentTable::name(slot, entry.generation), entry.bytes, table_.note(slot)});
  }
  // The oldest first: where a crash left two of one key, the later is the newer.
  std::sort(found.begin(), found.end(), [this](const Recovered& a, const Recovered& b) {
    return table_.age(static_cast<uint32_t>(a.extent >> 32)) > table_.age(static_cast<uint32_t>(b.extent >> 32));
  });
  return found;
}

SsdStats SsdTier::Store::stats() const {
  return {method_,        count_.bytes_read,  count_.bytes_written,  count_.bytes_cleaned,
          count_.commits, count_.checkpoints, count_.corrupt_chunks, count_.errors};
}

std::optional<uint64_t> SsdTier::Store::place_of(Extent extent, uint64_t offset) const {
  const std::lock_guard lock(mutex_);
  auto* const entry = const_cast<ssd::ExtentTable&>(table_).find(extent);
  if (entry == nullptr || offset >= entry->bytes) return std::nullopt;
  const Place place = entry->places()[offset / ssd::kChunk];
  if (place.block == 0) return std::nullopt;
  return uint64_t{place.number()} * kBlock + offset % ssd::kChunk;
}

// ---- the thread

// Returns whether the end was asked for.
bool SsdTier::Store::take_wishes() {
  const std::lock_guard lock(mutex_);
  wishes_.clear();
  wishes_.swap(submitted_);
  if (freed_done_ == freed_now_.size()) {
    freed_now_.clear();
    freed_done_ = 0;
    freed_now_.swap(freed_);
  }
  if (described_now_.empty()) described_now_.swap(described_);
  cancels_ = false;
  sleeping_ = true;
  return stop_;
}

void SsdTier::Store::serve_wishes() {
  try {
    for (; freed_done_ < freed_now_.size(); freed_done_++) {
      const Freed& freed = freed_now_[freed_done_];
      const std::span<const Place> places(freed.places(), ssd::chunks_of(freed.bytes));
      const bool written = std::any_of(places.begin(), places.end(), [](const Place& p) { return p.block != 0; });
      // Noted first: its room may be used again once a commit has named the end of it.
      if (written) journal_.note(freed.record, nullptr);
      for (uint32_t chunk = 0; chunk < places.size(); chunk++) {
        const Place& place = places[chunk];
        if (place.block == 0) continue;
        if (place.holes()) holes_.erase(chunk_id(freed.record.slot, chunk));
        segments_.vacate(place.number(), ssd::chunk_blocks(freed.bytes, chunk), journal_.started());
      }
    }
    for (; !described_now_.empty(); described_now_.pop_back()) note_again(described_now_.back());
  } catch (const std::bad_alloc&) {
    ready_ = true;  // the rest in the next turn
  }
  for (Transfer* transfer : wishes_) {
    try {
      begin(*transfer);
    } catch (const std::bad_alloc&) {
      complete(*transfer, no_memory());
    }
  }
}

// A record sets what is so: one of the first chunk as it lies tells the new note.
void SsdTier::Store::note_again(Extent extent) {
  Record record;
  Place place;
  {
    const std::lock_guard lock(mutex_);
    auto* const entry = table_.find(extent);
    if (entry == nullptr) return;
    place = entry->places()[0];
    record = record_of(static_cast<uint32_t>(extent), 0, 1);
  }
  journal_.note(record, &place);
}

void SsdTier::Store::run() {
  std::vector<Io*> ended;
  while (true) {
    const bool stop = take_wishes();
    try {
      turn(stop);
    } catch (const std::bad_alloc&) {
      lose("out of memory");
    }
    if (stop && idle()) {
      const std::lock_guard lock(mutex_);
      if (taken_ == 0) return;
    }
    ended.clear();
    file_->wait(ended, !ready_);
    ready_ = false;
    {
      const std::lock_guard lock(mutex_);
      sleeping_ = false;
    }
    for (Io* io : ended) {
      auto& access = static_cast<Access&>(*io);
      if (access.go_on(*file_)) continue;
      try {
        dispatch(access);
      } catch (const std::bad_alloc&) {
        lose("out of memory");
      }
    }
  }
}

void SsdTier::Store::turn(bool stop) {
  serve_wishes();
  segments_.release(journal_.finished());
  retry_stalled();
  clean();
  maybe_commit(stop);
  if (gone_ && idle()) {
    std::unique_lock lock(mutex_);
    if (back_wanted_) {
      back_wanted_ = false;
      lock.unlock();
      Status back = no_memory();
      try {
        back = try_come_back();
      } catch (const std::bad_alloc&) {
        // It may ask again.
      }
      lock.lock();
      back_ = std::move(back);
      back_changed_.notify_all();
    }
  }
  fail_if_stuck();
}

void SsdTier::Store::dispatch(Access& access) {
  if (access.owner != Access::Owner::kJournal) under_way_--;
  switch (access.owner) {
    case Access::Owner::kRun:
      run_ended(static_cast<Run&>(access));
      break;
    case Access::Owner::kCleaner:
      move_ended(static_cast<Move&>(access));
      break;
    case Access::Owner::kJournal:
      if (journal_.ended(*file_, access)) commit_ended();
      break;
    case Access::Owner::kCaller:
      break;
  }
}

// Nothing under way that could make room for the first that waits for it.
void SsdTier::Store::fail_if_stuck() {
  if (room_waiter_ == nullptr || !idle() || gone_) return;
  {
    const std::lock_guard lock(mutex_);
    if (!freed_.empty()) return;
  }
  Request& request = *std::exchange(room_waiter_, nullptr);
  stalled_.erase(&request);
  request.status = status_of(Code::kFull, [this] { return info_.name + ": no room in the log"; });
  finish(request);
  ready_ = true;
}

void SsdTier::Store::complete(Transfer& transfer, Status status) {
  {
    const std::lock_guard lock(mutex_);
    taken_--;
  }
  transfer.state = 0;
  transfer.done(transfer, std::move(status));
}

// ---- commits

void SsdTier::Store::maybe_commit(bool stop) {
  if (journal_.committing()) return;
  if (gone_) {
    for (Transfer* flush : std::exchange(flushes_next_, {})) complete(*flush, gone_status());
    return;
  }
  const size_t pending = journal_.pending_bytes();
  if (pending == 0)
    for (Transfer* flush : std::exchange(flushes_next_, {})) complete(*flush, Status::ok());
  const bool room = segments_.dying_count() > 0 && want_room();
  if (flushes_next_.empty() && pending < kCommitBytes && !room && !(stop && pending > 0)) return;
  try {
    journal_.commit(*file_);
  } catch (const std::bad_alloc&) {
    for (Transfer* flush : std::exchange(flushes_next_, {})) complete(*flush, no_memory());
    return;
  }
  flushes_ = std::exchange(flushes_next_, {});
}

void SsdTier::Store::commit_ended() {
  const int64_t result = journal_.result();
  Status status;
  if (result < 0) {
    status = failure(result, "a commit");
    // What the medium did with what it had taken is not known.
    if (journal_.sync_failed()) lose(status.what());
  } else {
    failures_in_a_row_ = 0;
    count_.commits++;
    count_.checkpoints = journal_.checkpoints();
  }
  for (Transfer* flush : std::exchange(flushes_, {})) complete(*flush, status);
}

Record SsdTier::Store::record_of(uint32_t slot, uint32_t first, uint32_t count) {
  const auto& entry = table_.at(slot);
  return {Record::kWrite,
          slot,
          entry.generation,
          entry.bytes,
          entry.key,
          static_cast<uint16_t>(first),
          static_cast<uint16_t>(count),
          table_.note(slot)};
}

// The index as it is now, for a checkpoint. A commit's data sync comes after it.
bool SsdTier::Store::emit_index(std::vector<std::byte>& to, size_t limit, bool begin) {
  if (begin) index_slot_ = 0;
  const std::lock_guard lock(mutex_);
  for (; index_slot_ < table_.slots(); index_slot_++) {
    auto& entry = table_.at(index_slot_);
    if (entry.bytes == 0) continue;
    const Place* const places = entry.places();
    if (std::all_of(places, places + entry.chunks(), [](const Place& p) { return p.block == 0; })) continue;
    const Record record = record_of(index_slot_, 0, entry.chunks());
    if (to.size() + ssd::record_bytes(record) > limit) return true;
    ssd::append_record(to, record, places);
  }
  return false;
}

}  // namespace neotier::engine
