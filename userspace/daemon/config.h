// SPDX-License-Identifier: Apache-2.0
// neotierd's configuration: TOML, every key typed, none unknown. docs/neotierd.toml shows all of them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "daemon/limits.h"
#include "daemon/log.h"
#include "engine/engine.h"

namespace neotier::daemon {

struct Config {
  std::string tiers;            // as make_tiers() takes them
  engine::EngineConfig engine;  // its knobs, number of objects and seed

  std::string socket_path = "/run/neotier/neotierd.sock";
  mode_t socket_mode = 0660;
  std::string socket_group;  // empty: that of the process
  Limits limits;
  uint32_t workers = 4;
  uint32_t drain_timeout_s = 10;

  std::string metrics_host;   // empty: no metrics
  uint16_t metrics_port = 0;  // 0: any that is free

  LogLevel log = LogLevel::kInfo;

  std::string kernel_sysfs;
  std::vector<std::pair<std::string, std::string>> kernel;  // knob, value
};

// One line an error: FILE:LINE: [table].key: expected ..., found ...
class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(std::vector<std::string> lines);
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

// Throws ConfigError with everything that is wrong.
Config load_config(const std::string& file);
// The same of a text; `name` stands for the file in errors.
Config parse_config(const std::string& text, const std::string& name);

// What a reload cannot change, one line each: kept as in `before`.
std::vector<std::string> keep_fixed(const Config& before, Config& after);

}  // namespace neotier::daemon
