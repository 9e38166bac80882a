// SPDX-License-Identifier: Apache-2.0
#include "daemon/server.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "neotier.h"

namespace neotier::daemon {

namespace {

constexpr uint64_t kListening = 0, kEvent = UINT64_MAX;  // of epoll; clients' numbers are between
constexpr uint64_t kFree = 64 << 10;                     // of a request: takes no room
constexpr size_t kMostAtOnce = 1 << 20;                  // bytes of one client before it is another's turn
constexpr int kTicketMs = 2;                             // between two looks at tickets
constexpr uint64_t kSecond = 1000000000;

void add(int epoll, int fd, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
    throw std::runtime_error(fmt::format("epoll: {}", std::strerror(errno)));
}

}  // namespace

Server::Server(Service service, Clients& clients, Limits limits, uint32_t workers, int listening)
    : service_(std::move(service)), clients_(clients), limits_(limits), listening_(listening) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || event_ < 0) throw std::runtime_error(fmt::format("epoll: {}", std::strerror(errno)));
  add(epoll_, listening_, kListening, EPOLLIN);
  add(epoll_, event_, kEvent, EPOLLIN);
  workers_ = std::make_unique<Workers>(workers);
}

Server::~Server() {
  workers_.reset();
  for (auto& [id, connection] : connections_) {
    connection->session->abandon(connection->outcome.ticket);
    close(connection->fd);
    clients_.remove(id);
  }
  connections_.clear();
  close(event_);
  close(epoll_);
}

void Server::wake() {
  const uint64_t one = 1;
  (void)!write(event_, &one, sizeof one);
}

void Server::stop() {
  stop_ = true;
  wake();
}

void Server::set_limits(const Limits& limits) {
  {
    std::lock_guard lock(limits_mutex_);
    limits_ = limits;
  }
  wake();
}

Limits Server::limits() const {
  std::lock_guard lock(limits_mutex_);
  return limits_;
}

void Server::run(uint64_t drain_ns) {
  uint64_t give_up_ns = UINT64_MAX;
  epoll_event events[64];
  for (;;) {
    uint64_t now = service_.clock.now_ns();
    const int nr = epoll_wait(epoll_, events, 64, wait_ms(now));
    beats_++;
    now = service_.clock.now_ns();
    for (int i = 0; i < nr; i++) {
      const uint64_t id = events[i].data.u64;
      if (id == kEvent) {
        uint64_t count = 0;
        (void)!read(event_, &count, sizeof count);
      } else if (id == kListening) {
        if (!draining_) accept_clients(now);
      } else if (const auto it = connections_.find(id); it != connections_.end()) {
        ready(*it->second, events[i].events, now);
      }
    }
    work_is_done(now);
    check_tickets(now);
    if (now >= next_deadline_ns_) check_deadlines(now);
    if (!accepting_ && !draining_ && now >= accept_again_ns_) {
      accepting_ = true;
      accept_again_ns_ = UINT64_MAX;
      add(epoll_, listening_, kListening, EPOLLIN);
    }
    if (stop_ && !draining_) {
      give_up_ns = drain_ns > UINT64_MAX - now ? UINT64_MAX : now + drain_ns;
      drain(now);
    }
    if (draining_ && (connections_.empty() || now >= give_up_ns)) return;
    if (draining_) next_deadline_ns_ = std::min(next_deadline_ns_, give_up_ns);
  }
}

int Server::wait_ms(uint64_t now_ns) const {
  if (!on_tickets_.empty()) return kTicketMs;
  const uint64_t next = std::min(next_deadline_ns_, accept_again_ns_);
  if (next == UINT64_MAX) return -1;
  return next <= now_ns ? 0 : static_cast<int>(std::min<uint64_t>((next - now_ns) / 1000000 + 1, 60000));
}

void Server::accept_clients(uint64_t now_ns) {
  for (int i = 0; i < 16; i++) {
    const int fd = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // Who waits stays in the queue; without a pause the loop would spin on them.
        epoll_ctl(epoll_, EPOLL_CTL_DEL, listening_, nullptr);
        accepting_ = false;
        accept_again_ns_ = now_ns + kSecond;
      }
      return;
    }
    const Limits now = limits();
    if (connections_.size() >= now.max_clients) {
      turn_away(
          fd, fmt::format("{} clients are connected already ([socket].max_clients); try again later", now.max_clients));
      continue;
    }
    ucred from{};
    socklen_t size = sizeof from;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &from, &size);
    auto c = std::make_unique<Connection>();
    c->fd = fd;
    c->client = clients_.add({from.pid, from.uid, from.gid}, now_ns);
    c->session = std::make_unique<Session>(service_, now, c->client);
    epoll_event event{};
    event.data.u64 = c->client->id;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
      clients_.remove(c->client->id);
      turn_away(fd, "neotierd can watch no further connection (fs.epoll.max_user_watches); try again later");
      continue;
    }
    service_.counters.connections++;
    Connection& kept = *connections_.emplace(c->client->id, std::move(c)).first->second;
    watch(kept, EPOLLIN);
    set_deadline(kept, now_ns, now.message_timeout_s);
  }
}

void Server::turn_away(int fd, const std::string& why) {
  service_.counters.refused_connections++;
  Buffer reply;
  Session::refuse({0, static_cast<uint16_t>(Operation::kHello), 0, 0}, NEOTIER_EBUSY, why, reply);
  (void)!::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  close(fd);
}

void Server::watch(Connection& c, uint32_t events) {
  if (c.watched == events) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = c.client->id;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &event);
  c.watched = events;
}

void Server::set_deadline(Connection& c, uint64_t now_ns, uint64_t seconds) {
  c.deadline_ns = seconds ? now_ns + seconds * kSecond : UINT64_MAX;
  next_deadline_ns_ = std::min(next_deadline_ns_, c.deadline_ns);
}

void Server::ready(Connection& c, uint32_t events, uint64_t now_ns) {
  const bool broken = events & (EPOLLERR | EPOLLHUP);
  switch (c.phase) {
    case Phase::kHeader:
    case Phase::kBody:
      return receive(c, now_ns);
    case Phase::kReply:
      return send(c, now_ns);
    case Phase::kRunning:
      if (!broken) return;
      // A worker has it: put away when it is done.
      c.gone = true;
      epoll_ctl(epoll_, EPOLL_CTL_DEL, c.fd, nullptr);
      return;
    case Phase::kRoomForBody:
    case Phase::kRoomForReply:
    case Phase::kTicket:
      if (broken) close_connection(c);
      return;
  }
}

void Server::receive(Connection& c, uint64_t now_ns) {
  size_t taken = 0;
  while (taken < kMostAtOnce) {
    const bool head = c.phase == Phase::kHeader;
    std::byte* at = (head ? c.raw_header : c.body.data()) + c.have;
    const size_t wanted = (head ? kHeaderBytes : c.header.body_bytes) - c.have;
    const ssize_t got = recv(c.fd, at, std::min(wanted, kMostAtOnce), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return close_connection(c);
    if (head && c.have == 0 && c.session->greeted()) set_deadline(c, now_ns, c.session->limits().message_timeout_s);
    c.have += static_cast<size_t>(got);
    taken += static_cast<size_t>(got);
    service_.counters.received_bytes += static_cast<uint64_t>(got);
    c.client->received_bytes += static_cast<uint64_t>(got);
    if (static_cast<size_t>(got) < wanted) continue;
    if (!head) return body_is_there(c, now_ns);
    if (!header_is_there(c, now_ns)) return;
  }
}

bool Server::header_is_there(Connection& c, uint64_t now_ns) {
  const uint64_t id = c.client->id;
  c.header = read_header(c.raw_header);
  c.have = 0;
  const Limits& limits = c.session->limits();
  if (c.header.code != 0) {
    protocol_error(c, "a request with an error in its header", now_ns);
    return false;
  }
  // A stranger has no business with more than a greeting.
  const uint64_t most = c.session->greeted() ? limits.max_message + kFixedBytes : kFixedBytes;
  if (c.header.body_bytes > most) {
    protocol_error(
        c, fmt::format("a request of {} bytes; [socket].max_message is {}", c.header.body_bytes, limits.max_message),
        now_ns);
    return false;
  }
  if (c.header.body_bytes > kFree) {
    want_room(c, c.header.body_bytes, Phase::kRoomForBody, now_ns);
  } else {
    room_is_there(c, now_ns);
  }
  // Answered at once, it may be gone.
  const auto still = connections_.find(id);
  return still != connections_.end() && still->second->phase == Phase::kBody;
}

void Server::protocol_error(Connection& c, const std::string& what, uint64_t now_ns) {
  service_.counters.protocol_errors++;
  Session::refuse(c.header, NEOTIER_EINVALID, what, c.reply);
  c.outcome.hang_up = true;
  answer(c, now_ns);
}

void Server::want_room(Connection& c, uint64_t bytes, Phase waiting, uint64_t now_ns) {
  c.phase = waiting;
  c.wanted = bytes;
  c.deadline_ns = UINT64_MAX;  // those who have room are bounded, so this is
  watch(c, 0);
  waiting_.push_back(c.client->id);
  grant_room(now_ns);
}

void Server::grant_room(uint64_t now_ns) {
  const uint64_t most = limits().in_flight_bytes;
  while (!waiting_.empty()) {
    Connection& c = *connections_.at(waiting_.front());
    // A limit that was lowered meanwhile is no reason to wait for ever.
    if (in_flight_ > 0 && in_flight_ + c.wanted > most) return;
    waiting_.pop_front();
    in_flight_ += c.wanted;
    c.room = c.wanted;
    if (c.phase == Phase::kRoomForBody) {
      room_is_there(c, now_ns);
    } else {
      start(c);
    }
  }
}

void Server::room_is_there(Connection& c, uint64_t now_ns) {
  c.phase = Phase::kBody;
  try {
    c.body.make(c.header.body_bytes);
  } catch (const std::bad_alloc&) {
    // What follows of this request cannot be taken, so the connection ends.
    service_.counters.request_errors++;
    Session::refuse(c.header, NEOTIER_ENOMEM, "neotierd is out of memory", c.reply);
    c.outcome.hang_up = true;
    return answer(c, now_ns);
  }
  if (c.room) set_deadline(c, now_ns, c.session->limits().message_timeout_s);
  watch(c, EPOLLIN);
  if (c.header.body_bytes == 0) body_is_there(c, now_ns);
}

void Server::body_is_there(Connection& c, uint64_t now_ns) {
  const uint64_t reply = Session::reply_bytes(c.header, c.body.span());
  // What is more than it may ask for is refused without taking any.
  if (reply > kFree && reply <= c.session->limits().max_message)
    return want_room(c, reply, Phase::kRoomForReply, now_ns);
  start(c);
}

void Server::start(Connection& c) {
  c.phase = Phase::kRunning;
  c.deadline_ns = UINT64_MAX;
  watch(c, 0);
  // The connection stays until work_is_done() has seen it.
  workers_->hand_in([this, &c, id = c.client->id] {
    c.outcome = c.session->run(c.header, c.body.span(), c.reply);
    {
      std::lock_guard lock(done_mutex_);
      done_.push_back(id);
    }
    wake();
  });
}

void Server::work_is_done(uint64_t now_ns) {
  std::vector<uint64_t> done;
  {
    std::lock_guard lock(done_mutex_);
    done.swap(done_);
  }
  for (const uint64_t id : done) {
    Connection& c = *connections_.at(id);
    if (c.gone) {
      close_connection(c);
    } else if (c.outcome.ticket) {
      c.phase = Phase::kTicket;
      on_tickets_.push_back(id);
    } else {
      answer(c, now_ns);
    }
  }
}

void Server::check_tickets(uint64_t now_ns) {
  if (on_tickets_.empty()) return;
  std::vector<uint64_t> still;
  for (const uint64_t id : std::exchange(on_tickets_, {})) {
    const auto it = connections_.find(id);
    if (it == connections_.end() || it->second->phase != Phase::kTicket) continue;
    Connection& c = *it->second;
    if (c.outcome.ticket->progress().pending > 0 && now_ns < c.outcome.until_ns) {
      still.push_back(id);
      continue;
    }
    Session::finish(c.header, *c.outcome.ticket, c.reply);
    c.outcome.ticket = nullptr;
    answer(c, now_ns);
  }
  on_tickets_.insert(on_tickets_.end(), still.begin(), still.end());
}

void Server::answer(Connection& c, uint64_t now_ns) {
  c.phase = Phase::kReply;
  c.sent = 0;
  c.body.shrink();
  c.client->requests++;
  set_deadline(c, now_ns, c.session->limits().message_timeout_s);
  send(c, now_ns);
}

void Server::send(Connection& c, uint64_t now_ns) {
  size_t given = 0;
  while (c.sent < c.reply.size()) {
    if (given >= kMostAtOnce) return watch(c, EPOLLOUT);
    const size_t left = std::min(c.reply.size() - c.sent, kMostAtOnce);
    const ssize_t put = ::send(c.fd, c.reply.data() + c.sent, left, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return watch(c, EPOLLOUT);
    if (put <= 0) return close_connection(c);
    c.sent += static_cast<size_t>(put);
    given += static_cast<size_t>(put);
    service_.counters.sent_bytes += static_cast<uint64_t>(put);
    c.client->sent_bytes += static_cast<uint64_t>(put);
  }
  if (c.outcome.hang_up || draining_) return close_connection(c);
  next_request(c, now_ns);
}

void Server::next_request(Connection& c, uint64_t now_ns) {
  c.phase = Phase::kHeader;
  c.have = 0;
  c.reply.shrink();
  release_room(c, now_ns);
  set_deadline(c, now_ns, c.session->limits().idle_timeout_s);
  watch(c, EPOLLIN);
}

void Server::release_room(Connection& c, uint64_t now_ns) {
  if (!c.room) return;
  in_flight_ -= c.room;
  c.room = 0;
  grant_room(now_ns);
}

void Server::check_deadlines(uint64_t now_ns) {
  std::vector<uint64_t> late;
  for (const auto& [id, c] : connections_) {
    if (c->deadline_ns <= now_ns) late.push_back(id);
  }
  for (const uint64_t id : late) {
    service_.counters.timeouts++;
    close_connection(*connections_.at(id));
  }
  next_deadline_ns_ = UINT64_MAX;
  for (const auto& [id, c] : connections_) next_deadline_ns_ = std::min(next_deadline_ns_, c->deadline_ns);
}

void Server::close_connection(Connection& c) {
  const uint64_t id = c.client->id;
  close(c.fd);  // leaves epoll by itself: no copy of it is anywhere
  c.session->abandon(c.outcome.ticket);
  std::erase(waiting_, id);
  release_room(c, service_.clock.now_ns());
  clients_.remove(id);
  connections_.erase(id);
}

void Server::drain(uint64_t now_ns) {
  draining_ = true;
  if (accepting_) epoll_ctl(epoll_, EPOLL_CTL_DEL, listening_, nullptr);
  accept_again_ns_ = UINT64_MAX;
  std::vector<uint64_t> idle;
  for (const auto& [id, c] : connections_) {
    if (c->phase == Phase::kHeader || c->phase == Phase::kBody || c->phase == Phase::kRoomForBody) idle.push_back(id);
  }
  for (const uint64_t id : idle) close_connection(*connections_.at(id));
  next_deadline_ns_ = std::min(next_deadline_ns_, now_ns);
}

}  // namespace neotier::daemon
