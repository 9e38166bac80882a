// SPDX-License-Identifier: Apache-2.0
// Where a model file's bytes come from, and the bounded reader that both formats are parsed with. Nothing is mapped: a
// file that shrinks while it is read is an error, not a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"

namespace neotier::model {

using engine::Code;
using engine::Result;
using engine::Status;

// Random access to bytes of a known number. Thread-safe.
class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t bytes() const = 0;
  // Fills `out` from `offset`; the caller keeps within bytes(). kIo where the medium fails.
  virtual Status read(uint64_t offset, std::span<std::byte> out) const = 0;
};

// A regular file (or a link to one). kNotFound, kInvalid (a folder, a pipe), kIo.
Result<std::unique_ptr<Source>> open_file(const std::string& path);

// Bytes of the caller's, who keeps them alive.
class MemorySource final : public Source {
 public:
  explicit MemorySource(std::span<const std::byte> data) : data_(data) {}
  uint64_t bytes() const override { return data_.size(); }
  Status read(uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::span<const std::byte> data_;
};

// A name out of a file, for messages: quoted, at most 80 bytes of it, control and non-ASCII bytes as \xNN.
std::string shown(std::string_view text);

// "FILE: what at offset N; what to do", all in one line.
Status malformed(const std::string& file, uint64_t offset, const std::string& what);

// Little-endian values one after the other, through one buffer of 64 KiB. The first failure sticks: values read after
// it are zero, so that a parser may look at status() once per item. Not thread-safe.
class Cursor {
 public:
  // Reads [offset, end); end is at most source.bytes().
  Cursor(const Source& source, std::string file, uint64_t offset, uint64_t end)
      : source_(source), file_(std::move(file)), at_(offset), end_(end) {}

  uint64_t offset() const { return at_; }
  uint64_t left() const { return end_ - at_; }
  bool ok() const { return status_.is_ok(); }
  const Status& status() const { return status_; }

  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint16_t u16() { return static_cast<uint16_t>(number(2)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  // `what` names the item in messages.
  std::string text(uint64_t bytes, const char* what);
  void skip(uint64_t bytes, const char* what);
  // Fails here, unless it failed before.
  void fail(const std::string& what);

 private:
  uint64_t number(unsigned bytes);
  bool need(uint64_t bytes, const char* what);
  void fetch(std::byte* out, size_t bytes);

  const Source& source_;
  std::string file_;
  uint64_t at_, end_;
  uint64_t buffer_at_ = 0;
  std::vector<std::byte> buffer_;
  Status status_;
};

}  // namespace neotier::model
