// SPDX-License-Identifier: Apache-2.0
#include "replay/moe_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "replay/moe_schedule.h"
#include "util/cpu_clock.h"

namespace neotier::replay {

namespace {

constexpr uint32_t kNone = NEOTIER_NO_OBJECT;

void check(const RoutingTrace& trace, const MoeOptions& o) {
  const RoutingShape& shape = trace.shape();
  const auto require = [](bool good, const std::string& text) {
    if (!good) throw std::runtime_error(text);
  };
  require(o.experts_per_layer >= 1 && o.experts_per_layer <= shape.experts,
          fmt::format("--experts-per-layer {}: expected 1 to {}, the experts of a layer", o.experts_per_layer,
                      shape.experts));
  require(o.batch >= 1 && o.batch <= 4096, fmt::format("--batch {}: expected 1 to 4096", o.batch));
  require(o.layer_ms >= 0 && o.layer_ms <= 1e6, fmt::format("--layer-ms {}: expected 0 to 1e6", o.layer_ms));
  require(o.link_gb_s > 0 && o.link_gb_s <= 1e6,
          fmt::format("--link-gb-s {}: expected more than 0, at most 1e6", o.link_gb_s));
  require(o.link_us >= 0 && o.link_us <= 1e9, fmt::format("--link-us {}: expected 0 to 1e9", o.link_us));
  require(o.expert_bytes >= 1 && o.expert_bytes <= 1e15,
          fmt::format("--expert-bytes {}: expected 1 to 1e15", o.expert_bytes));
  require(o.lookahead >= 1 && o.lookahead < std::max(2u, shape.layers),
          fmt::format("--lookahead {}: expected 1 to {}, fewer than the layers", o.lookahead, shape.layers - 1));
}

class MoeReplay {
 public:
  MoeReplay(const RoutingTrace& trace, const placement::PolicyRef& policy, const placement::PolicyRef& predictor,
            const MoeOptions& options)
      : trace_(trace),
        shape_(trace.shape()),
        options_(options),
        schedule_(trace, options.batch),
        layer_ns_(options.layer_ms * 1e6),
        expert_ns_(options.expert_ms * 1e6),
        transfer_ns_(options.expert_bytes / options.link_gb_s),
        slots_(policy, predictor, slots_options()),
        uses_(slots_.objects()) {
    if (policy->flags & NEOTIER_NEEDS_ORACLE) next_uses_ = next_uses(trace, schedule_);
    accesses_.resize(size_t{options.batch} * shape_.top_k);
    result_.policy = policy->name;
    result_.predictor = predictor ? predictor->name : "none";
    result_.objects = slots_.objects();
    result_.policy_state_bytes = slots_.policy_state_bytes();
    result_.predictor_state_bytes = slots_.predictor_state_bytes();
    result_.layer_uses.resize(shape_.layers);
    result_.layer_stall_free.resize(shape_.layers);
  }

  MoeResult run() {
    const double begin = cpu_seconds();
    for (uint64_t step = 0; step < schedule_.steps(); step++) {
      if (options_.cancel && *options_.cancel) throw std::runtime_error("interrupted");
      const double step_begin = now_;
      for (uint32_t layer = 0; layer < shape_.layers; layer++) {
        const double link_free = serve(step, layer);
        if (slots_.predicts()) fetch_ahead(now_ - link_free + layer_ns_);
        now_ += layer_ns_;
      }
      if (options_.keep_steps) result_.step_ns.push_back(now_ - step_begin);
      result_.tokens += schedule_.step(step).size();
      if (options_.progress) *options_.progress = result_.tokens;
    }
    slots_.tell_breach();
    result_.events = schedule_.steps() * shape_.layers;
    result_.modelled_ns = now_;
    result_.bytes = link_ns_ / transfer_ns_ * options_.expert_bytes;
    result_.seconds = cpu_seconds() - begin;
    return result_;
  }

 private:
  // The transfer that fetches ahead; at most one is under way.
  struct Flight {
    uint32_t object = kNone;
    double left_ns = 0;
  };

  placement::ExpertSlotsOptions slots_options() const {
    placement::ExpertSlotsOptions o;
    o.layers = shape_.layers;
    o.experts = shape_.experts;
    o.top_k = shape_.top_k;
    o.slots = options_.experts_per_layer;
    o.batch = options_.batch;
    o.expert_bytes = static_cast<uint64_t>(options_.expert_bytes);
    o.lookahead = options_.lookahead;
    o.planner = options_.planner;
    o.seed = options_.seed;
    o.policy_params = options_.policy_params;
    o.predictor_params = options_.predictor_params;
    return o;
  }

  void set_event(uint64_t step, uint32_t layer) {
    const auto slots = schedule_.step(step);
    size_t nr = 0;
    for (size_t i = 0; i < slots.size(); i++) {
      const auto experts = trace_.experts(slots[i].token, layer);
      for (uint32_t k = 0; k < shape_.top_k; k++) {
        neotier_access& access = accesses_[nr++];
        access.object = layer * shape_.experts + experts[k];
        access.position = k;
        access.row = slots[i].row;
        access.flags = slots[i].begins && layer == 0 ? NEOTIER_STREAM_BEGINS : 0;
        access.bytes = static_cast<uint64_t>(options_.expert_bytes);
        if (!next_uses_.empty()) {
          access.next_use = next_uses_[((schedule_.first_slot(step) + i) * shape_.layers + layer) * shape_.top_k + k];
          if (access.next_use / shape_.layers - step > options_.oracle_steps) access.next_use = NEOTIER_NEVER;
        }
      }
    }
    event_.tick = step * shape_.layers + layer;
    event_.now_ns = static_cast<uint64_t>(now_);
    event_.kind = NEOTIER_EVENT_DEMAND;
    event_.group = layer;
    event_.nr = static_cast<uint32_t>(nr);
    event_.access = accesses_.data();
  }

  // Moves now_ to when the layer's experts are computed; returns when the link was free.
  double serve(uint64_t step, uint32_t layer) {
    set_event(step, layer);
    double compute = 0, cpu = now_;
    for (uint32_t i = 0; i < event_.nr; i++) {
      const uint32_t object = accesses_[i].object;
      const bool held = slots_.holds(object), there = held && object != flight_.object;
      result_.hits += held;
      result_.stall_free += there;
      result_.layer_stall_free[layer] += there;
      uses_[object]++;
      compute += expert_ns_;
      if (there) cpu += expert_ns_;  // while the others come
    }
    result_.uses += event_.nr;
    result_.layer_uses[layer] += event_.nr;
    slots_.begin(event_);
    double link = now_, carried = 0;
    for (const uint32_t i : slots_.distinct()) {
      const uint32_t object = accesses_[i].object;
      const double transfer = transfer_for(object, slots_.serve(i));
      if (transfer > 0) {
        if (link == now_) link += options_.link_us * 1e3;
        carried += transfer;
        link += transfer;
        cpu = std::max(cpu, link) + expert_ns_ * uses_[object];
      }
      uses_[object] = 0;
    }
    slots_.end();
    link_ns_ += carried;
    result_.stall_ns += cpu - now_ - compute;
    now_ = cpu;
    return link;
  }

  // What the link has to carry before the expert is there.
  double transfer_for(uint32_t object, const placement::ExpertSlots::Served& served) {
    using How = placement::ExpertSlots::How;
    if (served.removed != kNone && served.removed == flight_.object) flight_ = {};
    result_.prefetches_used += served.fetched;
    if (served.how == How::kHeld) {
      if (object != flight_.object) return 0;
      return std::exchange(flight_, {}).left_ns;
    }
    result_.loads++;
    result_.bypassed += served.how == How::kBypassed;
    result_.streamed += served.how == How::kStreamed;
    return transfer_ns_;
  }

  // Uses the link from the end of the demand loads until the next layer begins.
  void fetch_ahead(double left) {
    slots_.predict();
    while (left > 0) {
      if (flight_.object == kNone) {
        const auto fetch = slots_.fetch(static_cast<uint64_t>(now_), transfer_ns_ <= left);
        if (!fetch) return;
        flight_ = {fetch->object, transfer_ns_};
        result_.prefetches++;
      }
      const double part = std::min(left, flight_.left_ns);
      flight_.left_ns -= part;
      left -= part;
      link_ns_ += part;
      if (flight_.left_ns <= 0) {
        slots_.arrived(flight_.object);
        flight_ = {};
      }
    }
  }

  const RoutingTrace& trace_;
  const RoutingShape shape_;
  const MoeOptions& options_;
  const BatchSchedule schedule_;
  const double layer_ns_, expert_ns_, transfer_ns_;
  placement::ExpertSlots slots_;
  std::vector<uint32_t> uses_;  // of each expert in the event
  std::vector<uint64_t> next_uses_;
  std::vector<neotier_access> accesses_;
  neotier_event event_ = {};
  Flight flight_;
  double now_ = 0, link_ns_ = 0;
  MoeResult result_;
};

}  // namespace

MoeResult replay(const RoutingTrace& trace, const placement::PolicyRef& policy, const placement::PolicyRef& predictor,
                 const MoeOptions& options) {
  check(trace, options);
  if (policy->flags & NEOTIER_PREDICTOR) {
    throw std::runtime_error(fmt::format("{} is a predictor, not a policy; name it with --predictor", policy->name));
  }
  return MoeReplay(trace, policy, predictor, options).run();
}

}  // namespace neotier::replay
