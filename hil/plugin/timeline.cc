// SPDX-License-Identifier: GPL-2.0-or-later
#include "hil/plugin/timeline.h"

#include <algorithm>
#include <functional>
#include <string>

#include "trace/concentration.h"

namespace neotier::hil {

using Json = nlohmann::ordered_json;

const std::array<std::string_view, Timeline::kNrSeries> Timeline::kNames = {
    "dram_fills",   "cxl_fills",       "dram_writebacks",   "cxl_writebacks",  "instructions", "kernel_instructions",
    "device_reads", "device_writes",   "register_reads",    "register_writes", "reported",     "lost_tap",
    "lost_ring",    "lost_candidates", "saturated",         "promoted",        "demoted",      "judged_epochs",
    "judged_units", "right_units",     "reported_requests", "top_requests",    "hot_units",    "hot_reported"};

namespace {

constexpr size_t kTopPages = 16;

// A counter since power-on has grown by this; after a reset it starts again from 0.
uint64_t growth(uint64_t before, uint64_t after) { return after >= before ? after - before : after; }

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void Timeline::add_chunk(size_t index, bool cxl) {
  if (index >= chunks_.size()) chunks_.resize(index + 1);
  chunks_[index] = std::make_unique<Chunk>();
  chunks_[index]->cxl = cxl;
}

template <class Act>
void Timeline::each_page(Act act) const {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (!chunks_[i]) continue;
    for (size_t j = 0; j < kChunkPages; ++j) act(chunks_[i]->cxl, i * kChunkPages + j, chunks_[i]->pages[j]);
  }
}

void Timeline::begin(const neotier_counters& counters, const DeviceCounters& device) {
  begin_ = counters;
  device_ = device;
  reports_.clear();
  counted_reports_ = 0;
  running_ = true;
}

void Timeline::moved(uint64_t promoted, uint64_t demoted) {
  if (!moves_known_) {
    moves_known_ = true;
    moved_begin_[0] = promoted;
    moved_begin_[1] = demoted;
  }
  now_[kPromoted] = growth(moved_begin_[0], promoted);
  now_[kDemoted] = growth(moved_begin_[1], demoted);
  if (running_ || samples_.empty()) return;
  samples_.back()[kPromoted] = now_[kPromoted];
  samples_.back()[kDemoted] = now_[kDemoted];
}

void Timeline::take(const neotier_counters& c, const DeviceCounters& device) {
  now_[kDramFills] = c.fills[0] - begin_.fills[0];
  now_[kCxlFills] = c.fills[1] - begin_.fills[1];
  now_[kDramWritebacks] = c.writebacks[0] - begin_.writebacks[0];
  now_[kCxlWritebacks] = c.writebacks[1] - begin_.writebacks[1];
  now_[kInstructions] = c.instructions - begin_.instructions;
  now_[kKernelInstructions] = c.kernel_instructions - begin_.kernel_instructions;
  now_[kDeviceReads] = c.device_reads - begin_.device_reads;
  now_[kDeviceWrites] = c.device_writes - begin_.device_writes;
  now_[kRegisterReads] = c.bar_reads - begin_.bar_reads;
  now_[kRegisterWrites] = c.bar_writes - begin_.bar_writes;
  now_[kReported] += reports_.size() - counted_reports_;
  counted_reports_ = reports_.size();
  now_[kLostTap] += growth(device_.lost_tap, device.lost_tap);
  now_[kLostRing] += growth(device_.lost_ring, device.lost_ring);
  now_[kLostCandidates] += growth(device_.lost_candidates, device.lost_candidates);
  now_[kSaturated] += growth(device_.saturated, device.saturated);
  if (device.epochs != device_.epochs) {
    if (whole_epoch_ && device.epochs > device_.epochs) judge_epoch(device);
    for (const auto& chunk : chunks_) {
      if (!chunk || !chunk->cxl) continue;
      for (Page& page : chunk->pages) page.epoch_reads = page.epoch_writes = 0;
    }
    reports_.clear();
    counted_reports_ = 0;
    whole_epoch_ = true;
  }
  device_ = device;
}

void Timeline::store(uint64_t at_ps) {
  while (at_ps / step_ps_ >= kSteps) {
    // The last of each pair; an odd one at the end stays by itself.
    const size_t merged = (samples_.size() + 1) / 2;
    for (size_t i = 0; i < merged; ++i) samples_[i] = samples_[std::min(2 * i + 1, samples_.size() - 1)];
    samples_.resize(merged);
    step_ps_ *= 2;
  }
  const auto index = static_cast<size_t>(at_ps / step_ps_);
  const Values before = samples_.empty() ? Values{} : samples_.back();
  if (samples_.size() <= index) samples_.resize(index + 1, before);
  samples_[index] = now_;
}

void Timeline::fold_heat() {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (!chunks_[i]) continue;
    for (size_t j = 0; j < kChunkPages; ++j) {
      Page& page = chunks_[i]->pages[j];
      if (page.heat == 0) continue;
      heatmap_.add(chunks_[i]->cxl, i * kChunkPages + j, page.heat);
      page.heat = 0;
    }
  }
}

void Timeline::tick(const neotier_counters& counters, const DeviceCounters& device) {
  if (!running_) return;
  const uint64_t at = since_begin_ps(counters);
  take(counters, device);
  store(at);
  if (heatmap_.passed(at)) {
    fold_heat();
    heatmap_.advance(at);
  }
}

void Timeline::end(const neotier_counters& counters, const DeviceCounters& device) {
  if (!running_) return;
  end_ps_ = since_begin_ps(counters);
  take(counters, device);
  store(end_ps_);
  fold_heat();
  running_ = false;
}

// Truth: exact requests of the epoch, of the kind that the device counts, by unit. The device's reports are compared
// with as many truly hottest units (a unit as hot as the last of them is right too), and with all units whose exact
// count reached the threshold.
void Timeline::judge_epoch(const DeviceCounters& device) {
  const unsigned shift = device.unit_shift - 12;
  struct Unit {
    uint64_t index, count;
  };
  std::vector<Unit> units;
  each_page([&](bool cxl, uint64_t number, const Page& page) {
    if (!cxl) return;
    const uint64_t count =
        (device.counts_reads ? page.epoch_reads : 0u) + (device.counts_writes ? page.epoch_writes : 0u);
    if (count == 0) return;
    if (!units.empty() && units.back().index == number >> shift)
      units.back().count += count;
    else
      units.push_back({number >> shift, count});
  });
  std::vector<uint64_t> reported;
  reported.reserve(reports_.size());
  for (const uint64_t hpa : reports_) reported.push_back(hpa >> device.unit_shift);
  std::sort(reported.begin(), reported.end());
  reported.erase(std::unique(reported.begin(), reported.end()), reported.end());

  std::vector<uint64_t> counts;
  counts.reserve(units.size());
  for (const Unit& unit : units) counts.push_back(unit.count);
  const size_t k = std::min(reported.size(), counts.size());
  uint64_t least = 1;  // of the true top k
  if (k != 0) {
    std::nth_element(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(k - 1), counts.end(),
                     std::greater<>());
    least = counts[k - 1];
    for (size_t i = 0; i < k; ++i) now_[kTopRequests] += counts[i];
  }
  ++now_[kJudgedEpochs];
  now_[kJudgedUnits] += reported.size();
  auto next = reported.begin();
  for (const Unit& unit : units) {
    while (next != reported.end() && *next < unit.index) ++next;
    const bool was_reported = next != reported.end() && *next == unit.index;
    if (was_reported) {
      now_[kReportedRequests] += unit.count;
      now_[kRightUnits] += unit.count >= least;
    }
    if (unit.count >= std::max<uint64_t>(1, device.threshold)) {
      ++now_[kHotUnits];
      now_[kHotReported] += was_reported;
    }
  }
}

Json Timeline::pages_json(bool dram, bool cxl) const {
  uint64_t touched = 0, reads = 0, writes = 0;
  std::vector<uint64_t> counts;
  each_page([&](bool in_cxl, uint64_t, const Page& page) {
    if (!(in_cxl ? cxl : dram) || page.reads + page.writes == 0) return;
    ++touched;
    reads += page.reads;
    writes += page.writes;
    counts.push_back(page.reads + page.writes);
  });
  Json json = {{"touched", touched}, {"reads", reads}, {"writes", writes}};
  const auto shares = trace::concentration(std::move(counts));
  for (size_t i = 0; i < shares.size(); ++i) {
    json["concentration"][std::to_string(trace::kConcentrationPercent[i])] = shares[i];
  }
  return json;
}

Json Timeline::json() const {
  Json timeline = {{"step_ns", step_ps_ / 1000}, {"end_ns", end_ps_ / 1000}};
  for (size_t s = 0; s < kNrSeries; ++s) {
    if ((s == kPromoted || s == kDemoted) && !moves_known_) continue;
    Json values = Json::array();
    for (size_t i = 0; i < samples_.size(); ++i) {
      values.push_back(samples_[i][s] - (i == 0 ? 0 : samples_[i - 1][s]));
    }
    timeline[std::string(kNames[s])] = std::move(values);
  }
  Json heat = {{"step_ns", heatmap_.step_ps() / 1000}, {"bin_bytes", heatmap_.bin_bytes()}, {"rows", Json::array()}};
  for (const auto& [bin, cells] : heatmap_.rows()) {
    Json fills = Json::array();
    for (size_t i = 0; i < heatmap_.columns(); ++i) fills.push_back(cells[i]);
    heat["rows"].push_back(
        {{"tier", bin.cxl ? "cxl" : "dram"}, {"address", bin.index * heatmap_.bin_bytes()}, {"fills", fills}});
  }
  timeline["heat"] = std::move(heat);

  struct Top {
    bool cxl;
    uint64_t number;
    Page page;
  };
  std::vector<Top> top;
  const auto hotter = [](const Top& a, const Top& b) {
    const uint64_t x = a.page.reads + a.page.writes, y = b.page.reads + b.page.writes;
    return x != y ? x > y : a.number < b.number;
  };
  each_page([&](bool cxl, uint64_t number, const Page& page) {
    if (page.reads + page.writes == 0) return;
    const Top entry{cxl, number, page};
    if (top.size() == kTopPages && !hotter(entry, top.back())) return;
    top.insert(std::upper_bound(top.begin(), top.end(), entry, hotter), entry);
    if (top.size() > kTopPages) top.pop_back();
  });
  Json pages = {{"all", pages_json(true, true)},
                {"dram", pages_json(true, false)},
                {"cxl", pages_json(false, true)},
                {"top", Json::array()}};
  for (const Top& entry : top) {
    pages["top"].push_back({{"address", entry.number << 12},
                            {"tier", entry.cxl ? "cxl" : "dram"},
                            {"reads", entry.page.reads},
                            {"writes", entry.page.writes}});
  }

  Json reports = {{"reported", now_[kReported]},
                  {"judged_epochs", now_[kJudgedEpochs]},
                  {"judged_units", now_[kJudgedUnits]},
                  {"hot_units", now_[kHotUnits]}};
  if (now_[kJudgedUnits] != 0) {
    reports["precision"] = share(now_[kRightUnits], now_[kJudgedUnits]);
    reports["weighted"] = share(now_[kReportedRequests], now_[kTopRequests]);
  }
  if (now_[kHotUnits] != 0) reports["recall"] = share(now_[kHotReported], now_[kHotUnits]);
  reports["lost"] = {{"tap", now_[kLostTap]},
                     {"ring", now_[kLostRing]},
                     {"candidates", now_[kLostCandidates]},
                     {"saturated", now_[kSaturated]}};
  return {{"timeline", std::move(timeline)}, {"pages", std::move(pages)}, {"reports", std::move(reports)}};
}

}  // namespace neotier::hil
