// SPDX-License-Identifier: Apache-2.0
#include "bench/moe_bench.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <list>
#include <set>
#include <stdexcept>
#include <thread>

#include "bench/forward.h"
#include "bench/page_cache.h"
#include "replay/moe_schedule.h"
#include "util/median.h"
#include "util/quantile.h"

namespace neotier::experts {

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void require(const Status& status) {
  if (!status) throw std::runtime_error(status.what());
}

constexpr uint64_t kSpare = 1 << 30;  // of memory, for everything else

uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string name, unit;
  for (uint64_t kib = 0; in >> name >> kib; std::getline(in, unit))
    if (name == "MemAvailable:") return kib << 10;
  return UINT64_MAX;
}

// The model's files mapped, as a program that leaves everything to the page cache has them.
class MappedFiles {
 public:
  explicit MappedFiles(const model::Model& model) {
    for (const auto& f : model.files) {
      const int fd = open(f.path.c_str(), O_RDONLY | O_CLOEXEC);
      void* const at = fd < 0 ? MAP_FAILED : mmap(nullptr, f.bytes, PROT_READ, MAP_SHARED, fd, 0);
      if (fd >= 0) close(fd);
      if (at == MAP_FAILED) throw std::runtime_error(fmt::format("{}: cannot be mapped", f.path));
      bases.push_back(static_cast<const std::byte*>(at));
      bytes_.push_back(f.bytes);
      names_.push_back(f.path);
    }
  }
  ~MappedFiles() {
    for (size_t i = 0; i < bases.size(); i++) munmap(const_cast<std::byte*>(bases[i]), bytes_[i]);
  }
  MappedFiles(const MappedFiles&) = delete;
  MappedFiles& operator=(const MappedFiles&) = delete;
  void drop(const Run& r) const {
    const uint64_t bytes = std::min(r.bytes, bytes_[r.file] - r.offset);
    madvise(const_cast<std::byte*>(bases[r.file]) + r.offset, bytes, MADV_DONTNEED);
    const int fd = open(names_[r.file].c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    posix_fadvise(fd, static_cast<off_t>(r.offset), static_cast<off_t>(r.bytes), POSIX_FADV_DONTNEED);
    close(fd);
  }

  std::vector<const std::byte*> bases;

 private:
  std::vector<uint64_t> bytes_;
  std::vector<std::string> names_;
};

class Bench {
 public:
  Bench(const replay::RoutingTrace& trace, const MoeBenchOptions& options)
      : trace_(trace), o_(options), schedule_(trace, 1), model_(open(options.model)), layout_(lay_out(model_)) {
    const replay::RoutingShape& shape = trace.shape();
    if (shape.layers != layout_.layers() || shape.experts != layout_.experts())
      throw std::runtime_error(fmt::format("{}: {} layers of {} experts, the routing is of {} of {}", options.model,
                                           layout_.layers(), layout_.experts(), shape.layers, shape.experts));
    if (schedule_.steps() < o_.warm + o_.tokens)
      throw std::runtime_error(fmt::format("the routing has {} tokens; {} to warm up and {} to measure were asked for",
                                           schedule_.steps(), o_.warm, o_.tokens));
    forward_.emplace(model_, layout_, shape.top_k);
    result_.layers = shape.layers;
    result_.experts = shape.experts;
    result_.slots = o_.store.slots;
    result_.hidden = layout_.hidden();
    result_.ff = layout_.shape(0).ff;
    result_.format = compute::to_string(layout_.shape(0).gate.format);
    result_.path = compute::to_string(compute::kernels().path);
    const uint64_t all = uint64_t{shape.layers} * shape.experts;
    result_.expert_bytes = layout_.weight_bytes() / all;
    result_.read_bytes = layout_.read_bytes() / all;
    result_.model_bytes = layout_.weight_bytes();
    result_.routing_weights = forward_->weights_text();
  }

  MoeBenchResult run() {
    // The first is what the others are compared with: everything resident, where that fits.
    std::vector<std::string> names = o_.methods;
    std::erase(names, "resident");
    result_.all_resident = layout_.read_bytes() + kSpare < available_memory();
    if (result_.all_resident) names.insert(names.begin(), "resident");
    if (names.empty())
      throw std::runtime_error("the model does not fit into memory: give another of --methods as well");
    for (const std::string& name : names) {
      MoeMethod m = name == "resident" ? resident() : name == "mmap" ? mapped() : stored(name);
      const MoeMethod& first = result_.methods.empty() ? m : result_.methods[0];
      m.identical = m.digest == first.digest;
      m.stall_share = std::max(0.0, 1 - first.mean_ms / m.mean_ms);
      result_.methods.push_back(std::move(m));
    }
    return result_;
  }

 private:
  static model::Model open(const std::string& path) {
    auto model = model::open_model(path);
    require(model.status());
    return std::move(*model);
  }
  static Layout lay_out(const model::Model& model) {
    auto layout = Layout::of(model);
    require(layout.status());
    return std::move(*layout);
  }

  void say(const std::string& text) const {
    if (o_.cancelled && o_.cancelled()) throw std::runtime_error("interrupted");
    if (o_.progress) o_.progress(text);
  }

  std::vector<Use> uses(uint64_t step, uint32_t layer) const {
    const replay::BatchSlot slot = schedule_.step(step)[0];
    const auto experts = trace_.experts(slot.token, layer);
    std::vector<Use> all;
    for (uint32_t k = 0; k < experts.size(); k++) all.push_back({experts[k], 0, k, slot.begins && layer == 0, 0});
    return all;
  }

  // The measured tokens, one after the other.
  void measure(MoeMethod& m, const Forward::Layer& layer) {
    const bool first = outputs_.empty();
    double difference = 0, norm = 0;
    uint64_t digest = 14695981039346656037u;  // FNV-1a
    for (uint64_t t = 0; t < o_.tokens; t++) {
      say(fmt::format("{}: token {} of {}", m.name, t, o_.tokens));
      const uint64_t step = o_.warm + t;
      const auto begin = Clock::now();
      const auto out = forward_->token(
          step, [&](uint32_t l) { return trace_.experts(schedule_.step(step)[0].token, l); },
          [&](uint32_t l, compute::MoeStep& moe) {
            if (o_.layer_ms > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(o_.layer_ms));
            step_ = step;
            layer(l, moe);
          });
      m.token_ms.push_back(ms_since(begin));
      for (size_t i = 0; i < out.size(); i++) {
        uint32_t bits = 0;
        std::memcpy(&bits, &out[i], 4);
        digest = (digest ^ bits) * 1099511628211u;
        if (first) continue;
        const double exact = outputs_[t * out.size() + i], d = out[i] - exact;
        difference += d * d;
        norm += exact * exact;
      }
      if (first) kept_.insert(kept_.end(), out.begin(), out.end());
    }
    if (first) outputs_ = std::move(kept_);
    m.digest = digest;
    m.error = norm > 0 ? std::sqrt(difference / norm) : 0;
    std::vector<double> sorted = m.token_ms;
    std::sort(sorted.begin(), sorted.end());
    for (const double ms : sorted) m.mean_ms += ms / static_cast<double>(sorted.size());
    m.p50_ms = quantile(sorted, 0.5);
    m.p90_ms = quantile(sorted, 0.9);
    m.p99_ms = quantile(sorted, 0.99);
  }

  std::unique_ptr<ExpertStore> open_store(const StoreOptions& options) {
    auto store = ExpertStore::open(model_, options);
    require(store.status());
    result_.medium = (*store)->method();
    return std::move(*store);
  }

  // A layer's experts from the store.
  Forward::Layer from(ExpertStore& store) {
    return [this, &store](uint32_t layer, compute::MoeStep& moe) {
      auto step = store.begin(layer, uses(step_, layer));
      require(step.status());
      while (auto ready = (*step)->next()) {
        require(ready->status);
        const auto begin = Clock::now();
        require(moe.compute(ready->expert, ready->weights, layout_.activation()));
        compute_ms_ += ms_since(begin);
        computed_++;
      }
    };
  }

  struct LinkFigures {
    double gb_s = 0, us = 0;
  };

  // By layers that miss all of their experts and layers that miss one, in turn: what each further expert takes, and
  // what the first one takes longer. The store is a new one, so nothing is there.
  LinkFigures link() {
    StoreOptions o = o_.store;
    o.policy = placement::find_policy("lru", NEOTIER_EXPERTS);
    o.predictor = nullptr;
    o.policy_params.clear();
    o.slots = 1;
    o.stand_in = o.in_place = false;
    o.memory = nullptr;
    auto store = open_store(o);
    std::vector<double> one, several;  // ms an expert
    for (uint32_t i = 0; i < 32; i++) {
      say("probing the link");
      const uint32_t layer = i * 7 % layout_.layers();
      std::set<uint32_t> experts;
      for (uint32_t k = 0; k < (i % 2 ? 1 : o.top_k); k++) experts.insert((i * 11 + k * 5) % layout_.experts());
      std::vector<Use> uses;
      for (const uint32_t e : experts) uses.push_back({e, 0, static_cast<uint32_t>(uses.size()), false, 0});
      const uint64_t before = store->counters().loads;
      const auto begin = Clock::now();
      auto step = store->begin(layer, uses);
      require(step.status());
      while (auto ready = (*step)->next()) require(ready->status);
      const double ms = ms_since(begin);
      const uint64_t loads = store->counters().loads - before;
      if (loads == 1) one.push_back(ms);
      if (loads > 1) several.push_back(ms / static_cast<double>(loads));
    }
    if (one.empty() || several.empty()) {
      const double ms = median(one.empty() ? several : one);
      return {static_cast<double>(result_.read_bytes) / (ms * 1e6), 0};
    }
    // n experts take first + (n - 1) x each.
    const double n = o.top_k, first = median(one);
    const double each = std::clamp((n * median(several) - first) / (n - 1), first / n, first);
    return {static_cast<double>(result_.read_bytes) / (each * 1e6), (first - each) * 1e3};
  }

  MoeMethod resident() {
    MoeMethod m;
    m.name = "resident";
    m.text = "every expert in memory";
    StoreOptions o = o_.store;
    o.policy = placement::find_policy("lru", NEOTIER_EXPERTS);
    o.predictor = nullptr;
    o.policy_params.clear();
    o.slots = layout_.experts();
    o.stand_in = o.in_place = o.resident_files = false;
    o.memory = nullptr;
    auto store = open_store(o);
    say("resident: reading all experts");
    require(store->warm());
    measure(m, from(*store));
    note_compute(m, store->counters().wait_ns);
    return m;
  }

  // Of this run: on a machine that others use, the one before may have computed at another speed.
  void note_compute(MoeMethod& m, uint64_t wait_ns) {
    const auto tokens = static_cast<double>(o_.tokens);
    m.wait_ms = static_cast<double>(wait_ns) * 1e-6 / tokens;
    m.expert_ms = compute_ms_ / static_cast<double>(computed_);
    m.other_ms = std::max(0.0, m.mean_ms - compute_ms_ / tokens - m.wait_ms) / layout_.layers();
    if (result_.methods.empty()) {
      result_.expert_ms = m.expert_ms;
      result_.other_ms = m.other_ms;
    }
  }

  MoeMethod stored(const std::string& name) {
    MoeMethod m;
    m.name = name;
    StoreOptions o = o_.store;
    if (name == "lru") {
      o.policy = placement::find_policy("lru", NEOTIER_EXPERTS);
      o.predictor = nullptr;
      o.policy_params.clear();
      o.stand_in = o.in_place = false;
    } else if (name != "store") {
      throw std::runtime_error(fmt::format("unknown method '{}'; known: resident, store, lru, mmap", name));
    }
    m.text = fmt::format("{} slots a layer, policy {}, predictor {}", o.slots, o.policy->name,
                         o.predictor ? o.predictor->name : "none");
    const LinkFigures before = link();
    {
      auto store = open_store(o);
      result_.slots_bytes = store->memory_bytes();
      result_.stand_in_error = std::max(result_.stand_in_error, store->stand_in_error());
      for (uint64_t t = 0; t < o_.warm; t++)
        for (uint32_t layer = 0; layer < layout_.layers(); layer++) require(store->rehearse(layer, uses(t, layer)));
      require(store->warm());
      const uint64_t bytes = store->counters().bytes;
      compute_ms_ = 0;
      computed_ = 0;
      measure(m, from(*store));
      m.counters = store->counters();
      note_compute(m, m.counters.wait_ns);
      m.counters.bytes -= bytes;
      m.counted = true;
    }
    const LinkFigures after = link();
    m.link_gb_s = (before.gb_s + after.gb_s) / 2;
    m.link_us = (before.us + after.us) / 2;
    if (!o.stand_in && !o.in_place) predict(m, o);
    return m;
  }

  void predict(MoeMethod& m, const StoreOptions& store) {
    replay::MoeOptions o;
    o.experts_per_layer = store.slots;
    o.layer_ms = m.other_ms;
    o.expert_ms = m.expert_ms;
    o.link_gb_s = m.link_gb_s;
    o.link_us = m.link_us;
    o.expert_bytes = static_cast<double>(result_.read_bytes);
    o.lookahead = std::min(store.lookahead, layout_.layers() - 1);
    o.planner = store.planner;
    o.seed = store.seed;
    o.policy_params = store.policy_params;
    o.predictor_params = store.predictor_params;
    o.keep_steps = true;
    const replay::MoeResult r = replay::replay(trace_.first(o_.warm + o_.tokens), store.policy, store.predictor, o);
    std::vector<double> ms = r.step_ns;
    ms.erase(ms.begin(), ms.begin() + static_cast<ptrdiff_t>(o_.warm));
    for (double& v : ms) v *= 1e-6;
    std::sort(ms.begin(), ms.end());
    for (const double v : ms) m.predicted_mean_ms += v / static_cast<double>(ms.size());
    m.predicted_wait_ms = m.predicted_mean_ms - layout_.layers() * (m.other_ms + store.top_k * m.expert_ms);
    m.predicted_p50_ms = quantile(ms, 0.5);
    m.predicted_p90_ms = quantile(ms, 0.9);
    m.predicted_p99_ms = quantile(ms, 0.99);
    m.predicted = true;
  }

  // As much page cache as the store has slots.
  MoeMethod mapped() {
    MoeMethod m;
    m.name = "mmap";
    const uint64_t room = uint64_t{o_.store.slots} * layout_.layers() * result_.expert_bytes;
    for (const auto& f : model_.files) drop_page_cache(f.path);
    std::string why;
    const auto limit = PageCacheLimit::make(room + (16 << 20), why);
    m.text = limit ? "mapped files, page cache limited by a memory cgroup to the slots' size"
                   : fmt::format(
                         "mapped files; {}, so experts beyond the slots' size are dropped from the page cache "
                         "(posix_fadvise), least recently used first",
                         why);
    const MappedFiles files(model_);
    std::list<uint32_t> order;
    const auto note = [&](uint32_t object) {
      order.remove(object);
      order.push_front(object);
      if (order.size() <= uint64_t{o_.store.slots} * layout_.layers()) return;
      for (const Run& r : layout_.runs(order.back() / layout_.experts(), order.back() % layout_.experts()))
        files.drop(r);
      order.pop_back();
    };
    const auto layer_of = [&](uint32_t layer, compute::MoeStep& moe) {
      std::deque<std::vector<float>> biases;
      for (const uint32_t e : moe.wanted()) {
        if (!limit) note(layer * layout_.experts() + e);
        require(moe.compute(e, layout_.view_in_place(layer, e, files.bases, biases), layout_.activation()));
      }
    };
    // Warm too: what the tokens before used is touched, as far as there is room.
    const uint64_t warm = std::min<uint64_t>(o_.warm, 4);
    std::byte touched{};
    for (uint64_t t = o_.warm - warm; t < o_.warm; t++)
      for (uint32_t layer = 0; layer < layout_.layers(); layer++)
        for (const Use& u : uses(t, layer)) {
          say("mmap: warming the page cache");
          if (!limit) note(layer * layout_.experts() + u.expert);
          for (const Run& r : layout_.runs(layer, u.expert))
            for (uint64_t at = 0; at < r.bytes && r.offset + at < model_.files[r.file].bytes; at += kIoBlock)
              touched ^= files.bases[r.file][r.offset + at];
        }
    warmth_ = touched;
    measure(m, layer_of);
    for (const auto& f : model_.files) drop_page_cache(f.path);
    return m;
  }

  const replay::RoutingTrace& trace_;
  const MoeBenchOptions& o_;
  const replay::BatchSchedule schedule_;
  const model::Model model_;
  const Layout layout_;
  std::optional<Forward> forward_;
  MoeBenchResult result_;
  std::vector<float> outputs_, kept_;  // of everything resident
  uint64_t step_ = 0;
  double compute_ms_ = 0;
  uint64_t computed_ = 0;
  volatile std::byte warmth_{};  // so that pages that are touched are
};

}  // namespace

MoeBenchResult run_moe_bench(const replay::RoutingTrace& trace, const MoeBenchOptions& options) {
  return Bench(trace, options).run();
}

}  // namespace neotier::experts
