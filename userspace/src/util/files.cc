// SPDX-License-Identifier: Apache-2.0
#include "util/files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace fs = std::filesystem;

namespace neotier {

void write_file(const fs::path& file, std::string_view content) {
  const fs::path temporary = file.string() + ".part";
  std::error_code error;
  errno = 0;
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out) error = std::error_code(errno != 0 ? errno : EIO, std::generic_category());
  }
  if (!error) fs::rename(temporary, file, error);
  if (error) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw std::runtime_error(fmt::format("cannot write {}: {}", file.string(), error.message()));
  }
}

void require_folder(std::string_view option, const fs::path& file) {
  const fs::path parent = fs::absolute(file).parent_path();
  if (!fs::is_directory(parent)) throw std::runtime_error(fmt::format("{}: no folder {}", option, parent.string()));
}

fs::path build_directory() {
  const char* build = std::getenv("NEOTIER_BUILD");
  return build ? fs::path(build) : fs::read_symlink("/proc/self/exe").parent_path().parent_path();
}

}  // namespace neotier
