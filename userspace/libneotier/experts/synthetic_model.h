// SPDX-License-Identifier: Apache-2.0
// Mixture-of-experts models made up here, as GGUF files: random weights of any shape, for measuring and for tests where
// no real model is at hand. What they compute means nothing; how long it takes does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "compute/matrix.h"
#include "engine/status.h"

namespace neotier::experts {

// gpt-oss-20b's numbers of layers and experts by default.
struct SyntheticModel {
  uint32_t layers = 24, experts = 32, top_k = 4;     // 1 .. 256 each, top_k at most experts
  uint32_t hidden = 2880, ff = 2880;                 // multiples of 32, up to 2^16
  compute::Format format = compute::Format::kMxfp4;  // not kMxfp4Split, which GGUF does not have
  bool biases = true;                                // as gpt-oss has
  uint64_t seed = 1;

  // Of one expert: weights and biases.
  uint64_t expert_bytes() const;
};

// The file is there, as a whole, at the end; equal options give equal bytes. progress: share done, now and then.
// kInvalid: an option out of range; kIo; kCancelled once cancelled() is true. Nothing is left behind then.
engine::Status write_synthetic_model(const SyntheticModel& model, const std::string& file,
                                     const std::function<void(double)>& progress = {},
                                     const std::function<bool()>& cancelled = {});

}  // namespace neotier::experts
