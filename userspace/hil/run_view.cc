// SPDX-License-Identifier: Apache-2.0
#include "hil/run_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "hil/model/device_size.h"
#include "util/input_file.h"
#include "util/size.h"

namespace fs = std::filesystem;

namespace neotier::hil {

using report::Json;

namespace {

// A pointer that leads nowhere is no error here.
const Json* at(const Json& json, const std::string& pointer) {
  const Json::json_pointer p(pointer);
  if (!json.contains(p)) return nullptr;
  return &json.at(p);
}

void check_run(const fs::path& file, const Json& run) {
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error(
        fmt::format("{}: {}; expected what `neotier hil run --json` or `compare --json` writes", file.string(), why));
  };
  if (!run.is_object()) fail("a run is no object");
  if (!run.contains("policy") || !run["policy"].is_string()) fail("a run has no 'policy'");
  if (!run.contains("program") || !run["program"].is_array() || run["program"].empty() ||
      !std::all_of(run["program"].begin(), run["program"].end(), [](const Json& a) { return a.is_string(); })) {
    fail("a run has no 'program'");
  }
  const bool verdict = run.contains("verdict") && run["verdict"].is_string();
  if (!verdict && number_at(run, "/modelled_ns").value_or(0) <= 0)
    fail("a run has neither 'modelled_ns' nor 'verdict'");
}

std::string command_line(const Json& run) {
  std::string text;
  for (const Json& argument : run["program"]) {
    const auto& word = argument.get_ref<const std::string&>();
    const bool plain = !word.empty() && word.find_first_of(" '\"\\$`\n\t;&|<>()*?") == std::string::npos;
    if (!text.empty()) text += ' ';
    text += plain ? word : fmt::format("'{}'", word);
  }
  return text;
}

std::string short_title(const std::string& program) {
  const size_t space = program.find(' ');
  const std::string name = fs::path(program.substr(0, space)).filename();
  std::string title = name + (space == std::string::npos ? "" : program.substr(space));
  if (title.size() > 70) title = title.substr(0, 67) + "...";
  return title;
}

// What a program is known by: two command lines that differ in a seed are one program under one name.
std::optional<std::string> name_of(const Json& run) {
  const Json* name = at(run, "/name");
  return name && name->is_string() && !name->empty() ? std::optional(name->get<std::string>()) : std::nullopt;
}

std::string identity(const Json& run) { return name_of(run).value_or(command_line(run)); }

// Where in a list a policy belongs: bounds at the ends.
int rank(const std::string& policy) {
  static const std::map<std::string, int> kRank = {
      {"all-dram", 0}, {"ideal", 1}, {"neotier", 2}, {"none", 8}, {"all-cxl", 9}};
  const auto found = kRank.find(policy);
  return found == kRank.end() ? 5 : found->second;
}

std::string label_of(const Json& run) {
  std::string label = run["policy"];
  // Runs that differ in it are no runs of one policy, of which a mean could be taken.
  const Json* bits = at(run, "/profiler/asked_bits_per_page");
  if (bits && !(bits->is_number() && bits->get<double>() == kDeviceBitsPerPage))
    label += " device-bits-per-page=" + text_at(run, "/profiler/asked_bits_per_page");
  const Json* knobs = at(run, "/knobs");
  if (!knobs || !knobs->is_array()) return label;
  for (const Json& knob : *knobs) {
    if (knob.is_string()) label.append(" ").append(knob.get<std::string>());
  }
  return label;
}

// What has to be equal for times to be compared.
std::string settings_key(const Json& run) {
  std::string key = identity(run);
  for (const char* pointer : {"/machine", "/kernel", "/dram_bytes", "/cxl_bytes", "/thp", "/shift"}) {
    key.append("\n").append(text_at(run, pointer));
  }
  for (const char* pointer : {"/params", "/sysctls"}) {
    const Json* value = at(run, pointer);
    key += '\n';
    if (value) key += value->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return key;
}

}  // namespace

std::optional<double> number_at(const Json& json, const std::string& pointer) {
  const Json* value = at(json, pointer);
  return value && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
}

std::string text_at(const Json& json, const std::string& pointer) {
  const Json* value = at(json, pointer);
  if (!value) return "-";
  if (value->is_string()) return value->get<std::string>();
  return value->is_number() || value->is_boolean() ? value->dump() : "-";
}

std::optional<std::vector<double>> numbers_at(const Json& json, const std::string& pointer) {
  const Json* value = at(json, pointer);
  if (!value || !value->is_array()) return std::nullopt;
  std::vector<double> numbers;
  for (const Json& item : *value) {
    if (!item.is_number()) return std::nullopt;
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

std::optional<Spread> PolicyRuns::spread(const std::function<std::optional<double>(const Json&)>& value) const {
  Spread result{0, 0, 0};
  size_t n = 0;
  for (const Json* run : runs) {
    const auto v = value(*run);
    if (!v) continue;
    result.low = n == 0 ? *v : std::min(result.low, *v);
    result.high = n == 0 ? *v : std::max(result.high, *v);
    result.mean += *v;
    ++n;
  }
  if (n == 0) return std::nullopt;
  result.mean /= static_cast<double>(n);
  return result;
}

std::optional<Spread> PolicyRuns::spread(const std::string& pointer, double scale) const {
  return spread([&](const Json& run) {
    auto value = number_at(run, pointer);
    if (value) *value *= scale;
    return value;
  });
}

const Json* PolicyRuns::sampled() const {
  for (const Json* run : runs) {
    if (number_at(*run, "/timeline/step_ns").value_or(0) > 0) return run;
  }
  return nullptr;
}

const PolicyRuns* Group::find(const std::string& policy) const {
  for (const PolicyRuns& p : policies) {
    if (p.policy == policy && !p.runs.empty()) return &p;
  }
  return nullptr;
}

std::vector<LoadedRun> load_runs(const std::vector<fs::path>& files) {
  std::vector<LoadedRun> runs;
  for (const fs::path& file : files) {
    const std::string text = read_input_file(file);
    Json json;
    try {
      json = Json::parse(text);
    } catch (const Json::parse_error& error) {
      throw std::runtime_error(fmt::format("{}: no JSON at byte {}; is it truncated?", file.string(), error.byte));
    }
    if (json.is_object() && json.contains("runs")) {
      if (!json["runs"].is_array() || json["runs"].empty()) {
        throw std::runtime_error(fmt::format("{}: 'runs' holds no runs", file.string()));
      }
      for (Json& run : json["runs"]) {
        check_run(file, run);
        runs.push_back({file, std::move(run)});
      }
    } else {
      check_run(file, json);
      runs.push_back({file, std::move(json)});
    }
  }
  return runs;
}

std::vector<Group> group_runs(const std::vector<LoadedRun>& runs) {
  std::vector<Group> groups;
  std::map<std::string, size_t> known;
  for (const LoadedRun& loaded : runs) {
    const Json& run = loaded.json;
    // A run without figures has no 'params': it goes to the program's first group.
    std::string key = settings_key(run);
    if (run.contains("verdict")) {
      for (const Group& group : groups) {
        if (identity(*group.first) == identity(run) &&
            text_at(*group.first, "/dram_bytes") == text_at(run, "/dram_bytes") &&
            text_at(*group.first, "/cxl_bytes") == text_at(run, "/cxl_bytes")) {
          key = settings_key(*group.first);
          break;
        }
      }
    }
    const auto [entry, added] = known.try_emplace(key, groups.size());
    if (added) groups.push_back({name_of(run).value_or(short_title(command_line(run))), command_line(run), &run, {}});
    Group& group = groups[entry->second];
    const std::string label = label_of(run);
    auto policy = std::find_if(group.policies.begin(), group.policies.end(),
                               [&](const PolicyRuns& p) { return p.label == label; });
    if (policy == group.policies.end()) {
      group.policies.push_back({label, run["policy"], {}, {}});
      policy = std::prev(group.policies.end());
    }
    // What a program did before it failed is no figure of it.
    const bool failed = run.contains("verdict") || number_at(run, "/exit_status").value_or(0) != 0;
    (failed ? policy->verdicts : policy->runs).push_back(&run);
  }
  for (Group& group : groups) {
    std::stable_sort(group.policies.begin(), group.policies.end(),
                     [](const PolicyRuns& a, const PolicyRuns& b) { return rank(a.policy) < rank(b.policy); });
    // The same program again, with other settings.
    const auto same = std::count_if(groups.begin(), groups.end(), [&](const Group& other) {
      return identity(*other.first) == identity(*group.first);
    });
    if (same > 1) {
      const auto size = [&](const char* pointer) {
        return format_size(static_cast<uint64_t>(std::max(0.0, number_at(*group.first, pointer).value_or(0))));
      };
      group.title += fmt::format(" ({} DRAM, {} CXL, thp {})", size("/dram_bytes"), size("/cxl_bytes"),
                                 text_at(*group.first, "/thp"));
    }
  }
  return groups;
}

}  // namespace neotier::hil
