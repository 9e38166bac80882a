// SPDX-License-Identifier: Apache-2.0
#include "daemon/listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace neotier::daemon {

namespace {

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", file, what));
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) fail(path, "longer than the name of a socket may be");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

Listener::Listener(std::string path, mode_t mode, const std::string& group)
    : path_(std::move(path)), part_(path_ + ".part") {
  const std::string lock = path_ + ".lock";
  struct stat there {};
  try {
    for (;;) {
      lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (lock_ < 0)
        fail(lock, fmt::format("{}; does its folder exist, and may this user write there?", std::strerror(errno)));
      if (flock(lock_, LOCK_EX | LOCK_NB) != 0)
        fail(path_, "another neotierd is here; give [socket].path another name");
      // The one before removes its lock's file as it ends: a lock counts only on the file that still has the name.
      struct stat held {};
      if (fstat(lock_, &held) == 0 && lstat(lock.c_str(), &there) == 0 && held.st_ino == there.st_ino &&
          held.st_dev == there.st_dev)
        break;
      close(std::exchange(lock_, -1));
    }
    holds_ = true;
    if (lstat(path_.c_str(), &there) == 0) {
      if (!S_ISSOCK(there.st_mode))
        fail(path_, "is there and is no socket; remove it, or give [socket].path another name");
      const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const sockaddr_un address = address_of(path_);
      const bool listens =
          connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN;
      close(probe);
      if (listens) fail(path_, "somebody listens there; give [socket].path another name");
    }
    if (lstat(part_.c_str(), &there) == 0) {
      if (!S_ISSOCK(there.st_mode)) fail(part_, "is there and is no socket; remove it");
      unlink(part_.c_str());
    }
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const sockaddr_un address = address_of(part_);
    const mode_t before = umask(0177);
    const int bound = bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    const int error = errno;
    umask(before);
    bound_ = bound == 0;
    if (!bound_) fail(part_, std::strerror(error));
    permit(part_, mode, group);
  } catch (...) {
    undo();
    throw;
  }
}

Listener::~Listener() { undo(); }

void Listener::undo() {
  if (bound_) unlink(opened_ ? path_.c_str() : part_.c_str());
  if (fd_ >= 0) close(fd_);
  if (holds_) unlink((path_ + ".lock").c_str());
  if (lock_ >= 0) close(lock_);
}

void Listener::permit(const std::string& file, mode_t mode, const std::string& group) {
  if (!group.empty()) {
    const struct group* found = getgrnam(group.c_str());
    if (!found) fail(file, fmt::format("there is no group '{}' ([socket].group)", group));
    if (chown(file.c_str(), static_cast<uid_t>(-1), found->gr_gid) != 0)
      fail(file, fmt::format("cannot be given to group '{}' ([socket].group): {}", group, std::strerror(errno)));
  }
  if (chmod(file.c_str(), mode) != 0) fail(file, std::strerror(errno));
}

void Listener::open() {
  if (listen(fd_, 64) != 0 || rename(part_.c_str(), path_.c_str()) != 0) fail(path_, std::strerror(errno));
  opened_ = true;
}

void Listener::set_permissions(mode_t mode, const std::string& group) { permit(path_, mode, group); }

}  // namespace neotier::daemon
