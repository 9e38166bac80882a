// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace neotier::daemon {

// The socket file: one daemon a path, and nobody sees it before its mode and group are right and open() was called.
class Listener {
 public:
  // Takes PATH.lock and binds beside the path. Throws std::runtime_error with one line: another neotierd has it, what
  // is there is no socket, no such group, not permitted.
  Listener(std::string path, mode_t mode, const std::string& group);
  // Removes the socket and its lock.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Puts it in its place, where clients find it; what an earlier daemon left there goes. Throws as the constructor.
  void open();
  // Throws as the constructor; then mode and group are as before.
  void set_permissions(mode_t mode, const std::string& group);
  int fd() const { return fd_; }

 private:
  static void permit(const std::string& file, mode_t mode, const std::string& group);
  void undo();

  std::string path_, part_;
  int lock_ = -1, fd_ = -1;
  bool holds_ = false, bound_ = false, opened_ = false;
};

}  // namespace neotier::daemon
