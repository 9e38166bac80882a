// SPDX-License-Identifier: Apache-2.0
#include "cli/top/figures.h"

#include <algorithm>

namespace neotier::top {

namespace {

using nlohmann::json;

// A socket's other end is untrusted: what is missing or of another type is 0 or empty.
const json& at(const json& from, const char* name) {
  static const json none;
  if (!from.is_object()) return none;
  const auto it = from.find(name);
  return it == from.end() ? none : *it;
}

double number(const json& from, const char* name) {
  const json& value = at(from, name);
  return value.is_number() ? value.get<double>() : 0;
}

uint64_t count(const json& from, const char* name) {
  const double value = number(from, name);
  return value > 0 && value < 1e19 ? static_cast<uint64_t>(value) : 0;
}

int64_t integer(const json& from, const char* name) {
  const double value = number(from, name);
  return value > -9e18 && value < 9e18 ? static_cast<int64_t>(value) : 0;
}

bool truth(const json& from, const char* name) {
  const json& value = at(from, name);
  return value.is_boolean() && value.get<bool>();
}

std::string text(const json& from, const char* name) {
  const json& value = at(from, name);
  std::string made = value.is_string() ? value.get<std::string>() : "";
  std::replace_if(
      made.begin(), made.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return made.substr(0, 63);
}

// Counters that went back are another process's.
double rate(double before, double now, double seconds) {
  return seconds > 0 && now >= before ? (now - before) / seconds : 0;
}

void counter_rates(const json& before, const json& now, double seconds, std::map<std::string, double>& rates) {
  if (!now.is_object()) return;
  for (const auto& [name, value] : now.items()) {
    if (value.is_number()) rates[name] = rate(number(before, name.c_str()), value.get<double>(), seconds);
  }
}

// The element of a list for which `same` holds.
template <typename Same>
const json& find(const json& list, Same same) {
  static const json none;
  for (const json& one : list) {
    if (same(one)) return one;
  }
  return none;
}

void daemon_figures(const json& before, const json& now, double seconds, Figures& f) {
  const json& daemon = at(now, "daemon");
  const json& engine = at(now, "engine");
  f.has_daemon = true;
  f.pid = integer(daemon, "pid");
  f.uptime_s = number(daemon, "uptime_s");
  f.max_clients = count(daemon, "max_clients");
  f.objects = count(engine, "objects");
  f.max_objects = count(engine, "max_objects");
  f.pins = count(engine, "pins");
  f.jobs = count(engine, "jobs");
  for (const json& t : at(engine, "tiers")) {
    const json& load = at(t, "load");
    f.tiers.push_back({text(t, "name"),
                       text(t, "kind"),
                       text(t, "policy"),
                       truth(t, "in_service"),
                       truth(t, "stand_in"),
                       number(t, "used_bytes"),
                       number(t, "capacity_bytes"),
                       count(t, "objects"),
                       count(load, "count"),
                       number(load, "p50_ns"),
                       number(load, "p99_ns"),
                       {}});
    for (const json& n : at(t, "sampled_nodes"))
      f.tiers.back().nodes.emplace_back(integer(n, "node"), number(n, "bytes"));
  }
  for (const json& l : at(engine, "links")) {
    const json& was = find(at(at(before, "engine"), "links"),
                           [&](const json& o) { return at(o, "from") == at(l, "from") && at(o, "to") == at(l, "to"); });
    f.links.push_back({text(l, "from"), text(l, "to"), number(l, "bytes_per_s"),
                       was.is_object() ? rate(number(was, "bytes"), number(l, "bytes"), seconds) : 0,
                       number(l, "latency_ns"), number(l, "queued_bytes")});
  }
  std::stable_sort(f.links.begin(), f.links.end(), [](const LinkRow& a, const LinkRow& b) {
    return a.flow + a.queued != b.flow + b.queued ? a.flow + a.queued > b.flow + b.queued : false;
  });
  for (const json& c : at(now, "clients")) {
    const json& was = find(at(before, "clients"), [&](const json& o) { return at(o, "id") == at(c, "id"); });
    const double since = was.is_object() ? seconds : 0;
    f.clients.push_back({count(c, "id"), text(c, "name"), integer(c, "pid"), integer(c, "uid"),
                         rate(number(was, "requests"), number(c, "requests"), since),
                         rate(number(was, "received_bytes"), number(c, "received_bytes"), since),
                         rate(number(was, "sent_bytes"), number(c, "sent_bytes"), since), count(c, "pins"),
                         count(c, "objects_in_flight"), number(c, "pinned_bytes")});
  }
  std::stable_sort(f.clients.begin(), f.clients.end(),
                   [](const ClientRow& a, const ClientRow& b) { return a.received + a.sent > b.received + b.sent; });
  counter_rates(at(at(before, "engine"), "counters"), at(engine, "counters"), seconds, f.rates);
  counter_rates(at(at(before, "daemon"), "counters"), at(daemon, "counters"), seconds, f.rates);
  const double hits = f.rates["hits"], uses = hits + f.rates["misses"];
  if (uses > 0) f.hit_rate = hits / uses;
}

}  // namespace

Figures make_figures(const Sample& before, const Sample& now) {
  Figures f;
  f.problem = now.problem;
  const double seconds = before.time_s > 0 ? now.time_s - before.time_s : 0;
  f.seconds = seconds;
  // Another daemon's counters are no start for this one's.
  const bool same = at(at(before.daemon, "daemon"), "pid") == at(at(now.daemon, "daemon"), "pid");
  if (now.daemon.is_object()) daemon_figures(before.daemon, now.daemon, same ? seconds : 0, f);
  if (now.kernel) {
    f.has_kernel = true;
    f.kernel = *now.kernel;
    if (before.kernel && seconds > 0) f.why = kernel::why(*before.kernel, *now.kernel, seconds);
    for (const auto& [name, value] : now.kernel->stats) {
      const auto was = before.kernel ? before.kernel->stats.find(name) : now.kernel->stats.end();
      const bool known = before.kernel && was != before.kernel->stats.end();
      f.kernel_rates[name] = known ? rate(static_cast<double>(was->second), static_cast<double>(value), seconds) : 0;
    }
  }
  return f;
}

nlohmann::ordered_json to_json(const Figures& f, const std::string& socket) {
  nlohmann::ordered_json out;
  out["interval_s"] = f.seconds;
  if (f.has_daemon) {
    nlohmann::ordered_json& d = out["daemon"];
    d = {{"socket", socket},
         {"pid", f.pid},
         {"uptime_s", f.uptime_s},
         {"objects", f.objects},
         {"max_objects", f.max_objects},
         {"pins", f.pins},
         {"jobs", f.jobs}};
    d["hit_rate"] = f.hit_rate < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(f.hit_rate);
    d["rates_per_s"] = f.rates;
    d["tiers"] = d["links"] = d["clients"] = nlohmann::ordered_json::array();
    for (const TierRow& t : f.tiers) {
      d["tiers"].push_back({{"name", t.name},
                            {"kind", t.kind},
                            {"policy", t.policy},
                            {"in_service", t.in_service},
                            {"stand_in", t.stand_in},
                            {"used_bytes", t.used},
                            {"capacity_bytes", t.capacity},
                            {"objects", t.objects}});
      auto& nodes = d["tiers"].back()["sampled_nodes"] = nlohmann::ordered_json::array();
      for (const auto& [node, bytes] : t.nodes) nodes.push_back({{"node", node}, {"bytes", bytes}});
    }
    for (const LinkRow& l : f.links) {
      d["links"].push_back({{"from", l.from},
                            {"to", l.to},
                            {"bandwidth_bytes_per_s", l.bandwidth},
                            {"flow_bytes_per_s", l.flow},
                            {"latency_ns", l.latency_ns},
                            {"queued_bytes", l.queued}});
    }
    for (const ClientRow& c : f.clients) {
      d["clients"].push_back({{"id", c.id},
                              {"name", c.name},
                              {"pid", c.pid},
                              {"uid", c.uid},
                              {"requests_per_s", c.requests},
                              {"received_bytes_per_s", c.received},
                              {"sent_bytes_per_s", c.sent},
                              {"pins", c.pins},
                              {"pinned_bytes", c.pinned},
                              {"objects_in_flight", c.in_flight}});
    }
  } else {
    out["daemon"] = nullptr;
    out["daemon_problem"] = f.problem;
  }
  out["kernel"] = nullptr;
  if (f.has_kernel) {
    out["kernel"] = {{"stats", f.kernel.stats}, {"rates_per_s", f.kernel_rates}};
    if (!f.why.summary.empty()) out["kernel"]["why"] = kernel::to_json(f.why);
    for (const kernel::Value& value : f.kernel.knobs) out["kernel"]["knobs"][value.path] = value.text;
    for (const kernel::Device& device : f.kernel.devices) {
      for (const kernel::Value& value : device.knobs) out["kernel"]["knobs"][value.path] = value.text;
      out["kernel"]["devices"][device.name] = device.info;
    }
  }
  return out;
}

void History::add(const Figures& f) {
  const auto push = [&](const char* name, double value) {
    std::deque<double>& series = series_[name];
    series.push_back(value);
    if (series.size() > kMost) series.pop_front();
  };
  const auto of = [](const std::map<std::string, double>& rates, const char* name) {
    const auto it = rates.find(name);
    return it == rates.end() ? 0 : it->second;
  };
  if (f.seconds <= 0) return;
  push("hit_rate", std::max(f.hit_rate, 0.0));
  push("requests", of(f.rates, "requests"));
  push("moved_bytes", of(f.rates, "moved_bytes"));
  push("promoted", of(f.kernel_rates, "promoted"));
}

const std::deque<double>& History::series(const std::string& name) const {
  static const std::deque<double> none;
  const auto it = series_.find(name);
  return it == series_.end() ? none : it->second;
}

}  // namespace neotier::top
