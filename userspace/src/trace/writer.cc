// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
#include "trace/writer.h"

#include <fcntl.h>
#include <unistd.h>
#include <zstd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace fs = std::filesystem;

namespace neotier::trace {

static_assert(std::endian::native == std::endian::little, "records are written as they lie in memory");

Format format_of(const fs::path& file) {
  const std::string suffix = file.extension();
  return suffix == ".zst" ? Format::kZstd : suffix == ".csv" ? Format::kCsv : Format::kRaw;
}

struct Writer::Compressor {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  std::vector<char> out = std::vector<char>(ZSTD_CStreamOutSize());
  ~Compressor() { ZSTD_freeCCtx(context); }
};

Writer::Writer(const fs::path& file)
    : file_(file),
      part_(file.string() + ".part"),
      format_(format_of(file)),
      buffer_(std::make_unique<uint64_t[]>(kBuffer)) {
  fd_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(std::strerror(errno));
  if (format_ == Format::kZstd) {
    zstd_ = std::make_unique<Compressor>();
    // A checksum, so that a reader tells a damaged trace from a strange one.
    if (!zstd_->context || ZSTD_isError(ZSTD_CCtx_setParameter(zstd_->context, ZSTD_c_checksumFlag, 1))) {
      fail("zstd could not be set up");
    }
  } else if (format_ == Format::kCsv) {
    static constexpr char kHeader[] = "address,write\n";
    write(kHeader, sizeof kHeader - 1);
  }
}

Writer::~Writer() {
  if (fd_ < 0) return;
  close(fd_);
  std::error_code ignored;
  fs::remove(part_, ignored);
}

void Writer::fail(const std::string& why) {
  if (fd_ >= 0) {
    close(fd_);
    fd_ = -1;
    std::error_code ignored;
    fs::remove(part_, ignored);
  }
  throw std::runtime_error("cannot write " + file_.string() + ": " + why);
}

void Writer::write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t n = ::write(fd_, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(std::strerror(n < 0 ? errno : ENOSPC));
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void Writer::compress(const void* data, size_t bytes, bool last) {
  ZSTD_inBuffer in = {data, bytes, 0};
  for (;;) {
    ZSTD_outBuffer out = {zstd_->out.data(), zstd_->out.size(), 0};
    const size_t left = ZSTD_compressStream2(zstd_->context, &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left)) fail(ZSTD_getErrorName(left));
    write(out.dst, out.pos);
    if (last ? left == 0 : in.pos == in.size) return;
  }
}

void Writer::flush() {
  if (format_ == Format::kRaw) {
    write(buffer_.get(), used_ * 8);
  } else if (format_ == Format::kZstd) {
    compress(buffer_.get(), used_ * 8, false);
  } else {
    std::string text;
    text.reserve(used_ * 24);
    for (size_t i = 0; i < used_; ++i) {
      char line[32];
      const int n =
          std::snprintf(line, sizeof line, "0x%llx,%d\n", static_cast<unsigned long long>(buffer_[i] & ~kWriteBit),
                        static_cast<int>(buffer_[i] & kWriteBit));
      text.append(line, static_cast<size_t>(n));
    }
    write(text.data(), text.size());
  }
  records_ += used_;
  used_ = 0;
}

void Writer::finish() {
  flush();
  if (format_ == Format::kZstd) compress(nullptr, 0, true);
  const int fd = fd_;
  fd_ = -1;
  // Some file systems tell of a full disk only here.
  std::error_code error;
  if (close(fd) != 0)
    error = std::error_code(errno, std::generic_category());
  else
    fs::rename(part_, file_, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(part_, ignored);
  fail(error.message());
}

}  // namespace neotier::trace
