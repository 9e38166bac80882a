// SPDX-License-Identifier: Apache-2.0
#include "cli/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace neotier::cli {

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

bool has_gap(const std::string& list, char delimiter) {
  return list.empty() || list.front() == delimiter || list.back() == delimiter ||
         list.find(std::string(2, delimiter)) != std::string::npos;
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
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

std::string wrong_word(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  for (size_t i = 0; i < words.size(); i++) {
    const std::string& word = words[i];
    if (word == "--") break;
    if (word.size() > 1 && word[0] == '-') {
      const size_t equals = word.find('=');
      const CLI::Option* option = at->get_option_no_throw(word.substr(0, equals));
      if (!option) {
        // Of a command itself the parser says so; before one it would miss the command first.
        if (!at->get_subcommands({}).empty() && word != "-h") return fmt::format("no option '{}'", word);
        continue;
      }
      const bool takes = option->get_items_expected_max() > 0;
      const bool apart = takes && equals == std::string::npos;
      if (takes && option->get_delimiter() != '\0' && (!apart || i + 1 < words.size())) {
        const std::string list = apart ? words[i + 1] : word.substr(equals + 1);
        if (has_gap(list, option->get_delimiter()))
          return fmt::format("{} '{}': a name is missing between two commas, before or behind one",
                             word.substr(0, equals), list);
      }
      if (apart) i++;
      continue;
    }
    if (at->get_subcommands({}).empty()) continue;
    std::vector<std::string> known;
    const CLI::App* next = nullptr;
    for (const CLI::App* command : at->get_subcommands({})) {
      known.push_back(command->get_name());
      if (known.back() == word) next = command;
    }
    if (next) {
      at = next;
      continue;
    }
    const std::string meant = nearest(word, known);
    const std::string whole = at == &app ? word : fmt::format("{} {}", at->get_name(), word);
    return meant.empty() ? fmt::format("no command '{}'; there are: {}", whole, fmt::join(known, ", "))
                         : fmt::format("no command '{}'; did you mean '{}'?", whole, meant);
  }
  return "";
}

void check_whole_numbers(CLI::App& app) {
  const CLI::Validator whole(
      [](std::string& text) {
        const bool negative = text.find('-') != std::string::npos;
        return negative ? fmt::format("'{}': expected a whole number, 0 or more", text) : std::string();
      },
      "");
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_name().starts_with("UINT")) option->check(whole);
  }
  for (CLI::App* command : app.get_subcommands({})) check_whole_numbers(*command);
}

}  // namespace neotier::cli
