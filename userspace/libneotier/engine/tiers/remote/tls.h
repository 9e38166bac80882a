// SPDX-License-Identifier: Apache-2.0
// The server is who it says: its certificate is checked against the authorities, and against the name or number that it
// was asked for by. libvalkey's own context checks the first alone.
#pragma once

#include <string>

struct ssl_st;
struct ssl_ctx_st;
struct valkeyContext;

namespace neotier::engine::remote {

struct ClientOptions;

class Tls {
 public:
  // Throws std::runtime_error with one line.
  explicit Tls(const ClientOptions& options);
  ~Tls();

  // Begins on a connected context, blocking or not. The session, which is the context's; NULL: `why` says.
  ssl_st* begin(valkeyContext* context, const std::string& host, std::string& why) const;

  enum class Step { kDone, kWantsRead, kWantsWrite, kFailed };
  static Step handshake(ssl_st* session, std::string& why);

 private:
  ssl_ctx_st* context_ = nullptr;
};

}  // namespace neotier::engine::remote
