// SPDX-License-Identifier: Apache-2.0
// All that the SSD tier and the expert store ask of the operating system, so that a test can put a failing medium in
// its place (engine/testing/fake_disk.h). The idea is LevelDB's Env (leveldb include/leveldb/env.h).
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/status.h"

namespace neotier::engine {

enum class IoOp : uint8_t { kRead, kWrite, kSync };

// One access. Owned by the caller, alive until wait() gives it back. Offsets, addresses and lengths are multiples of
// 4096 bytes. kSync makes every write that was given back before its start durable.
struct Io {
  IoOp op = IoOp::kRead;
  int buffer = -1;  // the registered buffer that the only iovec lies in, or -1
  uint32_t iovs = 0;
  const iovec* iov = nullptr;
  uint64_t offset = 0;
  uint32_t file_index = 0;  // of those that were opened together; else 0
  int64_t result = 0;       // bytes, which may be fewer than asked, or -errno
  Io* next = nullptr;       // the file's own while it is under way
};

// Used by one thread at a time, wake() excepted.
class File {
 public:
  virtual ~File() = default;
  virtual uint64_t bytes() const = 0;
  virtual const char* method() const = 0;  // "io_uring", ...
  // Memory that transfers will use often. False: not possible here; then Io::buffer must stay -1.
  virtual bool register_buffers(std::span<const iovec> buffers) = 0;
  virtual void start(Io& io) = 0;
  // Appends what has completed, as far as there is memory for it; the rest comes with the next call. `block`: waits
  // until something has, or until wake() was called.
  virtual void wait(std::vector<Io*>& completed, bool block) = 0;
  // From any thread: the present or next wait(block) returns.
  virtual void wake() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual bool exists(const std::string& path) = 0;
  // An existing file, locked: kNotFound, kBusy (locked by another), kIo.
  virtual Result<std::unique_ptr<File>> open(const std::string& path) = 0;
  // A new file of that size with all its room reserved, locked. kFull, kIo. Replaces what an interrupted create() left,
  // and nothing else: kExists.
  virtual Result<std::unique_ptr<File>> create(const std::string& path, uint64_t bytes) = 0;
  // Existing files, 1 or more, that are only read and may be read by others: not locked, of any size; Io::file_index
  // counts them. Accesses may go past an end and come back shorter. O_DIRECT where the file systems have it;
  // File::method() says so where not. File::bytes() is of all. kNotFound, kIo, kInvalid (no regular file).
  virtual Result<std::unique_ptr<File>> open_to_read(std::span<const std::string> paths) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;
};

enum class IoMethod : uint8_t { kAny, kUring, kThreads };

// The machine's own files, O_DIRECT. kAny: io_uring, or pread and pwrite in threads where the kernel does not permit
// that (kernel.io_uring_disabled, seccomp); File::method() says which.
std::unique_ptr<FileSystem> posix_file_system(IoMethod method = IoMethod::kAny);

}  // namespace neotier::engine
