// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace neotier {

// A new folder that goes with this object and all that is in it. When the process is killed, the next one of the same
// prefix in the same parent removes it: its owner held a lock on a file in it, and a lock that is free has no owner.
// Folders without such a file, of other users, or kept are never touched.
class TemporaryFolder {
 public:
  // Under `parent`, by default $TMPDIR or /tmp. Throws std::runtime_error with one line.
  explicit TemporaryFolder(std::string_view prefix = "neotier", const std::filesystem::path& parent = {});
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  // It stays, for good: somebody was told of it.
  void keep();

 private:
  std::filesystem::path path_;
  int lock_ = -1;
  bool keep_ = false;
};

}  // namespace neotier
