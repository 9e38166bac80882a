// SPDX-License-Identifier: Apache-2.0
#include "engine/metrics.h"

#include <fmt/format.h>

#include <functional>

#include "util/prometheus.h"

namespace neotier::engine {

namespace {

constexpr const char* kClassNames[kMoveClasses] = {"demand", "prefetch", "write_back"};

}  // namespace

const char* to_string(TierKind kind) {
  switch (kind) {
    case TierKind::kGpu:
      return "gpu";
    case TierKind::kDram:
      return "dram";
    case TierKind::kCxl:
      return "cxl";
    case TierKind::kSsd:
      return "ssd";
    case TierKind::kRemote:
      return "remote";
    case TierKind::kStandIn:
      return "stand-in";
  }
  return "unknown";
}

std::string prometheus_text(const EngineStatus& s) {
  PrometheusText text;
#define NEOTIER_COUNTER(name, help) text.one(#name "_total", "counter", help, s.counters.name);
  NEOTIER_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
  const auto gauge = [&](const char* name, const char* help, auto value) { text.one(name, "gauge", help, value); };
  gauge("objects", "objects in the index", s.objects);
  gauge("objects_remembered", "objects that are gone and that the policies still know", s.remembered);
  gauge("objects_max", "objects that the index holds at most", s.max_objects);
  gauge("overhead_bytes_per_object", "index and policies, at the index's full size", s.overhead_bytes_per_object);
  gauge("sessions", "open sessions", s.sessions);
  gauge("pins", "pins held", s.pins);
  gauge("jobs", "jobs of the mover that have not ended", s.jobs);
  text.head("class_jobs", "gauge", "the same, by class");
  for (size_t i = 0; i < kMoveClasses; i++) {
    text.value("class_jobs", fmt::format("class=\"{}\"", kClassNames[i]), s.queued[i]);
  }
  const auto per_tier = [&](const char* name, const char* help, const std::function<double(const TierStatus&)>& get) {
    text.head(name, "gauge", help);
    for (const TierStatus& t : s.tiers) {
      text.value(name,
                 fmt::format("tier=\"{}\",kind=\"{}\",stand_in=\"{}\"", PrometheusText::escaped(t.info.name),
                             to_string(t.info.kind), t.info.stand_in),
                 get(t));
    }
  };
  const auto number = [](uint64_t n) { return static_cast<double>(n); };
  per_tier("tier_in_service", "1 where the tier serves", [](const TierStatus& t) { return t.in_service ? 1.0 : 0.0; });
  per_tier("tier_capacity_bytes", "room", [&](const TierStatus& t) { return number(t.info.capacity_bytes); });
  per_tier("tier_used_bytes", "of it taken, rounding included",
           [&](const TierStatus& t) { return number(t.usage.used_bytes); });
  per_tier("tier_objects", "objects with a copy there", [&](const TierStatus& t) { return number(t.objects); });
  text.head("tier_node_bytes", "gauge",
            "of a tier whose pages the kernel moves: what lies on each NUMA node, estimated from a sample of pages");
  for (const TierStatus& t : s.tiers) {
    for (const NodeBytes& n : t.nodes)
      text.value("tier_node_bytes",
                 fmt::format("tier=\"{}\",node=\"{}\"", PrometheusText::escaped(t.info.name), n.node), n.bytes);
  }
  const auto per_link = [&](const char* name, const char* type, const char* help,
                            const std::function<double(const LinkStatus&)>& get) {
    text.head(name, type, help);
    for (const LinkStatus& l : s.links) {
      text.value(name,
                 fmt::format("from=\"{}\",to=\"{}\"", PrometheusText::escaped(l.from), PrometheusText::escaped(l.to)),
                 get(l));
    }
  };
  per_link("link_latency_seconds", "gauge", "as measured now", [](const LinkStatus& l) { return l.latency_ns * 1e-9; });
  per_link("link_bytes_per_second", "gauge", "as measured now", [](const LinkStatus& l) { return l.bytes_per_s; });
  per_link("link_queued_bytes", "gauge", "accepted and not there yet",
           [&](const LinkStatus& l) { return number(l.queued_bytes); });
  per_link("link_transfers_total", "counter", "completed and used for the link's estimate",
           [&](const LinkStatus& l) { return number(l.transfers); });
  per_link("link_bytes_total", "counter", "of those", [&](const LinkStatus& l) { return number(l.bytes); });
  text.head("lookup_seconds", "histogram", "looking up a prefix, waiting for the engine included");
  text.histogram("lookup_seconds", "", s.lookups);
  const auto per_tier_times = [&](const char* name, const char* help, Histogram TierStatus::*which) {
    text.head(name, "histogram", help);
    for (const TierStatus& t : s.tiers)
      text.histogram(name, fmt::format("tier=\"{}\"", PrometheusText::escaped(t.info.name)), t.*which);
  };
  per_tier_times("load_wait_seconds", "reads into the caller's memory that were queued: until the tier is asked",
                 &TierStatus::waited);
  per_tier_times("load_seconds", "reads into the caller's memory: until all bytes are there", &TierStatus::took);
  return text.take();
}

namespace {

nlohmann::ordered_json times(const Histogram& h) {
  return {{"count", h.count()},
          {"mean_ns", h.count() ? h.sum_ns() / h.count() : 0},
          {"p50_ns", h.quantile_ns(0.5)},
          {"p90_ns", h.quantile_ns(0.9)},
          {"p99_ns", h.quantile_ns(0.99)}};
}

nlohmann::ordered_json nodes(const TierStatus& t) {
  auto list = nlohmann::ordered_json::array();
  for (const NodeBytes& n : t.nodes) list.push_back({{"node", n.node}, {"bytes", n.bytes}});
  return list;
}

}  // namespace

nlohmann::ordered_json to_json(const EngineStatus& s) {
  nlohmann::ordered_json json;
  json["objects"] = s.objects;
  json["remembered"] = s.remembered;
  json["max_objects"] = s.max_objects;
  json["overhead_bytes_per_object"] = s.overhead_bytes_per_object;
  json["sessions"] = s.sessions;
  json["pins"] = s.pins;
  json["jobs"] = s.jobs;
  for (size_t i = 0; i < kMoveClasses; i++) json["class_jobs"][kClassNames[i]] = s.queued[i];
  json["tiers"] = nlohmann::ordered_json::array();
  for (const TierStatus& t : s.tiers) {
    json["tiers"].push_back({{"name", t.info.name},
                             {"kind", to_string(t.info.kind)},
                             {"stand_in", t.info.stand_in},
                             {"durable", t.info.durable},
                             {"in_service", t.in_service},
                             {"policy", t.policy},
                             {"capacity_bytes", t.info.capacity_bytes},
                             {"used_bytes", t.usage.used_bytes},
                             {"objects", t.objects},
                             {"kernel_moves", t.info.kernel_moves},
                             {"sampled_nodes", nodes(t)},
                             {"read_latency_ns", t.read_latency_ns},
                             {"read_bytes_per_s", t.read_bytes_per_s},
                             {"write_latency_ns", t.write_latency_ns},
                             {"write_bytes_per_s", t.write_bytes_per_s},
                             {"load_wait", times(t.waited)},
                             {"load", times(t.took)}});
  }
  json["lookup"] = times(s.lookups);
  json["links"] = nlohmann::ordered_json::array();
  for (const LinkStatus& l : s.links) {
    json["links"].push_back({{"from", l.from},
                             {"to", l.to},
                             {"latency_ns", l.latency_ns},
                             {"bytes_per_s", l.bytes_per_s},
                             {"queued_bytes", l.queued_bytes},
                             {"transfers", l.transfers},
                             {"bytes", l.bytes}});
  }
#define NEOTIER_COUNTER(name, help) json["counters"][#name] = s.counters.name;
  NEOTIER_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
  return json;
}

}  // namespace neotier::engine
