// SPDX-License-Identifier: Apache-2.0
#include "util/known.h"

#include <algorithm>
#include <cstddef>

namespace neotier {

namespace {

// Letters to insert, remove or replace, or neighbours to exchange (optimal string alignment).
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); i++) {
    for (size_t j = 0; j <= b.size(); j++) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  if (word.size() > 2) {
    const auto begun = [&](const std::string& name) { return name.starts_with(word); };
    if (std::ranges::count_if(known, begun) == 1) return *std::ranges::find_if(known, begun);
  }
  std::string best;
  size_t least = 3;
  for (const std::string& name : known) {
    const size_t wrong = distance(word, name);
    if (wrong < least && 2 * wrong < std::max(word.size(), name.size())) {
      least = wrong;
      best = name;
    }
  }
  return best;
}

std::string no_such(const std::string& what, const std::string& word, const std::vector<std::string>& known) {
  const std::string meant = nearest(word, known);
  std::string text = "no " + what + " '" + word + "'; ";
  if (!meant.empty()) text += "did you mean '" + meant + "'? ";
  text += "there are: ";
  for (size_t i = 0; i < known.size(); i++) text += (i == 0 ? "" : ", ") + known[i];
  return text;
}

}  // namespace neotier
