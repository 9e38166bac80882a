// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace neotier {

// One line on standard error that is rewritten on a terminal, never longer than the terminal is wide (a longer one
// could not be rewritten) or 110 columns; elsewhere a line now and then. ASCII. Not thread-safe.
class Progress {
 public:
  // No progress of this process is shown from now on.
  static void silence() { silent_ = true; }
  static bool silent() { return silent_; }

  // `text` in at most `columns` (more than 3).
  static std::string fitted(const std::string& text, size_t columns) {
    return text.size() <= columns ? text : text.substr(0, columns - 3) + "...";
  }

  void show(const std::string& whole) {
    if (silent_) return;
    const std::string text = fitted(whole, columns());
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
    if (terminal_ && !silent_) std::fprintf(stderr, "\r\033[K");
  }

 private:
  static size_t columns() {
    winsize size{};
    const bool known = ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 4;
    return known ? std::min<size_t>(110, size.ws_col - 1u) : 110;
  }

  static inline bool silent_ = false;
  bool terminal_ = isatty(2) == 1;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace neotier
