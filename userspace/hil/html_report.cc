// SPDX-License-Identifier: Apache-2.0
#include "hil/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "hil/run_view.h"
#include "hil/timeline_charts.h"
#include "util/size.h"

namespace neotier::hil {

using report::Json;
using report::Page;

namespace {

// Names take the page's colours in this order, whatever runs there are.
const std::vector<std::string> kColourOrder = {"neotier",  "none",    "numab-fast", "numab",      "damon",
                                               "pebs",     "ptescan", "ideal",      "interleave", "all-cxl",
                                               "all-dram", "kernel",  "placebo"};

std::string figure(const std::optional<Spread>& spread, const char* format = "{:.3f}") {
  if (!spread) return "-";
  std::string text = fmt::format(fmt::runtime(format), spread->mean);
  if (spread->high > spread->low) {
    text += fmt::format(" ({} to {})", fmt::format(fmt::runtime(format), spread->low),
                        fmt::format(fmt::runtime(format), spread->high));
  }
  return text;
}

// 1234567 as 1.235 M: a table for people; the exact figures are in the runs' files.
std::string magnitude(const std::optional<Spread>& spread) {
  if (!spread) return "-";
  const double value = spread->mean;
  if (value >= 1e9) return fmt::format("{:.2f} G", value * 1e-9);
  if (value >= 1e6) return fmt::format("{:.2f} M", value * 1e-6);
  return fmt::format("{:.0f}", value);
}

std::optional<double> seconds(const PolicyRuns* policy) {
  if (!policy) return std::nullopt;
  const auto spread = policy->spread("/modelled_ns", 1e-9);
  return spread ? std::optional(spread->mean) : std::nullopt;
}

std::string ratio(std::optional<double> base, std::optional<double> value) {
  return base && value && *value > 0 ? fmt::format("{:.2f}x", *base / *value) : "-";
}

void figures_table(Page& page, const Group& group) {
  const auto none = seconds(group.find("none")), ideal = seconds(group.find("ideal"));
  std::vector<std::vector<std::string>> rows;
  for (const PolicyRuns& policy : group.policies) {
    for (const Json* verdict : policy.verdicts) {
      rows.push_back({policy.label, "-", "-", "-", "-", "-", "-", "-", "-", "-",
                      fmt::format("seed {}: {}", text_at(*verdict, "/seed"),
                                  verdict->contains("verdict")
                                      ? text_at(*verdict, "/verdict")
                                      : "the program ended with status " + text_at(*verdict, "/exit_status"))});
    }
    if (policy.runs.empty()) continue;
    const auto time = seconds(&policy);
    const auto kernel = policy.spread([](const Json& run) -> std::optional<double> {
      const auto part = number_at(run, "/kernel_instructions"), all = number_at(run, "/instructions");
      return part && all && *all > 0 ? std::optional(100 * *part / *all) : std::nullopt;
    });
    std::set<std::string> remarks;
    for (const Json* run : policy.runs) {
      if (run->contains("remark")) remarks.insert(text_at(*run, "/remark"));
    }
    const std::string remark = fmt::format("{}", fmt::join(remarks, "; "));
    rows.push_back({policy.label, figure(policy.spread("/modelled_ns", 1e-9)), ratio(none, time),
                    none && ideal && time && *none > *ideal
                        ? fmt::format("{:.1f} %", 100 * (*none - *time) / (*none - *ideal))
                        : "-",
                    figure(policy.spread("/share_won", 100), "{:.0f} %"), magnitude(policy.spread("/llc_misses/dram")),
                    magnitude(policy.spread("/llc_misses/cxl")), magnitude(policy.spread("/promoted_pages")),
                    magnitude(policy.spread("/demoted_pages")), figure(kernel, "{:.2f}"), remark});
  }
  page.table("Figures over the region of interest: mean of the seeds (lowest to highest)",
             {"policy", "modelled s", "vs none", "recovered", "share won", "DRAM misses", "CXL misses", "promoted",
              "demoted", "kernel %", "remark"},
             rows);
}

void runtime_charts(Page& page, const Group& group) {
  Json names = Json::array(), mean = Json::array(), low = Json::array(), high = Json::array();
  Json user = Json::array(), kernel = Json::array();
  for (const PolicyRuns& policy : group.policies) {
    const auto time = policy.spread("/modelled_ns", 1e-9);
    if (!time) continue;
    names.push_back(policy.label);
    mean.push_back(time->mean);
    low.push_back(time->low);
    high.push_back(time->high);
    const auto all = policy.spread("/instructions"), part = policy.spread("/kernel_instructions");
    kernel.push_back(part ? Json(part->mean) : Json());
    user.push_back(all && part ? Json(all->mean - part->mean) : Json());
  }
  if (names.empty()) return;
  Json bounds = Json::array();
  for (const char* bound : {"all-dram", "ideal", "none", "all-cxl"}) {
    if (const auto time = seconds(group.find(bound))) bounds.push_back({{"name", bound}, {"value", *time}});
  }
  // Labels of more than the outermost two would overlap.
  if (bounds.size() > 2) bounds = Json{bounds.front(), bounds.back()};
  page.chart(
      {{"kind", "bars"},
       {"title", "Runtime"},
       {"note", "Modelled seconds; mean of the seeds, whiskers from the lowest to the highest. Dashed: references."},
       {"unit", "s"},
       {"categories", names},
       {"series", {{{"name", "modelled time"}, {"values", mean}, {"low", low}, {"high", high}}}},
       {"bounds", bounds}});
  page.chart({{"kind", "bars"},
              {"title", "Instructions"},
              {"note", "Of the program and of the kernel: what scanning, faults and migration cost in instructions."},
              {"unit", ""},
              {"stacked", true},
              {"categories", names},
              {"series", {{{"name", "program"}, {"values", user}}, {{"name", "kernel"}, {"values", kernel}}}}});
}

void pages_table(Page& page, const Group& group) {
  std::vector<std::vector<std::string>> rows;
  for (const PolicyRuns& policy : group.policies) {
    const Json* run = policy.sampled();
    if (!run) continue;
    for (const char* tier : {"all", "dram", "cxl"}) {
      const std::string at = std::string("/pages/") + tier;
      const auto touched = number_at(*run, at + "/touched");
      if (!touched) continue;
      std::vector<std::string> row = {policy.label, tier, fmt::format("{:.0f}", *touched)};
      for (const char* percent : {"1", "5", "10", "25", "50"}) {
        const auto part = number_at(*run, at + "/concentration/" + percent);
        row.push_back(part ? fmt::format("{:.1f} %", 100 * *part) : "-");
      }
      rows.push_back(row);
    }
  }
  if (rows.empty()) return;
  page.table(
      "Exact accesses of 4 KiB pages: share of line fills and write-backs in the hottest 1 to 50 % of touched pages",
      {"policy", "memory", "pages touched", "1 %", "5 %", "10 %", "25 %", "50 %"}, rows);
}

void reports_table(Page& page, const Group& group) {
  std::vector<std::vector<std::string>> rows;
  for (const PolicyRuns& policy : group.policies) {
    for (const Json* run : policy.runs) {
      if (number_at(*run, "/reports/reported").value_or(0) <= 0) continue;
      const auto share = [&](const char* key) {
        const auto value = number_at(*run, std::string("/reports/") + key);
        return value ? fmt::format("{:.1f} %", 100 * *value) : "-";
      };
      const auto lost = [&](const char* key) { return text_at(*run, std::string("/reports/lost/") + key); };
      rows.push_back({policy.label, text_at(*run, "/seed"), text_at(*run, "/reports/reported"),
                      text_at(*run, "/promoted_pages"), text_at(*run, "/reports/judged_epochs"), share("precision"),
                      share("recall"), share("weighted"), lost("tap"), lost("ring"), lost("candidates"),
                      lost("saturated")});
    }
  }
  if (rows.empty()) return;
  page.table("What the device reported against exact counts, epoch by epoch, and what it dropped",
             {"policy", "seed", "reported", "pages promoted", "epochs judged", "precision", "recall", "weighted",
              "lost: tap", "lost: ring", "lost: candidates", "saturated"},
             rows);
}

void oracle_table(Page& page, const Group& group) {
  const PolicyRuns* none = group.find("none");
  if (!none || !none->spread("/oracle/costed/speedup")) return;
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const char* name, const char* key, const char* text) {
    const std::string at = std::string("/oracle/") + key;
    rows.push_back({name, figure(none->spread(at + "/speedup"), "{:.3f}x"),
                    figure(none->spread(at + "/at_most"), "{:.3f}x"), magnitude(none->spread(at + "/promoted_pages")),
                    magnitude(none->spread(at + "/demoted_pages")), text});
  };
  row("static", "static", "each page in one tier from its birth on, moves free");
  row("by epochs", "dynamic", "the best pages of each epoch, moves free");
  row("costed", "costed", "born where first touch put them, moved at a cost: what shares are of");
  row("in reach", "in_reach", "costed, of the pages that the module moves alone");
  page.table(
      fmt::format(
          "Oracles: speed-up over none of the best placement, known beforehand; epochs of {:.0f} ms, {:.1f} us a "
          "move, {:.0f} % of the costed one's gain beyond the module's reach",
          none->spread("/oracle/epoch_ns", 1e-6)->mean, none->spread("/oracle/move_ns", 1e-3)->mean,
          none->spread("/oracle/beyond_reach", 100)->mean),
      {"oracle", "wins", "no plan wins more than", "promoted", "demoted", "what"}, rows);
}

void kinds_table(Page& page, const Group& group) {
  std::vector<std::vector<std::string>> rows;
  for (const PolicyRuns& policy : group.policies) {
    for (const char* tier : {"dram", "cxl"}) {
      std::vector<std::string> row = {policy.label, tier};
      for (const char* kind : {"anonymous", "huge", "shmem", "file", "kernel"}) {
        row.push_back(magnitude(policy.spread(fmt::format("/by_kind/{}/{}/fills", tier, kind))));
      }
      if (policy.spread(fmt::format("/by_kind/{}/kernel/fills", tier))) rows.push_back(row);
    }
  }
  if (rows.empty()) return;
  page.table("Line fills by kind of page, mean of the seeds",
             {"policy", "memory", "anonymous", "huge", "shmem", "file", "kernel"}, rows);
}

void settings_table(Page& page, const Group& group) {
  const Json& run = *group.first;
  const auto bytes = [&](const char* pointer) {
    const auto value = number_at(run, pointer);
    return value && *value >= 0 ? format_size(static_cast<uint64_t>(*value)) : "-";
  };
  std::set<std::string> seeds;
  for (const PolicyRuns& policy : group.policies) {
    for (const Json* each : policy.runs) seeds.insert(text_at(*each, "/seed"));
  }
  std::string seed_list, params, sysctls;
  for (const std::string& seed : seeds) seed_list += (seed_list.empty() ? "" : ", ") + seed;
  if (run.contains("params") && run["params"].is_object()) {
    for (const auto& [name, value] : run["params"].items()) {
      params += fmt::format("{}{}={}", params.empty() ? "" : " ", name,
                            value.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
  }
  if (run.contains("sysctls") && run["sysctls"].is_array()) {
    for (const Json& value : run["sysctls"]) {
      if (value.is_string()) sysctls += (sysctls.empty() ? "" : " ") + value.get<std::string>();
    }
  }
  page.table(
      "Settings", {"setting", "value"},
      {{"program", group.program},
       {"machine", text_at(run, "/machine") + " (emulated by QEMU, one CPU)"},
       {"guest kernel", text_at(run, "/kernel")},
       {"DRAM free at the start", bytes("/dram_bytes")},
       {"CXL memory", bytes("/cxl_bytes")},
       {"transparent huge pages", text_at(run, "/thp")},
       {"guest ns an instruction",
        run.contains("shift") && run["shift"].is_number() ? "2^" + text_at(run, "/shift") : "as modelled"},
       {"seeds", seed_list.empty() ? "-" : seed_list},
       {"timing model", params.empty() ? "-" : fmt::format("version {}: {}", text_at(run, "/model_version"), params)},
       {"sysctls for all", sysctls.empty() ? "none" : sysctls}});
}

// Speed-up over `none` for each program, and the geometric means.
void overview(Page& page, const std::vector<Group>& groups) {
  std::vector<std::string> labels;
  for (const Group& group : groups) {
    for (const PolicyRuns& policy : group.policies) {
      if (policy.label != "none" && std::find(labels.begin(), labels.end(), policy.label) == labels.end()) {
        labels.push_back(policy.label);
      }
    }
  }
  const auto speedup = [](const Group& group, const std::string& label, const char* base) -> std::optional<double> {
    const auto policy = std::find_if(group.policies.begin(), group.policies.end(),
                                     [&](const PolicyRuns& p) { return p.label == label; });
    const auto from = seconds(group.find(base));
    const auto to = policy == group.policies.end() ? std::nullopt : seconds(&*policy);
    return from && to && *to > 0 ? std::optional(*from / *to) : std::nullopt;
  };
  std::vector<std::string> columns = {"program"};
  columns.insert(columns.end(), labels.begin(), labels.end());
  std::vector<std::vector<std::string>> rows;
  Json series = Json::array(), names = Json::array();
  for (const Group& group : groups) names.push_back(group.title);
  for (const std::string& label : labels) series.push_back({{"name", label}, {"values", Json::array()}});
  std::vector<double> logs(labels.size(), 0);
  std::vector<size_t> counts(labels.size(), 0);
  for (const Group& group : groups) {
    std::vector<std::string> row = {group.title};
    for (size_t i = 0; i < labels.size(); ++i) {
      const auto value = speedup(group, labels[i], "none");
      row.push_back(value ? fmt::format("{:.2f}x", *value) : "-");
      series[i]["values"].push_back(value ? Json(*value) : Json());
      if (value) {
        logs[i] += std::log(*value);
        ++counts[i];
      }
    }
    rows.push_back(row);
  }
  std::vector<std::string> geomean = {"geometric mean"}, over = {"neotier over it"};
  for (size_t i = 0; i < labels.size(); ++i) {
    geomean.push_back(counts[i] ? fmt::format("{:.2f}x", std::exp(logs[i] / static_cast<double>(counts[i]))) : "-");
    double sum = 0;
    size_t n = 0;
    for (const Group& group : groups) {
      const auto ours = speedup(group, "neotier", "none"), theirs = speedup(group, labels[i], "none");
      if (ours && theirs && *theirs > 0) {
        sum += std::log(*ours / *theirs);
        ++n;
      }
    }
    over.push_back(n != 0 && labels[i] != "neotier" ? fmt::format("{:.2f}x", std::exp(sum / static_cast<double>(n)))
                                                    : "-");
  }
  rows.push_back(geomean);
  rows.push_back(over);
  page.section("All programs");
  page.table("Speed-up over first touch (none), by modelled time; means over the programs that both policies ran",
             columns, rows);
  page.chart({{"kind", "bars"},
              {"title", "Speed-up over none"},
              {"note", "Ratio of modelled times, mean of the seeds."},
              {"unit", "x"},
              {"categories", names},
              {"series", series}});
}

void words(Page& page) {
  page.section("What the words mean");
  page.definitions({
      {"emulated",
       "The server is QEMU (TCG), which runs a stock Debian kernel and the program instruction by instruction. "
       "No CXL hardware was used.",
       "docs/model.md"},
      {"simulated",
       "The profiler in the CXL device is its SystemVerilog, compiled by Verilator and clocked once a memory "
       "request. It has never been on an FPGA.",
       "hw/README.md"},
      {"modelled",
       "Time is computed from instructions, cache misses, latencies and bandwidth by fixed rules. It compares "
       "policies; it predicts no machine's seconds. Idle time counts in the runtime but is not on the time "
       "axes.",
       "docs/model.md"},
      {"none, interleave", "First touch without migration; pages spread over both tiers.", "docs/hil.md"},
      {"all-dram, ideal, all-cxl",
       "References, of which none is a placement. A machine with more DRAM: both tiers' size of it; the pages that the "
       "program marked hot charged DRAM latency, no migration cost; nothing in DRAM.",
       "docs/hil.md"},
      {"oracle, share won",
       "The best placement in the DRAM that there is, computed from the fills of each page in the run of none. Share "
       "won: logarithm of a policy's speed-up over that of the costed oracle's. Nothing is said where that one wins "
       "less "
       "than 1 %.",
       "docs/decisions/0028-oracle.md"},
      {"numab, numab-fast",
       "Linux NUMA balancing in tiering mode with demotion: as shipped, and with its intervals scaled "
       "to this small memory.",
       "docs/decisions/0004-numab-fast.md"},
      {"recovered", "Share of the time between none and ideal that the policy saves.", "docs/hil.md"},
      {"line fill, write-back",
       "A 64-byte line read from, or written to, memory. Slow-tier traffic is both, of CXL memory.", ""},
      {"hotness", "Line fills of a page, counted exactly by the emulator. Addresses are host-physical.", ""},
      {"precision, recall, weighted",
       "Per epoch of the device, against exact counts of what it tracks. Precision: share of "
       "the reported pages that are among as many truly hottest. Recall: share of the pages "
       "whose exact count reached the threshold that were reported. Weighted: accesses of "
       "the reported pages over those of as many truly hottest.",
       "docs/hil.md"},
      {"lost, saturated",
       "Requests dropped before the tracker; reports dropped because the list was full; hot pages that "
       "found no place in the hot filter; updates of a counter at its maximum.",
       "docs/registers.md"},
  });
}

}  // namespace

Page html_report(const std::vector<LoadedRun>& runs) {
  const std::vector<Group> groups = group_runs(runs);
  Page page("NeoTier: programs on the emulated CXL server",
            "Emulated server, simulated device, modelled time: these figures compare page placement policies on one "
            "repeatable machine; nothing here was measured on CXL hardware.");
  page.colour_order(kColourOrder);
  if (groups.size() > 1) overview(page, groups);
  for (const Group& group : groups) {
    page.section(group.title);
    figures_table(page, group);
    runtime_charts(page, group);
    timeline_charts(page, group);
    oracle_table(page, group);
    kinds_table(page, group);
    reports_table(page, group);
    pages_table(page, group);
    settings_table(page, group);
  }
  words(page);
  return page;
}

}  // namespace neotier::hil
