// SPDX-License-Identifier: Apache-2.0
#include "daemon/server.h"

#include <fmt/format.h>
#include <linux/sched/types.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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
constexpr size_t kMostInATurn = 4 << 20;                 // bytes of one client before it is another's turn
constexpr timespec kMoreToCome{0, 200000};               // waited for within a turn
constexpr int kTicketMs = 2;                             // between two looks at tickets
constexpr uint64_t kSecond = 1000000000;
constexpr size_t kPage = 4096;

void add(int epoll, int fd, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
    throw std::runtime_error(fmt::format("epoll: {}", std::strerror(errno)));
}

// Whether it is ready within the time that a turn may wait.
bool becomes(int fd, short events) {
  pollfd one{fd, events, 0};
  return ppoll(&one, 1, &kMoreToCome, nullptr) > 0;
}

// The loop has little to do for each request, and much to do for all of them together: among threads that copy it would
// wait for its share while somebody waits for one of the little things. It asks for short turns and has them sooner
// (Linux 6.12; older kernels take no notice).
void ask_for_short_turns() {
  constexpr uint64_t kTurnNs = 100000;
  sched_attr wish{};
  wish.size = sizeof wish;
  wish.sched_policy = SCHED_OTHER;
  wish.sched_nice = getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)));
  wish.sched_runtime = kTurnNs;
  (void)syscall(SYS_sched_setattr, 0, &wish, 0);
}

}  // namespace

Server::Server(Service service, Clients& clients, Limits limits, uint32_t workers, int listening)
    : service_(std::move(service)), clients_(clients), limits_(limits), listening_(listening) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || event_ < 0) throw std::runtime_error(fmt::format("epoll: {}", std::strerror(errno)));
  add(epoll_, listening_, kListening, EPOLLIN);
  add(epoll_, event_, kEvent, EPOLLIN);
  const auto carry = [this](Workers& workers_of_it, Work& work) {
    carry_out(workers_of_it, static_cast<Connection&>(work));
  };
  slow_ = std::make_unique<Workers>(workers, true, carry);
  quick_ = std::make_unique<Workers>(1, false, carry);
  bulk_ = std::make_unique<Workers>(2, true, carry);
}

Server::~Server() {
  slow_.reset();
  quick_.reset();
  bulk_.reset();
  for (auto& [id, connection] : connections_) {
    if (connection->session) connection->session->abandon(connection->outcome.ticket);
    if (connection->fd >= 0) close(connection->fd);
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
  ask_for_short_turns();
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
      } else {
        give_turn(id, [&](Connection& c) { ready(c, events[i].events, now); });
      }
    }
    work_is_done(now);
    check_tickets(now);
    if (now >= next_deadline_ns_) check_deadlines(now);
    if (!accepting_ && !draining_ && now >= accept_again_ns_) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = kListening;
      accepting_ = epoll_ctl(epoll_, EPOLL_CTL_ADD, listening_, &event) == 0;
      accept_again_ns_ = accepting_ ? UINT64_MAX : now + kSecond;
    }
    if (stop_ && !draining_) {
      give_up_ns = drain_ns > UINT64_MAX - now ? UINT64_MAX : now + drain_ns;
      drain(now);
    }
    if (draining_ && (connections_.empty() || now >= give_up_ns)) return;
    if (draining_) next_deadline_ns_ = std::min(next_deadline_ns_, give_up_ns);
  }
}

template <typename Turn>
void Server::give_turn(uint64_t id, Turn turn) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  try {
    turn(*at->second);
  } catch (const std::bad_alloc&) {
    service_.counters.request_errors++;
    const auto still = connections_.find(id);
    if (still == connections_.end() || still->second->with_worker()) return;
    cut_off(*still->second, LogLevel::kError, LogEvent::kNoMemory, "there is no memory for its request");
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
        service_.log.event(LogLevel::kError, LogEvent::kNoFiles, now_ns, [error = errno] {
          return fmt::format("who connects has to wait: {}", std::strerror(error));
        });
        epoll_ctl(epoll_, EPOLL_CTL_DEL, listening_, nullptr);
        accepting_ = false;
        accept_again_ns_ = now_ns + kSecond;
      }
      return;
    }
    try {
      accept_client(fd, now_ns);
    } catch (const std::bad_alloc&) {
      service_.counters.refused_connections++;
      close(fd);
      service_.log.event(LogLevel::kError, LogEvent::kNoMemory, now_ns,
                         [] { return std::string("no memory for a client that connects"); });
    }
  }
}

void Server::accept_client(int fd, uint64_t now_ns) {
  const Limits now = limits();
  if (connections_.size() >= now.max_clients)
    return turn_away(
        fd, fmt::format("{} clients are connected already ([socket].max_clients); try again later", now.max_clients));
  ucred from{};
  socklen_t size = sizeof from;
  getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &from, &size);
  std::shared_ptr<User>& user = users_[from.uid];
  if (!user) user = std::make_shared<User>();
  if (user->connections >= now.most_of_a_user())
    return turn_away(fd, fmt::format("user {} has {} connections already ([socket].user_clients); try again later",
                                     from.uid, user->connections));
  auto c = std::make_unique<Connection>();
  c->client = clients_.add({from.pid, from.uid, from.gid}, user, now_ns);
  const uint64_t id = c->client->id;
  try {
    c->session = std::make_unique<Session>(service_, now, c->client);
    if (ids_.capacity() <= connections_.size()) ids_.reserve(2 * connections_.size() + 16);
    connections_.emplace(id, std::move(c));
  } catch (const std::bad_alloc&) {
    clients_.remove(id);
    throw;
  }
  Connection& kept = *connections_.at(id);
  kept.fd = fd;
  user->connections++;
  epoll_event event{};
  event.data.u64 = id;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    kept.fd = -1;
    forget(kept);
    return turn_away(fd, "neotierd can watch no further connection (fs.epoll.max_user_watches); try again later");
  }
  service_.counters.connections++;
  service_.log.event(LogLevel::kDebug, LogEvent::kClient, now_ns,
                     [&] { return fmt::format("{} connected", name_of(kept)); });
  watch(kept, EPOLLIN);
  set_deadline(kept, now_ns, now.message_timeout_s);
}

void Server::turn_away(int fd, const std::string& why) {
  service_.counters.refused_connections++;
  service_.log.event(LogLevel::kWarning, LogEvent::kTurnedAway, service_.clock.now_ns(),
                     [&] { return fmt::format("a client was turned away: {}", why); });
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

// One that a worker's turn interrupted.
void Server::keep_deadline(Connection& c) {
  c.deadline_ns = c.kept_deadline_ns;
  next_deadline_ns_ = std::min(next_deadline_ns_, c.deadline_ns);
}

void Server::ready(Connection& c, uint32_t events, uint64_t now_ns) {
  const bool broken = events & (EPOLLERR | EPOLLHUP);
  // Before a worker has it, which keeps no time.
  if (c.deadline_ns <= now_ns) return time_out(c);
  switch (c.phase) {
    case Phase::kHeader:
      return receive(c, now_ns);
    case Phase::kBody:
      if (c.header.body_bytes <= kFree) return receive(c, now_ns);
      return hand_in(c, Phase::kReceiving, *bulk_, c.client->user->bulk);
    case Phase::kReply:
      return send(c, now_ns);
    case Phase::kReceiving:
    case Phase::kSending:
    case Phase::kPreparing:
    case Phase::kRunning:
    case Phase::kTidying:
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
    case Phase::kLeaving:
      return;
  }
}

// A header, or a body that is short.
void Server::receive(Connection& c, uint64_t now_ns) {
  for (;;) {
    const bool head = c.phase == Phase::kHeader;
    std::byte* at = (head ? c.raw_header : c.body.data()) + c.have;
    const size_t wanted = (head ? kHeaderBytes : c.header.body_bytes) - c.have;
    const ssize_t got = recv(c.fd, at, wanted, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return close_connection(c);
    if (head && c.have == 0 && c.session->greeted()) set_deadline(c, now_ns, c.session->limits().message_timeout_s);
    c.have += static_cast<size_t>(got);
    count_received(c, static_cast<uint64_t>(got));
    if (static_cast<size_t>(got) < wanted) continue;
    if (!head) return body_is_there(c, now_ns);
    if (!header_is_there(c, now_ns)) return;
    if (c.header.body_bytes > kFree) return;
  }
}

void Server::count_received(Connection& c, uint64_t bytes) {
  service_.counters.received_bytes += bytes;
  c.client->received_bytes += bytes;
}

void Server::count_sent(Connection& c, uint64_t bytes) {
  service_.counters.sent_bytes += bytes;
  c.client->sent_bytes += bytes;
}

// By a worker: what has come, and what comes soon.
void Server::receive_turn(Connection& c) {
  size_t taken = 0;
  while (taken < kMostInATurn && c.have < c.header.body_bytes) {
    const ssize_t got = recv(c.fd, c.body.data() + c.have, c.header.body_bytes - c.have, 0);
    if (got > 0) {
      c.have += static_cast<size_t>(got);
      taken += static_cast<size_t>(got);
      count_received(c, static_cast<uint64_t>(got));
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!becomes(c.fd, POLLIN)) return;
    } else if (got == 0 || errno != EINTR) {
      c.ended = true;
      return;
    }
  }
}

void Server::send_turn(Connection& c) {
  size_t given = 0;
  while (given < kMostInATurn && c.sent < c.reply.size()) {
    const ssize_t put = ::send(c.fd, c.reply.data() + c.sent, c.reply.size() - c.sent, MSG_NOSIGNAL);
    if (put > 0) {
      c.sent += static_cast<size_t>(put);
      given += static_cast<size_t>(put);
      count_sent(c, static_cast<uint64_t>(put));
    } else if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!becomes(c.fd, POLLOUT)) return;
    } else if (put == 0 || errno != EINTR) {
      c.ended = true;
      return;
    }
  }
}

void Server::received_some(Connection& c, uint64_t now_ns) {
  c.phase = Phase::kBody;
  const bool whole = c.have == c.header.body_bytes;
  if (whole) return body_is_there(c, now_ns);
  if (c.ended || draining_) return close_connection(c);
  // Whoever has gone sends no more than what is there, and is watched no more.
  if (c.gone) return hand_in(c, Phase::kReceiving, *bulk_, c.client->user->bulk);
  keep_deadline(c);
  watch(c, EPOLLIN);
}

void Server::sent_some(Connection& c, uint64_t now_ns) {
  c.phase = Phase::kReply;
  if (c.ended || c.gone) return close_connection(c);
  if (c.sent == c.reply.size()) return reply_is_sent(c, now_ns);
  keep_deadline(c);
  watch(c, EPOLLOUT);
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
  service_.log.event(LogLevel::kWarning, LogEvent::kCutOff, now_ns,
                     [&] { return fmt::format("{} is cut off: {}", name_of(c), what); });
  Session::refuse(c.header, NEOTIER_EINVALID, what, c.reply);
  c.outcome.hang_up = true;
  answer(c, now_ns);
}

void Server::want_room(Connection& c, uint64_t bytes, Phase waiting, uint64_t now_ns) {
  c.phase = waiting;
  c.wanted = bytes;
  c.deadline_ns = UINT64_MAX;  // those who have room are bounded, so this is
  watch(c, 0);
  waiting_.push_back(&c);
  grant_room(now_ns);
}

void Server::grant_room(uint64_t now_ns) {
  const uint64_t most = limits().in_flight_bytes, of_a_user = most - most / 4;
  using Waiting = engine::LinkedList<Connection, OfRoom>;
  for (Connection* c = waiting_.front(); c;) {
    // A limit that was lowered meanwhile is no reason to wait for ever.
    if (in_flight_ > 0 && in_flight_ + c->wanted > most) return;
    User& user = *c->client->user;
    if (user.in_flight_bytes > 0 && user.in_flight_bytes + c->wanted > of_a_user) {
      c = Waiting::after(c);  // others may have what is left
      continue;
    }
    waiting_.erase(c);
    in_flight_ += c->wanted;
    user.in_flight_bytes += c->wanted;
    c->room = c->wanted;
    give_turn(c->client->id, [&](Connection& now_its_turn) {
      if (now_its_turn.phase == Phase::kRoomForBody) {
        room_is_there(now_its_turn, now_ns);
      } else {
        start(now_its_turn, now_ns);
      }
    });
    // Its turn may have changed the list.
    c = waiting_.front();
  }
}

void Server::room_is_there(Connection& c, uint64_t now_ns) {
  if (c.header.body_bytes > kFree) return hand_in(c, Phase::kPreparing, *bulk_, c.client->user->bulk);
  c.body.make(c.header.body_bytes);
  expect_body(c, now_ns);
}

void Server::expect_body(Connection& c, uint64_t now_ns) {
  c.phase = Phase::kBody;
  if (c.room) set_deadline(c, now_ns, c.session->limits().message_timeout_s);
  watch(c, EPOLLIN);
  if (c.header.body_bytes == 0) body_is_there(c, now_ns);
}

void Server::body_is_there(Connection& c, uint64_t now_ns) {
  const uint64_t reply = Session::reply_bytes(c.header, c.body.span());
  // What is more than it may ask for is refused without taking any.
  if (reply > kFree && reply <= c.session->limits().max_message)
    return want_room(c, reply, Phase::kRoomForReply, now_ns);
  start(c, now_ns);
}

void Server::start(Connection& c, uint64_t now_ns) {
  const Session::Waits waits = Session::waits(c.header);
  if (waits == Session::Waits::kNever) {
    c.outcome = c.session->run(c.header, c.body.span(), c.reply);
    return answer(c, now_ns);
  }
  User& user = *c.client->user;
  const bool quick = waits == Session::Waits::kBriefly;
  hand_in(c, Phase::kRunning, quick ? *quick_ : *slow_, quick ? user.quick : user.slow);
}

// The connection stays until work_is_done() has seen it.
void Server::hand_in(Connection& c, Phase phase, Workers& workers, WorkGroup& group) {
  c.phase = phase;
  c.kept_deadline_ns = c.deadline_ns;
  c.deadline_ns = UINT64_MAX;
  if (c.fd >= 0 && !c.gone) watch(c, 0);
  c.group = &group;
  workers.hand_in(c);
}

// By a worker.
void Server::carry_out(Workers& workers, Connection& c) {
  try {
    switch (c.phase) {
      case Phase::kPreparing: {
        std::byte* const body = c.body.make(c.header.body_bytes);
        for (size_t at = 0; at < c.header.body_bytes; at += kPage) body[at] = std::byte{0};
        break;
      }
      case Phase::kLeaving:
        c.session->abandon(c.outcome.ticket);
        c.session.reset();
        c.body.drop();
        c.reply.drop();
        break;
      case Phase::kReceiving:
        receive_turn(c);
        break;
      case Phase::kSending:
        send_turn(c);
        break;
      case Phase::kTidying:
        c.reply.shrink();
        break;
      default:
        c.outcome = c.session->run(c.header, c.body.span(), c.reply);
        c.body.shrink();
    }
  } catch (const std::bad_alloc&) {
    c.failed = true;
  }
  workers.done(*c.group);
  {
    std::lock_guard lock(done_mutex_);
    done_.push_back(&c);
  }
  // The connection may be gone by now.
  wake();
}

void Server::work_is_done(uint64_t now_ns) {
  engine::LinkedList<Connection, OfDone> done;
  {
    std::lock_guard lock(done_mutex_);
    done.take(done_);
  }
  while (Connection* const one = done.front()) {
    done.erase(one);
    const Phase was = one->phase;
    if (was == Phase::kLeaving) {
      forget(*one);
      continue;
    }
    one->phase = Phase::kReply;  // nobody else has it any more
    give_turn(one->client->id, [&](Connection& c) {
      // A request whose body has not come yet is refused where it failed, and not begun while the daemon ends.
      const bool preparing = was == Phase::kPreparing, over = c.failed ? !preparing : preparing && draining_;
      if (was == Phase::kReceiving) {
        received_some(c, now_ns);
      } else if (was == Phase::kSending) {
        sent_some(c, now_ns);
      } else if (c.gone || over) {
        close_connection(c);
      } else if (c.failed) {
        // What follows of this request cannot be taken, so the connection ends.
        service_.counters.request_errors++;
        Session::refuse(c.header, NEOTIER_ENOMEM, "neotierd is out of memory", c.reply);
        c.outcome.hang_up = true;
        answer(c, now_ns);
      } else if (preparing) {
        expect_body(c, now_ns);
      } else if (was == Phase::kTidying) {
        next_request(c, now_ns);
      } else if (c.outcome.ticket) {
        c.phase = Phase::kTicket;
        on_tickets_.push_back(&c);
      } else {
        answer(c, now_ns);
      }
    });
  }
}

void Server::check_tickets(uint64_t now_ns) {
  // Those that end leave the list, the others go to its end: each is looked at once.
  for (size_t left = on_tickets_.size(); left > 0 && !on_tickets_.empty(); left--) {
    Connection* const one = on_tickets_.pop_front();
    if (one->outcome.ticket->progress().pending > 0 && now_ns < one->outcome.until_ns) {
      on_tickets_.push_back(one);
      continue;
    }
    give_turn(one->client->id, [&](Connection& c) {
      Session::finish(c.header, *c.outcome.ticket, c.reply);
      c.outcome.ticket = nullptr;
      answer(c, now_ns);
    });
  }
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
  if (c.reply.size() - c.sent > kFree) return hand_in(c, Phase::kSending, *bulk_, c.client->user->bulk);
  while (c.sent < c.reply.size()) {
    const ssize_t put = ::send(c.fd, c.reply.data() + c.sent, c.reply.size() - c.sent, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return watch(c, EPOLLOUT);
    if (put <= 0) return close_connection(c);
    c.sent += static_cast<size_t>(put);
    count_sent(c, static_cast<uint64_t>(put));
  }
  reply_is_sent(c, now_ns);
}

void Server::reply_is_sent(Connection& c, uint64_t now_ns) {
  if (c.outcome.hang_up || draining_) return close_connection(c);
  next_request(c, now_ns);
}

void Server::next_request(Connection& c, uint64_t now_ns) {
  if (c.reply.large()) return hand_in(c, Phase::kTidying, *bulk_, c.client->user->bulk);
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
  c.client->user->in_flight_bytes -= c.room;
  c.room = 0;
  grant_room(now_ns);
}

void Server::check_deadlines(uint64_t now_ns) {
  // One that goes may make others go.
  ids_.clear();
  for (const auto& [id, c] : connections_) {
    if (c->deadline_ns <= now_ns) ids_.push_back(id);
  }
  for (const uint64_t id : ids_) {
    const auto late = connections_.find(id);
    if (late == connections_.end()) continue;
    time_out(*late->second);
  }
  next_deadline_ns_ = UINT64_MAX;
  for (const auto& [id, c] : connections_) next_deadline_ns_ = std::min(next_deadline_ns_, c->deadline_ns);
}

std::string Server::name_of(const Connection& c) {
  const ClientStatus of = c.client->status();
  return fmt::format("client {} ({}process {}, user {})", of.id, of.name.empty() ? "" : fmt::format("'{}', ", of.name),
                     of.peer.pid, of.peer.uid);
}

void Server::cut_off(Connection& c, LogLevel level, LogEvent event, const char* why) {
  service_.log.event(level, event, service_.clock.now_ns(),
                     [&] { return fmt::format("{} is cut off: {}", name_of(c), why); });
  close_connection(c);
}

void Server::time_out(Connection& c) {
  service_.counters.timeouts++;
  // Between two requests nobody is late; that is how long one may idle.
  const bool idle = c.phase == Phase::kHeader && c.have == 0 && c.session->greeted();
  cut_off(c, idle ? LogLevel::kInfo : LogLevel::kWarning, LogEvent::kTimeout,
          idle ? "it idled longer than [socket].idle_timeout_s" : "it stopped in the middle of a request or reply");
}

void Server::close_connection(Connection& c) {
  if (c.phase == Phase::kLeaving) return;
  // Closed it leaves epoll by itself: no copy of it is anywhere.
  const int fd = std::exchange(c.fd, -1);
  c.deadline_ns = UINT64_MAX;
  if (engine::LinkedList<Connection, OfRoom>::has(&c)) waiting_.erase(&c);
  if (engine::LinkedList<Connection, OfTickets>::has(&c)) on_tickets_.erase(&c);
  if (!c.outcome.ticket && c.session->light() && !c.body.large() && !c.reply.large()) {
    // Who sees the end finds what it held free.
    forget(c);
    close(fd);
    return;
  }
  close(fd);
  // Pins, moves and pages, as many as a client may have: not the loop's work. Nor for those who may have to wait for a
  // medium.
  hand_in(c, Phase::kLeaving, *bulk_, c.client->user->bulk);
}

void Server::forget(Connection& c) {
  const std::shared_ptr<Client> client = c.client;
  const uint64_t room = std::exchange(c.room, 0);
  if (--client->user->connections == 0) users_.erase(client->peer.uid);
  clients_.remove(client->id);
  connections_.erase(client->id);
  if (room == 0) return;
  in_flight_ -= room;
  client->user->in_flight_bytes -= room;
  grant_room(service_.clock.now_ns());
}

void Server::drain(uint64_t now_ns) {
  draining_ = true;
  if (accepting_) epoll_ctl(epoll_, EPOLL_CTL_DEL, listening_, nullptr);
  accept_again_ns_ = UINT64_MAX;
  ids_.clear();
  for (const auto& [id, c] : connections_) {
    if (c->phase == Phase::kHeader || c->phase == Phase::kBody || c->phase == Phase::kRoomForBody) ids_.push_back(id);
  }
  for (const uint64_t id : ids_) {
    const auto idle = connections_.find(id);
    if (idle != connections_.end()) close_connection(*idle->second);
  }
  next_deadline_ns_ = std::min(next_deadline_ns_, now_ns);
}

}  // namespace neotier::daemon
