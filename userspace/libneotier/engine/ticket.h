// SPDX-License-Identifier: Apache-2.0
// What a caller holds of work that is under way: one ticket for any number of objects.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/linked_list.h"
#include "engine/status.h"

namespace neotier::engine {

// One ticket's wait for one job of the mover's (mover_job.h).
struct Waiter;
struct OfTicket;

// Told once when a ticket has ended, by the thread that ends it and under that one's locks: it may take a lock that is
// taken last, and calls nothing.
class EndListener {
 public:
  virtual ~EndListener() = default;
  virtual void ended() = 0;
};

// Thread safety: all calls from any thread, but for `waiting`. Its lock is taken last and nothing is called under it.
class Ticket {
 public:
  struct Progress {
    uint32_t pending = 0, done = 0, failed = 0;
  };

  Progress progress() const {
    std::lock_guard lock(mutex_);
    return progress_;
  }
  // The first error, once nothing is pending; kTimeout before.
  Status wait_ns(uint64_t timeout_ns) const {
    std::unique_lock lock(mutex_);
    const auto ended = [this] { return progress_.pending == 0; };
    // Beyond a century wait_for's arithmetic overflows.
    constexpr uint64_t kForever = 3000000000u * uint64_t{1000000000};
    if (timeout_ns >= kForever) {
      changed_.wait(lock, ended);
    } else if (!changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), ended)) {
      return Status(Code::kTimeout, "still under way");
    }
    return first_error_;
  }
  Status wait() const { return wait_ns(UINT64_MAX); }
  // Told when nothing is pending; at once if that is so. One at a time: false where the ticket has one already.
  bool listen(const std::shared_ptr<EndListener>& listener) {
    {
      std::lock_guard lock(mutex_);
      if (listener_) return false;
      if (progress_.pending > 0) {
        listener_ = listener;
        return true;
      }
    }
    listener->ended();
    return true;
  }

  // For whoever does the work.
  void expect() {
    std::lock_guard lock(mutex_);
    progress_.pending++;
  }
  // Of so many of what it expects.
  void end(const Status& status, uint32_t nr = 1) {
    std::shared_ptr<EndListener> listener;
    {
      std::lock_guard lock(mutex_);
      progress_.pending -= nr;
      if (status.is_ok()) {
        progress_.done += nr;
      } else {
        if (progress_.failed == 0) first_error_ = status;
        progress_.failed += nr;
      }
      if (progress_.pending > 0) return;
      changed_.notify_all();
      listener.swap(listener_);
    }
    if (listener) listener->ended();
  }
  // For the mover, with the engine's lock: a cancel looks at the jobs of its ticket alone.
  LinkedList<Waiter, OfTicket> waiting;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Progress progress_;
  Status first_error_;
  std::shared_ptr<EndListener> listener_;
};

using TicketRef = std::shared_ptr<Ticket>;

}  // namespace neotier::engine
