// SPDX-License-Identifier: Apache-2.0
// What neotierd says on standard error, by levels (spdlog). Where that is systemd's journal each line begins with its
// level as <N> (sd-daemon(3)); elsewhere with "neotierd: ", and the level's name where it is a warning or an error.
//
// Invariant: nobody's journal is filled by what a client does. Of each kind of event kMostOfAKind lines are said a
// minute; how many more there were is said with the first one of the next. Control characters are spelled out, as
// events quote what clients send.
//
// Thread safety: all calls from any thread. A call may wait for who reads standard error.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

namespace spdlog {
class logger;
}

namespace neotier::daemon {

enum class LogLevel : uint8_t { kError, kWarning, kInfo, kDebug };
// As the configuration writes them.
const std::vector<std::string>& log_levels();
LogLevel log_level(const std::string& name);

enum class LogEvent : uint8_t { kTurnedAway, kCutOff, kTimeout, kNoMemory, kNoFiles, kTier, kClient, kNrEvents };

class Log {
 public:
  // `write` gets whole lines with their ends; by default standard error does. `journal`: that is systemd's.
  explicit Log(bool journal, std::function<void(const std::string&)> write = {});
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void set_level(LogLevel level);
  bool says(LogLevel level) const;
  void say(LogLevel level, const std::string& text);
  // One of a kind that may come often; `now_ns` of any clock that does not run backwards. `text`, called where the line
  // is said, makes a std::string of it. Without memory for that nothing is said.
  template <typename Text>
  void event(LogLevel level, LogEvent event, uint64_t now_ns, Text text) noexcept {
    try {
      uint64_t more = 0;
      if (admits(level, event, now_ns, more)) say_one(level, text(), more);
    } catch (const std::bad_alloc&) {
    }
  }

  static constexpr uint32_t kMostOfAKind = 10;
  static constexpr uint64_t kMinuteNs = 60'000'000'000;

 private:
  struct Kind {
    uint64_t since_ns = 0;
    uint32_t said = 0;
    uint64_t more = 0;  // that were not said
  };
  // more: how many were not said before it.
  bool admits(LogLevel level, LogEvent event, uint64_t now_ns, uint64_t& more);
  void say_one(LogLevel level, const std::string& text, uint64_t more);

  std::shared_ptr<spdlog::logger> logger_;
  std::mutex mutex_;  // kinds_
  std::array<Kind, static_cast<size_t>(LogEvent::kNrEvents)> kinds_;
};

// Whether standard error is systemd's journal: $JOURNAL_STREAM names it.
bool stderr_is_journal();

}  // namespace neotier::daemon
