// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace neotier {

// Memory that this process can ever have, bytes: the machine's, or less where a cgroup (version 1 or 2) limits it.
// What is free at the moment is another matter.
uint64_t host_memory_bytes();

// What this process could take now without anybody swapping, bytes: what the machine has free or can free, or less
// where a cgroup (version 1 or 2) limits it.
uint64_t free_memory_bytes();

}  // namespace neotier
