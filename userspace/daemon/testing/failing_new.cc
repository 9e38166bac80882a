// SPDX-License-Identifier: Apache-2.0
#include "daemon/testing/failing_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

constexpr int64_t kNever = INT64_MAX;
std::atomic<int64_t> left{kNever}, failing{0};
std::atomic<uint64_t> failed{0};

bool fails() {
  if (left.load(std::memory_order_relaxed) == kNever || left.fetch_sub(1) > 0) return false;
  if (failing.fetch_sub(1) <= 0) return false;
  failed++;
  return true;
}

}  // namespace

// NOLINTBEGIN(cppcoreguidelines-no-malloc)
void* operator new(size_t bytes) {
  void* const memory = fails() ? nullptr : std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
// NOLINTEND(cppcoreguidelines-no-malloc)

namespace neotier {

uint64_t FailingNew::count_while(int64_t nth, int64_t count, const std::function<void()>& work) {
  failed = 0;
  failing = count;
  left = nth;
  work();
  left = kNever;
  return failed;
}

}  // namespace neotier
