// SPDX-License-Identifier: Apache-2.0
// Valkey and Redis, one server or a cluster: connections, time-outs, redirections. Knows nothing of extents.
//
// libvalkey speaks the protocol, TLS, and asks a cluster who has which slots. Its asynchronous interface is not used:
// it copies each value twice, and moves what is unsent after each write; values here are of a MiB. Threads of
// this client wait for all their connections at once, send values from where they lie, and take them out of the
// library's read buffer. docs/decisions/0056-remote-tier.md.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/status.h"
#include "engine/tiers/remote/command.h"

namespace neotier::engine::remote {

struct Address {
  std::string host;  // a name or number; the path of a socket where port is 0
  uint16_t port = 0;
  friend bool operator==(const Address&, const Address&) = default;
};
std::string to_string(const Address& address);

struct ClientOptions {
  std::string name = "remote";  // of the tier, for its words
  std::vector<Address> addresses;
  bool tls = false, cluster = false;
  std::string ca_file, cert_file, key_file;  // of TLS; ca_file empty: the system's
  std::string user, password;                // empty: none is said
  unsigned database = 0;
  uint32_t timeout_ms = 2000;  // to connect, and between one reply and the next
  unsigned connections = 2;    // to each node, each with a thread
  // That come_back() waits: the engine's thread calls it, which has other tiers as well. What answers later is in
  // service from then on, and the next call says so.
  uint32_t come_back_ms = 100;
};

constexpr unsigned kSlots = 16384;

// A server. Lives as long as its client.
class Node {
 public:
  Node(Address given, size_t number) : address(std::move(given)), id(number) {}

  const Address address;
  const size_t id;
  // Since when it does not answer, and when it is asked again; 0: it does, as far as is known.
  std::atomic<uint64_t> retry_ns{0};
  std::atomic<uint32_t> failures{0};  // in a row
  bool down() const { return retry_ns.load() != 0; }
};

class IoThread;
class Tls;
class SlotMap;

// Thread safety: any thread.
class Client {
 public:
  // Tries the servers once. Those that do not answer, kGone: the client is there nevertheless, and out of service.
  // Throws std::runtime_error with one line where it cannot ever work: files of TLS that cannot be read.
  explicit Client(ClientOptions options);
  // Ends what is under way, with kCancelled.
  ~Client();

  // Never waits, never throws. done() may be called before it returns only where memory is out.
  void submit(Command* command) noexcept;
  // All of them; the threads that have to are woken once.
  void submit(CommandQueue& commands) noexcept;
  // Commands that are not wanted any more, and of which nothing was sent, end.
  void sweep() noexcept;

  // False while no server answers.
  bool in_service() const;
  // Whether the server that has this name is believed to answer.
  bool answers(const std::string& name) const;
  // Asks all servers, and a cluster for its slots. kOk where one answers within come_back_ms.
  Status come_back() { return come_back(options_.come_back_ms); }
  // Why it is out of service; one line.
  std::string trouble() const;
  // Connections that came to be, for tests and status.
  uint64_t connects() const { return connects_.load(); }

 private:
  friend class IoThread;
  friend class SlotMap;
  Status come_back(uint32_t wait_ms);
  Node* find_node(const Address& address);  // made where it is new; NULL: memory is out, or there are too many
  Node* node_of(const Command& command) const;
  void prepare(Command& command) noexcept;
  std::vector<Node*> nodes() const;
  void set_slot(unsigned slot, Node* node) { slots_[slot].store(node); }
  void mark_down(Node& node, const std::string& why) noexcept;
  void mark_up(Node& node) noexcept;
  // What a command ends with whose node does not answer.
  Status unavailable(const Node& node) const noexcept;

  const ClientOptions options_;
  std::unique_ptr<Tls> tls_;
  mutable std::mutex mutex_;  // of nodes_ and trouble_
  std::deque<Node> nodes_;
  std::string trouble_;
  std::array<std::atomic<Node*>, kSlots> slots_{};
  std::atomic<uint64_t> connects_{0};
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::unique_ptr<SlotMap> slot_map_;
};

uint64_t now_ns();

}  // namespace neotier::engine::remote
