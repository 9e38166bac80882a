// SPDX-License-Identifier: Apache-2.0
// As much of CUDA's driver interface as the engine calls, on the stand-in of its run time; found by name there.
#pragma once

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
using CUdevice = int;
using CUcontext = struct StandInContext*;
