// SPDX-License-Identifier: Apache-2.0
// neotierd without its command line and signals: engine, socket, metrics, kernel knobs, as a configuration says.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "daemon/config.h"
#include "daemon/listener.h"
#include "daemon/metrics_http.h"
#include "daemon/server.h"
#include "daemon/status.h"
#include "kernel/module.h"

namespace neotier::daemon {

class Daemon {
 public:
  // Opens all of it; clients can connect when it returns. `log`, not owned, has the level that `config` says from then
  // on. Throws std::runtime_error with one line.
  Daemon(Config config, Log& log);
  // Until stop().
  void run();
  void stop() { server_->stop(); }
  // Puts into force what can change, and says what cannot.
  void reload(Config config);
  void reload_failed() { counters_.failed_reloads++; }
  // Makes the loop turn, and says how often it has.
  uint64_t pulse();
  // Says which tiers went out of service, or came back, since the last time.
  void watch_tiers();
  // "127.0.0.1:9464"; empty: no metrics.
  std::string metrics_address() const;
  std::string status() const;
  std::string metrics() const;

 private:
  void apply_kernel();
  View view() const;

  mutable std::mutex mutex_;  // config_
  Config config_;
  Log& log_;
  kernel::Module module_;
  engine::SteadyClock clock_;
  uint64_t started_ns_ = 0;
  DaemonCounters counters_;
  Clients clients_;
  Listener listener_;
  engine::Engine engine_;
  std::unique_ptr<Server> server_;
  std::vector<bool> in_service_;       // of the tiers, as last said
  std::unique_ptr<MetricsHttp> http_;  // last: it asks the others
};

}  // namespace neotier::daemon
