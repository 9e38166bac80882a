// SPDX-License-Identifier: Apache-2.0
#include "daemon/status.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "engine/metrics.h"
#include "util/prometheus.h"

namespace neotier::daemon {

std::string status_json(const View& view) {
  const auto seconds = [&](uint64_t since) { return static_cast<double>(view.now_ns - since) * 1e-9; };
  nlohmann::ordered_json json;
  json["daemon"] = {{"pid", getpid()},
                    {"uptime_s", seconds(view.started_ns)},
                    {"max_clients", view.max_clients},
                    {"in_flight_bytes", view.in_flight_bytes},
                    {"metrics", view.metrics_address}};
#define NEOTIER_COUNTER(name, help) json["daemon"]["counters"][#name] = view.counters.name.load();
  NEOTIER_DAEMON_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
  json["clients"] = nlohmann::ordered_json::array();
  for (const ClientStatus& c : view.clients.status()) {
    json["clients"].push_back({{"id", c.id},
                               {"name", c.name},
                               {"pid", c.peer.pid},
                               {"uid", c.peer.uid},
                               {"gid", c.peer.gid},
                               {"connected_s", seconds(c.connected_ns)},
                               {"requests", c.requests},
                               {"received_bytes", c.received_bytes},
                               {"sent_bytes", c.sent_bytes},
                               {"pins", c.pins},
                               {"pinned_bytes", c.pinned_bytes},
                               {"objects_in_flight", c.objects_in_flight}});
  }
  json["engine"] = engine::to_json(view.engine.status());
  return json.dump();
}

std::string metrics_text(const View& view, const kernel::Module& module) {
  PrometheusText text;
#define NEOTIER_COUNTER(name, help) text.one("daemon_" #name "_total", "counter", help, view.counters.name.load());
  NEOTIER_DAEMON_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
  const std::vector<ClientStatus> clients = view.clients.status();
  text.one("daemon_clients", "gauge", "clients that are connected", clients.size());
  text.one("daemon_clients_max", "gauge", "clients that may be ([socket].max_clients)", view.max_clients);
  text.one("daemon_in_flight_bytes", "gauge", "of requests and replies above 64 KiB", view.in_flight_bytes);
  text.one("daemon_uptime_seconds", "gauge", "since the daemon was ready",
           static_cast<double>(view.now_ns - view.started_ns) * 1e-9);
  // By number alone: names are the clients' to choose, and a label for each would never end.
  const auto per_client = [&](const char* name, const char* help, uint64_t ClientStatus::*value) {
    text.head(name, "gauge", help);
    for (const ClientStatus& c : clients) {
      text.value(name, fmt::format("client=\"{}\",pid=\"{}\"", c.id, c.peer.pid), c.*value);
    }
  };
  per_client("client_pins", "held by a client that is connected", &ClientStatus::pins);
  per_client("client_pinned_bytes", "of the objects of those", &ClientStatus::pinned_bytes);
  per_client("client_requests", "of a client that is connected, since it connected", &ClientStatus::requests);
  per_client("client_received_bytes", "from it", &ClientStatus::received_bytes);
  per_client("client_sent_bytes", "to it", &ClientStatus::sent_bytes);
  std::string all = engine::prometheus_text(view.engine.status()) + text.take();
  const auto snapshot = module.read();
  PrometheusText loaded;
  loaded.one("kernel_module_loaded", "gauge", "1 where neotier.ko is", snapshot ? 1 : 0);
  all += loaded.take();
  if (snapshot) all += kernel::prometheus_text(*snapshot);
  return all;
}

}  // namespace neotier::daemon
