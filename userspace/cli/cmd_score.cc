// SPDX-License-Identifier: Apache-2.0
// neotier score
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/words.h"
#include "replay/pages/recording.h"
#include "replay/pages/synthetic.h"
#include "replay/synthetic.h"
#include "score/score.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/progress.h"

namespace fs = std::filesystem;

namespace neotier::cli {

namespace {

using score::Row;

struct Arguments {
  std::vector<std::string> traces, params, kinds = {"pages", "kv", "experts"};
  std::vector<uint32_t> percent;
  std::string json;
  uint64_t seed = 1, fills = 20'000'000, requests = 4000;
  score::Options options;
};

struct Trace {
  std::string kind, name;
  std::function<std::vector<Row>(const score::Options&)> score;
};

Trace recorded(const fs::path& file) {
  return {"pages", file.filename(),
          [file](const auto& options) { return score::score(file.filename(), pages::read_recording(file), options); }};
}
Trace requests(const fs::path& file) {
  return {"kv", file.filename(), [file](const auto& options) {
            const replay::KvTrace trace = replay::load_trace(file);
            if (!trace.identity)
              throw std::runtime_error(fmt::format(
                  "{}: its blocks have no identity, so that nothing can hit; score a trace in Mooncake's or "
                  "Qwen-Bailian's format",
                  file.string()));
            return score::score(file.filename(), trace, options);
          }};
}
Trace routing(const fs::path& folder) {
  return {"experts", folder.filename(), [folder](const auto& options) {
            return score::score(folder.filename(), replay::RoutingTrace::load(folder), options);
          }};
}

// By what lies there: a folder is of routing; text is of requests; the rest are recordings.
Trace trace_of(const std::string& name) {
  fs::path path = name;
  if (!path.has_filename()) path = path.parent_path();
  if (fs::is_directory(path)) return routing(path);
  std::ifstream in(path, std::ios::binary);
  std::array<unsigned char, 2> first{};
  in.read(reinterpret_cast<char*>(first.data()), 1);
  if (!in) throw std::runtime_error(fmt::format("{}: cannot be read, or is empty; name a trace", name));
  in.read(reinterpret_cast<char*>(first.data()) + 1, 1);
  // zstd's magic number begins with a printable character, but goes on with one that is none.
  const bool text = std::isprint(first[0]) != 0 && (std::isprint(first[1]) != 0 || std::isspace(first[1]) != 0);
  return text ? requests(path) : recorded(path);
}

void add_made_up(const Arguments& a, std::vector<Trace>& traces) {
  for (const pages::SyntheticKind& kind : pages::synthetic_kinds()) {
    const std::string name = fmt::format("synthetic {}", kind.name);
    traces.push_back({"pages", name, [name, kind, &a](const auto& options) {
                        return score::score(name, pages::make_synthetic(kind.name, a.fills, a.seed), options);
                      }});
  }
  for (const replay::SyntheticKind& kind : replay::synthetic_kinds()) {
    const std::string name = fmt::format("synthetic {}", kind.name);
    traces.push_back({"kv", name, [name, kind, &a](const auto& options) {
                        const replay::SyntheticOptions o{.kind = kind.name, .requests = a.requests, .seed = a.seed};
                        return score::score(name, replay::make_synthetic(o), options);
                      }});
  }
  traces.push_back({"experts", "synthetic routing", [&a](const auto& options) {
                      return score::score("synthetic routing", replay::synthetic_routing({}, a.requests, a.seed),
                                          options);
                    }});
}

// Of others: where $NEOTIER_DATA says.
void add_data(std::vector<Trace>& traces) {
  const char* data = std::getenv("NEOTIER_DATA");
  if (!data) {
    fmt::print(stderr, "skipped: traces of real systems: $NEOTIER_DATA names no folder\n");
    return;
  }
  for (const char* name : {"mooncake/conversation_trace.jsonl", "gpt-oss-20b-routing"}) {
    if (const fs::path path = fs::path(data) / name; fs::exists(path))
      traces.push_back(trace_of(path.string()));
    else
      fmt::print(stderr, "skipped: {}: not there\n", path.string());
  }
}

void print_head(const std::string& kind) {
  const char* figure = kind == "pages" ? "speed-up" : "hit rate";
  fmt::print("{:<28} {:<16} {:<20} {:>9} {:>9} {:>9} {:>9} {:>7}\n", kind, "setting", "policy",
             kind == "pages" ? "none" : "lru", figure, "oracle", "at most", "share");
}

void print(const Row& row) {
  fmt::print("{:<28} {:<16} {:<20} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>7}\n", row.trace, row.setting,
             fs::path(row.policy).filename().string(), row.base, row.figure, row.oracle, row.at_most,
             row.share ? fmt::format("{:.0f} %", 100 * *row.share) : "-");
}

void print(const std::vector<score::Mean>& means) {
  fmt::print("\n{:<8} {:<24} {:>22} {:>22}\n", "kind", "policy", "mean share of oracle", "worst row, over base");
  for (const score::Mean& m : means) {
    fmt::print("{:<8} {:<24} {:>22} {:>21.3f}x\n", m.kind, fs::path(m.policy).filename().string(),
               m.share ? fmt::format("{:.1f} % of {} rows", 100 * *m.share, m.shares) : "-", m.worst);
  }
}

int run(Arguments a) {
  for (const std::string& kind : a.kinds)
    if (kind != "pages" && kind != "kv" && kind != "experts")
      throw std::runtime_error(fmt::format("--kinds '{}': expected pages, kv or experts", kind));
  for (const std::string& param : a.params) pages::set_param(a.options.params, param);
  if (!a.percent.empty()) a.options.kv_percent = a.options.expert_percent = a.percent;
  score::check(a.options);
  std::vector<Trace> traces;
  for (const std::string& name : a.traces) traces.push_back(trace_of(name));
  if (a.traces.empty()) {
    add_made_up(a, traces);
    add_data(traces);
    std::erase_if(traces, [&](const Trace& t) { return std::ranges::find(a.kinds, t.kind) == a.kinds.end(); });
  }
  OutputFile json("--json", a.json);
  std::ranges::stable_sort(traces, {}, [](const Trace& t) { return t.kind == "pages" ? 0 : t.kind == "kv" ? 1 : 2; });
  std::vector<Row> rows;
  Progress progress;
  std::string kind;
  for (size_t i = 0; i < traces.size(); ++i) {
    progress.show(fmt::format("[{}/{}] {}", i, traces.size(), traces[i].name));
    const std::vector<Row> more = traces[i].score(a.options);
    progress.clear();
    if (kind != traces[i].kind) print_head(kind = traces[i].kind);
    for (const Row& row : more) print(row);
    std::fflush(stdout);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  const std::vector<score::Mean> means = score::means(rows);
  print(means);
  if (json) {
    nlohmann::ordered_json all;
    all["rows"] = all["policies"] = nlohmann::ordered_json::array();
    for (const Row& row : rows) all["rows"].push_back(score::to_json(row));
    for (const score::Mean& mean : means) all["policies"].push_back(score::to_json(mean));
    json.finish(pretty(all));
  }
  return 0;
}

std::string footer() {
  std::string text =
      "share: of the way from a base to an oracle that knows the future. pages: of logarithms of speed-ups, from "
      "first\n"
      "touch to the best plan that pays for its moves (\"at most\": no plan in the same DRAM does). kv, experts: of "
      "hit rates, "
      "from\n"
      "LRU to Belady's bound. Below 0 %: worse than the base. -: the oracle wins less than 1 % (hit rate: .01).\n\n"
      "examples:\n"
      "  neotier score                                       # what is built in, on traces that are made up here\n"
      "  neotier score --law ./mine.so --kinds pages         # a promotion law of one's own: policies/README.md\n"
      "  neotier score --kv ./mine.so conversation.jsonl     # a placement policy on one's own requests\n"
      "  neotier hil record --timed --policy none -o mine.rec.zst -- PROGRAM; neotier score mine.rec.zst\n\n"
      "made-up recordings of pages:\n";
  for (const pages::SyntheticKind& kind : pages::synthetic_kinds())
    text += fmt::format("  {:<9} {}\n", kind.name, kind.text);
  return text;
}

}  // namespace

void add_score(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  a.options.threads = std::max(1u, std::thread::hardware_concurrency());
  CLI::App* command = app.add_subcommand(
      "score", "Score promotion laws and placement policies: the share of an oracle's gain that they win");
  command->group(kServer);
  command->footer(footer());
  command->add_option(
      "TRACE", a.traces,
      "Recordings of pages, traces of requests, folders of routing. Without one: made up here, and those of "
      "$NEOTIER_DATA");
  const auto list = [&](const char* name, std::vector<std::string>& values, const char* text) {
    command->add_option(name, values, text)->delimiter(',')->allow_extra_args(false)->capture_default_str();
  };
  list("--law", a.options.laws, "Promotion laws for pages: names or shared libraries, separated by commas");
  command
      ->add_option("--tracker", a.options.tracker, "What counts, for pages; `neotier replay --help` says what each is")
      ->check(one_of("tracker", {"device", "exact", "pebs"}))
      ->capture_default_str();
  list("--kv", a.options.kv, "Policies for KV blocks: names or shared libraries; `neotier kv policies` lists them");
  list("--experts", a.options.experts,
       "Policies for experts: names or shared libraries; `neotier moe policies` lists them");
  list("--kinds", a.kinds, "Which kinds are made up without TRACE");
  command
      ->add_option(
          "--room", a.percent,
          "Percent of a trace's blocks, or of a layer's experts, that there is room for. Without it: 5,20 and 25,50")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 100));
  command->add_option("--param", a.params, "A parameter for pages; `neotier replay --help` lists them. May be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME=VALUE");
  command->add_option("--seed", a.seed, "Seed of what is made up")->capture_default_str();
  command->add_option("--fills", a.fills, "Fills of each made-up recording")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--requests", a.requests, "Requests of each made-up trace, and tokens of routing")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--threads", a.options.threads, "Replays at a time")->check(CLI::Range(1, 1024));
  add_json(*command, a.json);
  command->callback([arguments, &status] { status = run(*arguments); });
}

}  // namespace neotier::cli
