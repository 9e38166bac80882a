// SPDX-License-Identifier: Apache-2.0
#include "experts/mapped_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace neotier::experts {

namespace {

constexpr uint32_t kNone = NEOTIER_NO_OBJECT;
constexpr double kEwma = 1.0 / 8;
constexpr uint64_t kMostStaged = 16 << 20;
constexpr uint32_t kMostStages = 16;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

Status invalid(const std::string& what) { return {Code::kInvalid, what}; }

uint64_t down(uint64_t n) { return n / kPage * kPage; }
uint64_t up(uint64_t n) { return down(n + kPage - 1); }
// Whole pages that so many bytes lie in, wherever they begin.
uint64_t pages_of(uint64_t bytes) { return bytes % kPage == 0 ? bytes : up(bytes) + kPage; }

// Sizes in whole pages: of one expert of each layer, and of the largest part.
struct Sizes {
  uint64_t unit = 0, largest = 0;
  // The blocks of a file that hold a part's pages: one more at each end.
  uint64_t stage() const { return largest + 2 * kIoBlock; }
};

Sizes sizes_of(const std::vector<MappedLayer>& layers) {
  Sizes sizes;
  for (const MappedLayer& layer : layers)
    for (const MappedPart& p : layer) {
      sizes.unit += pages_of(p.bytes);
      sizes.largest = std::max(sizes.largest, pages_of(p.bytes));
    }
  return sizes;
}

uint64_t expert_bytes(const MappedLayer& layer) {
  uint64_t sum = 0;
  for (const MappedPart& p : layer) sum += pages_of(p.bytes);
  return sum;
}

// What a step over all experts needs at once: one part of each, and the other parts of those that have a slot.
uint64_t step_bytes(const std::vector<MappedLayer>& layers, uint32_t experts, uint32_t slots) {
  uint64_t most = 0;
  for (const MappedLayer& layer : layers)
    for (const MappedPart& p : layer) {
      const uint64_t one = pages_of(p.bytes);
      most = std::max(most, experts * one + slots * (expert_bytes(layer) - one));
    }
  return most;
}

}  // namespace

MappedExperts::MappedExperts(EmptyRange& range, std::vector<MappedLayer> layers, const MappedOptions& options)
    : range_(range),
      options_(options),
      layers_(std::move(layers)),
      parts_(layers_.empty() ? 0 : static_cast<uint32_t>(layers_[0].size())) {}

Result<std::unique_ptr<MappedExperts>> MappedExperts::open(EmptyRange& range,
                                                           const std::vector<model::ModelFile>& files,
                                                           std::vector<MappedLayer> layers,
                                                           const MappedOptions& options) {
  std::unique_ptr<MappedExperts> experts(new MappedExperts(range, std::move(layers), options));
  if (Status s = experts->check(files); !s) return s;
  if (Status s = experts->plan(); !s) return s;
  if (Status s = experts->set_up(files); !s) return s;
  range.on_fault([raw = experts.get()](std::byte* page) { raw->fault(page); });
  return experts;
}

MappedExperts::~MappedExperts() {
  range_.on_fault({});
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  loader_.reset();
}

Status MappedExperts::check(const std::vector<model::ModelFile>& files) const {
  const MappedOptions& o = options_;
  if (!o.policy) return invalid("no policy");
  if (o.policy->flags & NEOTIER_NEEDS_ORACLE)
    return invalid(fmt::format("policy {} is a bound that knows the future; only a replay can use it", o.policy->name));
  if (layers_.empty() || parts_ == 0) return invalid("no experts");
  if (o.experts == 0 || o.top_k == 0 || o.top_k > o.experts)
    return invalid(fmt::format("top-k {} of {} experts", o.top_k, o.experts));
  if (o.rows == 0 || o.rows > 65536) return invalid(fmt::format("{} rows: expected 1 to 65536", o.rows));
  if (uint64_t{layers_.size()} * o.experts * parts_ > UINT32_MAX / 2) return invalid("too many experts");
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  for (size_t l = 0; l < layers_.size(); l++) {
    if (layers_[l].size() != parts_)
      return invalid(fmt::format("layer {} has {} parts, layer 0 {}", l, layers_[l].size(), parts_));
    for (const MappedPart& p : layers_[l]) {
      const uint64_t most = UINT64_MAX / 2 / o.experts;
      if (p.bytes == 0 || p.bytes > most || p.file >= files.size() || p.offset > files[p.file].bytes ||
          o.experts * p.bytes > files[p.file].bytes - p.offset)
        return invalid(fmt::format("layer {}: {} experts of {} bytes at {} of file {} do not lie in it", l, o.experts,
                                   p.bytes, p.offset, p.file));
      if (p.at % kPage != 0 || p.at > range_.bytes() || up(o.experts * p.bytes) > range_.bytes() - p.at)
        return invalid(fmt::format("layer {}: {} experts of {} bytes at {} are not in the range of {} bytes", l,
                                   o.experts, p.bytes, p.at, range_.bytes()));
      taken.emplace_back(p.at, p.at + up(o.experts * p.bytes));
    }
  }
  std::sort(taken.begin(), taken.end());
  for (size_t i = 1; i < taken.size(); i++)
    if (taken[i].first < taken[i - 1].second) return invalid("two tensors share memory");
  if (o.loader.chunk_bytes == 0 || o.loader.chunk_bytes % kIoBlock != 0 || o.loader.demand_chunks == 0 ||
      o.loader.background_chunks == 0)
    return invalid("chunks must be whole blocks of 4096 bytes, and 1 or more at a time");
  return {};
}

uint64_t MappedExperts::least_bytes(const std::vector<MappedLayer>& layers, uint32_t experts) {
  const Sizes sizes = sizes_of(layers);
  return std::max(step_bytes(layers, experts, 1), sizes.unit) + 2 * sizes.stage();
}

Status MappedExperts::plan() {
  const uint32_t experts = options_.experts;
  const Sizes sizes = sizes_of(layers_);
  all_bytes_ = experts * sizes.unit;
  stage_bytes_ = sizes.stage();
  uint64_t stages = std::clamp<uint64_t>(kMostStaged / stage_bytes_, 2, kMostStages);
  const uint64_t budget = std::min(options_.budget_bytes, all_bytes_ + stages * stage_bytes_);
  while (stages > 2 && stages * stage_bytes_ > budget / 16) stages--;
  staging_bytes_ = stages * stage_bytes_;
  if (const uint64_t least = least_bytes(layers_, experts); budget < least)
    return {Code::kFull,
            fmt::format("{} bytes for experts are less than one operation needs: {} bytes ({:.1f} MiB) at least",
                        budget, least, std::ceil(static_cast<double>(least) / 104857.6) / 10)};
  limit_ = budget - staging_bytes_;
  const auto fits = [&](uint64_t slots) {
    return slots == experts || step_bytes(layers_, experts, static_cast<uint32_t>(slots)) <= limit_;
  };
  uint64_t slots = std::min<uint64_t>(limit_ / sizes.unit, experts);
  while (slots > 1 && !fits(slots)) slots--;
  slots_count_ = static_cast<uint32_t>(slots);
  if (slots == experts || !fits(slots + 1)) return {};
  uint64_t left = limit_ - slots * sizes.unit;
  for (const MappedLayer& layer : layers_) {
    const uint64_t one = expert_bytes(layer);
    if (one > left) break;
    left -= one;
    wider_layers_++;
  }
  return {};
}

Status MappedExperts::set_up(const std::vector<model::ModelFile>& files) {
  placement::ExpertSlotsOptions s;
  s.layers = layers();
  s.experts = options_.experts;
  s.top_k = options_.top_k;
  s.slots = slots_count_;
  s.wider_layers = wider_layers_;
  s.batch = options_.rows;
  s.expert_bytes = all_bytes_ / options_.experts / layers();
  s.lookahead = std::min(options_.lookahead, layers() - 1);
  s.planner = options_.planner;
  s.seed = options_.seed;
  const bool ahead = options_.predictor && s.lookahead > 0 && slots_count_ < options_.experts;
  slots_ = std::make_unique<placement::ExpertSlots>(options_.policy, ahead ? options_.predictor : nullptr, s);
  pieces_.resize(size_t{slots_->objects()} * parts_);
  users_.resize(slots_->objects());
  accesses_.resize(std::max<size_t>(size_t{options_.rows} * options_.top_k, options_.experts));
  for (uint32_t l = 0; l < layers(); l++)
    for (uint32_t p = 0; p < parts_; p++) by_address_.emplace_back(layers_[l][p].at, l * parts_ + p);
  std::sort(by_address_.begin(), by_address_.end());

  staging_ = {static_cast<std::byte*>(std::aligned_alloc(kIoBlock, staging_bytes_)), std::free};
  if (!staging_) return {Code::kNoMemory, fmt::format("no {} bytes to read experts through", staging_bytes_)};
  std::vector<iovec> vectors;
  for (uint64_t at = 0; at < staging_bytes_; at += stage_bytes_) {
    free_stages_.push_back(static_cast<int>(vectors.size()));
    vectors.push_back({staging_.get() + at, stage_bytes_});
  }
  auto system = options_.file_system;
  if (!system) system = engine::posix_file_system();
  std::vector<std::string> names;
  std::vector<uint64_t> sizes;
  for (const model::ModelFile& f : files) {
    names.push_back(f.path);
    sizes.push_back(f.bytes);
  }
  auto file = system->open_to_read(names);
  if (!file) return file.status();
  const bool registered = (*file)->register_buffers(vectors);
  note_peak();
  loader_ = std::make_unique<Loader>(
      mutex_, std::move(*file), std::move(names), std::move(sizes), registered, options_.loader,
      Loader::Hooks{[this](Loader::Load& load, const Status& status) { done(load, status); },
                    [this] { return fetch_ahead(); }});
  if (slots_count_ < options_.experts) return {};
  // All of them have room: none waits for its first use.
  const std::lock_guard lock(mutex_);
  for (uint32_t object = 0; object < slots_->objects(); object++) {
    slots_->place(object);
    for (uint32_t p = 0; p < parts_; p++) want(piece_of(object, p), true);
  }
  pump();
  loader_->wake();
  return {};
}

void MappedExperts::settle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return demand_.empty() && background_.empty() && loading_ == 0; });
}

MappedExperts::Place MappedExperts::place_of(uint32_t piece) const {
  const MappedPart& part = part_of(piece);
  const uint64_t expert = piece / parts_ % options_.experts;
  const uint64_t begin = expert * part.bytes, first = down(begin);
  // Not past the tensor: what follows there is nobody's.
  const uint64_t end = std::min(up(begin + part.bytes), up(options_.experts * part.bytes));
  return {range_.base() + part.at + first, end - first, part.offset + first};
}

bool MappedExperts::whole(uint32_t object) const {
  for (uint32_t p = 0; p < parts_; p++)
    if (pieces_[piece_of(object, p)].state != State::kHere) return false;
  return true;
}

void MappedExperts::note_peak() {
  counters_.memory = in_memory_ + staging_bytes_;
  counters_.peak = std::max(counters_.peak, counters_.memory);
}

// It is to be there; what is there already is kept.
void MappedExperts::want(uint32_t piece, bool demand) {
  Piece& p = pieces_[piece];
  if (std::exchange(p.loose, false)) {
    loose_.remove(piece);
    if (p.state == State::kLoading) loading_loose_ -= room_of(piece);
  }
  if (p.state == State::kHere) return;
  errors_.erase(piece);
  if (p.state == State::kLoading) {
    if (demand) loader_->set_demand(p.load, true);
    p.demand |= demand;
    return;
  }
  if (p.state == State::kQueued) {
    if (!demand || p.demand) return;
    std::erase(background_, piece);
  }
  p.state = State::kQueued;
  p.demand = demand;
  (demand ? demand_ : background_).push_back(piece);
}

void MappedExperts::not_loading(uint32_t piece, bool loose) {
  loading_ -= room_of(piece);
  if (loose) loading_loose_ -= room_of(piece);
}

// It is not to be there any more.
void MappedExperts::forget(uint32_t piece) {
  Piece& p = pieces_[piece];
  const bool loose = std::exchange(p.loose, false);
  if (loose) loose_.remove(piece);
  switch (std::exchange(p.state, State::kAbsent)) {
    case State::kAbsent:
      return;
    case State::kQueued:
      std::erase(p.demand ? demand_ : background_, piece);
      return;
    case State::kLoading:
      not_loading(piece, loose);
      loader_->cancel(std::exchange(p.load, nullptr));
      return;
    case State::kHere:
      empty(piece);
  }
}

// Pages that a neighbour has bytes in stay as long as it is there.
void MappedExperts::empty(uint32_t piece) {
  Place place = place_of(piece);
  in_memory_ -= place.bytes;
  note_peak();
  const MappedPart& part = part_of(piece);
  if (part.bytes % kPage != 0) {
    const std::byte* const tensor = range_.base() + part.at;
    const uint32_t first = piece - piece / parts_ % options_.experts * parts_;  // this part of expert 0
    const auto needed = [&](const std::byte* page) {
      const auto from = static_cast<uint64_t>(page - tensor);
      const uint64_t last = std::min<uint64_t>((from + kPage - 1) / part.bytes, options_.experts - 1);
      for (uint64_t e = from / part.bytes; e <= last; e++)
        if (pieces_[first + e * parts_].state == State::kHere) return true;
      return false;
    };
    if (needed(place.at)) {
      place.at += kPage;
      place.bytes -= kPage;
    }
    if (place.bytes > 0 && needed(place.at + place.bytes - kPage)) place.bytes -= kPage;
  }
  range_.take_out(place.at, place.bytes);
}

// It has lost its slot, or nobody needs it. What a step uses goes when that ends.
void MappedExperts::drop(uint32_t object) {
  if (users_[object] > 0) return;
  for (uint32_t p = 0; p < parts_; p++) forget(piece_of(object, p));
}

// An expert that has a slot makes way: of the layer that comes last from here, of this one when there is no other.
bool MappedExperts::borrow() {
  for (uint32_t back = 1; back <= layers(); back++) {
    const uint32_t layer = (layer_ + layers() - back) % layers();
    for (uint32_t object = (layer + 1) * options_.experts; object-- > layer * options_.experts;) {
      if (!slots_->holds(object) || users_[object] > 0) continue;
      bool has = false;
      for (uint32_t p = 0; p < parts_; p++) {
        const State state = pieces_[piece_of(object, p)].state;
        has |= state == State::kHere || state == State::kLoading;
      }
      if (!has) continue;
      slots_->remove(object);
      drop(object);
      counters_.borrowed++;
      return true;
    }
  }
  return false;
}

bool MappedExperts::make_room(uint64_t bytes, bool demand) {
  while (in_memory_ + loading_ + bytes > limit_) {
    if (!loose_.empty())
      forget(loose_.front());
    else if (!demand || !borrow())
      return false;
  }
  return true;
}

void MappedExperts::start(uint32_t piece) {
  const Place place = place_of(piece);
  const int stage = free_stages_.back();
  free_stages_.pop_back();
  Piece& p = pieces_[piece];
  p.state = State::kLoading;
  loading_ += place.bytes;
  if (p.loose) loading_loose_ += place.bytes;
  const uint64_t first = place.offset / kIoBlock * kIoBlock;
  const uint64_t end = (place.offset + place.bytes + kIoBlock - 1) / kIoBlock * kIoBlock;
  p.load = loader_->start(piece, {Run{part_of(piece).file, first, end - first, 0}},
                          staging_.get() + static_cast<uint64_t>(stage) * stage_bytes_, stage, p.demand);
}

void MappedExperts::pump() {
  if (pumping_ || serving_ || closing_) return;
  pumping_ = true;
  for (const bool demand : {true, false}) {
    auto& queue = demand ? demand_ : background_;
    while (!queue.empty() && !free_stages_.empty()) {
      const uint32_t piece = queue.front();
      const bool room = make_room(room_of(piece), demand);
      // Who made way for it may have been next.
      if (queue.empty() || queue.front() != piece) continue;
      // Several steps may wait for one another's room: then one of them goes on without. Looked at only now, as making
      // room may have cancelled what was on its way; what comes by faults helps none of them.
      const bool stuck = demand && open_steps_ > 1 && loading_ == loading_loose_;
      if (!room && !stuck) break;
      queue.pop_front();
      start(piece);
    }
    if (!queue.empty()) break;
  }
  pumping_ = false;
}

void MappedExperts::done(Loader::Load& load, const Status& status) {
  // The loader goes through its loads: none of them may be cancelled from here then.
  if (closing_) return;
  const uint32_t piece = load.object, object = piece / parts_;
  Piece& p = pieces_[piece];
  if (p.load == &load) {
    const Place place = place_of(piece);
    p.load = nullptr;
    not_loading(piece, p.loose);
    Status placed = status;
    std::byte* const bytes = load.memory + place.offset % kIoBlock;
    if (placed.is_ok() && options_.convert && slots_count_ == options_.experts && part_of(piece).bytes % kPage == 0)
      options_.convert(object / options_.experts, piece % parts_, bytes);
    if (placed.is_ok()) placed = range_.put(place.at, bytes, place.bytes);
    if (placed.is_ok()) {
      p.state = State::kHere;
      in_memory_ += place.bytes;
      note_peak();
      if (p.loose) loose_.push_back(piece);
      if (whole(object) && slots_->holds(object)) slots_->arrived(object);
    } else {
      p.state = State::kAbsent;
      errors_.insert_or_assign(piece, placed);
      if (slots_->holds(object)) {
        slots_->remove(object);
        drop(object);
      }
      if (std::exchange(p.loose, false)) {
        for (uint64_t at = 0; at < place.bytes; at += kPage) range_.poison(place.at + at, placed.what());
      }
    }
    arrived_ns_ = now_ns();
  }
  free_stages_.push_back(load.buffer);
  changed_.notify_all();
  pump();
}

bool MappedExperts::fetch_one() {
  const uint64_t now = now_ns();
  const auto next_begins = arrived_ns_ + static_cast<uint64_t>(layer_ns_);
  const uint64_t load = loader_->link().predict_ns(all_bytes_ / slots_->objects());
  const auto fetch = slots_->fetch(now, layer_ns_ == 0 || now + load <= next_begins);
  if (!fetch) return false;
  if (fetch->removed != kNone) drop(fetch->removed);
  for (uint32_t p = 0; p < parts_; p++) want(piece_of(fetch->object, p), false);
  counters_.prefetches++;
  // Of its parts some may be there, as a step's that has not ended.
  if (whole(fetch->object)) slots_->arrived(fetch->object);
  return true;
}

bool MappedExperts::fetch_ahead() {
  if (serving_ || pumping_ || closing_ || free_stages_.empty()) return false;
  if (background_.empty() && fetching_ && demand_.empty()) {
    fetching_ = fetch_one();
    if (!fetching_) return false;
  }
  const size_t waiting = background_.size();
  pump();
  return background_.size() < waiting;
}

void MappedExperts::fault(std::byte* page) {
  static const std::byte kZeros[kPage] = {};
  const std::lock_guard lock(mutex_);
  counters_.faults++;
  const auto from = static_cast<uint64_t>(page - range_.base());
  auto after = std::upper_bound(by_address_.begin(), by_address_.end(), std::pair(from, UINT32_MAX));
  if (after != by_address_.begin()) {
    const auto& [at, index] = *--after;
    const uint64_t bytes = layers_[index / parts_][index % parts_].bytes;
    const uint64_t last = std::min<uint64_t>((from + kPage - 1 - at) / bytes, options_.experts - 1);
    for (uint64_t e = (from - at) / bytes; e <= last; e++) {
      const uint32_t piece = piece_of(index / parts_ * options_.experts + static_cast<uint32_t>(e), index % parts_);
      Piece& p = pieces_[piece];
      if (p.state == State::kHere) continue;
      if (p.state != State::kLoading) {
        const bool nobodys = p.state == State::kAbsent || p.loose;
        want(piece, true);
        std::erase(demand_, piece);
        demand_.push_front(piece);
        p.loose = nobodys;
      } else if (!p.loose) {
        want(piece, true);
      }
      pump();
      // Who waits for a page waits for good: it comes before the budget.
      if (p.state == State::kQueued && !free_stages_.empty()) {
        std::erase(demand_, piece);
        start(piece);
      }
      loader_->wake();
      return;
    }
    if ((from - at) / bytes < options_.experts) return range_.wake(page);
  }
  // Between tensors. What fails here fails again at the next touch.
  (void)range_.put(page, kZeros, kPage);
  range_.wake(page);
}

Result<std::unique_ptr<MappedStep>> MappedExperts::begin(uint32_t layer, std::span<const Use> uses) {
  if (layer >= layers()) return invalid(fmt::format("layer {} of {}", layer, layers()));
  const std::lock_guard lock(mutex_);
  const uint32_t first = layer * options_.experts;
  std::vector<bool> used(options_.experts);
  std::vector<uint32_t> objects;
  for (const Use& use : uses) {
    if (use.expert >= options_.experts) return invalid(fmt::format("expert {} of {}", use.expert, options_.experts));
    if (!used[use.expert]) objects.push_back(first + use.expert);
    used[use.expert] = true;
  }
  const bool by_row = uses.size() <= size_t{options_.rows} * options_.top_k;
  const size_t nr = by_row ? uses.size() : std::min<size_t>(objects.size(), accesses_.size());
  const uint64_t bytes = all_bytes_ / slots_->objects();
  for (size_t i = 0; i < nr; i++) {
    accesses_[i] = {};
    accesses_[i].object = by_row ? first + uses[i].expert : objects[i];
    accesses_[i].bytes = bytes;
    if (!by_row) continue;
    accesses_[i].row = uses[i].row % options_.rows;
    accesses_[i].position = uses[i].rank;
  }
  std::unique_ptr<MappedStep> step(new MappedStep(*this));
  step->done_.resize(parts_);
  step->objects_ = objects;
  neotier_event event = {};
  event.tick = tick_++;
  event.now_ns = now_ns();
  event.kind = NEOTIER_EVENT_DEMAND;
  event.group = layer;
  event.nr = static_cast<uint32_t>(nr);
  event.access = accesses_.data();

  // Also where a policy throws.
  struct Serving {
    bool& flag;
    ~Serving() { flag = false; }
  } serving{serving_ = true};
  layer_ = layer;
  if (arrived_ns_ != 0) {
    const auto took = static_cast<double>(event.now_ns - arrived_ns_);
    layer_ns_ = layer_ns_ == 0 ? took : layer_ns_ + (took - layer_ns_) * kEwma;
  }
  arrived_ns_ = event.now_ns;
  counters_.events++;
  counters_.uses += uses.size();
  for (const Use& use : uses) {
    counters_.hits += slots_->holds(first + use.expert);
    counters_.stall_free += whole(first + use.expert);
  }
  if (nr > 0) {
    slots_->begin(event);
    const std::vector<uint32_t> distinct(slots_->distinct().begin(), slots_->distinct().end());
    for (const uint32_t i : distinct) {
      using How = placement::ExpertSlots::How;
      const auto served = slots_->serve(i);
      if (served.removed != kNone) drop(served.removed);
      counters_.prefetches_used += served.fetched;
      counters_.loads += served.how != How::kHeld;
      counters_.bypassed += served.how == How::kBypassed;
      counters_.streamed += served.how == How::kStreamed;
    }
    slots_->end();
    slots_->predict();
  }
  // Only now: what a step that was not begun would use is nobody's.
  for (const uint32_t object : objects) users_[object]++;
  open_steps_++;
  step->open_ = true;
  // A part of all, then the next: the host can begin when the first is there.
  for (uint32_t p = 0; p < parts_; p++)
    for (const uint32_t object : objects) want(piece_of(object, p), true);
  fetching_ = slots_->predicts();
  serving_ = false;
  pump();
  loader_->wake();
  return step;
}

void MappedExperts::end_part(MappedStep& step, uint32_t part) {
  for (const uint32_t object : step.objects_)
    if (users_[object] == 1 && !slots_->holds(object)) forget(piece_of(object, part));
}

void MappedExperts::end(MappedStep& step) {
  const std::lock_guard lock(mutex_);
  open_steps_--;
  for (const uint32_t object : step.objects_)
    if (--users_[object] == 0 && !slots_->holds(object)) drop(object);
  pump();
  loader_->wake();
}

// One that was given up within begin() has the lock held around it.
MappedStep::~MappedStep() {
  if (open_) owner_.end(*this);
}

Status MappedStep::wait(uint32_t part) {
  if (part >= done_.size()) return invalid(fmt::format("part {} of {}", part, done_.size()));
  std::unique_lock lock(owner_.mutex_);
  for (const uint32_t object : objects_) {
    const uint32_t piece = owner_.piece_of(object, part);
    while (owner_.pieces_[piece].state != MappedExperts::State::kHere) {
      if (const auto error = owner_.errors_.find(piece); error != owner_.errors_.end()) return error->second;
      const uint64_t before = now_ns();
      owner_.changed_.wait(lock);
      owner_.counters_.wait_ns += now_ns() - before;
    }
  }
  return {};
}

void MappedStep::done(uint32_t part) {
  if (part >= done_.size() || done_[part]) return;
  done_[part] = true;
  const std::lock_guard lock(owner_.mutex_);
  owner_.end_part(*this, part);
  owner_.pump();
  owner_.loader_->wake();
}

MappedCounters MappedExperts::counters() const {
  const std::lock_guard lock(mutex_);
  MappedCounters c = counters_;
  const Loader::Counters& l = loader_->counters();
  c.bytes = l.bytes;
  c.retries = l.retries;
  c.failures = l.failures;
  return c;
}

}  // namespace neotier::experts
