// SPDX-License-Identifier: Apache-2.0
// In which file a tensor's bytes lie: of the model files that this process has open or mapped, the one that has a
// tensor of this name and size, and these very bytes. llama.cpp does not tell a backend where what it hands over came
// from.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace neotier::ggml {

class Sources {
 public:
  struct Found {
    uint32_t file = 0;  // of files()
    uint64_t offset = 0;
  };
  // `part`: what the host handed over of it, from `at` on: compared with the file at both ends, as the name alone
  // proves nothing. Nothing: no open file has it.
  std::optional<Found> find(const std::string& tensor, uint64_t bytes, uint64_t at, std::span<const std::byte> part);
  const std::vector<std::string>& files() const { return files_; }
  // That a token uses, as the model says where the last tensor was found; 0: it does not.
  uint32_t experts_used() const { return experts_used_; }

 private:
  void look();
  bool same(uint32_t file, uint64_t offset, std::span<const std::byte> part);

  std::vector<model::Model> models_;
  std::vector<std::string> known_;  // paths that were looked at, models or not
  std::vector<std::string> files_;
  uint32_t experts_used_ = 0;
};

}  // namespace neotier::ggml
