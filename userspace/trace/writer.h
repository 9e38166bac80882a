// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Memory traces as files. A record is a little-endian u64: a byte address whose bit 0 says write. Three forms, told by
// the file's name: .zst is zstd, .csv is text ("address,write" and one line a record), anything else is the bare
// records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "util/output_file.h"

namespace neotier::trace {

enum class Format { kRaw, kZstd, kCsv };
Format format_of(const std::filesystem::path& file);

inline constexpr uint64_t kWriteBit = 1;

// The file is there, as a whole, after finish() (util/output_file.h). Memory does not grow with the trace. Not
// thread-safe. All members throw std::runtime_error with one line.
class Writer {
 public:
  // `option` is for messages.
  explicit Writer(const std::filesystem::path& file, std::string_view option = {});
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void put(uint64_t record) {
    buffer_[used_++] = record;
    if (used_ == kBuffer) flush();
  }
  void finish();
  uint64_t records() const { return records_ + used_; }

 private:
  static constexpr size_t kBuffer = size_t{64} << 10;  // records

  void flush();
  void compress(const void* data, size_t bytes, bool last);
  [[noreturn]] void fail(const std::string& why);

  std::filesystem::path file_;
  OutputFile out_;
  Format format_;
  std::unique_ptr<uint64_t[]> buffer_;
  size_t used_ = 0;
  uint64_t records_ = 0;
  struct Compressor;
  std::unique_ptr<Compressor> zstd_;
};

}  // namespace neotier::trace
