// SPDX-License-Identifier: Apache-2.0
// One thread and its connections, one to each node.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/tiers/remote/client.h"

struct addrinfo;
struct ssl_st;
struct valkeyContext;

namespace neotier::engine::remote {

// Thread safety: submit(), sweep() and load() from any thread; all else is the thread's own.
class IoThread {
 public:
  explicit IoThread(Client& client);
  ~IoThread();

  void stop();
  // After stop() of all threads: ends what is left, with kCancelled. False where nothing was.
  bool end_all();

  // To command->to; it ends at once where that is NULL.
  // Without `now` hurry() follows.
  void submit(Command* command, bool now) noexcept;
  void hurry() noexcept;
  void sweep() noexcept;
  // What it has to do, in bytes.
  uint64_t load() const { return load_.load(std::memory_order_relaxed); }

  struct Connection;

 private:
  void run();
  void work();
  void wake() noexcept;
  Connection* connection(Node& node);
  void take_incoming();
  void drop_unwanted(Connection& c);
  void end(Command* command, const Status& status, const Reply& reply = {});
  void fail_all(CommandQueue& queue, const Status& status);
  // Connecting.
  void connect(Connection& c);
  void try_next_address(Connection& c, const std::string& why);
  void connected(Connection& c);
  void shake_hands(Connection& c);
  void greet(Connection& c);
  void greeted(Connection& c);
  // What is under way is asked again on a new connection, once; with `down` it ends, and all that waits.
  void drop(Connection& c, const std::string& why, bool down);
  // Talking.
  void admit(Connection& c);
  void send(Connection& c);
  bool send_plain(Connection& c, bool& blocked);
  bool send_tls(Connection& c, bool& blocked);
  void advance(Connection& c, uint64_t bytes);
  void receive(Connection& c);
  // False where the connection is gone.
  bool replied(Connection& c);
  bool redirected(Connection& c, Command* command, const std::string& error);
  Status status_of_error(const Connection& c, const std::string& error);
  void busy(Connection& c);

  Client& client_;
  int wakeup_ = -1;
  std::mutex mutex_;  // of incoming_
  CommandQueue incoming_;
  bool told_ = true;  // of what is in incoming_
  std::atomic<bool> stop_{false}, sweep_{false};
  std::atomic<uint64_t> load_{0};
  std::vector<std::unique_ptr<Connection>> connections_;  // by the node's number
  std::thread thread_;
};

}  // namespace neotier::engine::remote
