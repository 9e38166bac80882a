// SPDX-License-Identifier: Apache-2.0
// What the files that implement include/neotier*.h share: errors, versioned structs, no exception across the border.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "engine/completion_queue.h"
#include "engine/engine.h"
#include "neotier.h"

static_assert(sizeof(neotier_object_key) == sizeof(neotier::engine::Key) &&
              alignof(neotier_object_key) == alignof(neotier::engine::Key));

struct neotier_engine {
  neotier::engine::Engine engine;
};

struct neotier_queue {
  std::shared_ptr<neotier::engine::CompletionQueue> queue;  // what is still to come holds it as well
};

namespace neotier::c_api {

// Of the calling thread.
inline std::string& last_error() {
  thread_local std::string text;
  return text;
}

inline int code_of(engine::Code code) {
  switch (code) {
    case engine::Code::kOk:
      return 0;
    case engine::Code::kInvalid:
      return NEOTIER_EINVALID;
    case engine::Code::kNotFound:
      return NEOTIER_ENOTFOUND;
    case engine::Code::kExists:
      return NEOTIER_EEXISTS;
    case engine::Code::kFull:
      return NEOTIER_EFULL;
    case engine::Code::kBusy:
      return NEOTIER_EBUSY;
    case engine::Code::kCancelled:
      return NEOTIER_ECANCELLED;
    case engine::Code::kTimeout:
      return NEOTIER_ETIMEOUT;
    case engine::Code::kIo:
      return NEOTIER_EIO;
    case engine::Code::kCorrupt:
      return NEOTIER_ECORRUPT;
    case engine::Code::kGone:
      return NEOTIER_EGONE;
    case engine::Code::kUnsupported:
      return NEOTIER_EUNSUPPORTED;
    case engine::Code::kNoMemory:
      return NEOTIER_ENOMEM;
  }
  return NEOTIER_EINVALID;
}

// Where memory is out there are no words for it: callers are C programs, which nothing may be thrown at.
inline int fail(int code, std::string_view what) noexcept {
  try {
    last_error() = what;
  } catch (const std::bad_alloc&) {
    last_error().clear();
  }
  return code;
}

inline int answer(const engine::Status& status) {
  return status.is_ok() ? 0 : fail(code_of(status.code()), status.what());
}

inline const engine::Key& key_of(const neotier_object_key* key) { return *reinterpret_cast<const engine::Key*>(key); }

// What a program built against an older or newer header passed, as this one's struct: fields it does not know are 0.
template <typename T>
T taken(const T* given) {
  T own{};
  if (given) std::memcpy(&own, given, std::min<size_t>(given->struct_bytes, sizeof(T)));
  return own;
}

// Fills no more than the caller has room for; struct_bytes stays as it was.
template <typename T>
int give(T* into, T own) {
  if (!into || into->struct_bytes < sizeof(uint32_t))
    return fail(NEOTIER_EINVALID, "struct_bytes of the result is not set");
  own.struct_bytes = into->struct_bytes;
  std::memcpy(into, &own, std::min<size_t>(into->struct_bytes, sizeof(T)));
  return 0;
}

// Runs `body`; what it throws becomes an error of the thread.
template <typename Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(NEOTIER_ENOMEM, "out of memory");
  } catch (const std::exception& error) {
    return fail(NEOTIER_EINVALID, error.what());
  }
}

// As much of it as fits, and a final 0.
inline void copy_text(char* into, size_t bytes, const std::string& text) {
  if (bytes == 0) return;
  const size_t fits = std::min(text.size(), bytes - 1);
  std::memcpy(into, text.data(), fits);
  into[fits] = 0;
}

}  // namespace neotier::c_api
