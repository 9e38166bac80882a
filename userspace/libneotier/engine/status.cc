// SPDX-License-Identifier: Apache-2.0
#include "engine/status.h"

namespace neotier::engine {

const char* to_string(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalid:
      return "invalid";
    case Code::kNotFound:
      return "not found";
    case Code::kExists:
      return "exists";
    case Code::kFull:
      return "full";
    case Code::kBusy:
      return "busy";
    case Code::kCancelled:
      return "cancelled";
    case Code::kTimeout:
      return "timeout";
    case Code::kIo:
      return "I/O error";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kGone:
      return "gone";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kNoMemory:
      return "out of memory";
  }
  return "unknown";
}

}  // namespace neotier::engine
