// SPDX-License-Identifier: Apache-2.0
// Names that somebody typed, and those that there are.
#pragma once

#include <string>
#include <vector>

namespace neotier {

// The one of `known` that `word` may have been meant to be: the only one that it begins, or one of which at most two
// letters, and less than half of them, are wrong. Empty: none.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

// "no policy 'netoier'; did you mean 'neotier'? there are: none, neotier"
std::string no_such(const std::string& what, const std::string& word, const std::vector<std::string>& known);

}  // namespace neotier
