// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
#include "util/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

namespace fs = std::filesystem;

namespace neotier {

namespace {

constexpr std::string_view kInfix = ".neotier-", kSuffix = ".part";
constexpr size_t kRandom = 6;
constexpr off_t kProbeBytes = 4096;

std::string reason(int error) { return std::strerror(error); }

// Whether `path` is what an open standard stream writes to: a shell's `> FILE` and /dev/stdout.
int stream_of(const struct stat& about) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat stream {};
    if (fstat(fd, &stream) == 0 && stream.st_dev == about.st_dev && stream.st_ino == about.st_ino) return fd;
  }
  return -1;
}

// What a writer that is dead has left of `place`: its lock is free.
void remove_abandoned(const fs::path& place) {
  const std::string head = place.filename().string() + std::string(kInfix);
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(place.parent_path(), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (name.size() == head.size() + kRandom + kSuffix.size() && name.starts_with(head) && name.ends_with(kSuffix))
      found.push_back(it->path());
  }
  for (const fs::path& path : found) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    struct stat about {};
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
        flock(fd, LOCK_EX | LOCK_NB) == 0)
      unlink(path.c_str());
    close(fd);
  }
}

}  // namespace

OutputFile::OutputFile(std::string_view option, const fs::path& file) : option_(option), file_(file) {
  if (file.empty()) return;
  if (file == "-") {
    std::fflush(nullptr);
    fd_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (fd_ < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) fail(reason(errno));
    return;
  }
  struct stat about {};
  const bool there = stat(file.c_str(), &about) == 0;
  if (!there && errno != ENOENT && errno != ENOTDIR) fail(reason(errno));
  if (there && S_ISDIR(about.st_mode)) fail("it is a folder");
  if (there && S_ISBLK(about.st_mode)) fail("it is a block device");
  if (const int stream = there ? stream_of(about) : -1; there && (!S_ISREG(about.st_mode) || stream >= 0)) {
    // What printf still holds comes first.
    if (stream >= 0) std::fflush(nullptr);
    fd_ = stream >= 0 ? fcntl(stream, F_DUPFD_CLOEXEC, 3) : open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd_ < 0) fail(reason(errno));
    // /dev/full refuses this already; a pipe or a terminal takes no notice.
    if (S_ISCHR(about.st_mode) && ::write(fd_, "", 0) < 0) fail(reason(errno));
    return;
  }
  regular_ = true;
  // The name that a symbolic link stands for is replaced, not the link.
  std::error_code error;
  fs::path target = fs::absolute(file);
  for (int links = 0; links < 40 && fs::is_symlink(target, error); links++)
    target = target.parent_path() / fs::read_symlink(target, error);
  place_ = fs::weakly_canonical(target, error);
  if (error || place_.filename().empty()) place_ = fs::absolute(file);
  const fs::path folder = place_.parent_path();
  if (!fs::is_directory(folder, error)) {
    const std::string option_text = option_.empty() ? file_.string() : option_;
    throw std::runtime_error(option_text + ": no folder " + folder.string());
  }
  if (there && access(place_.c_str(), W_OK) != 0) fail(reason(errno));
  open_unnamed();
  // Former mode and, where that is permitted, owner stay.
  if (there) {
    (void)!fchown(fd_, about.st_uid, about.st_gid);
    (void)fchmod(fd_, about.st_mode & 07777);
  }
  // A disk that is full already is told of now.
  if (const int full = posix_fallocate(fd_, 0, kProbeBytes); full == ENOSPC || full == EDQUOT) fail(reason(full));
  if (ftruncate(fd_, 0) != 0) fail(reason(errno));
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : option_(std::move(other.option_)),
      file_(std::move(other.file_)),
      place_(std::move(other.place_)),
      part_(std::exchange(other.part_, {})),
      fd_(std::exchange(other.fd_, -1)),
      regular_(other.regular_) {}

OutputFile::~OutputFile() { close_and_remove(); }

void OutputFile::close_and_remove() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  if (!part_.empty()) unlink(part_.c_str());
  part_.clear();
}

void OutputFile::fail(const std::string& why) {
  close_and_remove();
  throw std::runtime_error((option_.empty() ? "" : option_ + ": ") + "cannot write " +
                           (file_ == "-" ? "to standard output" : file_.string()) + ": " + why);
}

void OutputFile::open_unnamed() {
  remove_abandoned(place_);
  fd_ = open(place_.parent_path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (fd_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    std::string name = place_.string() + std::string(kInfix) + std::string(kRandom, 'X') + std::string(kSuffix);
    fd_ = mkostemps(name.data(), static_cast<int>(kSuffix.size()), O_CLOEXEC);
    if (fd_ >= 0) {
      part_ = name;
      const mode_t mask = umask(0);
      umask(mask);
      (void)fchmod(fd_, 0666 & ~mask);
    }
  }
  if (fd_ < 0) fail(errno == EACCES ? "no permission to write in " + place_.parent_path().string() : reason(errno));
  // Held until the end: with it, a name that is left behind is known to have no owner.
  (void)flock(fd_, LOCK_EX | LOCK_NB);
}

void OutputFile::write(const void* data, size_t bytes) {
  if (fd_ < 0) return;
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(reason(n < 0 ? errno : ENOSPC));
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void OutputFile::take(const fs::path& from) {
  if (fd_ < 0) return;
  const int in = open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (in < 0) fail(from.string() + ": " + reason(errno));
  if (regular_) {
    struct stat mine {
    }, other{};
    fstat(fd_, &mine);
    fstat(in, &other);
    if (mine.st_dev == other.st_dev) {
      // From here on that file is ours, under the name that it has.
      (void)fchmod(in, mine.st_mode & 07777);
      close_and_remove();
      fd_ = in;
      part_ = from;
      return;
    }
  }
  std::vector<char> buffer(size_t{1} << 20);
  for (ssize_t n; (n = ::read(in, buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      close(in);
      fail(from.string() + ": " + reason(error));
    }
    try {
      write(buffer.data(), static_cast<size_t>(n));
    } catch (...) {
      close(in);
      throw;
    }
  }
  close(in);
  std::error_code ignored;
  fs::remove(from, ignored);
}

void OutputFile::commit() {
  if (fd_ < 0) return;
  // Some file systems tell of a full disk or a quota only here. A pipe or a device cannot be synced.
  if (fsync(fd_) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP) fail(reason(errno));
  if (!regular_) {
    if (close(std::exchange(fd_, -1)) != 0) fail(reason(errno));
    return;
  }
  if (part_.empty()) {
    // A free name, held by nobody: mkostemps makes the file, linkat wants none.
    const std::string self = "/proc/self/fd/" + std::to_string(fd_);
    for (int tries = 0;; tries++) {
      std::string name = place_.string() + std::string(kInfix) + std::string(kRandom, 'X') + std::string(kSuffix);
      const int unused = mkostemps(name.data(), static_cast<int>(kSuffix.size()), O_CLOEXEC);
      if (unused < 0) fail(reason(errno));
      close(unused);
      unlink(name.c_str());
      if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
        part_ = name;
        break;
      }
      if (errno != EEXIST || tries == 10) fail(reason(errno));
    }
  }
  if (rename(part_.c_str(), place_.c_str()) != 0) fail(reason(errno));
  part_.clear();
  if (close(std::exchange(fd_, -1)) != 0) fail(reason(errno));
}

void write_file(const fs::path& file, std::string_view content) {
  OutputFile out("", file);
  out.finish(content);
}

}  // namespace neotier
