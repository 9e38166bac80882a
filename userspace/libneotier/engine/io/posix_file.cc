// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include "engine/io/file.h"

namespace neotier::engine {

namespace {

Status error(int number, const std::string& what) {
  const Code code = number == ENOENT                           ? Code::kNotFound
                    : number == ENOSPC || number == EDQUOT     ? Code::kFull
                    : number == EWOULDBLOCK || number == EBUSY ? Code::kBusy
                    : number == EINVAL || number == EISDIR     ? Code::kInvalid
                                                               : Code::kIo;
  return {code, what + ": " + std::strerror(number)};
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ < 0) return;
    // A ring lets go of its files some time after it is gone, and the lock would last as long.
    flock(fd_, LOCK_UN);
    close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// False where there is no memory for it.
bool append(std::vector<Io*>& completed, Io* io) {
  try {
    completed.push_back(io);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

class UringFile : public File {
 public:
  UringFile(std::vector<Descriptor> fds, uint64_t bytes, bool direct)
      : fds_(std::move(fds)), bytes_(bytes), direct_(direct) {}
  ~UringFile() override {
    if (ready_) io_uring_queue_exit(&ring_);
  }
  // False: not permitted here.
  bool set_up() {
    if (wake_.get() < 0) return false;
    io_uring_params params{};
    params.flags = IORING_SETUP_CQSIZE;
    params.cq_entries = 4 * kEntries;
    if (io_uring_queue_init_params(kEntries, &ring_, &params) < 0) return false;
    ready_ = true;
    // Without it a full completion queue loses completions.
    if (!(params.features & IORING_FEAT_NODROP)) return false;
    std::vector<int> numbers;
    for (const Descriptor& fd : fds_) numbers.push_back(fd.get());
    if (io_uring_register_files(&ring_, numbers.data(), static_cast<unsigned>(numbers.size())) < 0) return false;
    arm();
    return true;
  }
  // For the fallback, which goes on with the same locked file.
  std::vector<Descriptor> take() { return std::move(fds_); }

  uint64_t bytes() const override { return bytes_; }
  const char* method() const override { return direct_ ? "io_uring" : "io_uring, buffered (no O_DIRECT here)"; }
  bool register_buffers(std::span<const iovec> buffers) override {
    return io_uring_register_buffers(&ring_, buffers.data(), static_cast<unsigned>(buffers.size())) == 0;
  }
  void start(Io& io) override {
    io_uring_sqe* const sqe = entry();
    const int file = static_cast<int>(io.file_index);
    if (io.op == IoOp::kSync)
      io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
    else if (io.buffer >= 0 && io.op == IoOp::kRead)
      io_uring_prep_read_fixed(sqe, file, io.iov->iov_base, static_cast<unsigned>(io.iov->iov_len), io.offset,
                               io.buffer);
    else if (io.buffer >= 0)
      io_uring_prep_write_fixed(sqe, file, io.iov->iov_base, static_cast<unsigned>(io.iov->iov_len), io.offset,
                                io.buffer);
    else if (io.op == IoOp::kRead)
      io_uring_prep_readv(sqe, file, io.iov, io.iovs, io.offset);
    else
      io_uring_prep_writev(sqe, file, io.iov, io.iovs, io.offset);
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, &io);
  }
  void wait(std::vector<Io*>& completed, bool block) override {
    // An interrupted or refused submission is tried again at the next call: its entries stay queued.
    if (block)
      io_uring_submit_and_wait(&ring_, 1);
    else
      io_uring_submit_and_get_events(&ring_);
    io_uring_cqe* cqe;
    unsigned head, seen = 0;
    bool woken = false;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      auto* const io = static_cast<Io*>(io_uring_cqe_get_data(cqe));
      if (io != nullptr && !append(completed, io)) break;
      seen++;
      if (io != nullptr)
        io->result = cqe->res;
      else
        woken = true;
    }
    io_uring_cq_advance(&ring_, seen);
    if (woken) arm();
  }
  void wake() override {
    const uint64_t one = 1;
    // It can only fail with the counter at its maximum, and then a wake-up is pending.
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  }

 private:
  static constexpr unsigned kEntries = 512;
  io_uring_sqe* entry() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    while (sqe == nullptr) {
      io_uring_submit(&ring_);
      sqe = io_uring_get_sqe(&ring_);
    }
    return sqe;
  }
  void arm() {
    io_uring_sqe* const sqe = entry();
    io_uring_prep_read(sqe, wake_.get(), &wakes_, sizeof wakes_, 0);
    io_uring_sqe_set_data(sqe, nullptr);
  }

  std::vector<Descriptor> fds_;
  Descriptor wake_{eventfd(0, EFD_CLOEXEC)};
  uint64_t bytes_, wakes_ = 0;
  bool direct_;
  io_uring ring_{};
  bool ready_ = false;
};

// Accesses in order, by their own links: a thread that nobody calls must not need memory.
class IoQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  Io* front() const { return first_; }
  void push_back(Io* io) {
    io->next = nullptr;
    (first_ ? last_->next : first_) = io;
    last_ = io;
  }
  void pop_front() { first_ = first_->next; }

 private:
  Io* first_ = nullptr;
  Io* last_ = nullptr;
};

class ThreadsFile : public File {
 public:
  ThreadsFile(std::vector<Descriptor> fds, uint64_t bytes) : fds_(std::move(fds)), bytes_(bytes) {
    for (int i = 0; i < kThreads; i++) threads_.emplace_back([this] { work(); });
  }
  ~ThreadsFile() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    queued_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  uint64_t bytes() const override { return bytes_; }
  const char* method() const override { return "pread and pwrite in 4 threads (io_uring is not permitted here)"; }
  bool register_buffers(std::span<const iovec>) override { return false; }
  void start(Io& io) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(&io);
    }
    queued_.notify_one();
  }
  void wait(std::vector<Io*>& completed, bool block) override {
    std::unique_lock lock(mutex_);
    if (block) ended_.wait(lock, [this] { return woken_ || !done_.empty(); });
    woken_ = false;
    while (!done_.empty() && append(completed, done_.front())) done_.pop_front();
  }
  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ended_.notify_one();
  }

 private:
  static constexpr int kThreads = 4;
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      queued_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Io* const io = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const auto at = static_cast<off_t>(io->offset);
      const int count = static_cast<int>(io->iovs), fd = fds_[io->file_index].get();
      const ssize_t result = io->op == IoOp::kSync   ? fdatasync(fd)
                             : io->op == IoOp::kRead ? preadv(fd, io->iov, count, at)
                                                     : pwritev(fd, io->iov, count, at);
      io->result = result < 0 ? -errno : result;
      lock.lock();
      done_.push_back(io);
      ended_.notify_one();
    }
  }

  std::vector<Descriptor> fds_;
  uint64_t bytes_;
  std::mutex mutex_;
  std::condition_variable queued_, ended_;
  IoQueue queue_, done_;
  bool woken_ = false, stop_ = false;
  std::vector<std::thread> threads_;
};

// Whether nothing is lost with a file: empty, or its first block is zeros, as of one whose making was cut short.
bool blank(const std::string& path, uint64_t bytes) {
  if (bytes == 0) return true;
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> first{};
  const ssize_t got = fd.get() < 0 ? -1 : pread(fd.get(), first.data(), first.size(), 0);
  return got > 0 && std::all_of(first.begin(), first.begin() + got, [](char c) { return c == 0; });
}

class PosixFileSystem : public FileSystem {
 public:
  explicit PosixFileSystem(IoMethod method) : method_(method) {}
  bool exists(const std::string& path) override { return access(path.c_str(), F_OK) == 0; }
  Result<std::unique_ptr<File>> open(const std::string& path) override { return open(path, 0, 0); }
  Result<std::unique_ptr<File>> create(const std::string& path, uint64_t bytes) override {
    return open(path, O_CREAT, bytes);
  }
  Result<std::unique_ptr<File>> open_to_read(std::span<const std::string> paths) override {
    bool direct = true;
    uint64_t bytes = 0;
    std::vector<Descriptor> fds;
    for (const std::string& path : paths) {
      Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
      if (fd.get() < 0 && errno == EINVAL) {
        direct = false;
        fd = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      }
      struct stat about {};
      if (fd.get() < 0 || fstat(fd.get(), &about) != 0) return error(errno, path);
      if (!S_ISREG(about.st_mode)) return Status(Code::kInvalid, path + ": not a regular file");
      bytes += static_cast<uint64_t>(about.st_size);
      fds.push_back(std::move(fd));
    }
    return make(paths[0], std::move(fds), bytes, direct);
  }
  Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return error(errno, to + ": cannot be given its name");
    // The name as well must be there after a power failure.
    const size_t slash = to.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : to.substr(0, slash);
    const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0 || fsync(fd.get()) != 0) return error(errno, folder);
    return Status::ok();
  }

 private:
  Result<std::unique_ptr<File>> open(const std::string& path, int flags, uint64_t bytes) {
    Descriptor fd(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC | flags, 0600));
    if (fd.get() < 0 && errno == EINVAL)
      return Status(Code::kUnsupported,
                    path + ": this file system has no direct I/O (O_DIRECT); use ext4, XFS or btrfs");
    if (fd.get() < 0) return error(errno, path);
    // For the same reason the lock of a process that was killed outlives it by a moment.
    int locked = flock(fd.get(), LOCK_EX | LOCK_NB);
    for (int tries = 0; locked != 0 && errno == EWOULDBLOCK && tries < 50; tries++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      locked = flock(fd.get(), LOCK_EX | LOCK_NB);
    }
    if (locked != 0)
      return errno == EWOULDBLOCK ? Status(Code::kBusy, path + ": in use by another process") : error(errno, path);
    struct stat about {};
    if (fstat(fd.get(), &about) != 0) return error(errno, path);
    if (!S_ISREG(about.st_mode)) return Status(Code::kInvalid, path + ": not a regular file");
    if (flags & O_CREAT) {
      if (!blank(path, static_cast<uint64_t>(about.st_size)))
        return Status(Code::kExists, path +
                                         ": is there already and is no unfinished file of an SSD tier; remove it, or "
                                         "name another file");
      if (ftruncate(fd.get(), 0) != 0 || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return error(errno, path);
      if (const int failed = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); failed != 0) {
        unlink(path.c_str());
        return error(failed, path + ": no room for " + std::to_string(bytes) + " bytes");
      }
      about.st_size = static_cast<off_t>(bytes);
    }
    std::vector<Descriptor> fds;
    fds.push_back(std::move(fd));
    return make(path, std::move(fds), static_cast<uint64_t>(about.st_size), true);
  }
  Result<std::unique_ptr<File>> make(const std::string& path, std::vector<Descriptor> fds, uint64_t size, bool direct) {
    if (method_ != IoMethod::kThreads) {
      auto file = std::make_unique<UringFile>(std::move(fds), size, direct);
      if (file->set_up()) return std::unique_ptr<File>(std::move(file));
      if (method_ == IoMethod::kUring) return Status(Code::kUnsupported, path + ": io_uring is not permitted here");
      return std::unique_ptr<File>(std::make_unique<ThreadsFile>(file->take(), size));
    }
    return std::unique_ptr<File>(std::make_unique<ThreadsFile>(std::move(fds), size));
  }

  const IoMethod method_;
};

}  // namespace

std::unique_ptr<FileSystem> posix_file_system(IoMethod method) { return std::make_unique<PosixFileSystem>(method); }

}  // namespace neotier::engine
