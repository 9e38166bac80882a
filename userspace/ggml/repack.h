// SPDX-License-Identifier: Apache-2.0
// Weights laid out as the CPU backend multiplies fastest with: what llama.cpp does by itself with those that it places
// ("CPU_REPACK"), done here for experts, expert by expert. Which types and shapes that serves, the CPU backend says.
//
// Thread safety: convert() by one thread at a time; the rest is constant once made.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ggml/abi.h"

namespace neotier::ggml {

class Repack {
 public:
  // Of tensors that are placed. NULL: the CPU backend would leave all of them as they are.
  static std::unique_ptr<Repack> of(const std::vector<Tensor*>& tensors);
  ~Repack();
  Repack(const Repack&) = delete;
  Repack& operator=(const Repack&) = delete;

  // One expert of a tensor, by its index above, in place. Nothing where it stays as it is.
  void convert(size_t tensor, void* expert);
  // What the CPU backend is to be shown instead of the tensor; NULL: the tensor itself.
  Tensor* shown(size_t tensor) { return ones_[tensor].converts ? &ones_[tensor].shown : nullptr; }

 private:
  struct One {
    bool converts = false;
    Tensor shown = {};
    Tensor expert = {};  // in the scratch buffer
  };
  Repack() = default;

  Buffer* scratch_ = nullptr;
  std::vector<One> ones_;
};

}  // namespace neotier::ggml
