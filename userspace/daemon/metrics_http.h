// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace neotier::daemon {

// GET /metrics on a loopback address, by threads of its own.
class MetricsHttp {
 public:
  // port 0: any that is free. `text` is called from any of its threads. Throws std::runtime_error with one line.
  MetricsHttp(const std::string& host, uint16_t port, std::function<std::string()> text);
  ~MetricsHttp();
  MetricsHttp(const MetricsHttp&) = delete;
  MetricsHttp& operator=(const MetricsHttp&) = delete;
  const std::string& host() const { return host_; }
  uint16_t port() const { return port_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string host_;
  uint16_t port_ = 0;
};

}  // namespace neotier::daemon
