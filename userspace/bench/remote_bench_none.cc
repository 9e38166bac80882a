// SPDX-License-Identifier: Apache-2.0
// Built without the remote tier's client library.
#include <stdexcept>

#include "bench/remote_bench.h"

namespace neotier::engine {

RemoteBenchResult bench_remote(const RemoteBenchOptions&) {
  throw std::runtime_error(
      "built without the remote tier's client library: scripts/bootstrap fetches it, then build again");
}

}  // namespace neotier::engine
