// SPDX-License-Identifier: Apache-2.0
// What the daemon shows of itself: as JSON to its clients and `neotier top`, as Prometheus text.
#pragma once

#include <string>

#include "daemon/clients.h"
#include "engine/engine.h"
#include "kernel/module.h"

namespace neotier::daemon {

struct View {
  const engine::Engine& engine;
  const Clients& clients;
  const DaemonCounters& counters;
  uint64_t in_flight_bytes = 0;
  uint32_t max_clients = 0;
  uint64_t now_ns = 0, started_ns = 0;
  std::string metrics_address;  // empty: none
};

std::string status_json(const View& view);
// The engine's, the daemon's, and the kernel module's where it is loaded.
std::string metrics_text(const View& view, const kernel::Module& module);

}  // namespace neotier::daemon
