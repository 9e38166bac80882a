// SPDX-License-Identifier: Apache-2.0
#include "daemon/daemon.h"

#include <fmt/format.h>

#include <stdexcept>

#include "daemon/status.h"
#include "engine/metrics.h"
#include "engine/tiers/make_tiers.h"
#include "neotier.h"

namespace neotier::daemon {

Daemon::Daemon(Config config, Log& log)
    : config_(std::move(config)),
      log_(log),
      module_(config_.kernel_sysfs),
      listener_(config_.socket_path, config_.socket_mode, config_.socket_group),
      engine_(
          config_.engine,
          engine::make_tiers(config_.tiers, [&log](const std::string& line) { log.say(LogLevel::kWarning, line); })),
      in_service_(engine_.in_service()) {
  log_.set_level(config_.log);
  Service service{engine_,
                  counters_,
                  clock_,
                  log_,
                  [this] { return status(); },
                  [this](uint32_t format) { return format == NEOTIER_JSON ? status() : metrics(); }};
  server_ = std::make_unique<Server>(std::move(service), clients_, config_.limits, config_.workers, listener_.fd());
  started_ns_ = clock_.now_ns();
  if (!config_.metrics_host.empty())
    http_ = std::make_unique<MetricsHttp>(config_.metrics_host, config_.metrics_port, [this] { return metrics(); });
  apply_kernel();
  listener_.open();
}

void Daemon::apply_kernel() {
  if (config_.kernel.empty()) return;
  if (!module_.present()) {
    log_.say(LogLevel::kWarning,
             fmt::format("[kernel]: neotier.ko is not loaded ({} is not there); its knobs stay as they are",
                         module_.root().string()));
    return;
  }
  for (const auto& [knob, value] : config_.kernel) {
    try {
      module_.set(knob, value);
    } catch (const std::runtime_error& error) {
      log_.say(LogLevel::kError, fmt::format("[kernel]: {}", error.what()));
    }
  }
}

void Daemon::run() {
  uint64_t drain_s = 0;
  {
    std::lock_guard lock(mutex_);
    drain_s = config_.drain_timeout_s;
  }
  server_->run(drain_s * 1000000000);
  if (const engine::Status status = engine_.flush(); !status)
    log_.say(LogLevel::kError, fmt::format("what was written last may not survive: {}", status.what()));
}

void Daemon::reload(Config config) {
  std::lock_guard lock(mutex_);
  for (const std::string& line : keep_fixed(config_, config)) log_.say(LogLevel::kWarning, line);
  if (config.socket_mode != config_.socket_mode || config.socket_group != config_.socket_group) {
    try {
      listener_.set_permissions(config.socket_mode, config.socket_group);
    } catch (const std::runtime_error& error) {
      log_.say(LogLevel::kError, error.what());
      config.socket_mode = config_.socket_mode;
      config.socket_group = config_.socket_group;
    }
  }
  config_ = std::move(config);
  log_.set_level(config_.log);
  server_->set_limits(config_.limits);
  apply_kernel();
  counters_.reloads++;
}

void Daemon::watch_tiers() {
  const std::vector<bool> now = engine_.in_service();
  for (size_t i = 0; i < now.size(); i++) {
    if (now[i] == in_service_[i]) continue;
    const std::string name = engine_.tier_name(i);
    log_.event(now[i] ? LogLevel::kInfo : LogLevel::kError, LogEvent::kTier, clock_.now_ns(), [&] {
      return now[i] ? fmt::format("tier {} is in service again", name)
                    : fmt::format("tier {} is out of service; what it has is missing until it is back", name);
    });
  }
  in_service_ = now;
}

uint64_t Daemon::pulse() {
  server_->wake();
  return server_->beats();
}

View Daemon::view() const {
  std::lock_guard lock(mutex_);
  return {engine_,         clients_,    counters_,        server_->in_flight_bytes(), config_.limits.max_clients,
          clock_.now_ns(), started_ns_, metrics_address()};
}

std::string Daemon::metrics_address() const {
  if (!http_) return "";
  const bool six = http_->host().find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", six ? "[" : "", http_->host(), six ? "]" : "", http_->port());
}

std::string Daemon::status() const { return status_json(view()); }

std::string Daemon::metrics() const { return metrics_text(view(), module_); }

}  // namespace neotier::daemon
