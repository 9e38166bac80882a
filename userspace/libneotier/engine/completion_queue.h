// SPDX-License-Identifier: Apache-2.0
// What has ended, for a caller with an event loop: tags in the order in which their work ended, and a file descriptor
// that is readable as long as there are any.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <system_error>
#include <vector>

#include "engine/ticket.h"

namespace neotier::engine {

// Thread safety: all calls from any thread. Its lock is taken last and nothing is called under it.
class CompletionQueue {
 public:
  // Throws std::system_error where the process has no file descriptor left.
  CompletionQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  ~CompletionQueue() { close(fd_); }
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  int fd() const { return fd_; }

  // Takes the oldest, as many as there are and fit.
  size_t take(std::span<uint64_t> tags) {
    std::lock_guard lock(mutex_);
    const size_t nr = std::min(tags.size(), tags_.size() - taken_);
    for (size_t i = 0; i < nr; i++) tags[i] = tags_[taken_++];
    if (nr == 0) return 0;
    if (taken_ == tags_.size()) {
      uint64_t count = 0;
      (void)!read(fd_, &count, sizeof count);
    }
    // Also of a queue that is never empty. Moving what is left costs no more than what was taken.
    if (2 * taken_ >= tags_.size()) {
      tags_.erase(tags_.begin(), tags_.begin() + static_cast<std::ptrdiff_t>(taken_));
      taken_ = 0;
    }
    return nr;
  }
  // Tags that there is room for without asking for memory: what it keeps.
  size_t room() const {
    std::lock_guard lock(mutex_);
    return tags_.capacity();
  }

 private:
  friend class CompletionTag;
  // Room for one more is there from here on, so that push() cannot fail.
  void expect() {
    std::lock_guard lock(mutex_);
    if (tags_.capacity() < tags_.size() + expected_ + 1) tags_.reserve(2 * (tags_.size() + expected_ + 1));
    expected_++;
  }
  // It will not come after all.
  void forget() {
    std::lock_guard lock(mutex_);
    expected_--;
  }
  void push(uint64_t tag) {
    std::lock_guard lock(mutex_);
    expected_--;
    tags_.push_back(tag);
    const uint64_t one = 1;
    if (tags_.size() == taken_ + 1) (void)!write(fd_, &one, sizeof one);
  }

  const int fd_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> tags_;
  size_t taken_ = 0;  // of them, from the front
  size_t expected_ = 0;
};

// Comes to the queue once all tickets that it listens to have ended, and seal() was called.
class CompletionTag : public EndListener {
 public:
  CompletionTag(std::shared_ptr<CompletionQueue> queue, uint64_t tag) : queue_(std::move(queue)), tag_(tag) {
    queue_->expect();
  }
  ~CompletionTag() override {
    if (pending_.load(std::memory_order_relaxed) > 0) queue_->forget();
  }
  // Before listening to one more.
  void expect() { pending_.fetch_add(1, std::memory_order_relaxed); }
  void ended() override {
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) queue_->push(tag_);
  }
  void seal() { ended(); }

 private:
  std::shared_ptr<CompletionQueue> queue_;
  uint64_t tag_;
  std::atomic<size_t> pending_{1};
};

}  // namespace neotier::engine
