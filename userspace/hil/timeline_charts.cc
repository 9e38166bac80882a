// SPDX-License-Identifier: Apache-2.0
#include "hil/timeline_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "util/size.h"

namespace neotier::hil {

using report::Json;
using report::Page;

namespace {

// More points than a plot has pixels only make the file large.
constexpr size_t kPoints = 200;
// Heatmaps of a section: a cell is a number in the file.
constexpr size_t kHeatmaps = 4;

bool is_bound(const std::string& policy) { return policy == "all-dram" || policy == "ideal" || policy == "all-cxl"; }

constexpr const char* kNoTimeline =
    "Not drawn: these runs have no figures over time. `neotier hil compare --moves --json FILE` makes some.";

const Json kTimeAxis = {{"name", "modelled time"}, {"unit", "s"}};

struct Series {
  std::vector<double> values;  // sums over a step
  double step_s = 0, end_s = 0;

  double length_s(size_t i) const {
    return std::min(end_s, step_s * static_cast<double>(i + 1)) - step_s * static_cast<double>(i);
  }
};

// Neighbouring steps added up until there are at most kPoints.
std::optional<Series> series_at(const Json& run, const std::string& name) {
  const auto values = numbers_at(run, "/timeline/" + name);
  const auto step = number_at(run, "/timeline/step_ns"), end = number_at(run, "/timeline/end_ns");
  if (!values || values->empty() || !step || *step <= 0 || !end) return std::nullopt;
  const size_t merge = (values->size() + kPoints - 1) / kPoints;
  Series series{{}, *step * 1e-9 * static_cast<double>(merge), *end * 1e-9};
  for (size_t i = 0; i < values->size(); i += merge) {
    double sum = 0;
    for (size_t j = i; j < std::min(values->size(), i + merge); ++j) sum += (*values)[j];
    series.values.push_back(sum);
  }
  return series;
}

Json line(const PolicyRuns& policy, Json points) {
  return {{"name", policy.label}, {"bound", is_bound(policy.policy)}, {"points", std::move(points)}};
}

// The program's phases, of the first run that has marked some.
Json marks(const Group& group, const std::string& policy) {
  Json list = Json::array();
  const PolicyRuns* runs = group.find(policy);
  if (!runs || !runs->runs[0]->contains("phases") || !(*runs->runs[0])["phases"].is_array()) return list;
  for (const Json& phase : (*runs->runs[0])["phases"]) {
    const auto ns = number_at(phase, "/modelled_ns");
    const std::string name = text_at(phase, "/name");
    if (ns && name != "end" && list.size() < 8) list.push_back({{"x", *ns * 1e-9}, {"name", name}});
  }
  return list;
}

void traffic(Page& page, const Group& group) {
  Json lines = Json::array();
  for (const PolicyRuns& policy : group.policies) {
    const Json* run = policy.sampled();
    if (!run) continue;
    const auto fills = series_at(*run, "cxl_fills"), writebacks = series_at(*run, "cxl_writebacks");
    if (!fills || !writebacks || fills->values.size() != writebacks->values.size()) continue;
    Json points = Json::array();
    for (size_t i = 0; i < fills->values.size(); ++i) {
      const double length = fills->length_s(i);
      if (length < fills->step_s / 4) continue;  // a short rest at the end is mostly noise
      points.push_back({fills->step_s * static_cast<double>(i) + length / 2,
                        (fills->values[i] + writebacks->values[i]) * 64e-6 / length});
    }
    lines.push_back(line(policy, std::move(points)));
  }
  if (lines.empty()) return page.absent("Slow-tier traffic", kNoTimeline);
  page.chart({{"kind", "lines"},
              {"title", "Slow-tier traffic"},
              {"note", "Line fills from and write-backs to CXL memory. A policy that works lets this fall."},
              {"x", kTimeAxis},
              {"y", {{"name", "CXL traffic"}, {"unit", "MB/s"}}},
              {"series", lines}});
}

Json moved_chart(const Group& group, const char* key, const char* title) {
  Json lines = Json::array();
  for (const PolicyRuns& policy : group.policies) {
    const Json* run = policy.sampled();
    const auto moved = run ? series_at(*run, key) : std::nullopt;
    if (!moved || is_bound(policy.policy)) continue;
    double sum = 0;
    Json points = Json::array({Json::array({0, 0})});
    for (size_t i = 0; i < moved->values.size(); ++i) {
      sum += moved->values[i];
      points.push_back({moved->step_s * static_cast<double>(i) + moved->length_s(i), sum});
    }
    if (sum > 0) lines.push_back(line(policy, std::move(points)));
  }
  return {{"kind", "lines"},
          {"title", title},
          {"note",
           "Since the region of interest began, as the guest's kernel and neotier.ko count them; read every 100 ms "
           "of the guest."},
          {"x", kTimeAxis},
          {"y", {{"name", "pages of 4 KiB"}}},
          {"series", lines}};
}

// Nothing moved, or nobody looked.
std::string why_no_moves(const Group& group) {
  bool looked = false;
  std::string remarks;
  for (const PolicyRuns& policy : group.policies) {
    const Json* run = policy.sampled();
    if (!run || is_bound(policy.policy)) continue;
    looked |= series_at(*run, "promoted").has_value();
    if (run->contains("remark"))
      remarks += fmt::format("{}{}: {}", remarks.empty() ? " " : "; ", policy.label, text_at(*run, "/remark"));
  }
  if (!looked) return "Not drawn: these runs did not look at pages over time. `neotier hil compare --moves` does.";
  return fmt::format("Not drawn: no policy here moved a page.{}{}", remarks, remarks.empty() ? "" : ".");
}

void moves(Page& page, const Group& group) {
  const Json promoted = moved_chart(group, "promoted", "Pages promoted and demoted");
  const Json demoted = moved_chart(group, "demoted", "Pages promoted and demoted");
  std::vector<std::pair<std::string, Json>> charts;
  if (!promoted["series"].empty()) charts.emplace_back("promoted", promoted);
  if (!demoted["series"].empty()) charts.emplace_back("demoted", demoted);
  if (!charts.empty()) return page.choice("direction", std::move(charts));
  page.absent("Pages promoted and demoted", why_no_moves(group));
}

void windows(Page& page, const Group& group) {
  Json lines = Json::array();
  std::string marked;
  for (const PolicyRuns& policy : group.policies) {
    if (policy.runs.empty()) continue;
    const Json& run = *policy.runs[0];
    if (!run.contains("windows") || !run["windows"].is_array() || run["windows"].size() < 3) continue;
    Json points = Json::array();
    double before_ns = 0, before_value = 0;
    for (const Json& window : run["windows"]) {
      const auto ns = number_at(window, "/modelled_ns"), value = number_at(window, "/value");
      if (!ns || !value) continue;
      if (*ns > before_ns && *value > before_value) {
        points.push_back({*ns * 1e-9, (*value - before_value) / ((*ns - before_ns) * 1e-9)});
      }
      before_ns = *ns;
      before_value = *value;
    }
    // The program's start is no window.
    if (!points.empty()) points.erase(points.begin());
    if (points.size() > kPoints) {
      Json fewer = Json::array();
      const size_t every = (points.size() + kPoints - 1) / kPoints;
      for (size_t i = 0; i < points.size(); i += every) fewer.push_back(points[i]);
      points = std::move(fewer);
    }
    if (marked.empty() || policy.policy == "neotier") marked = policy.policy;
    lines.push_back(line(policy, std::move(points)));
  }
  if (lines.empty())
    return page.absent("Progress of the program",
                       "Not drawn: this program does not mark windows of its work. GUPS does.");
  page.chart(
      {{"kind", "lines"},
       {"title", "Progress of the program"},
       {"note", fmt::format("Units of work a modelled second, by the program's own windows: dips after a jump of the "
                            "hot set, and how fast each policy is back. Phases as under {}.",
                            marked)},
       {"x", kTimeAxis},
       {"y", {{"name", "work"}, {"unit", "1/s"}}},
       {"series", lines},
       {"marks", marks(group, marked)}});
}

// A share over time, from sums that add up over steps; steps without an epoch's end belong to the next.
Json accuracy_chart(const Group& group, const char* part, const char* whole, const char* note) {
  Json lines = Json::array();
  for (const PolicyRuns& policy : group.policies) {
    const Json* run = policy.sampled();
    if (!run || number_at(*run, "/reports/judged_units").value_or(0) <= 0) continue;
    const auto a = series_at(*run, part), b = series_at(*run, whole);
    if (!a || !b || a->values.size() != b->values.size()) continue;
    Json points = Json::array();
    double parts = 0, wholes = 0;
    for (size_t i = 0; i < a->values.size(); ++i) {
      parts += a->values[i];
      wholes += b->values[i];
      if (wholes <= 0) continue;
      points.push_back({a->step_s * static_cast<double>(i) + a->length_s(i), 100 * parts / wholes});
      parts = wholes = 0;
    }
    if (!points.empty()) lines.push_back(line(policy, std::move(points)));
  }
  return {{"kind", "lines"}, {"title", "Device reports against exact counts"},        {"note", note},
          {"x", kTimeAxis},  {"y", {{"name", "share"}, {"unit", "%"}, {"max", 100}}}, {"series", lines}};
}

void accuracy(Page& page, const Group& group) {
  std::vector<std::pair<std::string, Json>> charts;
  const auto add = [&](const char* name, const char* part, const char* whole, const char* note) {
    Json chart = accuracy_chart(group, part, whole, note);
    if (!chart["series"].empty()) charts.emplace_back(name, std::move(chart));
  };
  add("precision", "right_units", "judged_units",
      "Precision: of the pages reported in an epoch, the share that is among as many truly hottest.");
  add("recall", "hot_reported", "hot_units",
      "Recall: of the pages whose exact count reached the threshold in an epoch, the share that was reported.");
  add("weighted", "reported_requests", "top_requests",
      "Accesses of the pages reported in an epoch over those of as many truly hottest.");
  if (charts.empty())
    return page.absent("Device reports against exact counts",
                       "Not drawn: in these runs no device reported a page whose true count is known, or they have no "
                       "figures over time (--timeline).");
  page.choice("measure", std::move(charts));
}

std::optional<Json> heatmap(const Json& run) {
  const auto step = number_at(run, "/timeline/heat/step_ns"), bin = number_at(run, "/timeline/heat/bin_bytes");
  const Json::json_pointer pointer("/timeline/heat/rows");
  if (!step || *step <= 0 || !bin || *bin <= 0 || !run.contains(pointer) || !run.at(pointer).is_array()) {
    return std::nullopt;
  }
  Json rows = Json::array(), breaks = Json::array();
  std::string before;
  for (const Json& row : run.at(pointer)) {
    const std::string tier = text_at(row, "/tier");
    auto fills = numbers_at(row, "/fills");
    const auto address = number_at(row, "/address");
    if (!fills || !address || *address < 0 || rows.size() >= 512) continue;
    if (!before.empty() && tier != before) breaks.push_back({{"row", rows.size()}, {"name", "above: CXL memory"}});
    before = tier;
    Json values = Json::array();
    for (const double value : *fills) values.push_back(std::llround(value));
    rows.push_back({{"name", fmt::format("{} {:#x}", tier == "cxl" ? "CXL" : "DRAM", static_cast<uint64_t>(*address))},
                    {"values", values}});
  }
  if (rows.empty()) return std::nullopt;
  return Json{{"kind", "heatmap"},
              {"title", "Page hotness over time"},
              {"note", fmt::format("Line fills, exact, for each {} of host-physical memory and {:.0f} ms; logarithmic "
                                   "colours. Rows that were never read are left out.",
                                   format_size(static_cast<uint64_t>(*bin)), *step * 1e-6)},
              {"unit", "fills"},
              {"x", {{"name", "modelled time"}, {"unit", "s"}, {"step", *step * 1e-9}}},
              {"rows", rows},
              {"breaks", breaks}};
}

// Of neotier, of none, and of the fastest others.
void heatmaps(Page& page, const Group& group) {
  std::vector<const PolicyRuns*> wanted;
  for (const PolicyRuns& policy : group.policies) {
    if (policy.sampled() && !is_bound(policy.policy)) wanted.push_back(&policy);
  }
  const auto rank = [](const PolicyRuns* p) {
    const double first = p->policy == "neotier" ? 0 : p->policy == "none" ? 1 : 2;
    const auto time = p->spread("/modelled_ns");
    return std::pair(first, time ? time->mean : 0);
  };
  std::stable_sort(wanted.begin(), wanted.end(),
                   [&](const PolicyRuns* a, const PolicyRuns* b) { return rank(a) < rank(b); });
  if (wanted.size() > kHeatmaps) wanted.resize(kHeatmaps);
  std::vector<std::pair<std::string, Json>> charts;
  for (const PolicyRuns* policy : wanted) {
    if (auto chart = heatmap(*policy->sampled())) charts.emplace_back(policy->label, std::move(*chart));
  }
  if (charts.empty()) return page.absent("Page hotness over time", kNoTimeline);
  page.choice("policy", std::move(charts));
}

}  // namespace

void timeline_charts(Page& page, const Group& group) {
  if (std::all_of(group.policies.begin(), group.policies.end(),
                  [](const PolicyRuns& policy) { return policy.runs.empty(); }))
    return;  // the table says how they failed
  // One sentence for all of them, where there is none of them.
  const bool sampled = std::any_of(group.policies.begin(), group.policies.end(),
                                   [](const PolicyRuns& policy) { return policy.sampled() != nullptr; });
  if (!sampled) {
    windows(page, group);
    return page.absent("Over time", kNoTimeline);
  }
  traffic(page, group);
  windows(page, group);
  moves(page, group);
  accuracy(page, group);
  heatmaps(page, group);
}

}  // namespace neotier::hil
