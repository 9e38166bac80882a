// SPDX-License-Identifier: Apache-2.0
#include "util/files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace fs = std::filesystem;

namespace neotier {

void require_output_folder(std::string_view option, const fs::path& folder) {
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error(std::string(option) + ": " + folder.string() + ": " + why);
  };
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) refuse("it is no folder");
  fs::create_directories(folder, error);
  if (error) refuse("cannot be made: " + error.message());
  if (access(folder.c_str(), W_OK | X_OK) != 0) refuse(std::strerror(errno));
}

void refuse_input_as_output(std::string_view option, const fs::path& input, const fs::path& output) {
  std::error_code ignored;
  if (fs::equivalent(input, output, ignored))
    throw std::runtime_error(std::string(option) + ": " + output.string() + ": is the input too");
}

fs::path build_directory() {
  const char* build = std::getenv("NEOTIER_BUILD");
  return build ? fs::path(build) : fs::read_symlink("/proc/self/exe").parent_path().parent_path();
}

}  // namespace neotier
