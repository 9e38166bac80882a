// SPDX-License-Identifier: Apache-2.0
#include "cli/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ranges>

#include "util/known.h"

namespace neotier::cli {

namespace {

bool has_gap(const std::string& list, char delimiter) {
  return list.empty() || list.front() == delimiter || list.back() == delimiter ||
         list.find(std::string(2, delimiter)) != std::string::npos;
}

}  // namespace

CLI::Validator one_of(const std::string& what, const std::vector<std::string>& known, bool or_library) {
  return CLI::Validator(
      [=](std::string& word) {
        if (or_library && (word.find('/') != std::string::npos || word.ends_with(".so"))) return std::string();
        return std::ranges::find(known, word) != known.end() ? std::string() : no_such(what, word, known);
      },
      fmt::format("{{{}}}", fmt::join(known, ",")));
}

CLI::Validator one_of_keys(const std::string& what, const std::vector<std::string>& known) {
  return CLI::Validator(
      [=](std::string& setting) {
        const size_t equals = setting.find('=');
        std::string key = setting.substr(0, equals);
        if (key.starts_with("device") && key.find('/') != std::string::npos) key = key.substr(key.find('/') + 1);
        // One without a value is refused with what it takes.
        const bool fine = equals == std::string::npos || std::ranges::find(known, key) != known.end();
        return fine ? std::string() : no_such(what, key, known);
      },
      "");
}

namespace {

// Where help on `command` is.
std::string see(const CLI::App& command) {
  std::string path = command.get_name();
  for (const CLI::App* parent = command.get_parent(); parent; parent = parent->get_parent())
    path.insert(0, parent->get_name() + " ");
  return fmt::format("see `{} --help`", path);
}

// The name before an option's '='; of -oFILE the two letters.
std::string option_name(const CLI::App& command, const std::string& word) {
  if (word.starts_with("--")) return word.substr(0, word.find('='));
  const std::string two = word.substr(0, 2);
  return command.get_option_no_throw(two) ? two : word;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* below : command.get_subcommands({})) names.push_back(below->get_name());
  return names;
}

std::string wrong_option(const CLI::App& command, const std::string& name) {
  const std::string meant = name.starts_with("--") ? nearest(name, option_names(command)) : "";
  const bool program = command.get_option_no_throw("PROGRAM") != nullptr;
  return fmt::format("no option '{}'; {}{}{}", name, meant.empty() ? "" : fmt::format("did you mean '{}'? ", meant),
                     program ? "PROGRAM and its own options come after '--'; " : "", see(command));
}

}  // namespace

const CLI::App* unfinished(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  for (size_t i = 0; i < words.size(); i++) {
    if (words[i] == "-h" || words[i] == "--help" || words[i] == "--version") return nullptr;
    if (words[i].starts_with('-')) {
      const CLI::Option* option = at->get_option_no_throw(option_name(*at, words[i]));
      if (option && option->get_items_expected_max() > 0 && words[i].find('=') == std::string::npos) i++;
      continue;
    }
    const auto below = at->get_subcommands({});
    const auto next = std::ranges::find(below, words[i], [](const CLI::App* one) { return one->get_name(); });
    if (next == below.end()) return nullptr;
    at = *next;
  }
  return at->get_subcommands({}).empty() ? nullptr : at;
}

std::string wrong_word(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  for (size_t i = 0; i < words.size(); i++) {
    const std::string& word = words[i];
    if (word == "--") break;
    if (word.size() > 1 && word[0] == '-') {
      const std::string name = option_name(*at, word);
      const size_t equals = word.find('=');
      const CLI::Option* option = at->get_option_no_throw(name);
      if (!option) return wrong_option(*at, name);
      const bool takes = option->get_items_expected_max() > 0;
      const bool apart = takes && equals == std::string::npos && (name == word);
      if (takes && option->get_delimiter() != '\0' && (!apart || i + 1 < words.size())) {
        const std::string list = apart ? words[i + 1] : word.substr(equals + 1);
        if (has_gap(list, option->get_delimiter()))
          return fmt::format("{} '{}': a name is missing between two commas, before or behind one; {}", name, list,
                             see(*at));
      }
      if (apart) i++;
      continue;
    }
    if (at->get_subcommands({}).empty()) continue;
    const CLI::App* next = nullptr;
    for (const CLI::App* command : at->get_subcommands({})) {
      if (command->get_name() == word) next = command;
    }
    if (!next) {
      const std::vector<std::string> known = command_names(*at);
      const std::string meant = nearest(word, known);
      const std::string whole = at == &app ? word : fmt::format("{} {}", at->get_name(), word);
      return fmt::format("no command '{}'; {} {}", whole,
                         meant.empty() ? fmt::format("there are: {};", fmt::join(known, ", "))
                                       : fmt::format("did you mean '{}'?", meant),
                         see(*at));
    }
    at = next;
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
