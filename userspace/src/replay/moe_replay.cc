// SPDX-License-Identifier: Apache-2.0
#include "replay/moe_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

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
        transfer_ns_(options.expert_bytes / options.link_gb_s),
        flags_(size_t{shape_.layers} * shape_.experts),
        prefetched_(flags_.size()),
        seen_(flags_.size()),
        held_(shape_.layers),
        policy_(policy, config(), options.policy_params) {
    if (predictor) {
      predictor_.emplace(predictor, config(), options.predictor_params);
      predictions_.resize(size_t{options.lookahead} * shape_.experts);
      chance_.resize(predictions_.size());
      candidates_.resize(options.lookahead);
      order_.resize(options.experts_per_layer);
    }
    if (policy->flags & NEOTIER_NEEDS_ORACLE) next_uses_ = next_uses(trace, schedule_);
    accesses_.resize(size_t{options.batch} * shape_.top_k);
    result_.policy = policy->name;
    result_.predictor = predictor ? predictor->name : "none";
    result_.objects = flags_.size();
    result_.policy_state_bytes = policy_.state_bytes();
    result_.predictor_state_bytes = predictor_ ? predictor_->state_bytes() : 0;
    result_.layer_uses.resize(shape_.layers);
    result_.layer_stall_free.resize(shape_.layers);
  }

  MoeResult run() {
    const double begin = cpu_seconds();
    for (uint64_t step = 0; step < schedule_.steps(); step++) {
      if (options_.cancel && *options_.cancel) throw std::runtime_error("interrupted");
      for (uint32_t layer = 0; layer < shape_.layers; layer++) {
        serve(step, layer);
        if (predictor_) fetch_ahead();
        now_ += layer_ns_;
      }
      result_.tokens += schedule_.step(step).size();
      if (options_.progress) *options_.progress = result_.tokens;
    }
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
  // The best exchange for one layer of the lookahead.
  struct Candidate {
    bool current = false;
    double gain = 0;
    uint32_t object = kNone, victim = kNone;
  };

  neotier_placement_config config() const {
    neotier_placement_config c = {};
    c.kind = NEOTIER_KIND_EXPERT;
    c.objects = static_cast<uint32_t>(flags_.size());
    c.groups = shape_.layers;
    c.experts_per_group = shape_.experts;
    c.top_k = shape_.top_k;
    c.batch = options_.batch;
    c.max_event = options_.batch * shape_.top_k;
    c.capacity = options_.experts_per_layer;
    c.capacity_bytes = static_cast<uint64_t>(options_.experts_per_layer * options_.expert_bytes);
    c.seed = options_.seed;
    c.flags = flags_.data();
    return c;
  }

  std::string named(uint32_t object) const {
    return fmt::format("expert {} of layer {}", object % shape_.experts, object / shape_.experts);
  }

  [[noreturn]] void broken(const std::string& what) const {
    throw std::runtime_error(fmt::format("policy {} breaks the rules of its ABI: {}", result_.policy, what));
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

  void serve(uint64_t step, uint32_t layer) {
    set_event(step, layer);
    distinct_.clear();
    for (uint32_t i = 0; i < event_.nr; i++) {
      const uint32_t object = accesses_[i].object;
      const bool held = flags_[object] & NEOTIER_RESIDENT;
      result_.hits += held;
      const bool there = held && object != flight_.object;
      result_.stall_free += there;
      result_.layer_stall_free[layer] += there;
      if (seen_[object] == event_.tick + 1) continue;
      seen_[object] = event_.tick + 1;
      distinct_.push_back(i);
    }
    result_.uses += event_.nr;
    result_.layer_uses[layer] += event_.nr;
    for (uint32_t i : distinct_) flags_[accesses_[i].object] |= NEOTIER_PINNED;
    policy_.on_event(event_);
    if (predictor_) predictor_->on_event(event_);
    double stall = 0;
    for (uint32_t i : distinct_) {
      if (flags_[accesses_[i].object] & NEOTIER_RESIDENT) {
        stall += hit(i);
      } else {
        load(i);
        stall += transfer_ns_;
      }
    }
    for (uint32_t i : distinct_) flags_[accesses_[i].object] &= static_cast<uint8_t>(~NEOTIER_PINNED);
    link_ns_ += stall;
    now_ += stall;
    result_.stall_ns += stall;
  }

  // Returns what is left to transfer of an expert on its way.
  double hit(uint32_t index) {
    const uint32_t object = accesses_[index].object;
    if (policy_.on_hit(event_, index) != NEOTIER_OK)
      broken(fmt::format("it does not know that {} is resident", named(object)));
    result_.prefetches_used += prefetched_[object];
    prefetched_[object] = 0;
    if (object != flight_.object) return 0;
    const double left = flight_.left_ns;
    flight_ = {};
    return left;
  }

  void load(uint32_t index) {
    const uint32_t layer = event_.group;
    result_.loads++;
    if (held_[layer] == options_.experts_per_layer) {
      // Asked first, so that a policy's wish and a lack of slots are told apart.
      if (!policy_.admit(event_, index)) {
        result_.bypassed++;
        return;
      }
      uint32_t victim = kNone;
      if (policy_.victims(event_, index, 1, &victim) == 1) {
        evict(victim, layer);
      } else if (!cancel_flight(layer)) {
        result_.streamed++;
        return;
      }
    } else if (!policy_.admit(event_, index)) {
      result_.bypassed++;
      return;
    }
    insert(event_, index);
  }

  void insert(const neotier_event& event, uint32_t index) {
    const uint32_t object = event.access[index].object;
    flags_[object] |= NEOTIER_RESIDENT | NEOTIER_PINNED;
    held_[event.group]++;
    if (policy_.on_insert(event, index) != NEOTIER_OK)
      broken(fmt::format("it refuses {}, which is absent", named(object)));
  }

  void evict(uint32_t victim, uint32_t layer) {
    if (victim >= flags_.size() || victim / shape_.experts != layer || !(flags_[victim] & NEOTIER_RESIDENT) ||
        (flags_[victim] & NEOTIER_PINNED)) {
      broken(fmt::format("it names {} as a victim in layer {}, which may not go",
                         victim < flags_.size() ? named(victim) : fmt::format("object {}", victim), layer));
    }
    remove(victim, NEOTIER_EVICTED);
  }

  void remove(uint32_t object, neotier_remove_reason reason) {
    flags_[object] = 0;
    prefetched_[object] = 0;
    held_[object / shape_.experts]--;
    if (policy_.on_remove(object, reason) != NEOTIER_OK)
      broken(fmt::format("it does not know that {} is resident", named(object)));
  }

  // Gives up the transfer under way where it holds a slot that demand needs.
  bool cancel_flight(uint32_t layer) {
    const uint32_t object = flight_.object;
    if (object == kNone || object / shape_.experts != layer || seen_[object] == event_.tick + 1) return false;
    flight_ = {};
    remove(object, NEOTIER_REMOVED);
    return true;
  }

  // Uses the link from the end of the demand loads until the next layer begins.
  void fetch_ahead() {
    predict();
    double left = layer_ns_;
    while (left > 0) {
      if (flight_.object == kNone && !start_best(left)) return;
      const double part = std::min(left, flight_.left_ns);
      flight_.left_ns -= part;
      left -= part;
      link_ns_ += part;
      if (flight_.left_ns <= 0) {
        flags_[flight_.object] &= static_cast<uint8_t>(~NEOTIER_PINNED);
        flight_ = {};
      }
    }
  }

  void predict() {
    neotier_prefetch_request request = {};
    request.group_first = (event_.group + 1) % shape_.layers;
    request.groups = options_.lookahead;
    request.max = static_cast<uint32_t>(predictions_.size());
    const uint32_t nr = predictor_->prefetch(event_, request, predictions_.data());
    if (nr > request.max) broken("its predictor returns more than was asked for");
    std::fill(chance_.begin(), chance_.end(), 0.f);
    for (uint32_t i = 0; i < nr; i++) {
      const neotier_prediction& p = predictions_[i];
      const uint32_t lead = (p.group + shape_.layers - request.group_first) % shape_.layers;
      if (p.object >= flags_.size() || p.object / shape_.experts != p.group || lead >= options_.lookahead ||
          !(p.probability >= 0 && p.probability <= 1)) {
        throw std::runtime_error(
            fmt::format("predictor {} breaks the rules of its ABI: object {} in layer {} with probability {}",
                        result_.predictor, p.object, p.group, p.probability));
      }
      chance_[lead * shape_.experts + p.object % shape_.experts] = p.probability;
    }
    for (Candidate& candidate : candidates_) candidate.current = false;
  }

  // Starts the most useful transfer, `left_ns` before the next layer begins; false where none is worth it.
  bool start_best(double left_ns) {
    double best = options_.planner.min_gain, factor = 1;
    uint32_t chosen = kNone;
    for (uint32_t lead = 0; lead < options_.lookahead; lead++, factor *= options_.planner.lead_discount) {
      if (lead == 0 && transfer_ns_ > left_ns) continue;
      Candidate& candidate = candidates_[lead];
      if (!candidate.current) candidate = find_candidate(lead, best / factor);
      if (candidate.gain * factor > best) {
        best = candidate.gain * factor;
        chosen = lead;
      }
    }
    if (chosen == kNone) return false;
    const Candidate taken = candidates_[chosen];
    candidates_[chosen].current = false;
    const uint32_t layer = taken.object / shape_.experts;
    if (taken.victim != kNone) evict(taken.victim, layer);
    const neotier_event event =
        fetch_event(taken.object, chance_[chosen * shape_.experts + taken.object % shape_.experts]);
    insert(event, 0);
    flight_ = {taken.object, transfer_ns_};
    prefetched_[taken.object] = 1;
    result_.prefetches++;
    return true;
  }

  neotier_event fetch_event(uint32_t object, float probability) {
    fetch_access_.object = object;
    fetch_access_.bytes = static_cast<uint64_t>(options_.expert_bytes);
    fetch_access_.weight = probability;
    neotier_event event = {};
    event.tick = event_.tick;
    event.now_ns = static_cast<uint64_t>(now_);
    event.kind = NEOTIER_EVENT_PREFETCH;
    event.group = object / shape_.experts;
    event.nr = 1;
    event.access = &fetch_access_;
    return event;
  }

  // A gain that cannot exceed `floor` need not be exact: the candidate is then left for a later look.
  Candidate find_candidate(uint32_t lead, double floor) {
    const uint32_t layer = (event_.group + 1 + lead) % shape_.layers, first = layer * shape_.experts;
    const float* chance = chance_.data() + size_t{lead} * shape_.experts;
    Candidate candidate;
    for (uint32_t e = 0; e < shape_.experts; e++) {
      if (flags_[first + e] & NEOTIER_RESIDENT) continue;
      if (candidate.object == kNone || chance[e] > chance[candidate.object - first]) candidate.object = first + e;
    }
    if (candidate.object == kNone || chance[candidate.object - first] <= floor) return {};
    candidate.current = true;
    candidate.gain = chance[candidate.object - first];
    if (held_[layer] < options_.experts_per_layer) return candidate;
    const neotier_event event = fetch_event(candidate.object, chance[candidate.object - first]);
    const uint32_t nr = policy_.victims(event, 0, options_.experts_per_layer, order_.data());
    double least = 0;
    for (uint32_t i = 0; i < nr; i++) {
      const double place = nr > 1 ? static_cast<double>(i) / (nr - 1) : 0;
      if (order_[i] / shape_.experts != layer) broken(fmt::format("a victim of another layer than {}", layer));
      const double worth = chance[order_[i] - first] + options_.planner.order_weight * place;
      if (candidate.victim == kNone || worth < least) {
        candidate.victim = order_[i];
        least = worth;
      }
    }
    candidate.gain = nr ? candidate.gain - least : 0;
    return candidate;
  }

  const RoutingTrace& trace_;
  const RoutingShape shape_;
  const MoeOptions& options_;
  const BatchSchedule schedule_;
  const double layer_ns_, transfer_ns_;
  std::vector<uint8_t> flags_, prefetched_;
  std::vector<uint64_t> seen_;  // tick of the last event that uses the expert, plus 1
  std::vector<uint32_t> held_;  // slots taken, a layer
  placement::Instance policy_;
  std::optional<placement::Instance> predictor_;
  std::vector<uint64_t> next_uses_;
  std::vector<neotier_access> accesses_;
  std::vector<uint32_t> distinct_;  // accesses of the event that are the first of their expert
  neotier_event event_ = {};
  neotier_access fetch_access_ = {};
  std::vector<neotier_prediction> predictions_;
  std::vector<float> chance_;  // [lookahead][experts]
  std::vector<Candidate> candidates_;
  std::vector<uint32_t> order_;
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
