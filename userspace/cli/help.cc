// SPDX-License-Identifier: Apache-2.0
#include "cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "util/output_file.h"
#include "util/progress.h"

namespace fs = std::filesystem;

namespace neotier::cli {

namespace {

constexpr size_t kNames = 30;  // columns of the names in help

// One option, as every form shows it.
struct Entry {
  std::vector<std::string> names;    // "-o", "--output"; empty: an argument
  std::string value;                 // "FILE"; empty: a flag
  std::vector<std::string> choices;  // empty: anything
  std::string text;                  // sentences
  bool required = false, many = false;
};

std::string sentence(std::string text) {
  // A name of an option or a file keeps its small letter.
  if (text.size() > 1 && std::islower(static_cast<unsigned char>(text[0])) && !text.starts_with("neotier"))
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  if (!text.empty() && std::string_view(".!?:").find(text.back()) == std::string_view::npos) text += '.';
  return text;
}

// "INT in [1 - 5]", "{a,b}": what a validator says of itself.
void add_check(Entry& entry, std::string_view check) {
  if (check.starts_with('{') && check.ends_with('}')) {
    std::istringstream list(std::string(check.substr(1, check.size() - 2)));
    for (std::string word; std::getline(list, word, ',');) entry.choices.push_back(word);
    return;
  }
  const size_t begin = check.find(" in ["), middle = check.find(" - ", begin);
  if (begin == std::string_view::npos || middle == std::string_view::npos) return;
  const std::string_view least = check.substr(begin + 5, middle - begin - 5),
                         most = check.substr(middle + 3, check.size() - middle - 4);
  // Limits that are those of the type tell nobody anything.
  const bool open = most.size() > 9;
  if (open && least == "0") return;
  entry.text += open ? fmt::format(" At least {}.", least) : fmt::format(" From {} to {}.", least, most);
}

std::string value_name(const std::string& type, bool many) {
  static const std::pair<const char*, const char*> kNamesOfTypes[] = {
      {"UINT", "N"}, {"INT", "N"}, {"FLOAT", "X"}, {"BOOLEAN", ""}};
  for (const auto& [of_type, shown] : kNamesOfTypes) {
    if (type == of_type) return many ? fmt::format("{},...", shown) : shown;
  }
  return type == "TEXT" && many ? "A,B,..." : type;
}

// "FROM:TO:{a,b}", "N:INT in [1 - 5]": what a value is, and what validators say of it.
size_t begin_of_checks(const std::string& type) {
  if (const size_t set = type.find(":{"); set != std::string::npos) return set;
  const size_t range = type.find(" in [");
  return range == std::string::npos ? type.size() : std::min(type.rfind(':', range), type.size());
}

Entry entry_of(const CLI::Option& option) {
  Entry entry;
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  entry.text = sentence(option.get_description());
  entry.required = option.get_required();
  const std::string type = option.get_type_name();
  const size_t colon = begin_of_checks(type);
  if (option.get_items_expected_max() > 0) {
    const bool list = option.get_delimiter() != '\0';
    entry.many = option.get_items_expected_max() > 1 && !list;
    entry.value = option.get_positional() ? option.get_name(true) : value_name(type.substr(0, colon), list);
    if (colon < type.size()) add_check(entry, std::string_view(type).substr(colon + 1));
    if (!entry.choices.empty() && !option.get_positional() && entry.value == "TEXT") entry.value = "NAME";
    std::string given = option.get_default_str();
    if (given.starts_with('[') && given.ends_with(']')) given = given.substr(1, given.size() - 2);
    if (!entry.choices.empty()) entry.text += fmt::format(" One of: {}.", fmt::join(entry.choices, ", "));
    if (!given.empty() && given != "\"\"") entry.text += fmt::format(" Default: {}.", given);
  }
  return entry;
}

struct Entries {
  std::vector<Entry> arguments, options;
};

Entries entries_of(const CLI::App& command) {
  Entries all;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? all.arguments : all.options).push_back(entry_of(*option));
  }
  return all;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command);
  return commands;
}

// "neotier hil run"
std::string path_of(const CLI::App& command, char between = ' ') {
  const CLI::App* parent = command.get_parent();
  return parent ? path_of(*parent, between) + between + command.get_name() : command.get_name();
}

std::string usage_of(const CLI::App& command) {
  std::string usage = path_of(command);
  if (!commands_of(command).empty()) return usage + " COMMAND ...";
  const Entries entries = entries_of(command);
  for (const Entry& option : entries.options) {
    if (option.required) usage += fmt::format(" {} {}", option.names.front(), option.value);
  }
  usage += " [OPTION...]";
  for (const Entry& argument : entries.arguments) {
    const std::string name = argument.value + (argument.many ? "..." : "");
    // Its own options are not this program's.
    if (argument.value == "PROGRAM") usage += " --";
    usage += argument.required ? " " + name : fmt::format(" [{}]", name);
  }
  return usage;
}

// ---- help on a terminal

size_t terminal_width() {
  winsize size{};
  if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return std::clamp<size_t>(size.ws_col, 40, 110);
  const char* columns = std::getenv("COLUMNS");
  return columns ? std::clamp<size_t>(std::strtoul(columns, nullptr, 10), 40, 110) : 100;
}

// Words of `text`, the first line after `used` columns, the others indented by `indent`.
std::string wrapped(const std::string& text, size_t indent, size_t used, size_t width) {
  std::string out;
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word;) {
    if (!first && used + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      used = indent;
      first = true;
    }
    out += (first ? "" : " ") + word;
    used += word.size() + (first ? 0 : 1);
    first = false;
  }
  return out;
}

// A command line that is too long goes on in the next line, as a shell reads it.
std::string example(const std::string& line, size_t width) {
  std::string out, rest = line;
  while (rest.size() > width) {
    // What is quoted stays in one piece.
    size_t space = std::string::npos;
    bool quoted = false;
    for (size_t i = rest.find_first_not_of(' '); i < width - 1; i++) {
      quoted ^= rest[i] == '\'' || rest[i] == '"';
      if (rest[i] == ' ' && !quoted) space = i;
    }
    if (space == std::string::npos) break;
    out += rest.substr(0, space) + " \\\n";
    rest = "      " + rest.substr(space + 1);
  }
  return out + rest;
}

// A footer line, by line: prose is joined to paragraphs.
void each_part(const std::string& footer, const std::function<void(const std::string&)>& prose,
               const std::function<void(const std::string&)>& verbatim) {
  std::istringstream lines(footer);
  std::string paragraph;
  const auto flush = [&] {
    if (!paragraph.empty()) prose(sentence(paragraph));
    paragraph.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) {
      flush();
      verbatim(line);
    } else if (line.empty()) {
      flush();
    } else {
      paragraph += (paragraph.empty() ? "" : " ") + line;
      if (line.ends_with(':')) flush();
    }
  }
  flush();
}

std::string names_of(const Entry& entry) {
  std::string names = fmt::format("{}", fmt::join(entry.names, ", "));
  if (!entry.value.empty()) names += (names.empty() ? "" : " ") + entry.value;
  return names;
}

void append_row(std::string& out, const std::string& names, const std::string& text, size_t width) {
  const size_t column = std::min(kNames, width / 3);
  std::string line = "  " + names;
  if (line.size() + 2 > column) {
    out += line + "\n" + std::string(column, ' ');
  } else {
    out += line + std::string(column - line.size(), ' ');
  }
  out += wrapped(text, column, column, width) + "\n";
}

std::string help_of(const CLI::App& command) {
  const size_t width = terminal_width();
  std::string out = wrapped(sentence(command.get_description()), 0, 0, width) + "\n\n";
  out += "usage: " + wrapped(usage_of(command), 11, 7, width) + "\n";
  // Only the topmost commands are so many that they are in groups; those below inherit theirs.
  std::vector<std::string> groups;
  for (const CLI::App* below : commands_of(command)) {
    const std::string group = command.get_parent() ? "commands" : below->get_group();
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  for (const std::string& group : groups) {
    out += fmt::format("\n{}:\n", group);
    for (const CLI::App* below : commands_of(command)) {
      if (command.get_parent() || below->get_group() == group)
        append_row(out, below->get_name(), sentence(below->get_description()), width);
    }
  }
  const Entries entries = entries_of(command);
  if (!entries.arguments.empty()) out += "\narguments:\n";
  for (const Entry& entry : entries.arguments) append_row(out, names_of(entry), entry.text, width);
  out += "\noptions:\n";
  for (const Entry& entry : entries.options)
    append_row(out, names_of(entry), entry.text + (entry.required ? " Required." : ""), width);
  bool example_before = false;
  each_part(
      command.get_footer(),
      [&](const std::string& text) {
        out += "\n" + wrapped(text, 0, 0, width) + "\n";
        example_before = false;
      },
      [&](const std::string& line) {
        out += example(line, width) + "\n";
        example_before = true;
      });
  if (!commands_of(command).empty())
    out += "\n" + wrapped(fmt::format("`{} COMMAND --help` says more of a command.", path_of(command)), 0, 0, width) +
           "\n";
  return out;
}

class Manner : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const override { return help_of(*app); }
};

// ---- man pages

std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string man_page(const CLI::App& command, const CLI::App& root) {
  std::string title = path_of(command, '-');
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string out = fmt::format(".TH \"{}\" 1 \"\" \"neotier {}\" \"NeoTier\"\n.SH NAME\n{} \\- {}\n", roff(title),
                                NEOTIER_VERSION, roff(path_of(command, '-')), roff(command.get_description()));
  out += fmt::format(".SH SYNOPSIS\n.B {}\n", roff(usage_of(command)));
  const auto section = [&](const char* name, const std::vector<Entry>& entries) {
    if (entries.empty()) return;
    out += fmt::format(".SH {}\n", name);
    for (const Entry& entry : entries) out += fmt::format(".TP\n.B {}\n{}\n", roff(names_of(entry)), roff(entry.text));
  };
  const auto below = commands_of(command);
  if (!below.empty()) out += ".SH COMMANDS\n";
  for (const CLI::App* one : below)
    out += fmt::format(".TP\n.BR {} (1)\n{}\n", roff(path_of(*one, '-')), roff(sentence(one->get_description())));
  const Entries entries = entries_of(command);
  section("ARGUMENTS", entries.arguments);
  section("OPTIONS", entries.options);
  bool verbatim = false;
  std::string notes;
  const auto to = [&](bool now) {
    if (now != verbatim) notes += now ? ".EX\n" : ".EE\n";
    verbatim = now;
  };
  each_part(
      command.get_footer(),
      [&](const std::string& text) {
        to(false);
        notes += ".PP\n" + roff(text) + "\n";
      },
      [&](const std::string& line) {
        to(true);
        notes += roff(line) + "\n";
      });
  to(false);
  if (!notes.empty()) out += ".SH NOTES AND EXAMPLES\n" + notes;
  if (&command != &root) out += fmt::format(".SH SEE ALSO\n.BR {} (1)\n", roff(root.get_name()));
  return out;
}

// ---- completion

void each_command(const CLI::App& command, const std::function<void(const CLI::App&)>& act) {
  act(command);
  for (const CLI::App* below : commands_of(command)) each_command(*below, act);
}

// What a shell completes with, as data that bash and zsh share: a word after each command, a value after each option.
std::string bash_completion(const CLI::App& root) {
  const std::string& name = root.get_name();
  std::string words, values, commands;
  each_command(root, [&](const CLI::App& command) {
    const std::string path = path_of(command);
    std::vector<std::string> next;
    for (const CLI::App* below : commands_of(command)) {
      next.push_back(below->get_name());
      commands += fmt::format("    '{} {}') path=\"$path $word\" ;;\n", path, below->get_name());
    }
    for (const Entry& entry : entries_of(command).options) {
      for (const std::string& option : entry.names) next.push_back(option);
      if (!entry.value.empty())
        values += fmt::format("    {}) values='{}'; return 0 ;;\n",
                              fmt::format("{}", fmt::join(
                                                    [&] {
                                                      std::vector<std::string> keys;
                                                      for (const std::string& option : entry.names)
                                                        keys.push_back(fmt::format("'{} {}'", path, option));
                                                      return keys;
                                                    }(),
                                                    "|")),
                              fmt::join(entry.choices, " "));
    }
    words += fmt::format("    '{}') words='{}' ;;\n", path, fmt::join(next, " "));
  });
  std::string function = name;
  std::replace(function.begin(), function.end(), '-', '_');
  return fmt::format(
      "# bash completion of {0}; made from its own description of its command line\n"
      "# {1}_value KEY: whether this option takes a value; the values that are known in $values\n"
      "_{1}_value() {{\n  values=\n  case $1 in\n{2}  esac\n  return 1\n}}\n"
      "_{1}() {{\n"
      "  local path={0} word words values takes=0 i current=${{COMP_WORDS[COMP_CWORD]}}\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    word=${{COMP_WORDS[i]}}\n"
      "    if ((takes)); then takes=0; continue; fi\n"
      "    [[ $word != -- ]] || return 0\n"
      "    if _{1}_value \"$path $word\"; then takes=1; continue; fi\n"
      "    case \"$path $word\" in\n{3}    esac\n"
      "  done\n"
      "  if ((takes)); then\n"
      "    [[ -z $values ]] || mapfile -t COMPREPLY < <(compgen -W \"$values\" -- \"${{current##*,}}\")\n"
      "    return 0\n"
      "  fi\n"
      "  words=\n  case $path in\n{4}  esac\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
      "}}\n"
      "complete -o default -F _{1} {0}\n",
      name, function, values, commands, words);
}

std::string shell_word(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// The first sentence of a text, for a list of completions.
std::string first_sentence(const std::string& text) { return text.substr(0, text.find(". ")); }

std::string zsh_completion(const CLI::App& root) {
  std::string function = root.get_name();
  std::replace(function.begin(), function.end(), '-', '_');
  std::string cases;
  each_command(root, [&](const CLI::App& command) {
    cases += fmt::format("    {})\n", shell_word(path_of(command)));
    const auto below = commands_of(command);
    const auto colons = [](std::string text) {
      for (size_t at = 0; (at = text.find_first_of(":[]", at)) != std::string::npos; at += 2) text.insert(at, "\\");
      return text;
    };
    if (!below.empty()) {
      cases += "      list=(";
      for (const CLI::App* one : below)
        cases += "\n        " + shell_word(one->get_name() + ":" + first_sentence(sentence(one->get_description())));
      cases += ")\n      _describe command list ;;\n";
      return;
    }
    cases += "      _arguments -s";
    const Entries entries = entries_of(command);
    for (const Entry& entry : entries.options) {
      for (const std::string& option : entry.names) {
        std::string spec = option + "[" + colons(first_sentence(entry.text)) + "]";
        if (!entry.value.empty())
          spec += ":" + colons(entry.value) + ":" +
                  (entry.choices.empty() ? std::string("_files") : fmt::format("({})", fmt::join(entry.choices, " ")));
        cases += " \\\n        " + shell_word(spec);
      }
    }
    cases += " \\\n        '*:file:_files' ;;\n";
  });
  return fmt::format(
      "#compdef {0}\n"
      "# zsh completion of {0}; made from its own description of its command line\n"
      "_{1}() {{\n"
      "  local -a list\n"
      "  local place={0} i=2\n"
      "  while (( i < CURRENT )); do\n"
      "    case \"$place $words[i]\" in\n{2}      *) break ;;\n    esac\n"
      "    (( i++ ))\n"
      "  done\n"
      "  words=(\"$place\" \"${{(@)words[i,-1]}}\")\n"
      "  (( CURRENT -= i - 2 ))\n"
      "  case $place in\n{3}  esac\n"
      "}}\n"
      "_{1} \"$@\"\n",
      root.get_name(), function,
      [&] {
        std::string known;
        each_command(root, [&](const CLI::App& command) {
          if (command.get_parent())
            known += fmt::format("      {}) place=\"$place $words[i]\" ;;\n", shell_word(path_of(command)));
        });
        return known;
      }(),
      cases);
}

std::string fish_completion(const CLI::App& root) {
  const std::string& name = root.get_name();
  std::string out = fmt::format(
      "# fish completion of {0}; made from its own description of its command line\n"
      "# Whether the words so far, without options, are these.\n"
      "function __{0}_at\n"
      "    set -l said (string match -v -- '-*' (commandline -opc))\n"
      "    set -l nr (count $argv)\n"
      "    test (count $said) -ge $nr; and test \"$said[1..$nr]\" = \"$argv\"\n"
      "end\n"
      "function __{0}_after\n"
      "    test (count (string match -v -- '-*' (commandline -opc))) -eq (count $argv); and __{0}_at $argv\n"
      "end\n",
      name);
  each_command(root, [&](const CLI::App& command) {
    const std::string path = path_of(command);
    for (const CLI::App* below : commands_of(command))
      out += fmt::format("complete -c {0} -f -n '__{0}_after {1}' -a {2} -d {3}\n", name, path, below->get_name(),
                         shell_word(first_sentence(sentence(below->get_description()))));
    if (!commands_of(command).empty()) return;
    for (const Entry& entry : entries_of(command).options) {
      out += fmt::format("complete -c {0} -n '__{0}_at {1}'", name, path);
      for (const std::string& option : entry.names)
        out += option.starts_with("--") ? " -l " + option.substr(2) : " -s " + option.substr(1);
      if (!entry.value.empty()) out += entry.choices.empty() ? " -r" : " -x";
      if (!entry.choices.empty())
        out += fmt::format(" -a {}", shell_word(fmt::format("{}", fmt::join(entry.choices, " "))));
      out += fmt::format(" -d {}\n", shell_word(first_sentence(entry.text)));
    }
  });
  return out;
}

// The command that was meant as far as the words were understood.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  for (auto below = at->get_subcommands(); !below.empty(); below = at->get_subcommands()) at = below.back();
  return *at;
}

void finish(CLI::App& command, const std::string& name) {
  command.set_version_flag("--version", fmt::format("{} {}", name, NEOTIER_VERSION), "Print the version");
  if (command.get_subcommands({}).empty())
    command.add_flag_callback(
        "-q,--quiet", [] { Progress::silence(); }, "Print results and errors only: no progress, no hints");
  for (CLI::App* below : command.get_subcommands({})) finish(*below, name);
}

}  // namespace

void set_manner(CLI::App& app) {
  app.formatter(std::make_shared<Manner>());
  app.set_help_flag("-h,--help", "Print this help");
  app.failure_message([](const CLI::App* root, const CLI::Error& error) {
    return fmt::format("{}: {}; see `{} --help`\n", root->get_name(), error.what(), path_of(innermost(*root)));
  });
}

void finish_manner(CLI::App& app) { finish(app, app.get_name()); }

CLI::Option* add_json(CLI::App& command, std::string& file) {
  return command
      .add_option("--json", file,
                  "Write the figures as JSON to FILE; - is standard output, what else is printed then "
                  "goes to standard error")
      ->type_name("FILE");
}

CLI::Option* add_output(CLI::App& command, std::string& file, const std::string& what) {
  return command.add_option("-o,--output", file, what)->type_name("FILE");
}

CLI::Option* add_output(CLI::App& command, fs::path& file, const std::string& what) {
  return command.add_option("-o,--output", file, what)->type_name("FILE");
}

void note(std::string_view line) {
  if (!Progress::silent()) fmt::print(stderr, "neotier: {}\n", line);
}

void write_share(const CLI::App& app, const fs::path& folder) {
  const auto put = [&](const fs::path& name, const std::string& text) {
    const fs::path file = folder / name;
    std::error_code error;
    fs::create_directories(file.parent_path(), error);
    if (error)
      throw std::runtime_error(fmt::format("cannot make {}: {}", file.parent_path().string(), error.message()));
    write_file(file, text);
  };
  each_command(app, [&](const CLI::App& command) {
    put(fmt::format("man/man1/{}.1", path_of(command, '-')), man_page(command, app));
  });
  const std::string name = app.get_name();
  put("bash-completion/completions/" + name, bash_completion(app));
  put("zsh/vendor-completions/_" + name, zsh_completion(app));
  put(fmt::format("fish/vendor_completions.d/{}.fish", name), fish_completion(app));
}

}  // namespace neotier::cli
