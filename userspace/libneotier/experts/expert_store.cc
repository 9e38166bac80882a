// SPDX-License-Identifier: Apache-2.0
#include "experts/expert_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "engine/arena.h"
#include "engine/tiers/memory/memory_tier.h"
#include "experts/resident_file.h"
#include "experts/staged_file.h"

namespace neotier::experts {

namespace {

constexpr uint32_t kNone = NEOTIER_NO_OBJECT;
constexpr uint64_t kExtentBytes = 1 << 20;  // at least: smaller ones are not aligned for direct I/O
constexpr double kEwma = 1.0 / 8;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

void follow(double& average, double value) { average = average == 0 ? value : average + (value - average) * kEwma; }

Status invalid(const std::string& what) { return {Code::kInvalid, what}; }

placement::ExpertSlotsOptions slots_options(const Layout& layout, const StoreOptions& o) {
  placement::ExpertSlotsOptions s;
  s.layers = layout.layers();
  s.experts = layout.experts();
  s.top_k = o.top_k;
  s.slots = o.slots;
  s.batch = o.batch;
  s.expert_bytes = layout.slot_bytes();
  s.lookahead = o.lookahead;
  s.planner = o.planner;
  s.seed = o.seed;
  s.policy_params = o.policy_params;
  s.predictor_params = o.predictor_params;
  return s;
}

Status check(const Layout& layout, const StoreOptions& o) {
  if (!o.policy) return invalid("no policy");
  if (o.policy->flags & NEOTIER_NEEDS_ORACLE)
    return invalid(fmt::format("policy {} is a bound that knows the future; only a replay can use it", o.policy->name));
  if (o.top_k == 0 || o.top_k > layout.experts())
    return invalid(fmt::format("top-k {}: expected 1 to {}, the experts of a layer", o.top_k, layout.experts()));
  if (o.slots == 0 || o.slots > layout.experts())
    return invalid(
        fmt::format("{} slots a layer: expected 1 to {}, the experts of a layer", o.slots, layout.experts()));
  if (o.batch == 0 || o.batch > 4096) return invalid(fmt::format("batch {}: expected 1 to 4096", o.batch));
  if (o.predictor && (o.lookahead == 0 || o.lookahead >= layout.layers()))
    return invalid(
        fmt::format("lookahead {}: expected 1 to {}, fewer than the layers", o.lookahead, layout.layers() - 1));
  if (o.loader.chunk_bytes == 0 || o.loader.chunk_bytes % kIoBlock != 0 || o.loader.demand_chunks == 0 ||
      o.loader.background_chunks == 0)
    return invalid("chunks must be whole blocks of 4096 bytes, and 1 or more at a time");
  if (o.in_place && !o.resident_files) return invalid("to compute in place, the files must be in memory");
  return {};
}

}  // namespace

ExpertStore::ExpertStore(Layout layout, const StoreOptions& options)
    : options_(options),
      layout_(std::move(layout)),
      memory_(options.memory),
      slots_(options.policy, options.predictor, slots_options(layout_, options)),
      objects_(slots_.objects()) {
  accesses_.resize(size_t{options_.batch} * options_.top_k);
}

Result<std::unique_ptr<ExpertStore>> ExpertStore::open(const model::Model& model, const StoreOptions& options) {
  Result<Layout> layout = Layout::of(model);
  if (!layout) return layout.status();
  if (Status s = check(*layout, options); !s) return s;
  std::unique_ptr<ExpertStore> store(new ExpertStore(std::move(*layout), options));
  if (Status s = store->set_up(model); !s) return s;
  return store;
}

ExpertStore::~ExpertStore() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  loader_.reset();
  for (const engine::Extent e : extents_) memory_->free(e);
  for (std::byte* file : resident_) std::free(file);
}

Status ExpertStore::set_up(const model::Model& model) {
  const uint64_t slot = layout_.slot_bytes();
  const uint32_t experts = layout_.experts();
  // What is streamed needs room besides the slots, and so does a load that was cancelled, until the medium lets go.
  const uint32_t spare = options_.slots == experts ? 1 : std::min(options_.batch * options_.top_k, experts) + 2;
  const uint64_t count = uint64_t{options_.slots} * layout_.layers() + spare;
  const uint64_t per = std::max<uint64_t>(1, kExtentBytes / slot);
  const uint64_t extents = (count + per - 1) / per;
  if (per * slot > UINT32_MAX) return invalid(fmt::format("an expert of {} bytes: at most 4 GiB", slot));
  if (!memory_) {
    engine::MemoryTierOptions o;
    o.capacity_bytes =
        extents * engine::Arena::room_of(std::max<uint64_t>(per * slot, kExtentBytes)) + engine::Arena::kSlab;
    memory_ = std::make_shared<engine::MemoryTier>(o);
  }
  std::vector<iovec> vectors;
  std::vector<StagedPlace> staged;
  for (uint64_t i = 0; i < extents; i++) {
    const auto extent = memory_->allocate({}, std::max<uint64_t>(per * slot, kExtentBytes));
    if (!extent)
      return {Code::kFull, fmt::format("{}: {} slots of {} bytes do not fit; give fewer slots a layer, or more memory",
                                       memory_->info().name, count, slot)};
    extents_.push_back(*extent);
    std::byte* const base = memory_->address(*extent);
    if (!base)
      return invalid(memory_->info().name + ": nothing computes there; slots must lie in dram, cxl or on a gpu");
    if (!memory_->map(*extent)) staged.push_back({base, per * slot, *extent});
    if (staged.empty() && reinterpret_cast<uintptr_t>(base) % kIoBlock != 0)
      return invalid(memory_->info().name + ": its memory is not aligned for direct I/O");
    for (uint64_t j = 0; j < per && buffers_.size() < count; j++) {
      free_buffers_.push_back(static_cast<int>(buffers_.size()));
      buffers_.push_back(base + j * slot);
      vectors.push_back({base + j * slot, slot});
    }
  }
  std::vector<std::string> names;
  for (const model::ModelFile& f : model.files) {
    names.push_back(f.path);
    resident_bytes_.push_back(f.bytes);
  }
  std::unique_ptr<engine::File> file;
  if (options_.resident_files)
    if (Status s = read_resident(model); !s) return s;
  if (options_.resident_files && !options_.file_system) {
    std::vector<ResidentRange> ranges;
    for (size_t i = 0; i < resident_.size(); i++) ranges.push_back({resident_[i], resident_bytes_[i]});
    file = resident_file(std::move(ranges));
  } else {
    auto system = options_.file_system;
    if (!system) system = engine::posix_file_system();
    auto opened = system->open_to_read(names);
    if (!opened) return opened.status();
    file = std::move(*opened);
  }
  if (!staged.empty()) {
    const std::string& name = memory_->info().name;
    if (options_.in_place || options_.stand_in)
      return {Code::kUnsupported, name + ": the CPU's fallbacks do not go with slots that it cannot address"};
    if (!layout_.only_points())
      return {Code::kUnsupported,
              name + ": this model's biases have to be converted, which only slots in dram or cxl allow"};
    // As much again as is read at a time, so that reading goes on while the tier writes.
    const uint32_t pieces = 2 * (options_.loader.demand_chunks + options_.loader.background_chunks);
    file = staged_file(std::move(file), memory_, std::move(staged), options_.loader.chunk_bytes, pieces);
    if (!file) return {Code::kFull, fmt::format("{}: no memory to stage loads in", name)};
  }
  const bool registered = file->register_buffers(vectors);
  loader_ =
      std::make_unique<Loader>(mutex_, std::move(file), std::move(names), resident_bytes_, registered, options_.loader,
                               Loader::Hooks{[this](Loader::Load& load, const Status& status) { done(load, status); },
                                             [this] { return fetch_ahead(); }});
  return options_.stand_in ? make_stand_ins() : Status();
}

Status ExpertStore::read_resident(const model::Model& model) {
  for (const model::ModelFile& f : model.files) {
    auto source = model::open_file(f.path);
    if (!source) return source.status();
    const uint64_t room = (f.bytes + kIoBlock - 1) / kIoBlock * kIoBlock;
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(kIoBlock, room));
    if (!data) return {Code::kFull, fmt::format("{}: no memory for its {} bytes", f.path, f.bytes)};
    resident_.push_back(data);
    constexpr uint64_t kStep = 16 << 20;
    for (uint64_t at = 0; at < f.bytes; at += kStep)
      if (Status s = (*source)->read(at, {data + at, std::min(kStep, f.bytes - at)}); !s) return s;
  }
  return {};
}

Status ExpertStore::make_stand_ins() {
  double difference = 0, sum = 0;
  std::unique_lock lock(mutex_);
  for (uint32_t object = 0; object < slots_.objects(); object++) {
    const uint32_t layer = object / layout_.experts(), expert = object % layout_.experts();
    Object& o = objects_[object];
    o.buffer = take_buffer(lock);
    o.load = start(object, o.buffer, true);
    changed_.wait(lock, [&] { return o.there || o.buffer < 0; });
    if (o.buffer < 0)
      return {Code::kIo, fmt::format("no stand-in of expert {} of layer {}: its bytes cannot be read", expert, layer)};
    StandIn& s = stand_ins_.emplace_back();
    s.view = layout_.view(layer, expert, buffers_[static_cast<size_t>(o.buffer)], s.biases);
    const auto pack = [&](compute::Matrix& m, compute::Packed& packed) {
      std::vector<float> exact(size_t{m.rows} * m.columns), row(m.columns);
      for (uint32_t r = 0; r < m.rows; r++)
        compute::dequantise(m, r, std::span(exact).subspan(size_t{r} * m.columns, m.columns));
      packed = compute::quantise(compute::Format::kQ4_0, exact, m.rows, m.columns);
      for (uint32_t r = 0; r < m.rows; r++) {
        compute::dequantise(packed.view, r, row);
        for (uint32_t c = 0; c < m.columns; c++) {
          const double x = exact[size_t{r} * m.columns + c], d = row[c] - x;
          difference += d * d;
          sum += x * x;
        }
      }
      m = packed.view;
    };
    pack(s.view.gate, s.gate);
    pack(s.view.up, s.up);
    pack(s.view.down, s.down);
    // Biases that were looked at in place do not stay.
    const auto keep = [&](const float*& bias, size_t n) {
      if (bias) bias = s.biases.emplace_back(bias, bias + n).data();
    };
    keep(s.view.gate_bias, s.view.gate.rows);
    keep(s.view.up_bias, s.view.up.rows);
    keep(s.view.down_bias, s.view.down.rows);
    free_buffers_.push_back(o.buffer);
    o = {};
  }
  stand_in_error_ = sum > 0 ? std::sqrt(difference / sum) : 0;
  return {};
}

int ExpertStore::take_buffer(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return !free_buffers_.empty(); });
  const int buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return buffer;
}

Loader::Load* ExpertStore::start(uint32_t object, int buffer, bool demand) {
  return loader_->start(object, layout_.runs(object / layout_.experts(), object % layout_.experts()),
                        buffers_[static_cast<size_t>(buffer)], buffer, demand);
}

// It has lost its slot.
void ExpertStore::drop(uint32_t object) {
  Object& o = objects_[object];
  Loader::Load* const load = std::exchange(o.load, nullptr);
  if (load)
    loader_->cancel(load);
  else if (o.buffer >= 0)
    free_buffers_.push_back(o.buffer);
  o = {};
}

void ExpertStore::done(Loader::Load& load, const Status& status) {
  Object& o = objects_[load.object];
  const bool holds = o.load == &load;
  if (holds) {
    o.load = nullptr;
    if (status.is_ok()) {
      o.there = true;
      slots_.arrived(load.object);
    } else {
      o = {};
      if (slots_.holds(load.object)) slots_.remove(load.object);
    }
  }
  bool streamed = false;
  if (step_) {
    for (Step::Item& item : step_->items_) {
      if (item.load != &load) continue;
      streamed = item.buffer >= 0;
      item.load = nullptr;
      item.there = status.is_ok();
      if (!item.there) {
        item.error = status;
        item.buffer = -1;
      }
      arrived_ns_ = now_ns();
    }
  }
  if (!status.is_ok() || (!holds && !streamed)) free_buffers_.push_back(load.buffer);
  changed_.notify_all();
}

bool ExpertStore::fetch_ahead() {
  if (serving_ || !fetching_ || closing_ || free_buffers_.empty()) return false;
  const uint64_t now = now_ns();
  const auto next_begins = arrived_ns_ + static_cast<uint64_t>(layer_ns_);
  const auto fetch = slots_.fetch(now, layer_ns_ == 0 || now + one_load_ns() <= next_begins);
  if (!fetch) {
    fetching_ = false;
    return false;
  }
  if (fetch->removed != kNone) drop(fetch->removed);
  Object& o = objects_[fetch->object];
  o.buffer = free_buffers_.back();
  free_buffers_.pop_back();
  o.load = start(fetch->object, o.buffer, false);
  counters_.prefetches++;
  return true;
}

Result<neotier_event> ExpertStore::make_event(uint32_t layer, std::span<const Use> uses) {
  if (step_) return Status(Code::kBusy, "a step is open; end it first");
  if (layer >= layout_.layers()) return invalid(fmt::format("layer {} of {}", layer, layout_.layers()));
  if (uses.empty() || uses.size() > accesses_.size())
    return invalid(fmt::format("{} uses: expected 1 to {}, batch x top-k", uses.size(), accesses_.size()));
  for (size_t i = 0; i < uses.size(); i++) {
    if (uses[i].expert >= layout_.experts() || uses[i].row >= options_.batch)
      return invalid(fmt::format("expert {} for row {}", uses[i].expert, uses[i].row));
    accesses_[i] = {};
    accesses_[i].object = layer * layout_.experts() + uses[i].expert;
    accesses_[i].position = uses[i].rank;
    accesses_[i].row = uses[i].row;
    accesses_[i].flags = uses[i].begins ? NEOTIER_STREAM_BEGINS : 0;
    accesses_[i].bytes = layout_.slot_bytes();
    accesses_[i].weight = uses[i].weight;
  }
  neotier_event event = {};
  event.tick = tick_++;
  event.now_ns = now_ns();
  event.kind = NEOTIER_EVENT_DEMAND;
  event.group = layer;
  event.nr = static_cast<uint32_t>(uses.size());
  event.access = accesses_.data();
  return event;
}

Status ExpertStore::rehearse(uint32_t layer, std::span<const Use> uses) {
  const std::lock_guard lock(mutex_);
  const auto event = make_event(layer, uses);
  if (!event) return event.status();
  slots_.begin(*event);
  for (const uint32_t i : slots_.distinct())
    if (const auto served = slots_.serve(i); served.removed != kNone) drop(served.removed);
  slots_.end();
  return {};
}

Result<std::unique_ptr<Step>> ExpertStore::begin(uint32_t layer, std::span<const Use> uses) {
  std::unique_lock lock(mutex_);
  const auto event = make_event(layer, uses);
  if (!event) return event.status();
  serving_ = true;
  if (arrived_ns_ != 0) follow(layer_ns_, static_cast<double>(event->now_ns - arrived_ns_));
  arrived_ns_ = event->now_ns;
  std::unique_ptr<Step> step(new Step(*this));
  step_ = step.get();
  // Where a policy throws there is no step.
  struct Begun {
    ExpertStore& store;
    bool whole = false;
    ~Begun() {
      store.serving_ = false;
      if (!whole) store.step_ = nullptr;
    }
  } begun{*this};
  counters_.events++;
  counters_.uses += uses.size();
  for (size_t i = 0; i < uses.size(); i++) {
    counters_.hits += slots_.holds(accesses_[i].object);
    counters_.stall_free += objects_[accesses_[i].object].there;
  }
  slots_.begin(*event);
  const std::vector<uint32_t> distinct(slots_.distinct().begin(), slots_.distinct().end());
  // No item moves: loads end meanwhile, and name theirs.
  step->items_.reserve(distinct.size());
  for (const uint32_t i : distinct) {
    using How = placement::ExpertSlots::How;
    const uint32_t object = accesses_[i].object;
    const auto served = slots_.serve(i);
    if (served.removed != kNone) drop(served.removed);
    counters_.prefetches_used += served.fetched;
    counters_.loads += served.how != How::kHeld;
    counters_.bypassed += served.how == How::kBypassed;
    counters_.streamed += served.how == How::kStreamed;
    Object& o = objects_[object];
    Step::Item& item = step->items_.emplace_back();
    item.object = object;
    if (served.how == How::kHeld) {
      item.there = o.there;
      item.load = o.load;
      if (o.load) loader_->set_demand(o.load, true);
      continue;
    }
    const int buffer = take_buffer(lock);
    item.load = start(object, buffer, true);
    if (served.how == How::kKept) {
      o.buffer = buffer;
      o.load = item.load;
    } else {
      item.buffer = buffer;
    }
  }
  slots_.end();
  slots_.predict();
  fetching_ = slots_.predicts();
  begun.whole = step->open_ = true;
  loader_->wake();
  return step;
}

void ExpertStore::end(Step& step) {
  const std::lock_guard lock(mutex_);
  step_ = nullptr;
  for (Step::Item& item : step.items_) {
    if (item.buffer >= 0 && item.load)
      loader_->cancel(item.load);
    else if (item.buffer >= 0)
      free_buffers_.push_back(item.buffer);
    else if (item.load)
      loader_->set_demand(item.load, false);
  }
  changed_.notify_all();
}

// One that was given up within begin() has the lock held around it.
Step::~Step() {
  if (open_) store_.end(*this);
}

Ready Step::hand_out(Item& item, Source source) {
  const uint32_t experts = store_.layout_.experts(), layer = item.object / experts;
  item.taken = true;
  Ready ready;
  ready.expert = item.object % experts;
  ready.source = source;
  if (source == Source::kStandIn) {
    ready.weights = store_.stand_ins_[item.object].view;
  } else if (source == Source::kInPlace) {
    const std::vector<const std::byte*> files(store_.resident_.begin(), store_.resident_.end());
    ready.weights = store_.layout_.view_in_place(layer, ready.expert, files, biases_);
  } else {
    const int buffer = item.buffer >= 0 ? item.buffer : store_.objects_[item.object].buffer;
    ready.weights = store_.layout_.view(layer, ready.expert, store_.buffers_[static_cast<size_t>(buffer)], biases_);
  }
  handed_ns_ = now_ns();
  handed_ = source;
  return ready;
}

// The one that is furthest away goes another way, if that is sooner.
std::optional<Ready> Step::fall_back() {
  const StoreOptions& o = store_.options_;
  if (!o.in_place && !o.stand_in) return std::nullopt;
  Item* last = nullptr;
  for (Item& item : items_)
    if (!item.taken && item.load) last = &item;
  if (!last) return std::nullopt;
  const auto away = static_cast<double>(store_.loader_->predict_ns(*last->load));
  const double* compute = store_.compute_ns_;
  Source source = Source::kSlot;
  // A path not tried yet counts as fast as the other one.
  if (o.in_place && (compute[1] == 0 ? compute[0] : compute[1]) <= away + compute[0])
    source = Source::kInPlace;
  else if (o.stand_in && away > static_cast<double>(o.stand_in_late_us) * 1e3)
    source = Source::kStandIn;
  if (source == Source::kSlot) return std::nullopt;
  (source == Source::kInPlace ? store_.counters_.in_place : store_.counters_.stand_ins)++;
  Loader::Load* const load = std::exchange(last->load, nullptr);
  if (last->buffer >= 0) {
    last->buffer = -1;  // goes back when the load has ended
    store_.loader_->cancel(load);
  } else {
    store_.loader_->set_demand(load, false);
  }
  return hand_out(*last, source);
}

std::optional<Ready> Step::next() {
  std::unique_lock lock(store_.mutex_);
  if (handed_ns_ != 0 && handed_ != Source::kStandIn)
    follow(store_.compute_ns_[handed_ == Source::kInPlace], static_cast<double>(now_ns() - handed_ns_));
  handed_ns_ = 0;
  for (;;) {
    bool waiting = false;
    for (Item& item : items_) {
      if (item.taken) continue;
      if (item.there) return hand_out(item, Source::kSlot);
      if (!item.error.is_ok()) {
        item.taken = true;
        Ready failed;
        failed.expert = item.object % store_.layout_.experts();
        failed.status = item.error;
        return failed;
      }
      waiting = true;
    }
    if (!waiting) return std::nullopt;
    if (auto ready = fall_back()) return ready;
    const uint64_t before = now_ns();
    store_.changed_.wait(lock);
    store_.counters_.wait_ns += now_ns() - before;
  }
}

Status ExpertStore::warm() {
  std::unique_lock lock(mutex_);
  serving_ = true;
  for (uint32_t layer = 0; layer < layout_.layers(); layer++)
    for (uint32_t e = 0; e < layout_.experts(); e++) {
      const uint32_t object = layer * layout_.experts() + e;
      if (objects_[object].there || (!slots_.holds(object) && !slots_.place(object))) continue;
      const int buffer = take_buffer(lock);
      objects_[object].buffer = buffer;
      objects_[object].load = start(object, buffer, true);
      changed_.wait(lock, [&] { return !objects_[object].load; });
      if (objects_[object].there) continue;
      serving_ = false;
      return {Code::kIo, fmt::format("expert {} of layer {} cannot be read", e, layer)};
    }
  serving_ = false;
  return {};
}

void ExpertStore::cancel_prefetches() {
  const std::lock_guard lock(mutex_);
  fetching_ = false;
  for (uint32_t object = 0; object < objects_.size(); object++) {
    Loader::Load* const load = objects_[object].load;
    if (!load || load->demand) continue;
    slots_.remove(object);
    drop(object);
  }
}

StoreCounters ExpertStore::counters() const {
  const std::lock_guard lock(mutex_);
  StoreCounters c = counters_;
  const Loader::Counters& l = loader_->counters();
  c.bytes = l.bytes;
  c.cancelled = l.cancelled;
  c.retries = l.retries;
  c.failures = l.failures;
  return c;
}

std::string ExpertStore::method() const { return loader_->method(); }

uint64_t ExpertStore::load_ns() const {
  const std::lock_guard lock(mutex_);
  return one_load_ns();
}

}  // namespace neotier::experts
