// SPDX-License-Identifier: Apache-2.0
#include "util/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace neotier {

namespace {

// Only async-signal-safe calls happen between fork and exec.
pid_t spawn(const std::vector<std::string>& argv, int output, const std::vector<int>& inherit,
            const std::vector<std::string>& environment) {
  std::vector<char*> pointers, variables;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  for (const std::string& variable : environment) variables.push_back(const_cast<char*>(variable.c_str()));
  for (char** own = environ; *own != nullptr; ++own) variables.push_back(*own);
  variables.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error(fmt::format("fork: {}", std::strerror(errno)));
  if (pid == 0) {
    // A terminal's Ctrl-C reaches the owner, which then ends its children; a killed owner takes them along.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(output, 1);
    dup2(output, 2);
    for (const int descriptor : inherit) fcntl(descriptor, F_SETFD, 0);
    execvpe(pointers[0], pointers.data(), variables.data());
    dprintf(2, "cannot run %s: %s\n", pointers[0], std::strerror(errno));
    _exit(127);
  }
  return pid;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& argv) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(fmt::format("pipe: {}", std::strerror(errno)));
  const pid_t pid = spawn(argv, ends[1], {}, {});
  close(ends[1]);
  CommandResult result;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) != 0;) {
    if (n > 0)
      result.output.append(buffer, static_cast<size_t>(n));
    else if (errno != EINTR)
      break;
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

Child::Child(const std::vector<std::string>& argv, const std::filesystem::path& log, const std::vector<int>& inherit,
             const std::vector<std::string>& environment) {
  const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (output < 0) throw std::runtime_error(fmt::format("cannot write {}: {}", log.string(), std::strerror(errno)));
  pid_ = spawn(argv, output, inherit, environment);
  close(output);
}

Child::~Child() {
  if (pid_ > 0) kill();
}

bool Child::ended() {
  if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
  return pid_ < 0;
}

void Child::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace neotier
