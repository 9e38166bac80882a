// SPDX-License-Identifier: Apache-2.0
#include "compute/kernels.h"

#include <cstdlib>
#include <string_view>

namespace neotier::compute {

extern const Kernels kBaselineKernels;
#ifdef __x86_64__
extern const Kernels kAvx2Kernels, kAvx512Kernels;
#endif

const char* to_string(Path path) {
  constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(path)];
}

const Kernels* kernels(Path path) {
  switch (path) {
    case Path::kBaseline:
      return &kBaselineKernels;
#ifdef __x86_64__
    // These ask the operating system too, whether it saves the registers.
    case Path::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kAvx2Kernels : nullptr;
    case Path::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                     __builtin_cpu_supports("fma")
                 ? &kAvx512Kernels
                 : nullptr;
#else
    default:
      break;
#endif
  }
  return nullptr;
}

const Kernels& kernels() {
  static const Kernels& chosen = []() -> const Kernels& {
    const char* wanted = std::getenv("NEOTIER_COMPUTE_PATH");
    const Kernels* best = &kBaselineKernels;
    for (const Path path : kPaths) {
      const Kernels* k = kernels(path);
      if (!k) continue;
      best = k;
      if (wanted && std::string_view(wanted) == to_string(path)) break;
    }
    return *best;
  }();
  return chosen;
}

}  // namespace neotier::compute
