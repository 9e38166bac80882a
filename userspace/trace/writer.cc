// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
#include "trace/writer.h"

#include <zstd.h>

#include <bit>
#include <cstdio>
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

Writer::Writer(const fs::path& file, std::string_view option)
    : file_(file), out_(option, file), format_(format_of(file)), buffer_(std::make_unique<uint64_t[]>(kBuffer)) {
  if (format_ == Format::kZstd) {
    zstd_ = std::make_unique<Compressor>();
    // A checksum, so that a reader tells a damaged trace from a strange one.
    if (!zstd_->context || ZSTD_isError(ZSTD_CCtx_setParameter(zstd_->context, ZSTD_c_checksumFlag, 1))) {
      fail("zstd could not be set up");
    }
  } else if (format_ == Format::kCsv) {
    static constexpr char kHeader[] = "address,write\n";
    out_.write(kHeader, sizeof kHeader - 1);
  }
}

Writer::~Writer() = default;

void Writer::fail(const std::string& why) { throw std::runtime_error("cannot write " + file_.string() + ": " + why); }

void Writer::compress(const void* data, size_t bytes, bool last) {
  ZSTD_inBuffer in = {data, bytes, 0};
  for (;;) {
    ZSTD_outBuffer out = {zstd_->out.data(), zstd_->out.size(), 0};
    const size_t left = ZSTD_compressStream2(zstd_->context, &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left)) fail(ZSTD_getErrorName(left));
    out_.write(out.dst, out.pos);
    if (last ? left == 0 : in.pos == in.size) return;
  }
}

void Writer::flush() {
  if (format_ == Format::kRaw) {
    out_.write(buffer_.get(), used_ * 8);
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
    out_.write(text);
  }
  records_ += used_;
  used_ = 0;
}

void Writer::finish() {
  flush();
  if (format_ == Format::kZstd) compress(nullptr, 0, true);
  out_.commit();
}

}  // namespace neotier::trace
