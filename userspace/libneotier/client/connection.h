// SPDX-License-Identifier: Apache-2.0
// A client's end of neotierd's protocol: one request at a time, with a time-out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/protocol.h"

namespace neotier::client {

// Where neotierd listens if nothing else is said.
inline constexpr const char* kDefaultSocket = "/run/neotier/neotierd.sock";

// code: enum neotier_code; text: one line.
struct Failure {
  int code = 0;
  std::string text;
};

// Thread safety: none.
class Connection {
 public:
  // Throws Failure.
  Connection(const std::string& path, const std::string& name, uint64_t timeout_ms);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Sends `fixed`, then `bulk`, and returns the reply's body. Where `into` is given, a successful reply is exactly as
  // long and goes there instead. extra_ms: that the daemon may take on top. Throws Failure, what the daemon answered or
  // NEOTIER_EGONE; after the latter the connection is of no more use.
  std::vector<std::byte> call(daemon::Operation operation, std::span<const std::byte> fixed,
                              std::span<const std::byte> bulk = {}, std::span<std::byte> into = {},
                              uint64_t extra_ms = 0);
  const daemon::Welcome& welcome() const { return welcome_; }

 private:
  void open(const std::string& path);
  void wait(short events, uint64_t until_ms);
  void send_all(std::span<const std::byte> data, uint64_t until_ms);
  void receive_all(std::span<std::byte> data, uint64_t until_ms);
  [[noreturn]] void lose(const std::string& why);

  std::string path_;
  uint64_t timeout_ms_;
  int fd_ = -1;
  uint64_t last_id_ = 0;
  daemon::Welcome welcome_;
};

}  // namespace neotier::client
