// SPDX-License-Identifier: Apache-2.0
#include "experts/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace neotier::experts {

constexpr uint32_t kMostAtOnce = 128;  // reads at the medium

struct Loader::Chunk : engine::Io {
  Load* load = nullptr;
  iovec vector{};
  uint64_t wanted = 0;  // bytes of the file that are there
  bool tried = false;
  std::list<std::unique_ptr<Chunk>>::iterator self;
};

Loader::Loader(std::mutex& mutex, std::unique_ptr<engine::File> file, std::vector<std::string> names,
               std::vector<uint64_t> bytes, bool registered, const LoaderOptions& options, Hooks hooks)
    : mutex_(mutex),
      file_(std::move(file)),
      names_(std::move(names)),
      bytes_(std::move(bytes)),
      registered_(registered),
      options_(options),
      hooks_(std::move(hooks)) {
  link_.set_limit(options_.background_bytes_per_s);
  thread_ = std::thread([this] { run(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (auto at = loads_.begin(); at != loads_.end();) cancel((at++)->get());
  }
  wake();
  thread_.join();
}

uint64_t Loader::now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

Loader::Load* Loader::start(uint32_t object, std::vector<Run> runs, std::byte* memory, int buffer, bool demand) {
  auto load = std::make_unique<Load>();
  load->object = object;
  load->buffer = buffer;
  load->memory = memory;
  load->runs = std::move(runs);
  load->demand = demand;
  for (const Run& r : load->runs) load->bytes += r.bytes;
  load->left = load->bytes;
  load->queued = true;
  Load* const raw = load.get();
  loads_.push_back(std::move(load));
  raw->self = std::prev(loads_.end());
  (demand ? demand_ : background_).push_back(raw);
  link_.queued(raw->bytes);
  if (demand) wake();
  return raw;
}

void Loader::set_demand(Load* load, bool demand) {
  if (load->demand == demand) return;
  if (load->queued) {
    std::erase(load->demand ? demand_ : background_, load);
    (demand ? demand_ : background_).push_back(load);
  }
  load->demand = demand;
  if (demand) wake();
}

void Loader::cancel(Load* load) {
  if (load->cancelled) return;
  load->cancelled = true;
  if (load->queued) std::erase(load->demand ? demand_ : background_, load);
  load->queued = false;
  if (load->outstanding == 0) finish(*load, {Code::kCancelled, "cancelled"});
}

void Loader::wake() {
  changed_.notify_one();
  file_->wake();
}

uint64_t Loader::predict_ns(const Load& load) const {
  // Demand before it, and itself.
  uint64_t bytes = load.left;
  for (const auto& other : loads_) {
    if (other.get() == &load) break;
    if (other->demand || !load.demand) bytes += other->left;
  }
  return link_.predict_ns(bytes);
}

// A load's chunk after the other, so that few loads are half there.
// By bytes: an expert is a dozen pieces, most of them small, and a medium that completes many reads at once leaves gaps
// where few are asked for.
void Loader::submit_from(std::list<Load*>& queue, uint64_t limit) {
  const bool background = &queue == &background_;
  while (!queue.empty() && outstanding_bytes_ < limit && outstanding_ < kMostAtOnce) {
    if (background && !link_.may_take(now_ns(), options_.chunk_bytes)) return;
    Load& load = *queue.front();
    submit(load);
    if (load.run == load.runs.size()) {
      queue.pop_front();
      load.queued = false;
    }
  }
}

void Loader::submit(Load& load) {
  const Run& run = load.runs[load.run];
  const uint64_t length = std::min(options_.chunk_bytes, run.bytes - load.in_run);
  std::unique_ptr<Chunk> chunk;
  if (free_chunks_.empty()) {
    chunk = std::make_unique<Chunk>();
  } else {
    chunk = std::move(free_chunks_.back());
    free_chunks_.pop_back();
  }
  if (load.started_ns == 0) load.started_ns = now_ns();
  chunk->load = &load;
  chunk->op = engine::IoOp::kRead;
  chunk->buffer = registered_ ? load.buffer : -1;
  chunk->file_index = run.file;
  chunk->offset = run.offset + load.in_run;
  chunk->vector = {load.memory + run.at + load.in_run, length};
  chunk->iov = &chunk->vector;
  chunk->iovs = 1;
  chunk->wanted = std::min(length, bytes_[run.file] - std::min(bytes_[run.file], chunk->offset));
  chunk->tried = false;
  load.in_run += length;
  if (load.in_run == run.bytes) {
    load.run++;
    load.in_run = 0;
  }
  load.outstanding++;
  outstanding_++;
  outstanding_bytes_ += length;
  link_.take(now_ns(), length);
  busy_chunks_.push_back(std::move(chunk));
  busy_chunks_.back()->self = std::prev(busy_chunks_.end());
  file_->start(*busy_chunks_.back());
}

void Loader::ended(Chunk& chunk) {
  Load& load = *chunk.load;
  const bool good = chunk.result >= 0 && static_cast<uint64_t>(chunk.result) >= chunk.wanted;
  if (!good && !chunk.tried && !load.cancelled) {
    chunk.tried = true;
    counters_.retries++;
    file_->start(chunk);
    return;
  }
  if (!good && load.error.is_ok()) {
    const std::string why = chunk.result < 0 ? std::string(std::strerror(static_cast<int>(-chunk.result)))
                                             : fmt::format("{} bytes came, has the file become shorter?", chunk.result);
    load.error = {Code::kIo, fmt::format("{}: cannot read {} bytes at offset {}, tried twice: {}",
                                         names_[chunk.file_index], chunk.wanted, chunk.offset, why)};
  }
  if (good) counters_.bytes += chunk.vector.iov_len;
  load.left -= chunk.vector.iov_len;
  load.outstanding--;
  outstanding_--;
  outstanding_bytes_ -= chunk.vector.iov_len;
  free_chunks_.push_back(std::move(*chunk.self));
  busy_chunks_.erase(chunk.self);
  if (load.outstanding > 0) return;
  if (load.cancelled) return finish(load, {Code::kCancelled, "cancelled"});
  if (!load.error.is_ok()) {
    if (load.queued) std::erase(load.demand ? demand_ : background_, &load);
    load.queued = false;
    return finish(load, load.error);
  }
  if (!load.queued) finish(load, {});
}

void Loader::finish(Load& load, Status status) {
  link_.unqueued(load.bytes);
  if (status.is_ok()) {
    counters_.loads++;
    // Those that were paused for others say nothing of the medium.
    // Those that follow one another overlap: each is charged from the end of the one before.
    const uint64_t now = now_ns();
    if (load.demand) link_.observe(load.bytes, now - std::max(load.started_ns, last_end_ns_));
    last_end_ns_ = now;
  } else if (status.code() == Code::kCancelled) {
    counters_.cancelled++;
  } else {
    counters_.failures++;
  }
  const std::unique_ptr<Load> owned = std::move(*load.self);
  loads_.erase(load.self);
  hooks_.done(load, std::move(status));
}

void Loader::run() {
  std::vector<engine::Io*> completed;
  std::unique_lock lock(mutex_);
  while (!stop_ || outstanding_ > 0) {
    if (!stop_) pump();
    const bool limited = outstanding_ == 0 && !background_.empty() && demand_.empty();
    if (limited && !stop_) {
      const uint64_t now = now_ns(), ready = link_.ready_ns(now, options_.chunk_bytes);
      changed_.wait_for(lock,
                        std::chrono::nanoseconds(std::clamp<uint64_t>(ready - std::min(now, ready), 1000, 5'000'000)));
      continue;
    }
    if (stop_ && outstanding_ == 0) return;
    lock.unlock();
    completed.clear();
    file_->wait(completed, true);
    lock.lock();
    for (engine::Io* io : completed) ended(*static_cast<Chunk*>(io));
  }
}

void Loader::pump() {
  for (;;) {
    submit_from(demand_, options_.demand_chunks * options_.chunk_bytes);
    if (!demand_.empty()) return;
    const uint64_t limit = options_.background_chunks * options_.chunk_bytes;
    submit_from(background_, limit);
    if (!background_.empty() || outstanding_bytes_ >= limit || !hooks_.idle()) return;
  }
}

}  // namespace neotier::experts
