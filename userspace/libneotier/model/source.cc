// SPDX-License-Identifier: Apache-2.0
#include "model/source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace neotier::model {

namespace {

constexpr size_t kBufferBytes = 64 << 10;

class FileSource final : public Source {
 public:
  FileSource(std::string path, int fd, uint64_t bytes) : path_(std::move(path)), fd_(fd), bytes_(bytes) {}
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override { ::close(fd_); }
  uint64_t bytes() const override { return bytes_; }

  Status read(uint64_t offset, std::span<std::byte> out) const override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return {Code::kIo, fmt::format("{}: cannot read at offset {}: {}", path_, offset, strerror(errno))};
      if (n == 0)
        return {Code::kIo, fmt::format("{}: became shorter than {} bytes while it was read; is it still being written?",
                                       path_, bytes_)};
      done += static_cast<size_t>(n);
    }
    return {};
  }

 private:
  std::string path_;
  int fd_;
  uint64_t bytes_;
};

}  // namespace

Result<std::unique_ptr<Source>> open_file(const std::string& path) {
  // Not blocking: a pipe without a writer would wait for ever.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return Status(errno == ENOENT ? Code::kNotFound : Code::kIo,
                  fmt::format("cannot open {}: {}", path, strerror(errno)));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return Status(Code::kInvalid, fmt::format("{}: not a regular file; give a model file or a folder of them", path));
  }
  return std::unique_ptr<Source>(std::make_unique<FileSource>(path, fd, static_cast<uint64_t>(info.st_size)));
}

Status MemorySource::read(uint64_t offset, std::span<std::byte> out) const {
  if (offset > data_.size() || out.size() > data_.size() - offset) return {Code::kIo, "read past the end"};
  if (!out.empty()) std::memcpy(out.data(), data_.data() + offset, out.size());
  return {};
}

std::string shown(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 80)) {
    if (c >= 0x20 && c < 0x7f)
      out += c;
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (text.size() > 80 ? "'..." : "'");
}

Status malformed(const std::string& file, uint64_t offset, const std::string& what) {
  return {Code::kCorrupt, fmt::format("{}: {} at offset {}; the file is damaged, cut or no such model: fetch it again",
                                      file, what, offset)};
}

void Cursor::fail(const std::string& what) {
  if (status_.is_ok()) status_ = malformed(file_, at_, what);
}

bool Cursor::need(uint64_t bytes, const char* what) {
  if (!ok()) return false;
  if (bytes <= left()) return true;
  fail(fmt::format("{} of {} bytes goes past the end, {} bytes are left", what, bytes, left()));
  return false;
}

void Cursor::fetch(std::byte* out, size_t bytes) {
  while (bytes > 0 && ok()) {
    if (at_ < buffer_at_ || at_ >= buffer_at_ + buffer_.size()) {
      buffer_.resize(static_cast<size_t>(std::min<uint64_t>(kBufferBytes, left())));
      buffer_at_ = at_;
      if (Status read = source_.read(at_, buffer_); !read) {
        status_ = std::move(read);
        return;
      }
    }
    const size_t from = static_cast<size_t>(at_ - buffer_at_);
    const size_t n = std::min(bytes, buffer_.size() - from);
    std::memcpy(out, buffer_.data() + from, n);
    out += n;
    at_ += n;
    bytes -= n;
  }
}

uint64_t Cursor::number(unsigned bytes) {
  std::byte raw[8] = {};
  if (!need(bytes, "a number")) return 0;
  fetch(raw, bytes);
  uint64_t value = 0;
  for (unsigned i = bytes; i-- > 0;) value = value << 8 | static_cast<uint64_t>(raw[i]);
  return ok() ? value : 0;
}

std::string Cursor::text(uint64_t bytes, const char* what) {
  if (!need(bytes, what)) return {};
  std::string out(static_cast<size_t>(bytes), '\0');
  fetch(reinterpret_cast<std::byte*>(out.data()), out.size());
  return ok() ? out : std::string();
}

void Cursor::skip(uint64_t bytes, const char* what) {
  if (need(bytes, what)) at_ += bytes;
}

}  // namespace neotier::model
