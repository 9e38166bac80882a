// SPDX-License-Identifier: Apache-2.0
// neotierd: command line, signals and the service manager; the rest is daemon/daemon.h.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "cli/help.h"
#include "cli/words.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "neotier/standard_output.h"

namespace {

using neotier::daemon::Config;
using neotier::daemon::ConfigError;
using neotier::daemon::Daemon;
using neotier::daemon::LogLevel;

neotier::daemon::Log& log() {
  static neotier::daemon::Log log(neotier::daemon::stderr_is_journal());
  return log;
}

void say(LogLevel level, const std::string& line) { log().say(level, line); }

// One line each, with the file's name in front already.
int refuse(const ConfigError& error) {
  for (const std::string& line : error.lines()) fmt::print(stderr, "{}\n", line);
  return 1;
}

void reload(Daemon& daemon, const std::string& file) {
  neotier::daemon::notify_manager("RELOADING=1\n");
  try {
    daemon.reload(neotier::daemon::load_config(file));
    say(LogLevel::kInfo, fmt::format("{}: in force", file));
  } catch (const ConfigError& error) {
    (void)refuse(error);
    daemon.reload_failed();
    say(LogLevel::kError, "the configuration from before stays in force");
  } catch (const std::exception& error) {
    daemon.reload_failed();
    say(LogLevel::kError, fmt::format("the configuration from before stays in force: {}", error.what()));
  }
  neotier::daemon::notify_manager("READY=1\n");
}

int serve(const std::string& file) {
  // Before there is any other thread: all of them inherit it.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const int fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  struct rlimit files {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  const Config config = neotier::daemon::load_config(file);
  Daemon daemon(config, log());
  if (const std::string address = daemon.metrics_address(); !address.empty())
    say(LogLevel::kInfo, fmt::format("metrics on http://{}/metrics", address));
  say(LogLevel::kInfo, fmt::format("ready on {}", config.socket_path));
  neotier::daemon::notify_manager(fmt::format("READY=1\nSTATUS=serving {}\n", config.socket_path));

  std::thread loop([&] {
    try {
      daemon.run();
    } catch (const std::exception& error) {
      say(LogLevel::kError, error.what());
    }
    // Wakes the loop below, whatever ended this one.
    kill(getpid(), SIGTERM);
  });
  const uint64_t watchdog_ms = neotier::daemon::watchdog_us() / 2000;
  uint64_t beats = 0;
  for (bool stopping = false;;) {
    pollfd one{fd, POLLIN, 0};
    constexpr uint64_t kWatchTiersMs = 1000;
    (void)poll(&one, 1, static_cast<int>(watchdog_ms ? std::min(watchdog_ms, kWatchTiersMs) : kWatchTiersMs));
    daemon.watch_tiers();
    // The manager hears of us only when the loop has turned since it was last poked.
    if (const uint64_t now = watchdog_ms ? daemon.pulse() : beats; now != beats) {
      neotier::daemon::notify_manager("WATCHDOG=1\n");
      beats = now;
    }
    signalfd_siginfo info{};
    if (read(fd, &info, sizeof info) != sizeof info) continue;
    if (info.ssi_signo == SIGHUP) {
      if (!stopping) reload(daemon, file);
    } else if (stopping) {
      break;  // from the thread above
    } else {
      stopping = true;
      say(LogLevel::kInfo, "stopping: what is under way is answered first");
      neotier::daemon::notify_manager("STOPPING=1\n");
      daemon.stop();
    }
  }
  loop.join();
  close(fd);
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app{"Serve one engine, and one budget of memory, to several processes", "neotierd"};
  neotier::cli::set_manner(app);
  app.footer(
      "examples:\n  neotierd --check /etc/neotier/neotierd.toml\n  neotierd --config /etc/neotier/neotierd.toml\n"
      "  neotier top --socket /run/neotier/neotierd.sock\n"
      "SIGHUP reads the configuration again, SIGTERM ends it. docs/neotierd.md says more, and "
      "docs/neotierd.toml has every key.");
  std::string file = "/etc/neotier/neotierd.toml", check, share;
  app.add_option("--config", file, "The configuration")->capture_default_str()->type_name("FILE");
  app.add_option("--check", check, "Check this configuration, say everything that is wrong, and end")
      ->type_name("FILE");
  app.add_option("--write-share", share, "Write the man page and shell completion below FOLDER")->group("");
  neotier::cli::finish_manner(app);
  try {
    if (const std::string wrong = neotier::cli::wrong_word(app, {argv + 1, argv + argc}); !wrong.empty()) {
      fmt::print(stderr, "neotierd: {}\n", wrong);
      return 2;
    }
    app.parse(argc, argv);
    if (!share.empty()) {
      neotier::cli::write_share(app, share);
      return 0;
    }
    if (check.empty()) return serve(file);
    (void)neotier::daemon::load_config(check);
    fmt::print("{}: right\n", check);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const ConfigError& error) {
    return refuse(error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "neotierd: {}\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  neotier_open_standard_streams();
  return neotier_finish_output("neotierd", run(argc, argv));
}
