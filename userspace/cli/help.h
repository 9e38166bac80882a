// SPDX-License-Identifier: Apache-2.0
// The manner of speaking that all commands share, and their one description in its three forms: help on a terminal, man
// pages, shell completion.
//
// A description is a sentence; where its first letter is small or its full stop is missing, they are supplied. In a
// footer a line that begins with two spaces is an example and stays as it is; the rest is prose, and is wrapped.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace neotier::cli {

// Before any command is added: the look of help and of messages about the command line, for `app` and all below it.
void set_manner(CLI::App& app);
// After the last one: --version for each command, --quiet for each that does something.
void finish_manner(CLI::App& app);

// `--json FILE`: the figures, to a file or, as -, to standard output.
CLI::Option* add_json(CLI::App& command, std::string& file);
// `-o FILE`: what the command makes.
CLI::Option* add_output(CLI::App& command, std::string& file, const std::string& what);
CLI::Option* add_output(CLI::App& command, std::filesystem::path& file, const std::string& what);

// A line that somebody may want to know and need not: on standard error, "neotier: LINE", unless --quiet was given.
void note(std::string_view line);

// Below FOLDER what a package installs below /usr/share: man/man1, bash-completion/completions,
// zsh/vendor-completions, fish/vendor_completions.d. Throws std::runtime_error in one line.
void write_share(const CLI::App& app, const std::filesystem::path& folder);

}  // namespace neotier::cli
