// SPDX-License-Identifier: Apache-2.0
// The expert tensors of one model: addresses that llama.cpp computes at, and behind them a budget's worth of memory
// (neotier_moe.h). Nothing of what the host hands over is copied: its bytes are found in the model's own file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ggml/abi.h"
#include "ggml/repack.h"
#include "ggml/settings.h"
#include "ggml/sources.h"
#include "neotier_moe.h"

namespace neotier::ggml {

// "blk.7.ffn_down_exps.weight": layer 7, and its part in the order of use. False: no expert tensor's name.
bool parse_expert_name(const std::string& name, uint32_t* layer, std::string* role);

class Weights {
 public:
  struct Part {
    uint32_t layer = 0, part = 0;  // indices
    size_t tensor = 0;             // of plan()'s
  };
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  // NULL and one line in `why`: tensors that are no experts of one shape, a budget too small, no addresses.
  static std::shared_ptr<Weights> plan(const std::vector<Tensor*>& tensors, const Settings& settings, std::string* why);

  void* base() const { return neotier_range_address(range_); }
  uint64_t bytes() const { return bytes_; }
  uint64_t at(size_t tensor) const { return tensors_[tensor].at; }

  // The host hands over a piece of a tensor. One line where it is not to be found in an open model file, or where, with
  // the last of them, the experts cannot be opened; empty: fine.
  std::string set(const void* address, const void* data, uint64_t offset, uint64_t bytes);
  bool complete() const { return moe_ != nullptr; }

  neotier_moe* moe() const { return moe_; }
  // Before the first set(): where all experts have room they are laid out so. `repack`: of plan()'s tensors, or NULL.
  void repack_as(std::unique_ptr<Repack> repack) { repack_ = std::move(repack); }
  // What the CPU backend is to be shown instead of the tensor; NULL: the tensor itself.
  Tensor* shown(const Part& part) const { return repacked_ ? repack_->shown(part.tensor) : nullptr; }
  // By the address of the tensor's first byte. NULL: none of these.
  const Part* find(const void* address) const;
  uint32_t parts() const { return parts_; }

  // What was found and how much of it fits, for people.
  std::string summary() const;
  // As JSON; one line's worth.
  std::string stats() const;

 private:
  struct One {
    std::string name;
    Part part;
    uint64_t at = 0, bytes = 0, set = 0;
    bool found = false;
    uint32_t file = 0;
    uint64_t offset = 0;
  };
  explicit Weights(const Settings& settings) : settings_(settings) {}
  std::string open();
  neotier_moe_config config(std::vector<neotier_moe_tensor>& tensors) const;

  Settings settings_;
  std::mutex mutex_;
  Sources sources_;
  std::vector<One> tensors_;
  std::map<uint64_t, size_t> by_at_;
  std::vector<size_t> tensor_of_;  // [layer][part]
  uint32_t layers_ = 0, parts_ = 0, experts_ = 0, top_k_ = 1;
  uint64_t bytes_ = 0, budget_ = 0;
  neotier_range* range_ = nullptr;
  neotier_moe* moe_ = nullptr;
  std::unique_ptr<Repack> repack_;
  bool repacked_ = false;
};

}  // namespace neotier::ggml
