// SPDX-License-Identifier: Apache-2.0
// Threads that carry out what may wait for a medium, a turn for each user in order and, of a user's connections, first
// come, first served: neither many connections nor slow requests of one user put off another's for longer than a turn.
// One thread more than a user may keep busy, so that there is always one for the others.
//
// Nothing here needs memory once the threads run. Thread safety: all calls from any thread.
#pragma once

#include <sched.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/linked_list.h"

namespace neotier::daemon {

struct OfGroup;
struct OfTurns;
struct WorkGroup;

// One request. The group must stay for as long as anything of it is handed in.
struct Work : engine::Linked<Work, OfGroup> {
  WorkGroup* group = nullptr;
};
struct WorkGroup : engine::Linked<WorkGroup, OfTurns> {
  engine::LinkedList<Work, OfGroup> waiting;
  size_t running = 0;
};

class Workers {
 public:
  // `carry_out` must not throw. It calls done() of these, by which it is called also while they end, and may then put
  // `work` and its group away: neither is looked at afterwards.
  // long_ones: they copy for long, so that a thread that answers something short goes before them.
  Workers(size_t at_once, bool long_ones, std::function<void(Workers&, Work&)> carry_out)
      : carry_out_(std::move(carry_out)), at_once_(at_once), long_ones_(long_ones) {
    for (size_t i = 0; i < at_once + 1; i++) threads_.emplace_back([this] { run(); });
  }
  // Finishes what was handed in.
  ~Workers() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void hand_in(Work& work) {
    {
      std::lock_guard lock(mutex_);
      work.group->waiting.push_back(&work);
      offer(*work.group);
    }
    changed_.notify_one();
  }
  // What carry_out() calls when it has done the work, before anybody else may put the group away.
  void done(WorkGroup& group) {
    {
      std::lock_guard lock(mutex_);
      group.running--;
      offer(group);
    }
    changed_.notify_one();
  }

 private:
  using Turns = engine::LinkedList<WorkGroup, OfTurns>;
  void offer(WorkGroup& group) {
    if (!Turns::has(&group) && !group.waiting.empty() && group.running < at_once_) turns_.push_back(&group);
  }
  void run() {
    const sched_param none{};
    if (long_ones_) (void)sched_setscheduler(0, SCHED_BATCH, &none);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !turns_.empty(); });
      // Groups that have as many as they may come back with done().
      if (turns_.empty()) return;
      WorkGroup& group = *turns_.pop_front();
      Work& work = *group.waiting.pop_front();
      group.running++;
      offer(group);
      lock.unlock();
      carry_out_(*this, work);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Turns turns_;
  const std::function<void(Workers&, Work&)> carry_out_;
  const size_t at_once_;
  const bool long_ones_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace neotier::daemon
