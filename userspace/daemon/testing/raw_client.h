// SPDX-License-Identifier: Apache-2.0
// A client that says whatever a test wants it to.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "client/protocol.h"
#include "neotier.h"

namespace neotier::daemon {

class RawClient {
 public:
  explicit RawClient(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    // A test that waits for what never comes fails, instead of hanging.
    const timeval patience{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~RawClient() { hang_up(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void hang_up() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void bytes(const std::vector<std::byte>& data) { (void)!::send(fd_, data.data(), data.size(), MSG_NOSIGNAL); }
  // As many as the socket takes now.
  void bytes_at_most(const std::vector<std::byte>& data) {
    (void)!::send(fd_, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void request(Operation operation, const std::vector<std::byte>& body) {
    bytes(frame(operation, static_cast<uint32_t>(body.size()), body));
  }
  static std::vector<std::byte> frame(Operation operation, uint32_t claimed, const std::vector<std::byte>& body) {
    std::vector<std::byte> all(kHeaderBytes + body.size());
    write_header(all.data(), {claimed, static_cast<uint16_t>(operation), 0, 77});
    if (!body.empty()) std::memcpy(all.data() + kHeaderBytes, body.data(), body.size());
    return all;
  }
  // code -1000: the other end closed.
  struct Reply {
    int code = -1000;
    std::vector<std::byte> body;
    std::string text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
  };
  Reply reply() {
    std::byte raw[kHeaderBytes];
    if (recv(fd_, raw, sizeof raw, MSG_WAITALL) != sizeof raw) return {};
    const Header header = read_header(raw);
    Reply got{-static_cast<int>(header.code), std::vector<std::byte>(header.body_bytes)};
    if (header.body_bytes && recv(fd_, got.body.data(), got.body.size(), MSG_WAITALL) != header.body_bytes) return {};
    return got;
  }
  Reply hello(uint32_t protocol = kProtocol, const std::string& name = "test") {
    std::vector<std::byte> body;
    Writer out(body);
    out.bytes(kMagic, sizeof kMagic);
    out.number(protocol);
    out.number(NEOTIER_ABI);
    out.text(name);
    request(Operation::kHello, body);
    return reply();
  }
  // Whether something (or the end) can be read now.
  bool readable(int ms = 0) const {
    pollfd one{fd_, POLLIN, 0};
    return poll(&one, 1, ms) > 0;
  }
  // Waits for the end, whatever comes before it.
  bool cut_off() {
    char sink[65536];
    for (;;) {
      const ssize_t got = recv(fd_, sink, sizeof sink, 0);
      if (got <= 0) return got == 0 || errno == ECONNRESET;
    }
  }

 private:
  int fd_ = -1;
};

}  // namespace neotier::daemon
