// SPDX-License-Identifier: Apache-2.0
// Child processes.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace neotier {

struct CommandResult {
  int exit_code = -1;  // -1: a signal ended it
  std::string output;  // standard output and error together
};

// Runs a command to its end. Throws std::runtime_error if it cannot be started.
CommandResult run_command(const std::vector<std::string>& argv);

// A child that is killed when its owner goes. Movable, not copyable. Not thread-safe.
class Child {
 public:
  // Standard input is /dev/null; output and error go to `log`. The descriptors in `inherit` stay open in the child,
  // under the same numbers; the variables in `environment`, NAME=VALUE, come before our own. Throws std::runtime_error.
  Child(const std::vector<std::string>& argv, const std::filesystem::path& log, const std::vector<int>& inherit = {},
        const std::vector<std::string>& environment = {});
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child& operator=(Child&&) = delete;
  ~Child();

  // Whether it has ended; then wait_status() is valid (as of waitpid).
  bool ended();
  int wait_status() const { return status_; }
  void kill();

 private:
  pid_t pid_ = -1;
  int status_ = 0;
};

}  // namespace neotier
