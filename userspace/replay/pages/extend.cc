// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/extend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <stdexcept>

#include "neoprof_regs.h"
#include "report/page.h"
#include "util/cpu_clock.h"
#include "util/parallel.h"
#include "util/size.h"

namespace neotier::pages {

namespace {

constexpr uint64_t kRangeBytes = uint64_t{1} << 28;  // of a bit of the device's range bitmap
constexpr uint64_t kMost = uint64_t{16} << 40;

double share(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

// What the device had to report.
uint64_t all_reports(const Result& r) { return r.reports + r.discarded + r.extended.lost_ring; }

}  // namespace

uint64_t most_bytes_of_device() { return NEOPROF_BITMAP_BITS * kRangeBytes; }

double Size::ring_lost() const { return share(result.extended.lost_ring, all_reports(result)); }
double Size::unread() const { return share(result.discarded, all_reports(result)); }
double Size::seen_used() const { return static_cast<double>(result.extended.seen_most_ppm) / 1e6; }
double Size::cpu_used() const {
  const uint64_t looking = result.thread_ns - std::min(result.thread_ns, result.age_ns);
  return static_cast<double>(devices) * share(looking, result.modelled_ns);
}
double Size::wrong() const { return share(result.extended.audit.wrong, result.extended.audit.read); }

const std::vector<Full>& limits() {
  static const std::vector<Full> kLimits = {
      {"ring", "over 1 % of the reports find it full", [](const Size& s) { return s.ring_lost(); }, .01},
      {"seen table", "over 90 % of its entries are in use", [](const Size& s) { return s.seen_used(); }, .9},
      {"CPU", "the module's threads want over 10 % of a core", [](const Size& s) { return s.cpu_used(); }, .1},
      {"tracker", "over 10 % of the reports are wrong", [](const Size& s) { return s.wrong(); }, .1},
  };
  return kLimits;
}

Size plan_size(const Recording& recording, uint64_t bytes) {
  const uint64_t own = recording.field(trace::Field::kCxlBytes);
  if (own == 0 || own > most_bytes_of_device())
    throw std::runtime_error(fmt::format("--extend: the recording has {} of CXL memory; a device counts {}",
                                         format_size(own), format_size(most_bytes_of_device())));
  if (bytes < own)
    throw std::runtime_error(fmt::format("--extend {}: less than the {} of CXL memory that were recorded",
                                         format_size(bytes), format_size(own)));
  if (bytes > kMost)
    throw std::runtime_error(fmt::format("--extend {}: expected at most {}", format_size(bytes), format_size(kMost)));
  Size size;
  size.bytes = bytes;
  size.devices = (bytes + most_bytes_of_device() - 1) / most_bytes_of_device();
  const uint64_t each = (bytes + size.devices - 1) / size.devices, fit = most_bytes_of_device() / own;
  size.tenants = static_cast<uint32_t>(std::min((each + own - 1) / own, fit));
  return size;
}

void extend(const Recording& recording, const Job& job, std::vector<Size>& sizes, unsigned threads,
            const std::function<void(size_t done, size_t all)>& done) {
  if (recording.fills[1] + recording.writebacks[1] == 0)
    throw std::runtime_error("--extend: the recording has no request to CXL memory");
  std::map<uint32_t, std::vector<size_t>> alike;  // by tenants; of the largest first, as they take longest
  for (size_t i = 0; i < sizes.size(); ++i) alike[sizes[i].tenants].push_back(i);
  const std::vector<std::pair<uint32_t, std::vector<size_t>>> runs(alike.rbegin(), alike.rend());
  std::atomic<size_t> finished = 0;
  parallel_for(runs.size(), threads, [&](size_t i) {
    Job own = job;
    own.policy = "placebo";
    own.tenants = runs[i].first;
    const double start = cpu_seconds();
    const Result result = replay(recording, own);
    const double took = cpu_seconds() - start;
    for (const size_t at : runs[i].second) {
      sizes[at].result = result;
      sizes[at].cpu_seconds = took;
    }
    done(++finished, runs.size());
  });
}

nlohmann::ordered_json to_json(const Size& size) {
  const Extended& e = size.result.extended;
  nlohmann::ordered_json full = nlohmann::ordered_json::array();
  for (const Full& limit : limits())
    if (limit.share(size) > limit.most) full.push_back(limit.what);
  return {{"bytes", size.bytes},
          {"devices", size.devices},
          {"tenants_per_device", size.tenants},
          {"requests", e.audit.requests},
          {"held_back", e.held_back},
          {"modelled_ns", size.result.modelled_ns},
          {"threshold", size.result.threshold},
          {"error_bound", e.error_bound},
          {"epochs", e.audit.epochs},
          {"hot_pages", e.audit.hot},
          {"reports", size.result.reports},
          {"discarded", size.result.discarded},
          {"lost_ring", e.lost_ring},
          {"lost_units", e.lost_units},
          {"wrong_reports", e.audit.wrong},
          {"table_bytes_per_device", e.table_bytes},
          {"ring_lost", size.ring_lost()},
          {"unread", size.unread()},
          {"seen_used", size.seen_used()},
          {"cpu_used", size.cpu_used()},
          {"wrong", size.wrong()},
          {"full", full}};
}

std::string make_page(const std::string& name, const std::vector<Size>& sizes) {
  using report::Json;
  report::Page page(
      fmt::format("{}, extended to {}", name, format_size(sizes.back().bytes)),
      "The recorded program is one of many alike, which fill the CXL memory. Their requests come as fast as "
      "each device's link carries them. Simulated: the profiler is its golden model, the module's decisions "
      "are its own, nothing is moved.");
  page.section("What is full first");
  const auto chart = [&](const std::string& title, const std::string& note,
                         const std::vector<std::pair<std::string, double (*)(const Size&)>>& series, double most) {
    Json j = {{"kind", "lines"},
              {"title", title},
              {"note", note},
              {"x", {{"name", "CXL memory"}, {"unit", "GiB"}, {"log", true}}},
              {"y", {{"name", "share"}, {"unit", "%"}, {"log", false}}},
              {"series", Json::array()}};
    const auto at = [](const Size& size) { return static_cast<double>(size.bytes) / (1 << 30); };
    for (const auto& [what, share] : series) {
      Json line = {{"name", what}, {"points", Json::array()}, {"dots", true}};
      for (const Size& size : sizes) line["points"].push_back({at(size), 100 * share(size)});
      j["series"].push_back(line);
    }
    j["series"].push_back({{"name", "limit"},
                           {"points", {{at(sizes.front()), 100 * most}, {at(sizes.back()), 100 * most}}},
                           {"bound", true}});
    page.chart(j);
  };
  chart("The device's ring", "of the reports",
        {{"found it full", [](const Size& s) { return s.ring_lost(); }},
         {"thrown away unread", [](const Size& s) { return s.unread(); }}},
        limits()[0].most);
  chart("The module's table of pages that wait for confirmation", "of its entries, the most in use at once",
        {{"in use", limits()[1].share}}, limits()[1].most);
  chart("The module's threads", "of one core, for all devices", {{"all devices", limits()[2].share}}, limits()[2].most);
  chart("The tracker", "of the reports: pages that were not asked for as often as was said",
        {{"wrong", limits()[3].share}}, limits()[3].most);
  page.section("Figures");
  std::vector<std::vector<std::string>> rows;
  for (const Size& s : sizes)
    rows.push_back({format_size(s.bytes), std::to_string(s.devices), fmt::format("{:.2f}", 100 * s.ring_lost()),
                    fmt::format("{:.1f}", 100 * s.unread()), fmt::format("{:.1f}", 100 * s.seen_used()),
                    fmt::format("{:.2f}", 100 * s.cpu_used()), fmt::format("{:.1f}", 100 * s.wrong())});
  page.table("In percent", {"CXL memory", "devices", "ring full", "unread", "seen table", "CPU", "wrong"}, rows);
  return page.html();
}

}  // namespace neotier::pages
