// SPDX-License-Identifier: Apache-2.0
#include "daemon/log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

namespace neotier::daemon {

namespace {

spdlog::level::level_enum of(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kDebug:
      break;
  }
  return spdlog::level::debug;
}

// What a line begins with.
class Front final : public spdlog::custom_flag_formatter {
 public:
  explicit Front(bool journal) : journal_(journal) {}
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& to) override {
    const auto add = [&](std::string_view text) { to.append(text.data(), text.data() + text.size()); };
    const bool error = message.level == spdlog::level::err, warning = message.level == spdlog::level::warn;
    // Levels of syslog(3).
    if (journal_) return add(error ? "<3>" : warning ? "<4>" : message.level == spdlog::level::info ? "<6>" : "<7>");
    add(error ? "neotierd: error: " : warning ? "neotierd: warning: " : "neotierd: ");
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<Front>(journal_); }

 private:
  const bool journal_;
};

class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(const std::string&)> write) : write_(std::move(write)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write_(std::string(line.data(), line.size()));
  }
  void flush_() override {}
  std::function<void(const std::string&)> write_;
};

std::string spelled(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    if (std::iscntrl(static_cast<unsigned char>(c))) {
      plain += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      plain += c;
    }
  }
  return plain;
}

}  // namespace

const std::vector<std::string>& log_levels() {
  static const std::vector<std::string> kNames = {"error", "warning", "info", "debug"};
  return kNames;
}

LogLevel log_level(const std::string& name) {
  const auto at = std::find(log_levels().begin(), log_levels().end(), name);
  return at == log_levels().end() ? LogLevel::kInfo : static_cast<LogLevel>(at - log_levels().begin());
}

Log::Log(bool journal, std::function<void(const std::string&)> write) {
  spdlog::sink_ptr sink;
  if (write) {
    sink = std::make_shared<FunctionSink>(std::move(write));
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  logger_ = std::make_shared<spdlog::logger>("neotierd", std::move(sink));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<Front>('*', journal).set_pattern("%*%v");
  logger_->set_formatter(std::move(formatter));
  logger_->flush_on(spdlog::level::debug);
  set_level(LogLevel::kInfo);
}

Log::~Log() = default;

void Log::set_level(LogLevel level) { logger_->set_level(of(level)); }

bool Log::says(LogLevel level) const { return logger_->should_log(of(level)); }

void Log::say(LogLevel level, const std::string& text) {
  if (says(level)) logger_->log(of(level), spdlog::string_view_t(spelled(text)));
}

bool Log::admits(LogLevel level, LogEvent event, uint64_t now_ns, uint64_t& more) {
  if (!says(level)) return false;
  std::lock_guard lock(mutex_);
  Kind& kind = kinds_[static_cast<size_t>(event)];
  if (kind.said == 0 || now_ns - kind.since_ns >= kMinuteNs) kind = {now_ns, 0, kind.more};
  if (kind.said == kMostOfAKind) {
    kind.more++;
    return false;
  }
  kind.said++;
  more = std::exchange(kind.more, 0);
  return true;
}

void Log::say_one(LogLevel level, const std::string& text, uint64_t more) {
  say(level, more ? fmt::format("{} (and {} like this before that were not said)", text, more) : text);
}

bool stderr_is_journal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat there {};
  if (!stream || fstat(2, &there) != 0) return false;
  return fmt::format("{}:{}", there.st_dev, there.st_ino) == stream;
}

}  // namespace neotier::daemon
