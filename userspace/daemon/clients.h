// SPDX-License-Identifier: Apache-2.0
// Who is connected, and what the daemon counts: written by the loop and the workers, read by whoever shows it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/held_pins.h"
#include "daemon/workers.h"

namespace neotier::daemon {

// name, help. Names become neotier_daemon_NAME_total.
#define NEOTIER_DAEMON_COUNTERS(X)                                                    \
  X(connections, "clients that connected")                                            \
  X(refused_connections, "clients turned away because there were as many as may be")  \
  X(requests, "requests carried out")                                                 \
  X(request_errors, "requests that ended with an error")                              \
  X(limited_requests, "requests refused because of a limit of the client's")          \
  X(protocol_errors, "clients cut off because what they sent made no sense")          \
  X(timeouts, "clients cut off because they idled, or stopped in a request or reply") \
  X(received_bytes, "bytes of requests")                                              \
  X(sent_bytes, "bytes of replies")                                                   \
  X(reloads, "configurations put into force by SIGHUP")                               \
  X(failed_reloads, "configurations that were not, because of an error")

struct DaemonCounters {
#define NEOTIER_COUNTER(name, help) std::atomic<uint64_t> name{0};
  NEOTIER_DAEMON_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
};

struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

struct ClientStatus {
  uint64_t id = 0;
  std::string name;
  Peer peer;
  uint64_t connected_ns = 0;  // clock's time
  uint64_t requests = 0, received_bytes = 0, sent_bytes = 0;
  uint64_t pins = 0, pinned_bytes = 0, objects_in_flight = 0;
};

// All clients of one user: what one connection may not, a hundred of them may not either.
struct User {
  WorkGroup slow, quick, bulk;
  HeldPins pins;
  // The loop's own.
  uint32_t connections = 0;
  uint64_t in_flight_bytes = 0;
};

class Client {
 public:
  Client(uint64_t number, Peer from, std::shared_ptr<User> of, uint64_t now_ns)
      : id(number), peer(from), user(std::move(of)), connected_ns(now_ns) {}
  const uint64_t id;
  const Peer peer;
  const std::shared_ptr<User> user;
  const uint64_t connected_ns;
  std::atomic<uint64_t> requests{0}, received_bytes{0}, sent_bytes{0}, pins{0}, pinned_bytes{0}, objects_in_flight{0};

  void rename(std::string name) {
    std::lock_guard lock(mutex_);
    name_ = std::move(name);
  }
  ClientStatus status() const {
    std::lock_guard lock(mutex_);
    return {id, name_, peer, connected_ns, requests, received_bytes, sent_bytes, pins, pinned_bytes, objects_in_flight};
  }

 private:
  mutable std::mutex mutex_;
  std::string name_;
};

// Thread safety: all calls from any thread.
class Clients {
 public:
  std::shared_ptr<Client> add(Peer peer, std::shared_ptr<User> user, uint64_t now_ns) {
    std::lock_guard lock(mutex_);
    auto client = std::make_shared<Client>(++last_, peer, std::move(user), now_ns);
    clients_.emplace(client->id, client);
    return client;
  }
  void remove(uint64_t id) {
    std::lock_guard lock(mutex_);
    clients_.erase(id);
  }
  std::vector<ClientStatus> status() const {
    std::lock_guard lock(mutex_);
    std::vector<ClientStatus> all;
    for (const auto& [id, client] : clients_) all.push_back(client->status());
    return all;
  }

 private:
  mutable std::mutex mutex_;
  uint64_t last_ = 0;
  std::map<uint64_t, std::shared_ptr<Client>> clients_;
};

}  // namespace neotier::daemon
