// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace neotier::cli {

// What is wrong with the words of a command line before they are parsed, in one line; empty: nothing. Finds a command
// that there is none of ("no command 'tirs'; did you mean 'tiers'?") and a list with a gap ("--policies 'a,,b'").
std::string wrong_word(const CLI::App& app, const std::vector<std::string>& words);

// A number that cannot be negative refuses a sign: the parser would take -1 for the largest one there is.
void check_whole_numbers(CLI::App& app);

// The one of `known` that `word` may have been meant to be: at most two letters, and less than half of them, are
// wrong. Empty: none.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace neotier::cli
