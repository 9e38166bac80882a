// SPDX-License-Identifier: Apache-2.0
#include "util/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace neotier {

std::string read_input_file(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& why) { throw std::runtime_error(file.string() + ": " + why); };
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse(errno == ENOENT ? "no such file" : std::strerror(errno));
  struct stat about {};
  std::string text;
  int error = 0;
  const bool folder = fstat(fd, &about) == 0 && S_ISDIR(about.st_mode);
  char buffer[65536];
  while (!folder) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  if (folder) refuse("it is a folder, not a file");
  if (error != 0) refuse(std::strerror(error));
  if (text.empty()) refuse("it is empty");
  return text;
}

}  // namespace neotier
