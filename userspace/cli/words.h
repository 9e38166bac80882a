// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace neotier::cli {

// What is wrong with the words of a command line before they are parsed, in one line that says where help is; empty:
// nothing. Finds commands and options that there are none of ("no command 'tirs'; did you mean 'tiers'?") and a list
// with a gap ("--policies 'a,,b'").
std::string wrong_word(const CLI::App& app, const std::vector<std::string>& words);

// The command that the words end with, where it only has others below it and neither help nor the version was asked
// for. NULL: there is something to do.
const CLI::App* unfinished(const CLI::App& app, const std::vector<std::string>& words);

// A number that cannot be negative refuses a sign: the parser would take -1 for the largest one there is.
void check_whole_numbers(CLI::App& app);

// Accepts these words alone; `or_library`: a shared library's path as well. `what` is for messages: "policy".
CLI::Validator one_of(const std::string& what, const std::vector<std::string>& known, bool or_library = false);
// Accepts KEY=VALUE of these keys; a key of a device has its name before it.
CLI::Validator one_of_keys(const std::string& what, const std::vector<std::string>& known);

}  // namespace neotier::cli
