// SPDX-License-Identifier: Apache-2.0
// The sockets: one thread waits for all of them (epoll) and never for an engine; requests go to the workers, a client's
// one at a time and in order, so that users take turns and a client that goes can be put away in one place. What waits
// for nothing is answered at once, and what waits for the engine alone has workers of its own: however many requests
// wait for media, others are answered. What is longer than 64 KiB is taken, copied and given back by a third kind of
// workers, so that the loop has little to do and is soon there for the next.
//
// Memory is bounded before it is taken: a frame's length is checked first, what is above 64 KiB waits until
// in_flight_bytes has room, and who then stops in the middle is cut off after message_timeout_s. A request holds room
// once, for the longer of its body and its reply, so nobody waits for room while holding some. Where there is none
// after all (std::bad_alloc), the client that it was for is cut off, and the loop goes on.
//
// Thread safety: run() by one thread; the rest from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "daemon/clients.h"
#include "daemon/limits.h"
#include "daemon/session.h"
#include "daemon/workers.h"

namespace neotier::daemon {

class Server {
 public:
  // Serves who connects to `listening` (non-blocking, not owned). Throws std::runtime_error.
  Server(Service service, Clients& clients, Limits limits, uint32_t workers, int listening);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Until stop(), and then until what is under way has been answered, at most drain_ns longer.
  void run(uint64_t drain_ns);
  void stop();
  void set_limits(const Limits& limits);
  // Makes the loop look at the clock.
  void wake();
  // Turns of the loop.
  uint64_t beats() const { return beats_; }
  uint64_t in_flight_bytes() const { return in_flight_; }

 private:
  // With a worker: kPreparing, memory for its body is taken; kReceiving and kSending, more of its body or reply than
  // the loop copies; kRunning; kTidying, memory of its reply is given back; kLeaving, all that it holds.
  enum class Phase : uint8_t {
    kHeader,
    kRoomForBody,
    kPreparing,
    kBody,
    kReceiving,
    kRoomForReply,
    kRunning,
    kTicket,
    kReply,
    kSending,
    kTidying,
    kLeaving
  };
  struct OfDone;
  struct OfRoom;
  struct OfTickets;

  struct Connection : Work,
                      engine::Linked<Connection, OfDone>,
                      engine::Linked<Connection, OfRoom>,
                      engine::Linked<Connection, OfTickets> {
    int fd = -1;
    std::shared_ptr<Client> client;
    std::unique_ptr<Session> session;
    Phase phase = Phase::kHeader;
    std::byte raw_header[kHeaderBytes] = {};
    Header header;
    Buffer body, reply;
    size_t have = 0, sent = 0;  // of header or body; of the reply
    uint64_t deadline_ns = UINT64_MAX, kept_deadline_ns = UINT64_MAX;
    uint64_t wanted = 0, room = 0;  // of in_flight_bytes; held of it
    Session::Outcome outcome;
    uint32_t watched = 0;
    bool gone = false;
    bool ended = false;   // the other end closed, as its worker found
    bool failed = false;  // its worker had no memory
    bool with_worker() const {
      return phase == Phase::kPreparing || phase == Phase::kReceiving || phase == Phase::kRunning ||
             phase == Phase::kSending || phase == Phase::kTidying || phase == Phase::kLeaving;
    }
  };

  void accept_clients(uint64_t now_ns);
  // What could not be taken for want of memory is closed.
  void accept_client(int fd, uint64_t now_ns);
  // `turn` of a client that may be cut off in it; for want of memory it is.
  template <typename Turn>
  void give_turn(uint64_t id, Turn turn);
  void turn_away(int fd, const std::string& why);
  void ready(Connection& c, uint32_t events, uint64_t now_ns);
  void receive(Connection& c, uint64_t now_ns);
  // Whether its body can be read now; false also where the connection was closed.
  bool header_is_there(Connection& c, uint64_t now_ns);
  void want_room(Connection& c, uint64_t bytes, Phase waiting, uint64_t now_ns);
  void grant_room(uint64_t now_ns);
  void room_is_there(Connection& c, uint64_t now_ns);
  void release_room(Connection& c, uint64_t now_ns);
  void body_is_there(Connection& c, uint64_t now_ns);
  void expect_body(Connection& c, uint64_t now_ns);
  void start(Connection& c, uint64_t now_ns);
  void hand_in(Connection& c, Phase phase, Workers& workers, WorkGroup& group);
  void carry_out(Workers& workers, Connection& c);
  void receive_turn(Connection& c);
  void send_turn(Connection& c);
  void received_some(Connection& c, uint64_t now_ns);
  void sent_some(Connection& c, uint64_t now_ns);
  void reply_is_sent(Connection& c, uint64_t now_ns);
  void count_received(Connection& c, uint64_t bytes);
  void count_sent(Connection& c, uint64_t bytes);
  void keep_deadline(Connection& c);
  void forget(Connection& c);
  void work_is_done(uint64_t now_ns);
  void check_tickets(uint64_t now_ns);
  void answer(Connection& c, uint64_t now_ns);
  void send(Connection& c, uint64_t now_ns);
  void next_request(Connection& c, uint64_t now_ns);
  void protocol_error(Connection& c, const std::string& what, uint64_t now_ns);
  void watch(Connection& c, uint32_t events);
  void set_deadline(Connection& c, uint64_t now_ns, uint64_t seconds);
  void check_deadlines(uint64_t now_ns);
  void close_connection(Connection& c);
  static std::string name_of(const Connection& c);
  void cut_off(Connection& c, LogLevel level, LogEvent event, const char* why);
  void time_out(Connection& c);
  void drain(uint64_t now_ns);
  int wait_ms(uint64_t now_ns) const;
  Limits limits() const;

  Service service_;
  Clients& clients_;
  mutable std::mutex limits_mutex_;
  Limits limits_;
  const int listening_;
  int epoll_ = -1, event_ = -1;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> beats_{0}, in_flight_{0};
  bool draining_ = false, accepting_ = true;
  uint64_t accept_again_ns_ = UINT64_MAX;
  uint64_t next_deadline_ns_ = UINT64_MAX;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;  // by the client's number
  std::vector<uint64_t> ids_;                                              // scratch, with room for all of them
  std::map<uid_t, std::shared_ptr<User>> users_;                           // of those
  engine::LinkedList<Connection, OfRoom> waiting_;                         // for room, in turn
  engine::LinkedList<Connection, OfTickets> on_tickets_;
  std::mutex done_mutex_;
  engine::LinkedList<Connection, OfDone> done_;
  std::unique_ptr<Workers> slow_, quick_, bulk_;
};

}  // namespace neotier::daemon
