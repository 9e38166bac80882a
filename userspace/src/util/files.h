// SPDX-License-Identifier: Apache-2.0
// Files that are whole or not there, and where the installation's own lie.
#pragma once

#include <filesystem>
#include <string_view>

namespace neotier {

// Writes FILE.part and renames it. Throws std::runtime_error with one line; then neither file is left behind.
void write_file(const std::filesystem::path& file, std::string_view content);

// Throws std::runtime_error, naming `option`, if the folder that `file` would lie in does not exist.
void require_folder(std::string_view option, const std::filesystem::path& file);

// The build folder: beside the executable's, or $NEOTIER_BUILD.
std::filesystem::path build_directory();

}  // namespace neotier
