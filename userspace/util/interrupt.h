// SPDX-License-Identifier: Apache-2.0
// Ctrl-C: a flag that long work looks at, so that it can leave nothing behind.
#pragma once

namespace neotier {

// From now on SIGINT and SIGTERM set the flag instead of ending the process.
void catch_interrupts();
bool interrupted();
// Throws std::runtime_error if the flag is set.
void throw_if_interrupted();

}  // namespace neotier
