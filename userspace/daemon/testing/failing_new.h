// SPDX-License-Identifier: Apache-2.0
// Operator new of the whole program that fails on command, in whatever thread. Link failing_new.cc into a test of its
// own.
#pragma once

#include <cstdint>
#include <functional>

namespace neotier {

class FailingNew {
 public:
  // Runs `work` while the nth allocation from now on, and as many behind it as make `count`, fail. Returns how many
  // did.
  static uint64_t count_while(int64_t nth, int64_t count, const std::function<void()>& work);
};

}  // namespace neotier
