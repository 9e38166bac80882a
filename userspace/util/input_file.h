// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace neotier {

// The whole of a file that somebody named. Throws std::runtime_error with one line that says which it is: "FILE: no
// such file", a folder, empty, or what the system says.
std::string read_input_file(const std::filesystem::path& file);

}  // namespace neotier
