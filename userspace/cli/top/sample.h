// SPDX-License-Identifier: Apache-2.0
// What `neotier top` looks at: a neotierd over its socket, the kernel module in sysfs; either may come and go.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "client/connection.h"
#include "kernel/module.h"

namespace neotier::top {

struct Sample {
  double time_s = 0;
  nlohmann::json daemon;  // its status; null where there is none
  std::string problem;    // why there is none
  std::optional<kernel::Snapshot> kernel;
};

// Thread safety: none.
class Source {
 public:
  Source(std::string socket, std::filesystem::path sysfs) : socket_(std::move(socket)), module_(std::move(sysfs)) {}
  // Connects again where it has to; takes at most the connection's time-out of two seconds.
  Sample take();
  const std::string& socket() const { return socket_; }
  const kernel::Module& module() const { return module_; }

 private:
  std::string socket_;
  kernel::Module module_;
  std::unique_ptr<client::Connection> connection_;
};

}  // namespace neotier::top
