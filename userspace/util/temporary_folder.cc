// SPDX-License-Identifier: Apache-2.0
#include "util/temporary_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace fs = std::filesystem;

namespace neotier {

namespace {

constexpr const char* kLock = ".neotier-lock";
constexpr size_t kRandom = 6;

void remove_abandoned(const fs::path& parent, const std::string& head) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (name.size() == head.size() + kRandom && name.starts_with(head)) found.push_back(it->path());
  }
  for (const fs::path& path : found) {
    const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (folder < 0) continue;
    struct stat about {};
    const bool ours = fstat(folder, &about) == 0 && about.st_uid == geteuid();
    const int lock = ours ? openat(folder, kLock, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, error);
    if (lock >= 0) close(lock);
    close(folder);
  }
}

}  // namespace

TemporaryFolder::TemporaryFolder(std::string_view prefix, const fs::path& parent) {
  std::error_code error;
  const fs::path in = parent.empty() ? fs::temp_directory_path(error) : parent;
  if (error) throw std::runtime_error("$TMPDIR: " + error.message());
  const std::string head = std::string(prefix) + ".";
  remove_abandoned(in, head);
  std::string name = (in / head).string() + std::string(kRandom, 'X');
  if (!mkdtemp(name.data())) throw std::runtime_error("cannot make the folder " + name + ": " + std::strerror(errno));
  path_ = name;
  // Locked before it has the name that says so: nobody finds it free.
  const fs::path unnamed = path_ / (std::string(kLock) + ".new");
  lock_ = open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (lock_ < 0 || flock(lock_, LOCK_EX | LOCK_NB) != 0 || rename(unnamed.c_str(), (path_ / kLock).c_str()) != 0) {
    const int failed = errno;
    if (lock_ >= 0) close(lock_);
    fs::remove_all(path_, error);
    throw std::runtime_error("cannot make the folder " + name + ": " + std::strerror(failed));
  }
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!keep_) fs::remove_all(path_, ignored);
  close(lock_);
}

void TemporaryFolder::keep() {
  keep_ = true;
  unlink((path_ / kLock).c_str());
}

}  // namespace neotier
