// SPDX-License-Identifier: Apache-2.0
// One client's requests put to the engine: bodies checked, limits kept, answers written. Knows no sockets.
//
// Thread safety: one call at a time, from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/protocol.h"
#include "daemon/clients.h"
#include "daemon/held_pins.h"
#include "daemon/limits.h"
#include "daemon/log.h"
#include "engine/engine.h"

namespace neotier::daemon {

// Bytes that are overwritten before they are read: not cleared, and kept while they are no more than a few MiB.
class Buffer {
 public:
  std::byte* make(size_t bytes) {
    if (bytes > capacity_) {
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      capacity_ = bytes;
    }
    size_ = bytes;
    return bytes_.get();
  }
  void shrink() {
    size_ = 0;
    if (capacity_ <= kKept) return;
    bytes_.reset();
    capacity_ = 0;
  }
  std::byte* data() { return bytes_.get(); }
  size_t size() const { return size_; }
  // More than is kept: giving it back takes as long as it is large.
  bool large() const { return capacity_ > kKept; }
  void drop() {
    size_ = capacity_ = 0;
    bytes_.reset();
  }
  std::span<std::byte> span() { return {bytes_.get(), size_}; }

 private:
  static constexpr size_t kKept = 4 << 20;
  std::unique_ptr<std::byte[]> bytes_;
  size_t capacity_ = 0, size_ = 0;
};

// What all sessions share.
struct Service {
  engine::Engine& engine;
  DaemonCounters& counters;
  const engine::Clock& clock;
  Log& log;
  std::function<std::string()> status;                  // JSON
  std::function<std::string(uint32_t format)> metrics;  // enum neotier_metrics_format
};

class Session {
 public:
  // Opens a session of the engine; the destructor closes it, and with it go its pins.
  Session(Service& service, Limits limits, std::shared_ptr<Client> client);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Bytes that the reply will have, as far as that is the request's to say: asked before room for it is granted.
  static uint64_t reply_bytes(const Header& header, std::span<const std::byte> body);

  // What carrying it out may wait for: nothing, not even the engine; the engine's lock, for a few objects; a medium, or
  // as many objects as a request can name.
  enum class Waits : uint8_t { kNever, kBriefly, kLong };
  static Waits waits(const Header& header);

  struct Outcome {
    engine::TicketRef ticket;  // the reply is written by finish() when it has ended, at the latest at until_ns
    uint64_t until_ns = 0;
    bool hang_up = false;  // after the reply
  };
  // Carries the request out; may wait for a medium. `reply` gets header and body.
  Outcome run(const Header& header, std::span<const std::byte> body, Buffer& reply);
  // The reply to a request that had to wait for a ticket.
  static void finish(const Header& header, const engine::Ticket& ticket, Buffer& reply);
  static void refuse(const Header& header, int code, const std::string& what, Buffer& reply);

  // Ends what was asked for on behalf of a client that has gone. light(): there is nothing to end.
  void abandon(const engine::TicketRef& waiting);
  bool light() const { return moves_.empty() && droppable_.empty() && pins_.pins_and_bytes().first == 0; }
  bool greeted() const { return greeted_; }
  const Limits& limits() const { return limits_; }

 private:
  struct Refusal {
    int code;
    std::string what;
  };
  void hello(Reader& in, Writer& out);
  void put(Reader& in);
  void get(const Header& header, Reader& in, Buffer& reply);
  void lookup(Reader& in, Writer& out);
  void lookup_prefix(Reader& in, Writer& out);
  void describe(Reader& in);
  void pin(Reader& in, Writer& out);
  void unpin(Reader& in);
  engine::Status forget_pin(uint64_t pin);
  void show_pins();
  Outcome move(Reader& in, bool write_back);
  void decide(Reader& in, Writer& out);
  void tier_service(Reader& in);
  Service& service_;
  const Limits limits_;
  std::shared_ptr<Client> client_;
  engine::SessionId session_;
  bool greeted_ = false;
  HeldPins pins_;
  std::vector<engine::TicketRef> moves_, droppable_;  // droppable_: those that nobody wants once the client has gone
  // Objects of those, at most: counted again when that seems too many, or at so many tickets.
  uint64_t moving_ = 0, count_at_ = 64;
};

}  // namespace neotier::daemon
