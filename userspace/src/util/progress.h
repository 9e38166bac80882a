// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace neotier {

// One line on standard error that is rewritten on a terminal; elsewhere a line now and then. Not thread-safe.
class Progress {
 public:
  void show(const std::string& text) {
    const auto now = std::chrono::steady_clock::now();
    if (terminal_) {
      std::fprintf(stderr, "\r\033[K%s", text.c_str());
    } else if (now - last_ > std::chrono::seconds(20)) {
      std::fprintf(stderr, "%s\n", text.c_str());
      last_ = now;
    }
    std::fflush(stderr);
  }
  void clear() {
    if (terminal_) std::fprintf(stderr, "\r\033[K");
  }

 private:
  bool terminal_ = isatty(2) == 1;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace neotier
