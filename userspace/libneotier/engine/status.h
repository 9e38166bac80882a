// SPDX-License-Identifier: Apache-2.0
// What an engine call comes back with. No exceptions past construction: callers are C programs and completion threads.
#pragma once

#include <cstdint>
#include <new>
#include <optional>
#include <ostream>
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
  kUnsupported,
  kNoMemory  // this process has none left; nothing was done
};

const char* to_string(Code code);
inline std::ostream& operator<<(std::ostream& out, Code code) { return out << to_string(code); }

// [[nodiscard]]: an error that nobody looks at is a lost object. `what` is one line: what, where, what to do. Copied
// where memory is out it loses the line and keeps the code: threads that nobody calls hand statuses on.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string what) : code_(code), what_(std::move(what)) {}
  Status(const Status& other) noexcept : code_(other.code_) { take_line(other); }
  Status& operator=(const Status& other) noexcept {
    if (this == &other) return *this;
    code_ = other.code_;
    what_.clear();
    take_line(other);
    return *this;
  }
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;
  static Status ok() { return {}; }
  bool is_ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return is_ok(); }
  Code code() const { return code_; }
  const std::string& what() const { return what_; }

 private:
  void take_line(const Status& other) noexcept {
    try {
      what_ = other.what_;
    } catch (const std::bad_alloc&) {
      what_.clear();
    }
  }
  Code code_ = Code::kOk;
  std::string what_;
};

// Needs none itself.
inline Status no_memory() noexcept { return {Code::kNoMemory, "out of memory"}; }

// A status with the line that `make` returns, and without one where there is no memory for it.
template <typename Make>
Status status_of(Code code, Make make) noexcept {
  try {
    return {code, make()};
  } catch (const std::bad_alloc&) {
    return {code, std::string()};
  }
}

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

// What `body` returns, or that memory is out.
template <typename Body>
auto without_throwing(Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

}  // namespace neotier::engine
