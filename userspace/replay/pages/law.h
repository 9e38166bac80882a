// SPDX-License-Identifier: Apache-2.0
// Promotion laws by name or from a shared library.
#pragma once

#include <string>

#include "neotier_policy.h"

namespace neotier::pages {

// A law of policies/ by name; where the name holds a '/' or ends in ".so", the one that the shared library exports as
// NEOTIER_POLICY_ENTRY. The library stays loaded until the process ends. Thread-safe. Throws std::runtime_error with
// one line: no such name (and which there are), no library, no such symbol, built with another header.
const neotier_policy* find_law(const std::string& name_or_path);

}  // namespace neotier::pages
