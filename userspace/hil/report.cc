// SPDX-License-Identifier: Apache-2.0
#include "hil/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace neotier::hil {

namespace {

using Json = nlohmann::ordered_json;

const RunResult* find(const std::vector<RunResult>& runs, const std::string& policy) {
  for (const RunResult& run : runs) {
    if (run.options.policy == policy && run.verdict.empty()) return &run;
  }
  return nullptr;
}

// Share of the gap between `none` and `ideal` that a time recovers, in percent.
std::string recovered(std::optional<uint64_t> ns, std::optional<uint64_t> none, std::optional<uint64_t> ideal) {
  if (!ns || !none || !ideal || *none <= *ideal) return "-";
  const double gap = static_cast<double>(*none) - static_cast<double>(*ideal);
  return fmt::format("{:.1f} %", 100 * (static_cast<double>(*none) - static_cast<double>(*ns)) / gap);
}

std::string ratio(std::optional<uint64_t> base, std::optional<uint64_t> ns) {
  if (!base || !ns || *ns == 0) return "-";
  return fmt::format("{:.2f}x", static_cast<double>(*base) / static_cast<double>(*ns));
}

std::string seconds(std::optional<uint64_t> ns) {
  return ns ? fmt::format("{:.3f}", static_cast<double>(*ns) * 1e-9) : "-";
}

}  // namespace

std::string why_nothing(const RunResult& run, const RunResult* none) {
  const Policy& policy = find_policy(run.options.policy);
  if (!policy.moves()) return "";
  // Fewer pages are the start of a program, or chance.
  constexpr uint64_t kFewPages = 16;
  constexpr double kNoDifference = 0.01, kNoGain = 0.01;
  const double modelled = static_cast<double>(std::max<uint64_t>(1, run.modelled_ns));
  const bool faster = none && static_cast<double>(none->modelled_ns) > modelled * (1 + kNoDifference);
  const bool slower = none && static_cast<double>(none->modelled_ns) < modelled * (1 - kNoDifference);
  // Without promotions a difference is chance.
  if (run.promoted_pages >= kFewPages && (!none || faster || slower)) return "";

  // Judged where nothing was moved, if there is such a run: here misses may be few because pages were promoted.
  const RunResult& base = none ? *none : run;
  const uint64_t dram = base.end.fills[0] - base.begin.fills[0], cxl = base.end.fills[1] - base.begin.fills[1];
  const double stall = static_cast<double>(base.end.stall_ps[1] - base.begin.stall_ps[1]) * 1e-3;
  const double apart =
      1 - static_cast<double>(run.options.params.dram_ns) / static_cast<double>(run.options.params.cxl_ns);
  const double gain = stall * std::max(0.0, apart) / static_cast<double>(std::max<uint64_t>(1, base.modelled_ns));
  const double seconds = modelled * 1e-9;
  const auto counted = [&](const char* key) {
    const auto it = run.guest.find(key);
    return it == run.guest.end() ? int64_t{0} : it->second;
  };
  if (static_cast<double>(cxl) <= 0.01 * static_cast<double>(dram + cxl)) {
    return fmt::format(
        "nothing to gain: the program fits in DRAM ({} of its {} misses went to CXL memory); a smaller --dram, "
        "or a larger input",
        cxl, dram + cxl);
  }
  if (gain < kNoGain) {
    return fmt::format(
        "nothing to gain: CXL misses cost it {:.1f} % of its time; what it uses often is in the caches or in "
        "DRAM already",
        100 * gain);
  }
  if (policy.module) {
    // Only pages that were hot by all that the module asks: a device reports many more.
    const int64_t waited = counted("neotier.skipped_no_room"), holds = counted("neotier.room_holds");
    if (waited > static_cast<int64_t>(run.promoted_pages) && counted("neotier.age_looks") != 0) {
      return fmt::format(
          "no room: {} hot pages waited for others to make room, {} were promoted; {} pages of the DRAM were found not "
          "in use; a larger --dram",
          waited, run.promoted_pages, counted("neotier.age_found"));
    }
    if (waited > static_cast<int64_t>(run.promoted_pages)) {
      return fmt::format(
          "no room: {} hot pages waited for free DRAM, {} were promoted; of {} stops, {} left kswapd asleep: too few "
          "waited, or the program grew fast; a larger --dram",
          waited, run.promoted_pages, holds + counted("neotier.room_waits"), holds);
    }
    if (counted("neotier.decisions") < 2) {
      return fmt::format(
          "too short: it ran for {:.2f} s of modelled time, in which the policy decided {} times; a larger input",
          seconds, counted("neotier.decisions"));
    }
    return fmt::format(
        "nothing was hot enough to repay its move in {:.2f} s: {} pages were reported, {} promoted, {} decisions",
        seconds, counted("neotier.reported"), run.promoted_pages, counted("neotier.decisions"));
  }
  if (policy.numa_balancing != 0 && counted("vmstat.numa_hint_faults") == 0) {
    return fmt::format(
        "too short: it ran for {:.2f} s of modelled time, in which the kernel looked at none of its pages; a "
        "larger input",
        seconds);
  }
  return fmt::format("in {:.2f} s {} pages were promoted, and they did not repay it", seconds, run.promoted_pages);
}

std::optional<uint64_t> phase_ns(const RunResult& run, const std::string& name) {
  for (size_t i = 0; i < run.marks.size(); ++i) {
    if (run.marks[i].name != name) continue;
    for (size_t j = i + 1; j < run.marks.size(); ++j) {
      if (!run.marks[j].name.empty()) return run.marks[j].modelled_ns - run.marks[i].modelled_ns;
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> recovery_ns(const RunResult& run, double tolerance) {
  const auto at = [&](const char* name) {
    return std::find_if(run.marks.begin(), run.marks.end(), [&](const Mark& m) { return m.name == name; });
  };
  const auto settled = at("settled"), jump = at("jump");
  if (settled == run.marks.end() || jump == run.marks.end() || jump <= settled) return std::nullopt;
  const auto windows = std::count_if(settled, jump, [](const Mark& m) { return m.name.empty(); });
  if (windows == 0) return std::nullopt;
  const double mean = static_cast<double>(jump->modelled_ns - settled->modelled_ns) / static_cast<double>(windows);
  uint64_t begin = jump->modelled_ns;
  for (auto mark = jump + 1; mark != run.marks.end() && mark->name.empty(); ++mark) {
    if (static_cast<double>(mark->modelled_ns - begin) <= mean * (1 + tolerance)) return begin - jump->modelled_ns;
    begin = mark->modelled_ns;
  }
  return std::nullopt;
}

// State in bits, of one device. What the budget is for is apart from what does not depend on the memory's size.
Json profiler_json(const RunOptions& options) {
  const DeviceState state = profiler_state(options);
  const uint64_t pages = options.cxl_bytes / options.machine.devices / 4096;
  const auto per_page = [pages](uint64_t bits) { return static_cast<double>(bits) / static_cast<double>(pages); };
  Json json;
  json["asked_bits_per_page"] = options.device_bits_per_page ? Json(*options.device_bits_per_page) : Json("full");
  json["bits_per_page"] = per_page(state.sketch);
  json["other_bits_per_page"] = per_page(state.other());
  json["hash_seed"] = options.device_hash_seed;
  json["sketch"] = {{"rows", state.rows},
                    {"counters", uint64_t{1} << state.log2_width},
                    {"counter_bits", state.counter_bits},
                    {"tag_bits", state.tag_bits},
                    {"bits", state.sketch}};
  json["other_bits"] = {{"hot_filter", state.hot_filter}, {"lost_units", state.lost_units}, {"hotlist", state.hotlist},
                        {"queue", state.queue},           {"histogram", state.histogram},   {"watch", state.watch},
                        {"epochs", state.epochs}};
  return json;
}

constexpr std::array<const char*, NR_NEOTIER_PAGE_KIND> kKinds = {"anonymous", "huge", "shmem", "file", "kernel"};

Json by_kind_json(const neotier_page_counts_header& sums) {
  Json json;
  for (const int tier : {0, 1}) {
    Json& kinds = json[tier == 0 ? "dram" : "cxl"];
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      const neotier_page_fills& sum = sums.sum[tier][kind];
      kinds[kKinds[kind]] = {{"fills", sum.fills}, {"writebacks", sum.writebacks}, {"stall_ns", sum.stall_ps / 1000}};
    }
  }
  return json;
}

Json oracle_json(const Oracle& oracle) {
  const auto placement = [&](const Placement& p) {
    return Json{{"speedup", oracle.speedup(p.saved_ps)}, {"at_most", oracle.speedup(p.at_most_ps)}};
  };
  const auto moves = [&](const Placement& p) {
    Json json = placement(p);
    json["promoted_pages"] = p.promoted;
    json["demoted_pages"] = p.demoted;
    return json;
  };
  return {{"epoch_ns", oracle.epoch_ns},          {"epochs", oracle.epochs},        {"pages", oracle.pages},
          {"dram_pages", oracle.capacity},        {"move_ns", oracle.move_ns},      {"static", placement(oracle.fixed)},
          {"dynamic", placement(oracle.dynamic)}, {"costed", moves(oracle.costed)}, {"in_reach", moves(oracle.reached)},
          {"beyond_reach", oracle.beyond_reach()}};
}

Json to_json(const RunResult& run) {
  Json json;
  json["program"] = run.options.program;
  if (!run.options.name.empty()) json["name"] = run.options.name;
  json["policy"] = run.options.policy;
  json["machine"] = to_string(run.options.machine.kind);
  json["kernel"] = run.kernel_release;
  json["seed"] = run.options.seed;
  json["thp"] = to_string(run.options.thp);
  json["shift"] = run.options.shift ? Json(*run.options.shift) : Json(nullptr);
  json["dram_bytes"] = run.options.dram_bytes;
  json["cxl_bytes"] = run.options.cxl_bytes;
  if (!run.verdict.empty()) {
    json["verdict"] = run.verdict;
    json["exit_status"] = run.exit_status;
    return json;
  }
  const neotier_counters &b = run.begin, &e = run.end;
  json["instructions"] = e.instructions - b.instructions;
  json["modelled_ns"] = run.modelled_ns;
  json["guest_ns"] = run.guest_ns;
  json["llc_misses"] = {{"dram", e.fills[0] - b.fills[0]}, {"cxl", e.fills[1] - b.fills[1]}};
  if (run.share_won) json["share_won"] = *run.share_won;
  json["promoted_pages"] = run.promoted_pages;
  json["demoted_pages"] = run.demoted_pages;
  json["exit_status"] = run.exit_status;
  json["modelled_to_guest"] =
      run.guest_ns == 0 ? 0.0 : static_cast<double>(run.modelled_ns) / static_cast<double>(run.guest_ns);
  json["kernel_instructions"] = e.kernel_instructions - b.kernel_instructions;
  json["idle_ns"] = run.idle_ns;
  json["accesses"] = e.accesses - b.accesses;
  json["l1_misses"] = e.l1_misses - b.l1_misses;
  json["l2_misses"] = e.l2_misses - b.l2_misses;
  json["writebacks"] = {{"dram", e.writebacks[0] - b.writebacks[0]}, {"cxl", e.writebacks[1] - b.writebacks[1]}};
  json["stall_ns"] = {{"dram", (e.stall_ps[0] - b.stall_ps[0]) / 1000},
                      {"cxl", (e.stall_ps[1] - b.stall_ps[1]) / 1000}};
  if (run.by_kind) json["by_kind"] = by_kind_json(*run.by_kind);
  if (run.oracle) json["oracle"] = oracle_json(*run.oracle);
  json["device_requests"] = {{"reads", e.device_reads - b.device_reads}, {"writes", e.device_writes - b.device_writes}};
  json["register_accesses"] = {{"reads", e.bar_reads - b.bar_reads}, {"writes", e.bar_writes - b.bar_writes}};
  if (run.options.params.streams != 0) {
    json["prefetched_fills"] = e.prefetched - b.prefetched;
    json["dependent_misses"] = e.dependent - b.dependent;
  }
  if (run.options.params.tlb != 0) {
    json["page_walks"] = {
        {"4k", e.walks[0] - b.walks[0]}, {"2m", e.walks[1] - b.walks[1]}, {"1g", e.walks[2] - b.walks[2]}};
  }
  if (run.options.params.tlb != 0 || run.options.params.shootdown_cpus > 1) {
    json["shootdowns"] = e.shootdowns - b.shootdowns;
  }
  if (run.options.machine.kind == MachineKind::kCxl) {
    Json devices = Json::array();
    for (size_t i = 0; i < run.devices.size(); ++i) {
      devices.push_back({{"reads", run.devices[i].reads}, {"writes", run.devices[i].writes}});
    }
    json["cxl"] = {{"devices", devices},
                   {"ways", run.region.ways},
                   {"granularity", run.region.granularity},
                   {"hpa_base", run.region.base},
                   {"bytes", run.region.size}};
  }
  json["profiler"] = profiler_json(run.options);
  json["free_bytes"] = {{"dram", run.free_bytes[0]}, {"cxl", run.free_bytes[1]}};
  json["model_version"] = run.options.model_version;
  Json params;
  for (const ParamInfo& info : param_table()) params[std::string(info.name)] = run.options.params.*info.field;
  json["params"] = params;
  if (!run.options.knobs.empty()) json["knobs"] = run.options.knobs;
  if (!run.options.sysctls.empty()) json["sysctls"] = run.options.sysctls;
  if (!run.options.env.empty()) json["env"] = run.options.env;
  if (!run.left_running.empty()) json["left_running"] = run.left_running;
  if (!run.remark.empty()) json["remark"] = run.remark;
  json["phases"] = Json::array();
  json["windows"] = Json::array();
  for (const Mark& mark : run.marks) {
    Json entry = {{"modelled_ns", mark.modelled_ns},
                  {"instructions", mark.instructions},
                  {"dram", mark.fills[0]},
                  {"cxl", mark.fills[1]}};
    if (mark.name.empty()) {
      entry["value"] = mark.value;
      json["windows"].push_back(entry);
    } else {
      entry["name"] = mark.name;
      json["phases"].push_back(entry);
    }
  }
  if (auto ns = recovery_ns(run)) json["recovery_ns"] = *ns;
  json["guest"] = run.guest;
  if (run.watched.is_object()) json.update(run.watched);
  json["host"] = {{"seconds", run.host_seconds}};
  return json;
}

std::string oracle_text(const Oracle& oracle) {
  const auto times = [&](int64_t ps) { return fmt::format("{:.3f}x", oracle.speedup(ps)); };
  const auto up_to = [&](const Placement& p) {
    return p.at_most_ps == p.saved_ps
               ? times(p.saved_ps)
               : fmt::format("{} (none wins more than {})", times(p.saved_ps), times(p.at_most_ps));
  };
  std::string text = fmt::format(
      "oracle: best placement of {} pages, {} of them in DRAM\n"
      "oracle: where moves are free: one placement {}, another every {} ms {}\n"
      "oracle: where a move takes {:.1f} us: {}, {} promoted; 'share' is of this gain\n",
      oracle.pages, oracle.capacity, times(oracle.fixed.saved_ps), oracle.epoch_ns / 1'000'000,
      times(oracle.dynamic.saved_ps), static_cast<double>(oracle.move_ns) * 1e-3, up_to(oracle.costed),
      oracle.costed.promoted);
  if (oracle.share_won(oracle.modelled_ns)) {
    text += fmt::format("oracle: in pages that the module moves {}; {:.0f} % of the gain lies beyond its reach\n",
                        up_to(oracle.reached), 100 * oracle.beyond_reach());
  } else {
    text += "oracle: less than 1 % to win by placement, so shares of it say nothing\n";
  }
  return text;
}

std::string kinds_text(const std::vector<RunResult>& runs) {
  if (std::none_of(runs.begin(), runs.end(), [](const RunResult& r) { return r.by_kind; })) return "";
  std::string text = fmt::format("{:<11}", "CXL misses");
  for (const char* kind : kKinds) text += fmt::format(" {:>12}", kind);
  text += "\n";
  for (const RunResult& run : runs) {
    if (!run.verdict.empty() || !run.by_kind) continue;
    text += fmt::format("{:<11}", run.options.policy);
    for (size_t kind = 0; kind < kKinds.size(); ++kind) text += fmt::format(" {:>12}", run.by_kind->sum[1][kind].fills);
    text += "\n";
  }
  return text;
}

std::string table(const std::vector<RunResult>& runs) {
  const RunResult* none = find(runs, "none");
  const RunResult* ideal = find(runs, "ideal");
  const bool settled = std::any_of(runs.begin(), runs.end(), [](const RunResult& r) { return phase_ns(r, "settled"); });
  const bool jump = std::any_of(runs.begin(), runs.end(), [](const RunResult& r) { return recovery_ns(r); });
  const auto whole = [](const RunResult* r) { return r ? std::optional(r->modelled_ns) : std::nullopt; };
  const auto phase = [](const RunResult* r) { return r ? phase_ns(*r, "settled") : std::nullopt; };

  std::string text = fmt::format("{:<11} {:>10} {:>9} {:>10}", "policy", "modelled s", "vs none", "recovered");
  if (settled) text += fmt::format(" | {:>9} {:>9} {:>10}", "settled s", "vs none", "recovered");
  const bool shares = std::any_of(runs.begin(), runs.end(), [](const RunResult& r) { return r.share_won; });
  if (shares) text += fmt::format(" {:>7}", "share");
  if (jump) text += fmt::format(" {:>9}", "back ms");
  text += "\n";
  for (const RunResult& run : runs) {
    if (!run.verdict.empty()) {
      text += fmt::format("{:<11} {}\n", run.options.policy, run.verdict);
      continue;
    }
    text += fmt::format("{:<11} {:>10} {:>9} {:>10}", run.options.policy, seconds(run.modelled_ns),
                        ratio(whole(none), run.modelled_ns), recovered(run.modelled_ns, whole(none), whole(ideal)));
    if (settled) {
      text += fmt::format(" | {:>9} {:>9} {:>10}", seconds(phase(&run)), ratio(phase(none), phase(&run)),
                          recovered(phase(&run), phase(none), phase(ideal)));
    }
    if (shares) {
      text += fmt::format(" {:>7}", run.share_won ? fmt::format("{:.0f} %", 100 * *run.share_won) : "-");
    }
    if (jump) {
      const auto ns = recovery_ns(run);
      text += fmt::format(" {:>9}", ns ? fmt::format("{:.0f}", static_cast<double>(*ns) * 1e-6) : "never");
    }
    text += "\n";
  }
  // In a table of its own, so that neither is wider than a terminal.
  const bool counted =
      std::any_of(runs.begin(), runs.end(), [](const RunResult& run) { return run.options.shift.has_value(); });
  text += fmt::format("{:<11} {:>12} {:>12} {:>9} {:>9} {:>9}{}\n", "", "DRAM misses", "CXL misses", "promoted",
                      "demoted", "kernel %", counted ? "  model/guest" : "");
  for (const RunResult& run : runs) {
    if (!run.verdict.empty()) continue;
    const neotier_counters &b = run.begin, &e = run.end;
    text += fmt::format("{:<11} {:>12} {:>12} {:>9} {:>9} {:>9.2f}", run.options.policy, e.fills[0] - b.fills[0],
                        e.fills[1] - b.fills[1], run.promoted_pages, run.demoted_pages,
                        100 * static_cast<double>(e.kernel_instructions - b.kernel_instructions) /
                            static_cast<double>(std::max<uint64_t>(1, e.instructions - b.instructions)));
    if (counted) {
      text += fmt::format(" {:>12.2f}", static_cast<double>(run.modelled_ns) /
                                            static_cast<double>(std::max<uint64_t>(1, run.guest_ns)));
    }
    text += "\n";
  }
  for (const RunResult& run : runs) {
    if (run.verdict.empty() && run.oracle) text += oracle_text(*run.oracle);
  }
  text += kinds_text(runs);
  return text;
}

}  // namespace neotier::hil
