// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "util/temporary_folder.h"

namespace neotier::engine {

// Tiers to be measured: an SSD tier whose file is not there gets one in a temporary folder beside that name, so that
// nothing stays, even where the process is killed (util/temporary_folder.h). Files that are there are used as they are.
class ScratchTiers {
 public:
  // `tiers` as make_tiers() takes it; an SSD tier without a file lies in `folder` where that is not empty. Throws
  // std::runtime_error.
  explicit ScratchTiers(const std::string& tiers, const std::filesystem::path& folder = {});
  // For make_tiers().
  const std::string& text() const { return text_; }

 private:
  std::vector<std::unique_ptr<TemporaryFolder>> folders_;
  std::string text_;
};

}  // namespace neotier::engine
