// SPDX-License-Identifier: Apache-2.0
// CUDA's errors as this engine's.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "engine/status.h"

namespace neotier::engine::cuda {

// Errors after which the context answers nothing any more: the tier is out of service, the process lives on.
inline bool is_fatal(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorNoDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorContained:
      return true;
    default:
      return false;
  }
}

inline Code code_of(cudaError_t error) {
  return error == cudaSuccess                 ? Code::kOk
         : error == cudaErrorMemoryAllocation ? Code::kFull
         : is_fatal(error)                    ? Code::kGone
                                              : Code::kIo;
}

inline Status as_status(cudaError_t error, const std::string& where) {
  if (error == cudaSuccess) return {};
  return Status(code_of(error), where + ": " + cudaGetErrorString(error));
}

}  // namespace neotier::engine::cuda
