// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/remote/io_thread.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>
#include <valkey/read.h>
#include <valkey/valkey.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "engine/tiers/remote/slot_map.h"
#include "engine/tiers/remote/tls.h"
#include "engine/tiers/remote/value.h"

namespace neotier::engine::remote {

namespace {

// Asked for at a time on a connection: enough that neither side waits for the other, and few enough that what is
// cancelled is not sent.
constexpr uint32_t kMostSent = 64;
constexpr uint64_t kMostSentBytes = 8 << 20;
constexpr size_t kMostVectors = 64;
// Handed to TLS at a time: what remains of it is moved by the library.
constexpr size_t kTlsBytes = 128 << 10;
// No reply is larger than a value and its header, whatever the server says; a read may bring the next ones' beginning.
constexpr size_t kMostReply = kPartBytes + kHeaderBytes + 64;
constexpr uint8_t kMostAttempts = 2, kMostRedirects = 8;
constexpr size_t kMostWords = 200;
constexpr std::string_view kAsking = "*1\r\n$6\r\nASKING\r\n";

// What a server says goes into one line of a log.
std::string printable(std::string_view words) {
  std::string text(words.substr(0, kMostWords));
  for (char& c : text) c = c >= ' ' && c <= '~' ? c : '?';
  return text;
}

bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

}  // namespace

struct IoThread::Connection {
  enum class State { kNone, kConnecting, kHandshake, kGreeting, kReady };

  explicit Connection(Node& its_node) : node(its_node) {}

  Node& node;
  State state = State::kNone;
  // Connecting: the socket is not the context's yet.
  int fd = -1;
  addrinfo *addresses = nullptr, *address = nullptr;
  valkeyContext* context = nullptr;
  ssl_st* session = nullptr;
  short handshake_waits_for = 0;
  unsigned greetings = 0;  // replies that are to come
  bool unsent = false;     // in the context's buffer
  bool blocked = false;    // the socket takes no more
  uint64_t deadline_ns = 0;
  // Not begun; begun, of the first of which `cursor` bytes are out; out, and not answered.
  CommandQueue waiting, sending, sent;
  uint64_t cursor = 0;
  uint32_t sent_count = 0;
  uint64_t sent_bytes = 0;
  Reply reply;  // that is being read

  int descriptor() const { return context ? context->fd : fd; }
  bool idle() const { return sending.empty() && sent.empty(); }
};

namespace {

uint64_t cost(const Command& command) { return command.expected + bytes_of(command.body) + 256; }

// The library makes objects of replies by these. Of each reply there is one, the connection's; parts of arrays are of
// no interest.
Reply* reply_of(const valkeyReadTask* task) { return &static_cast<IoThread::Connection*>(task->privdata)->reply; }

void* make_string(const valkeyReadTask* task, char* bytes, size_t size) {
  auto& c = *static_cast<IoThread::Connection*>(task->privdata);
  if (task->parent) return &c.reply;
  if (task->type == VALKEY_REPLY_ERROR) {
    c.reply.kind = ReplyKind::kError;
    try {
      c.reply.error = printable({bytes, size});
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  } else if (task->type == VALKEY_REPLY_STATUS) {
    c.reply.kind = ReplyKind::kStatus;
  } else {
    c.reply.kind = ReplyKind::kBytes;
    if (c.state == IoThread::Connection::State::kReady && !c.sent.empty()) c.sent.front()->take({bytes, size});
  }
  return &c.reply;
}
void* make_other(const valkeyReadTask* task) {
  if (!task->parent) reply_of(task)->kind = ReplyKind::kOther;
  return reply_of(task);
}
void* make_array(const valkeyReadTask* task, size_t) { return make_other(task); }
void* make_integer(const valkeyReadTask* task, long long value) {
  if (!task->parent) {
    reply_of(task)->kind = ReplyKind::kInteger;
    reply_of(task)->integer = value;
  }
  return reply_of(task);
}
void* make_double(const valkeyReadTask* task, double, char*, size_t) { return make_other(task); }
void* make_nil(const valkeyReadTask* task) {
  if (!task->parent) reply_of(task)->kind = ReplyKind::kNothing;
  return reply_of(task);
}
void* make_bool(const valkeyReadTask* task, int) { return make_other(task); }

valkeyReplyObjectFunctions kMakers{make_string, make_array, make_integer, make_double,
                                   make_nil,    make_bool,  [](void*) {}};

}  // namespace

IoThread::IoThread(Client& client) : client_(client), wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wakeup_ < 0) throw std::runtime_error(client.options_.name + ": no eventfd: " + std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

IoThread::~IoThread() {
  stop();
  for (const std::unique_ptr<Connection>& c : connections_) {
    if (!c) continue;
    if (c->context) valkeyFree(c->context);
    if (c->fd >= 0) close(c->fd);
    if (c->addresses) freeaddrinfo(c->addresses);
  }
  close(wakeup_);
}

void IoThread::stop() {
  stop_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

bool IoThread::end_all() {
  const Status status(Code::kCancelled, "");
  bool any = false;
  CommandQueue left;
  {
    const std::lock_guard lock(mutex_);
    left.prepend(incoming_);
  }
  for (const std::unique_ptr<Connection>& c : connections_) {
    if (!c) continue;
    for (CommandQueue* queue : {&c->waiting, &c->sending, &c->sent}) left.prepend(*queue);
  }
  any = !left.empty();
  fail_all(left, status);
  return any;
}

void IoThread::wake() noexcept {
  const uint64_t one = 1;
  (void)!write(wakeup_, &one, sizeof one);
}

void IoThread::submit(Command* command, bool now) noexcept {
  load_ += cost(*command);
  bool tell = false;
  {
    const std::lock_guard lock(mutex_);
    if (incoming_.empty()) told_ = false;
    incoming_.push(command);
    tell = now && !told_;
    if (tell) told_ = true;
  }
  if (tell) wake();
}

void IoThread::hurry() noexcept {
  bool tell = false;
  {
    const std::lock_guard lock(mutex_);
    tell = !incoming_.empty() && !told_;
    if (tell) told_ = true;
  }
  if (tell) wake();
}

void IoThread::sweep() noexcept {
  sweep_ = true;
  wake();
}

void IoThread::end(Command* command, const Status& status, const Reply& reply) {
  load_ -= cost(*command);
  command->done(status, reply);
}

void IoThread::fail_all(CommandQueue& queue, const Status& status) {
  while (!queue.empty()) end(queue.pop(), status);
}

void IoThread::run() {
  // Sockets that are closed are errors here, and signals are the program's.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (!stop_) {
    try {
      work();
    } catch (const std::bad_alloc&) {
      // Nothing is half done: what throws is asked before anything changes. It is tried again.
      poll(nullptr, 0, 10);
    }
  }
}

void IoThread::work() {
  take_incoming();
  const bool sweep = sweep_.exchange(false);
  uint64_t now = now_ns();
  std::vector<pollfd> fds{{wakeup_, POLLIN, 0}};
  std::vector<Connection*> polled;
  uint64_t wake_ns = UINT64_MAX;
  for (size_t i = 0; i < connections_.size(); i++) {
    if (!connections_[i]) continue;
    Connection& c = *connections_[i];
    if (sweep) drop_unwanted(c);
    if (c.state == Connection::State::kNone && !c.waiting.empty()) {
      const uint64_t retry = c.node.retry_ns.load();
      if (retry > now) {
        fail_all(c.waiting, client_.unavailable(c.node));
      } else {
        connect(c);
      }
    }
    if (c.state == Connection::State::kReady) send(c);
    if (c.state == Connection::State::kNone) {
      // A connection that broke just now, or could not be made: looked at again at once.
      if (!c.waiting.empty()) wake_ns = 0;
      continue;
    }
    short events = POLLIN;
    if (c.state == Connection::State::kConnecting) events = POLLOUT;
    if (c.state == Connection::State::kHandshake) events = c.handshake_waits_for;
    if (c.state == Connection::State::kGreeting && c.unsent) events |= POLLOUT;
    if (c.state == Connection::State::kReady && c.blocked) events |= POLLOUT;
    fds.push_back({c.descriptor(), events, 0});
    polled.push_back(&c);
    if (c.state != Connection::State::kReady || !c.idle()) wake_ns = std::min(wake_ns, c.deadline_ns);
  }
  int wait_ms = -1;
  if (wake_ns != UINT64_MAX) {
    now = now_ns();
    wait_ms = wake_ns <= now ? 0 : static_cast<int>((wake_ns - now) / 1000000 + 1);
  }
  if (poll(fds.data(), fds.size(), wait_ms) < 0) return;
  if (fds[0].revents != 0) {
    uint64_t ignored = 0;
    (void)!read(wakeup_, &ignored, sizeof ignored);
  }
  now = now_ns();
  for (size_t i = 0; i < polled.size(); i++) {
    Connection& c = *polled[i];
    const short events = fds[i + 1].revents;
    if (events != 0) {
      if (events & POLLOUT) c.blocked = false;
      switch (c.state) {
        case Connection::State::kNone:
          break;
        case Connection::State::kConnecting: {
          int error = 0;
          socklen_t size = sizeof error;
          getsockopt(c.fd, SOL_SOCKET, SO_ERROR, &error, &size);
          if (error != 0) {
            try_next_address(c, std::strerror(error));
          } else {
            connected(c);
          }
          break;
        }
        case Connection::State::kHandshake:
          shake_hands(c);
          break;
        case Connection::State::kGreeting:
          if (c.unsent) {
            int done = 0;
            if (valkeyBufferWrite(c.context, &done) != VALKEY_OK) {
              drop(c, c.context->errstr, true);
              break;
            }
            c.unsent = done == 0;
          }
          if (events & (POLLIN | POLLHUP | POLLERR)) receive(c);
          break;
        case Connection::State::kReady:
          if (events & (POLLIN | POLLHUP | POLLERR)) receive(c);
          break;
      }
    } else if ((c.state != Connection::State::kReady || !c.idle()) && now >= c.deadline_ns) {
      if (c.state == Connection::State::kConnecting) {
        try_next_address(c, "no answer in time");
      } else {
        drop(c, fmt::format("no answer in {} ms", client_.options_.timeout_ms), true);
      }
    }
  }
}

IoThread::Connection* IoThread::connection(Node& node) {
  if (connections_.size() <= node.id) connections_.resize(node.id + 1);
  if (!connections_[node.id]) connections_[node.id] = std::make_unique<Connection>(node);
  return connections_[node.id].get();
}

void IoThread::take_incoming() {
  CommandQueue incoming;
  {
    const std::lock_guard lock(mutex_);
    incoming.prepend(incoming_);
  }
  while (!incoming.empty()) {
    Command* const command = incoming.pop();
    if (command->nowhere) {
      end(command, Status::ok());
      continue;
    }
    if (!command->to) {
      end(command, status_of(Code::kTimeout, [&] {
            return fmt::format("{}: no server of the cluster has its slot now", client_.options_.name);
          }));
      continue;
    }
    try {
      connection(*command->to)->waiting.push(command);
    } catch (const std::bad_alloc&) {
      end(command, no_memory());
    }
  }
}

void IoThread::drop_unwanted(Connection& c) {
  CommandQueue kept;
  while (!c.waiting.empty()) {
    Command* const command = c.waiting.pop();
    if (!command->begun_ && command->cancelled()) {
      end(command, Status(Code::kCancelled, ""));
    } else {
      kept.push(command);
    }
  }
  c.waiting.prepend(kept);
}

// ---- connecting

void IoThread::busy(Connection& c) { c.deadline_ns = now_ns() + uint64_t{client_.options_.timeout_ms} * 1000000; }

void IoThread::connect(Connection& c) {
  const Address& address = c.node.address;
  if (address.port == 0) {
    sockaddr_un path{};
    path.sun_family = AF_UNIX;
    std::memcpy(path.sun_path, address.host.data(), std::min(address.host.size(), sizeof path.sun_path - 1));
    c.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c.fd < 0 || ::connect(c.fd, reinterpret_cast<const sockaddr*>(&path), sizeof path) != 0)
      return drop(c, std::strerror(errno), true);
    return connected(c);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &c.addresses);
  if (error != 0) {
    c.addresses = nullptr;
    return drop(c, gai_strerror(error), true);
  }
  c.address = nullptr;
  try_next_address(c, "it has no address");
}

void IoThread::try_next_address(Connection& c, const std::string& why) {
  std::string last = why;
  if (c.fd >= 0) close(c.fd);
  c.fd = -1;
  for (c.address = c.address ? c.address->ai_next : c.addresses; c.address; c.address = c.address->ai_next) {
    c.fd = socket(c.address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c.fd < 0) continue;
    if (::connect(c.fd, c.address->ai_addr, c.address->ai_addrlen) == 0) return connected(c);
    if (errno == EINPROGRESS) {
      c.state = Connection::State::kConnecting;
      return busy(c);
    }
    last = std::strerror(errno);
    close(c.fd);
    c.fd = -1;
  }
  drop(c, last, true);
}

void IoThread::connected(Connection& c) {
  if (c.addresses) freeaddrinfo(c.addresses);
  c.addresses = c.address = nullptr;
  if (c.node.address.port != 0) {
    const int on = 1;
    setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(c.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  }
  valkeyOptions options{};
  options.type = VALKEY_CONN_USERFD;
  options.options = VALKEY_OPT_NONBLOCK;
  options.endpoint.fd = c.fd;
  c.context = valkeyConnectWithOptions(&options);
  if (!c.context || c.context->err != 0) return drop(c, "out of memory", true);
  c.fd = -1;
  valkeyReader& reader = *c.context->reader;
  reader.fn = &kMakers;
  reader.privdata = &c;
  reader.maxbuf = 0;  // the next value is as large
  reader.maxelements = 1024;
  reader.maxdepth = 8;
  busy(c);
  if (!client_.tls_) return greet(c);
  std::string why;
  c.session = client_.tls_->begin(c.context, c.node.address.host, why);
  if (!c.session) return drop(c, "TLS: " + why, true);
  c.state = Connection::State::kHandshake;
  shake_hands(c);
}

void IoThread::shake_hands(Connection& c) {
  std::string why;
  switch (Tls::handshake(c.session, why)) {
    case Tls::Step::kDone:
      return greet(c);
    case Tls::Step::kWantsRead:
      c.handshake_waits_for = POLLIN;
      return;
    case Tls::Step::kWantsWrite:
      c.handshake_waits_for = POLLOUT;
      return;
    case Tls::Step::kFailed:
      return drop(c, "TLS: " + why, true);
  }
}

void IoThread::greet(Connection& c) {
  const ClientOptions& options = client_.options_;
  c.state = Connection::State::kGreeting;
  c.greetings = 0;
  const auto say = [&](const std::string& command) {
    c.greetings++;
    return valkeyAppendFormattedCommand(c.context, command.data(), command.size()) == VALKEY_OK;
  };
  bool said = true;
  if (!options.password.empty())
    said = options.user.empty() ? say(words({"AUTH", options.password}))
                                : say(words({"AUTH", options.user, options.password}));
  if (options.database != 0) said = said && say(words({"SELECT", std::to_string(options.database)}));
  said = said && say(words({"PING"}));
  int done = 0;
  if (!said || valkeyBufferWrite(c.context, &done) != VALKEY_OK) return drop(c, c.context->errstr, true);
  c.unsent = done == 0;
}

void IoThread::greeted(Connection& c) {
  c.state = Connection::State::kReady;
  c.blocked = false;
  client_.mark_up(c.node);
}

void IoThread::drop(Connection& c, const std::string& why, bool down) {
  if (c.context) valkeyFree(c.context);
  c.context = nullptr;
  c.session = nullptr;
  if (c.fd >= 0) close(c.fd);
  c.fd = -1;
  if (c.addresses) freeaddrinfo(c.addresses);
  c.addresses = c.address = nullptr;
  c.state = Connection::State::kNone;
  c.unsent = c.blocked = false;
  c.cursor = 0;
  c.sent_count = 0;
  c.sent_bytes = 0;
  c.reply = {};
  CommandQueue under_way;
  under_way.prepend(c.sending);
  under_way.prepend(c.sent);
  if (down) {
    client_.mark_down(c.node, why);
    const Status status = client_.unavailable(c.node);
    fail_all(under_way, status);
    fail_all(c.waiting, status);
    return;
  }
  CommandQueue again;
  while (!under_way.empty()) {
    Command* const command = under_way.pop();
    command->extra_replies_ = 0;
    if (++command->attempts_ < kMostAttempts) {
      again.push(command);
    } else {
      end(command, status_of(Code::kIo, [&] {
            return fmt::format("{}: {}: {}", client_.options_.name, to_string(c.node.address), why);
          }));
    }
  }
  c.waiting.prepend(again);
}

// ---- talking

void IoThread::admit(Connection& c) {
  while (!c.waiting.empty() && c.sent_count < kMostSent && c.sent_bytes < kMostSentBytes) {
    Command* const command = c.waiting.pop();
    if (!command->begun_) {
      const Status status = command->begin();
      if (!status.is_ok()) {
        end(command, status);
        continue;
      }
    }
    if (c.idle()) busy(c);
    command->begun_ = true;
    command->extra_replies_ = command->asking_ ? 1 : 0;
    c.sending.push(command);
    c.sent_count++;
    c.sent_bytes += cost(*command);
  }
}

void IoThread::send(Connection& c) {
  while (c.state == Connection::State::kReady && !c.blocked) {
    admit(c);
    if (c.sending.empty() && !c.unsent) return;
    const bool good = c.session ? send_tls(c, c.blocked) : send_plain(c, c.blocked);
    // What the server said before it closed may say why.
    if (!good) return receive(c);
  }
}

namespace {

// The bytes of a command, from `skip` on, as pieces of memory; false where `most` are not enough.
class Gather {
 public:
  void add(const char* bytes, uint64_t size) {
    if (size <= skip_) {
      skip_ -= size;
      return;
    }
    if (count_ < kMostVectors) {
      vectors_[count_].iov_base = const_cast<char*>(bytes + skip_);
      vectors_[count_].iov_len = size - skip_;
      count_++;
    } else {
      full_ = true;
    }
    skip_ = 0;
  }
  void add(const Command& command, bool asking, uint64_t skip) {
    skip_ = skip;
    if (asking) add(kAsking.data(), kAsking.size());
    add(command.head.data(), command.head.size());
    for (const Piece& piece : command.body) {
      if (full_) return;
      add(reinterpret_cast<const char*>(piece.data), piece.bytes);
    }
    add(command.tail.data(), command.tail.size());
  }
  bool full() const { return full_ || count_ == kMostVectors; }
  iovec* vectors() { return vectors_; }
  size_t count() const { return count_; }

 private:
  iovec vectors_[kMostVectors];
  size_t count_ = 0;
  uint64_t skip_ = 0;
  bool full_ = false;
};

}  // namespace

bool IoThread::send_plain(Connection& c, bool& blocked) {
  Gather gather;
  uint64_t skip = c.cursor;
  for (const Command* command = c.sending.front(); command && !gather.full(); command = CommandQueue::after(command)) {
    gather.add(*command, command->asking_, skip);
    skip = 0;
  }
  msghdr message{};
  message.msg_iov = gather.vectors();
  message.msg_iovlen = gather.count();
  const ssize_t sent = sendmsg(c.context->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    blocked = errno == EAGAIN || errno == EINTR;
    return blocked;
  }
  advance(c, static_cast<uint64_t>(sent));
  return true;
}

bool IoThread::send_tls(Connection& c, bool& blocked) {
  if (!c.unsent) {
    Gather gather;
    gather.add(*c.sending.front(), c.sending.front()->asking_, c.cursor);
    uint64_t taken = 0;
    for (size_t i = 0; i < gather.count() && taken < kTlsBytes; i++) {
      const iovec& vector = gather.vectors()[i];
      const size_t some = std::min<size_t>(vector.iov_len, kTlsBytes - taken);
      if (valkeyAppendFormattedCommand(c.context, static_cast<const char*>(vector.iov_base), some) != VALKEY_OK)
        return false;
      taken += some;
    }
    advance(c, taken);
  }
  int done = 0;
  if (valkeyBufferWrite(c.context, &done) != VALKEY_OK) return false;
  c.unsent = blocked = done == 0;
  return true;
}

void IoThread::advance(Connection& c, uint64_t bytes) {
  while (bytes > 0) {
    const Command& command = *c.sending.front();
    const uint64_t size =
        (command.asking_ ? kAsking.size() : 0) + command.head.size() + bytes_of(command.body) + command.tail.size();
    const uint64_t left = size - c.cursor;
    if (bytes < left) {
      c.cursor += bytes;
      return;
    }
    bytes -= left;
    c.cursor = 0;
    c.sent.push(c.sending.pop());
  }
}

void IoThread::receive(Connection& c) {
  while (c.context) {
    const size_t before = c.context->reader->len - c.context->reader->pos;
    const bool failed = valkeyBufferRead(c.context) != VALKEY_OK;
    const size_t after = c.context->reader->len - c.context->reader->pos;
    while (c.context) {
      void* object = nullptr;
      c.reply = {};
      if (valkeyGetReplyFromReader(c.context, &object) != VALKEY_OK)
        return drop(c, fmt::format("not what a server says: {}", printable(c.context->errstr)),
                    c.state != Connection::State::kReady);
      if (!object) break;
      if (!replied(c)) return;
    }
    const valkeyReader& reader = *c.context->reader;
    if (failed) {
      // A connection that nobody used may be closed by the server as it likes.
      const std::string why = c.context->errstr;
      return drop(c, why, c.state != Connection::State::kReady);
    }
    // The part of a reply that is there is larger than any may be.
    if (reader.len - reader.pos > 2 * kMostReply + kMostSentBytes)
      return drop(c, "a reply that never ends", c.state != Connection::State::kReady);
    // TLS may hold more than the socket shows.
    if (!c.session || after == before) return;
  }
}

bool IoThread::replied(Connection& c) {
  const Reply reply = std::move(c.reply);
  if (c.state == Connection::State::kGreeting) {
    if (reply.kind == ReplyKind::kError && !begins(reply.error, "NOPERM")) {
      drop(c, reply.error, true);
      return false;
    }
    if (--c.greetings == 0) greeted(c);
    return true;
  }
  if (c.sent.empty()) {
    drop(c, reply.kind == ReplyKind::kError ? reply.error : "an answer to nothing", false);
    return false;
  }
  busy(c);
  if (c.sent.front()->extra_replies_ > 0) {
    c.sent.front()->extra_replies_--;
    return true;
  }
  Command* const command = c.sent.pop();
  c.sent_count--;
  c.sent_bytes -= cost(*command);
  if (reply.kind != ReplyKind::kError) {
    end(command, Status::ok(), reply);
  } else if (!redirected(c, command, reply.error)) {
    end(command, status_of_error(c, reply.error), reply);
  }
  return true;
}

// "MOVED 3999 10.0.0.2:6381" for good, "ASK ..." for this once.
bool IoThread::redirected(Connection& c, Command* command, const std::string& error) {
  const bool ask = begins(error, "ASK ");
  if ((!ask && !begins(error, "MOVED ")) || !client_.options_.cluster || command->redirects_ >= kMostRedirects)
    return false;
  const size_t after_slot = error.find(' ', ask ? 4 : 6), colon = error.rfind(':');
  if (after_slot == std::string::npos || colon == std::string::npos || colon < after_slot) return false;
  unsigned slot = kSlots, port = 0;
  const char* const end = error.data() + error.size();
  std::from_chars(error.data() + (ask ? 4 : 6), error.data() + after_slot, slot);
  const auto [rest, bad] = std::from_chars(error.data() + colon + 1, end, port);
  if (slot >= kSlots || bad != std::errc() || rest != end || port == 0 || port > UINT16_MAX) return false;
  Node* node = nullptr;
  Connection* other = nullptr;
  try {
    Address address{error.substr(after_slot + 1, colon - after_slot - 1), static_cast<uint16_t>(port)};
    if (address.host.empty()) address.host = c.node.address.host;
    node = client_.find_node(address);
    if (node) other = connection(*node);
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (!node) return false;
  if (!ask) {
    client_.set_slot(slot, node);
    client_.slot_map_->refresh();
  }
  command->asking_ = ask;
  command->redirects_++;
  command->to = node;
  other->waiting.push(command);
  return true;
}

Status IoThread::status_of_error(const Connection& c, const std::string& error) {
  Code code = Code::kIo;
  if (begins(error, "OOM")) code = Code::kFull;
  if (begins(error, "WRONGTYPE")) code = Code::kCorrupt;
  for (const std::string_view passing : {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "TRYAGAIN", "READONLY", "BUSY"}) {
    if (!begins(error, passing)) continue;
    code = Code::kTimeout;
    if (client_.slot_map_) client_.slot_map_->refresh();
  }
  return status_of(code,
                   [&] { return fmt::format("{}: {}: {}", client_.options_.name, to_string(c.node.address), error); });
}

}  // namespace neotier::engine::remote
