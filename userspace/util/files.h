// SPDX-License-Identifier: Apache-2.0
// Folders: of output, and of the installation.
#pragma once

#include <filesystem>
#include <string_view>

namespace neotier {

// Makes `folder` where it is not there. Throws std::runtime_error, naming `option`, if nothing can be written there.
void require_output_folder(std::string_view option, const std::filesystem::path& folder);

// Throws std::runtime_error where both are the same file.
void refuse_input_as_output(std::string_view option, const std::filesystem::path& input,
                            const std::filesystem::path& output);

// The build folder: beside the executable's, or $NEOTIER_BUILD.
std::filesystem::path build_directory();

}  // namespace neotier
