// SPDX-License-Identifier: Apache-2.0
// Who has which slots of a cluster. libvalkey asks, and waits, on a thread of its own; the client is told.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

struct valkeyClusterContext;

namespace neotier::engine::remote {

class Client;

// Thread safety: any thread.
class SlotMap {
 public:
  explicit SlotMap(Client& client);
  ~SlotMap();

  // Asks soon, and again until somebody has answered.
  void refresh() noexcept;
  // Waits for the end of an attempt that begins now, or the time. "" where it succeeded, else why not.
  std::string refresh_and_wait(std::chrono::steady_clock::time_point until);

 private:
  void run();
  std::string fetch();

  Client& client_;
  valkeyClusterContext* cluster_ = nullptr;  // the thread's
  std::mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ = false, stop_ = false;
  uint64_t begun_ = 0, ended_ = 0;
  std::string why_;  // of the last attempt
  std::thread thread_;
};

}  // namespace neotier::engine::remote
