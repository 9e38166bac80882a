// SPDX-License-Identifier: Apache-2.0
// What an engine call comes back with. No exceptions past construction: callers are C programs and completion threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace neotier::engine {

enum class Code : uint8_t {
  kOk = 0,
  kInvalid,    // the caller's mistake; nothing was done
  kNotFound,   // no such object
  kExists,     // an object of this key is there already
  kFull,       // no room, and none can be made
  kBusy,       // pinned, leased or in flight; try again
  kCancelled,  // as asked
  kTimeout,    // took longer than the caller allows; the transfer itself may still end
  kIo,         // the medium failed this transfer; others may succeed
  kCorrupt,    // bytes came back that are not those written; never handed out
  kGone,       // the tier is out of service; its objects may come back with it
  kUnsupported
};

const char* to_string(Code code);

// [[nodiscard]]: an error that nobody looks at is a lost object. `what` is one line: what, where, what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string what) : code_(code), what_(std::move(what)) {}
  static Status ok() { return {}; }
  bool is_ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return is_ok(); }
  Code code() const { return code_; }
  const std::string& what() const { return what_; }

 private:
  Code code_ = Code::kOk;
  std::string what_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}
  bool is_ok() const { return value_.has_value(); }
  explicit operator bool() const { return is_ok(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace neotier::engine
