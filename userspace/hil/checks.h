// SPDX-License-Identifier: Apache-2.0
// What can be known to be wrong before a machine boots. All throw std::runtime_error with one line that says what there
// is instead.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hil/run.h"

namespace neotier::hil {

// KEY=VALUE of /sys/kernel/neotier: that there is such a file, that it takes the value, that the machine has so many
// devices; and that one of `policies` loads the module at all.
void check_knobs(const RunOptions& options, const std::vector<std::string>& policies);
// NAME=VALUE: the form, and the tree it is in. Whether the guest's kernel has it is known there alone.
void check_sysctls(const RunOptions& options);
// That the memory of so many machines at once is no larger than this one's.
void check_memory(const RunOptions& options, uint64_t machines);

}  // namespace neotier::hil
