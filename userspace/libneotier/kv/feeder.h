// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/status.h"

namespace neotier::kv {

// Asks the device for copies in a thread of its own, in the order of post(): some microseconds a piece are a caller's
// forward pass otherwise. Any thread.
class Feeder {
 public:
  Feeder() : thread_([this] { run(); }) {}
  ~Feeder();
  // One copy job. `asked` becomes true when it has been run; it and what `ask` uses must stay until then.
  void post(std::function<engine::Status()> ask, bool& asked, engine::Status& status);
  void wait(const bool& asked);

 private:
  struct Job {
    std::function<engine::Status()> ask;
    bool* asked;
    engine::Status* status;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace neotier::kv
