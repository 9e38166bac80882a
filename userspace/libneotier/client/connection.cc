// SPDX-License-Identifier: Apache-2.0
#include "client/connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "neotier.h"

namespace neotier::client {

using daemon::Header;
using daemon::kHeaderBytes;
using daemon::Operation;

namespace {

// Of a reply that is no object: metrics and status of thousands of clients stay below.
constexpr uint32_t kMostText = 16u << 20;

uint64_t now_ms() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

uint64_t later(uint64_t now, uint64_t ms) { return ms > UINT64_MAX - now ? UINT64_MAX : now + ms; }

}  // namespace

Connection::Connection(const std::string& path, const std::string& name, uint64_t timeout_ms)
    : path_(path), timeout_ms_(timeout_ms) {
  open(path);
  try {
    std::vector<std::byte> hello;
    daemon::Writer out(hello);
    out.bytes(daemon::kMagic, sizeof daemon::kMagic);
    out.number(daemon::kProtocol);
    out.number(NEOTIER_ABI);
    out.text(name);
    const std::vector<std::byte> reply = call(Operation::kHello, hello);
    daemon::Reader in(reply);
    welcome_ = daemon::read_welcome(in);
    if (!in.ok() || welcome_.protocol != daemon::kProtocol)
      throw Failure{NEOTIER_EUNSUPPORTED, fmt::format("{}: who listens there is no neotierd of this version", path)};
  } catch (...) {
    if (fd_ >= 0) close(fd_);
    throw;
  }
}

Connection::~Connection() {
  if (fd_ >= 0) close(fd_);
}

void Connection::open(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw Failure{NEOTIER_EINVALID, fmt::format("{}: longer than the name of a socket may be", path)};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ >= 0 && connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return;
  const int error = errno;
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  const char* hint = error == EACCES                            ? "; is this user in the socket's group?"
                     : error == ENOENT || error == ECONNREFUSED ? "; is neotierd running? (systemctl status neotierd)"
                                                                : "";
  throw Failure{NEOTIER_EGONE, fmt::format("{}: no connection: {}{}", path, std::strerror(error), hint)};
}

void Connection::lose(const std::string& why) {
  close(fd_);
  fd_ = -1;
  throw Failure{NEOTIER_EGONE, fmt::format("{}: connection lost: {}", path_, why)};
}

void Connection::wait(short events, uint64_t until_ms) {
  for (;;) {
    const uint64_t now = now_ms();
    if (now >= until_ms) lose("neotierd took longer than the time-out");
    pollfd one{fd_, events, 0};
    const int ready = poll(&one, 1, static_cast<int>(std::min<uint64_t>(until_ms - now, 1000000)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) lose(std::strerror(errno));
  }
}

void Connection::send_all(std::span<const std::byte> data, uint64_t until_ms) {
  while (!data.empty()) {
    const ssize_t put = send(fd_, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put > 0) {
      data = data.subspan(static_cast<size_t>(put));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait(POLLOUT, until_ms);
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return;  // a last word may be there to be read
    } else if (errno != EINTR) {
      lose(std::strerror(errno));
    }
  }
}

void Connection::receive_all(std::span<std::byte> data, uint64_t until_ms) {
  while (!data.empty()) {
    const ssize_t got = recv(fd_, data.data(), data.size(), MSG_DONTWAIT);
    if (got > 0) {
      data = data.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      lose("neotierd closed it: it stopped, or cut this client off");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait(POLLIN, until_ms);
    } else if (errno != EINTR) {
      lose(std::strerror(errno));
    }
  }
}

std::vector<std::byte> Connection::call(Operation operation, std::span<const std::byte> fixed,
                                        std::span<const std::byte> bulk, std::span<std::byte> into, uint64_t extra_ms) {
  if (fd_ < 0) throw Failure{NEOTIER_EGONE, fmt::format("{}: connection lost earlier; connect again", path_)};
  if (operation != Operation::kHello && std::max(bulk.size(), into.size()) > welcome_.max_message)
    throw Failure{NEOTIER_EINVALID, fmt::format("{} bytes at once; this neotierd takes {} ([socket].max_message)",
                                                std::max(bulk.size(), into.size()), welcome_.max_message)};
  const uint64_t until = later(later(now_ms(), timeout_ms_), extra_ms);
  std::vector<std::byte> head(kHeaderBytes);
  const auto body = static_cast<uint32_t>(fixed.size() + bulk.size());
  daemon::write_header(head.data(), {body, static_cast<uint16_t>(operation), 0, ++last_id_});
  head.insert(head.end(), fixed.begin(), fixed.end());
  send_all(head, until);
  send_all(bulk, until);
  std::byte raw[kHeaderBytes];
  receive_all(raw, until);
  const Header reply = daemon::read_header(raw);
  const bool turned_away = operation == Operation::kHello && reply.id == 0;
  if (reply.operation != static_cast<uint16_t>(operation) || (reply.id != last_id_ && !turned_away))
    lose("the reply is not to what was asked");
  if (reply.code == 0 && !into.empty()) {
    if (reply.body_bytes != into.size()) lose("the reply is of another length");
    receive_all(into, until);
    return {};
  }
  if (reply.body_bytes > kMostText) lose("the reply is too long");
  std::vector<std::byte> answer(reply.body_bytes);
  receive_all(answer, until);
  if (reply.code == 0) return answer;
  // Codes that this library does not know are still errors.
  throw Failure{-static_cast<int>(reply.code),
                std::string(reinterpret_cast<const char*>(answer.data()), answer.size())};
}

}  // namespace neotier::client
