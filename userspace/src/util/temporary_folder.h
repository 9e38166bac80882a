// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace neotier {

// A new folder under $TMPDIR, or /tmp, that goes with this object and all that is in it.
class TemporaryFolder {
 public:
  // Throws std::runtime_error with one line.
  explicit TemporaryFolder(std::string_view prefix = "neotier") {
    std::string name = (std::filesystem::temp_directory_path() / prefix).string() + "." + std::string(6, 'X');
    if (!mkdtemp(name.data()))
      throw std::runtime_error(fmt::format("cannot make the folder {}: {}", name, std::strerror(errno)));
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!keep_) std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  // It stays.
  void keep() { keep_ = true; }

 private:
  std::filesystem::path path_;
  bool keep_ = false;
};

}  // namespace neotier
