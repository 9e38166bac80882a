// SPDX-License-Identifier: Apache-2.0
#include "placement/expert_slots.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace neotier::placement {

namespace {
constexpr uint32_t kNone = NEOTIER_NO_OBJECT;
constexpr auto kPolicy = "policy", kPredictor = "predictor";
}  // namespace

ExpertSlots::ExpertSlots(const PolicyRef& policy, const PolicyRef& predictor, const ExpertSlotsOptions& options)
    : options_(options),
      flags_(size_t{options.layers} * options.experts),
      fetched_(flags_.size()),
      seen_(flags_.size()),
      held_(options.layers),
      policy_(policy, config(), options.policy_params) {
  if (!predictor) return;
  predictor_.emplace(predictor, config(), options.predictor_params);
  predictions_.resize(size_t{options.lookahead} * options.experts);
  chance_.resize(predictions_.size());
  candidates_.resize(options.lookahead);
  order_.resize(options.slots + 1);
}

neotier_placement_config ExpertSlots::config() const {
  neotier_placement_config c = {};
  c.kind = NEOTIER_KIND_EXPERT;
  c.objects = objects();
  c.groups = options_.layers;
  c.experts_per_group = options_.experts;
  c.top_k = options_.top_k;
  c.batch = options_.batch;
  c.max_event = options_.batch * options_.top_k;
  c.capacity = options_.slots;
  c.capacity_bytes = options_.slots * options_.expert_bytes;
  c.seed = options_.seed;
  c.flags = flags_.data();
  return c;
}

std::string ExpertSlots::named(uint32_t object) const {
  return fmt::format("expert {} of layer {}", object % options_.experts, object / options_.experts);
}

void ExpertSlots::broken(const Instance& by, const char* role, const std::string& what) {
  if (breach_.empty()) breach_ = fmt::format("{} {} breaks the rules of its ABI: {}", role, by.policy().name, what);
}

void ExpertSlots::tell_breach() {
  if (!breach_.empty()) throw std::runtime_error(std::exchange(breach_, {}));
}

void ExpertSlots::begin(const neotier_event& event) {
  tell_breach();
  event_ = event;
  distinct_.clear();
  for (uint32_t i = 0; i < event.nr; i++) {
    const uint32_t object = event.access[i].object;
    if (seen_[object] == event.tick + 1) continue;
    seen_[object] = event.tick + 1;
    distinct_.push_back(i);
    flags_[object] |= NEOTIER_PINNED;
  }
  policy_.on_event(event_);
  if (predictor_) predictor_->on_event(event_);
}

ExpertSlots::Served ExpertSlots::serve(uint32_t index) {
  const uint32_t object = event_.access[index].object, layer = event_.group;
  Served served;
  if (holds(object)) {
    if (policy_.on_hit(event_, index) != NEOTIER_OK)
      broken(policy_, kPolicy, fmt::format("it does not know that {} is resident", named(object)));
    served.fetched = fetched_[object];
    fetched_[object] = 0;
    std::erase(on_way_, object);  // goes on as demand
    return served;
  }
  // Asked before room is looked for, so that a policy's wish and a lack of slots are told apart. Of a wider layer's
  // last slot a policy knows nothing.
  const bool room = held_[layer] < slots_of(layer);
  if (!policy_.admit(event_, index) && !(room && held_[layer] >= options_.slots)) {
    served.how = How::kBypassed;
    return served;
  }
  if (!room) {
    uint32_t victim = kNone;
    if (policy_.victims(event_, index, 1, &victim) == 1 && evict(victim, layer)) {
      served.removed = victim;
    } else if (served.removed = cancel_for(layer); served.removed == kNone) {
      served.how = How::kStreamed;
      return served;
    }
  }
  insert(event_, index);
  served.how = How::kKept;
  return served;
}

void ExpertSlots::end() {
  for (const uint32_t i : distinct_) flags_[event_.access[i].object] &= static_cast<uint8_t>(~NEOTIER_PINNED);
}

void ExpertSlots::insert(const neotier_event& event, uint32_t index) {
  const uint32_t object = event.access[index].object;
  flags_[object] |= NEOTIER_RESIDENT | NEOTIER_PINNED;
  held_[event.group]++;
  if (policy_.on_insert(event, index) != NEOTIER_OK)
    broken(policy_, kPolicy, fmt::format("it refuses {}, which is absent", named(object)));
}

bool ExpertSlots::may_go(uint32_t victim, uint32_t layer) {
  if (victim < flags_.size() && victim / options_.experts == layer && holds(victim) &&
      !(flags_[victim] & NEOTIER_PINNED))
    return true;
  broken(policy_, kPolicy,
         fmt::format("it names {} as a victim in layer {}, which may not go",
                     victim < flags_.size() ? named(victim) : fmt::format("object {}", victim), layer));
  return false;
}

bool ExpertSlots::evict(uint32_t victim, uint32_t layer) {
  if (!may_go(victim, layer)) return false;
  take_out(victim, NEOTIER_EVICTED);
  return true;
}

void ExpertSlots::take_out(uint32_t object, neotier_remove_reason reason) {
  flags_[object] = 0;
  fetched_[object] = 0;
  held_[object / options_.experts]--;
  std::erase(on_way_, object);
  if (policy_.on_remove(object, reason) != NEOTIER_OK)
    broken(policy_, kPolicy, fmt::format("it does not know that {} is resident", named(object)));
}

// Gives up an expert on its way that holds a slot which demand needs.
uint32_t ExpertSlots::cancel_for(uint32_t layer) {
  for (const uint32_t object : on_way_) {
    if (object / options_.experts != layer || seen_[object] == event_.tick + 1) continue;
    take_out(object, NEOTIER_REMOVED);
    return object;
  }
  return kNone;
}

void ExpertSlots::predict() {
  if (!predictor_) return;
  neotier_prefetch_request request = {};
  request.group_first = (event_.group + 1) % options_.layers;
  request.groups = options_.lookahead;
  request.max = static_cast<uint32_t>(predictions_.size());
  const uint32_t nr = predictor_->prefetch(event_, request, predictions_.data());
  std::fill(chance_.begin(), chance_.end(), 0.f);
  for (Candidate& candidate : candidates_) candidate.current = false;
  if (nr > request.max) return broken(*predictor_, kPredictor, "it returns more than was asked for");
  for (uint32_t i = 0; i < nr; i++) {
    const neotier_prediction& p = predictions_[i];
    const uint32_t lead = (p.group + options_.layers - request.group_first) % options_.layers;
    if (p.object >= flags_.size() || p.object / options_.experts != p.group || lead >= options_.lookahead ||
        !(p.probability >= 0 && p.probability <= 1)) {
      broken(*predictor_, kPredictor,
             fmt::format("object {} in layer {} with probability {}", p.object, p.group, p.probability));
      continue;
    }
    chance_[lead * options_.experts + p.object % options_.experts] = p.probability;
  }
}

std::optional<ExpertSlots::Fetch> ExpertSlots::fetch(uint64_t now_ns, bool next_too) {
  double best = options_.planner.min_gain, factor = 1;
  uint32_t chosen = kNone;
  for (uint32_t lead = 0; lead < options_.lookahead; lead++, factor *= options_.planner.lead_discount) {
    if (lead == 0 && !next_too) continue;
    Candidate& candidate = candidates_[lead];
    if (!candidate.current) candidate = find_candidate(lead, best / factor, now_ns);
    if (candidate.gain * factor > best) {
      best = candidate.gain * factor;
      chosen = lead;
    }
  }
  if (chosen == kNone) return std::nullopt;
  const Candidate taken = candidates_[chosen];
  candidates_[chosen].current = false;
  if (taken.victim != kNone && !evict(taken.victim, taken.object / options_.experts)) return std::nullopt;
  insert(fetch_event(taken.object, chance_[chosen * options_.experts + taken.object % options_.experts], now_ns), 0);
  fetched_[taken.object] = 1;
  on_way_.push_back(taken.object);
  return Fetch{taken.object, taken.victim};
}

void ExpertSlots::arrived(uint32_t object) {
  if (std::erase(on_way_, object) > 0) flags_[object] &= static_cast<uint8_t>(~NEOTIER_PINNED);
}

bool ExpertSlots::place(uint32_t object) {
  if (holds(object) || held_[object / options_.experts] == slots_of(object / options_.experts)) return false;
  insert(fetch_event(object, 0, 0), 0);
  flags_[object] &= static_cast<uint8_t>(~NEOTIER_PINNED);
  return true;
}

void ExpertSlots::remove(uint32_t object) {
  const bool in_event = seen_[object] == event_.tick + 1 && (flags_[object] & NEOTIER_PINNED);
  take_out(object, NEOTIER_REMOVED);
  // It can make way for nobody now.
  for (Candidate& candidate : candidates_)
    if (candidate.victim == object) candidate.current = false;
  if (in_event) flags_[object] = NEOTIER_PINNED;
}

neotier_event ExpertSlots::fetch_event(uint32_t object, float probability, uint64_t now_ns) {
  fetch_access_.object = object;
  fetch_access_.bytes = options_.expert_bytes;
  fetch_access_.weight = probability;
  neotier_event event = {};
  event.tick = event_.tick;
  event.now_ns = now_ns;
  event.kind = NEOTIER_EVENT_PREFETCH;
  event.group = object / options_.experts;
  event.nr = 1;
  event.access = &fetch_access_;
  return event;
}

// A gain that cannot exceed `floor` need not be exact: the candidate is then left for a later look.
ExpertSlots::Candidate ExpertSlots::find_candidate(uint32_t lead, double floor, uint64_t now_ns) {
  const uint32_t layer = (event_.group + 1 + lead) % options_.layers, first = layer * options_.experts;
  const float* chance = chance_.data() + size_t{lead} * options_.experts;
  Candidate candidate;
  for (uint32_t e = 0; e < options_.experts; e++) {
    if (holds(first + e)) continue;
    if (candidate.object == kNone || chance[e] > chance[candidate.object - first]) candidate.object = first + e;
  }
  if (candidate.object == kNone || chance[candidate.object - first] <= floor) return {};
  candidate.current = true;
  candidate.gain = chance[candidate.object - first];
  if (held_[layer] < slots_of(layer)) return candidate;
  const neotier_event event = fetch_event(candidate.object, chance[candidate.object - first], now_ns);
  const uint32_t nr = policy_.victims(event, 0, slots_of(layer), order_.data());
  candidate.gain = 0;
  if (nr > slots_of(layer)) {
    broken(policy_, kPolicy, "it names more victims than were asked for");
    return candidate;
  }
  double least = 0;
  for (uint32_t i = 0; i < nr; i++) {
    const double place = nr > 1 ? static_cast<double>(i) / (nr - 1) : 0;
    if (!may_go(order_[i], layer)) return candidate;
    const double worth = chance[order_[i] - first] + options_.planner.order_weight * place;
    if (candidate.victim == kNone || worth < least) {
      candidate.victim = order_[i];
      least = worth;
    }
  }
  if (nr > 0) candidate.gain = chance[candidate.object - first] - least;
  return candidate;
}

}  // namespace neotier::placement
