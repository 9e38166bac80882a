// SPDX-License-Identifier: Apache-2.0
#include "kv/feeder.h"

#include <new>
#include <utility>

namespace neotier::kv {

using engine::Status;

Feeder::~Feeder() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  thread_.join();
}

void Feeder::post(std::function<Status()> ask, bool& asked, Status& status) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(ask), &asked, &status});
  }
  work_.notify_one();
}

void Feeder::wait(const bool& asked) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return asked; });
}

void Feeder::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    Status status;
    try {
      status = job.ask();
    } catch (const std::bad_alloc&) {
      status = engine::no_memory();
    }
    lock.lock();
    *job.status = std::move(status);
    *job.asked = true;
    done_.notify_all();
  }
}

}  // namespace neotier::kv
