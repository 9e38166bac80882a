// SPDX-License-Identifier: Apache-2.0
// Copying between memories of the host.
#pragma once

#include <cstddef>

namespace neotier::engine {

using CopyFn = void (*)(std::byte* to, const std::byte* from, size_t bytes);

// The C library's.
void copy_plain(std::byte* to, const std::byte* from, size_t bytes);
// By stores that pass the caches by, so that moving cold bytes does not throw hot ones out: nothing is read for
// ownership. Any alignment. Falls back to copy_plain where the processor has no such stores, and below 4 KiB.
void copy_streaming(std::byte* to, const std::byte* from, size_t bytes);
// The faster of the two on this machine for pieces of 1 MiB out of and into memory that is in no cache; measured once
// (some 20 ms). Thread-safe.
CopyFn best_copy();
const char* copy_name(CopyFn copy);

}  // namespace neotier::engine
