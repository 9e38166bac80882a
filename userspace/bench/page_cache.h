// SPDX-License-Identifier: Apache-2.0
// A limit on the page cache that this process fills, for comparisons with mmap: a memory cgroup (version 1 or 2) below
// its own, where that can be made (root; controller delegated).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace neotier::experts {

class PageCacheLimit {
 public:
  // NULL where it cannot be done; `why` says so in a few words.
  static std::unique_ptr<PageCacheLimit> make(uint64_t bytes, std::string& why);
  // The process goes back to where it was.
  ~PageCacheLimit();
  PageCacheLimit(const PageCacheLimit&) = delete;
  PageCacheLimit& operator=(const PageCacheLimit&) = delete;

 private:
  PageCacheLimit(std::string parent, std::string own) : parent_(std::move(parent)), own_(std::move(own)) {}
  std::string parent_, own_;
};

// Forgets what is cached of a file. Dirty pages stay.
void drop_page_cache(const std::string& file);

}  // namespace neotier::experts
