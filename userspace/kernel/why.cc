// SPDX-License-Identifier: Apache-2.0
#include "kernel/why.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace neotier::kernel {

namespace {

constexpr std::string_view kSkipped = "skipped_";

struct Reason {
  const char *name, *text, *hint;
};

// Reasons of stats/skipped_* and kept_*, as docs/abi/sysfs-kernel-neotier has them. Of a page.
constexpr Reason kReasons[] = {
    {"range", "outside the device's memory, or not on its node", ""},
    {"offline", "in memory that is offline", ""},
    {"not_lru", "free, the kernel's own, or allocated just now", ""},
    {"file", "page cache or shared memory that is not to be moved as it is", ""},
    {"large", "part of a huge page of which too little is hot to split it",
     "`neotier kernel set promote_huge 1` moves huge pages whole, where they lie in ZONE_MOVABLE"},
    {"zone", "part of a huge page outside ZONE_MOVABLE", "`neotier kernel set promote_huge 2` moves those too"},
    {"swapcache", "in the swap cache", ""},
    {"writeback", "being written to disk", ""},
    {"unevictable", "locked in memory (mlock)", ""},
    {"shared", "mapped by several, so that no one owner's wish is known", ""},
    {"excluded", "of a cgroup that exclude_cgroups or include_cgroups keeps out", ""},
    {"busy", "in use by the kernel just then, or gone", ""},
    {"no_memory", "without a free page on the target node, though there was room", ""},
    {"duplicate", "waiting already", ""},
    {"no_room", "waiting for room on the target node", ""},
    {"quota", "waiting for quota", "`neotier kernel set quota_mb_per_s` takes a higher one"},
    {"plan", "waiting: until heat has lasted for long enough to repay a move, or until loss_ppm pays for more",
     "`neotier kernel set loss_ppm 1000000` lets all move that is hot, at any loss"},
    {"overflow", "dropped: more are waiting than the list holds", ""},
    {"expired", "dropped: they waited too long to be hot still", ""},
    {"unconfirmed", "hot in fewer epochs than confirm_epochs asks for", ""},
    {"mempolicy", "where their owner's memory policy (mbind, set_mempolicy) wants them", ""},
    {"cpuset", "where their owner's cpuset keeps them", ""},
    {"pinned", "pinned for a device", ""},
    {"owner", "of an owner that could not be seen at once", ""},
    {"process", "of a process that exclude_pids or include_pids keeps out", ""},
    {"node", "on a node that exclude_nodes names, or would go to one", ""},
    {"excluded_range", "at addresses that exclude_ranges or include_ranges keep out", ""},
    {"control", "left where they are for some seconds, so that it is known what moving others wins", ""},
    {"protected", "of a cgroup that memory.min or memory.low protects", ""},
    {"contended", "of an owner that was changing what it maps", ""},
    {"guest", "of a virtual machine, whose accesses are not seen", ""},
};

const Reason* find_reason(std::string_view name) {
  for (const Reason& reason : kReasons) {
    if (name == reason.name) return &reason;
  }
  return nullptr;
}

std::string knob_of(const Snapshot& snapshot, const char* name) {
  for (const Value& value : snapshot.knobs) {
    if (value.path == name) return value.text;
  }
  return "";
}

std::string info_of(const Device& device, const char* name) {
  const auto at = device.info.find(name);
  return at == device.info.end() ? "" : at->second;
}

// "12,345"
std::string count(uint64_t n) {
  std::string digits = fmt::format("{}", n);
  for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string pages(uint64_t n) { return n == 1 ? "1 page" : count(n) + " pages"; }

std::string thresholds(const Snapshot& now) {
  std::string text;
  for (const Device& device : now.devices) {
    for (const Value& value : device.knobs) {
      if (value.path.ends_with("/threshold"))
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", device.name, value.text);
    }
  }
  return text;
}

}  // namespace

std::string text_of_reason(const std::string& reason) {
  const Reason* found = find_reason(reason);
  return found ? found->text : "";
}

nlohmann::ordered_json to_json(const Why& why) {
  nlohmann::ordered_json json = {{"summary", why.summary},   {"hint", why.hint},
                                 {"promoted", why.promoted}, {"demoted", why.demoted},
                                 {"reported", why.reported}, {"causes", nlohmann::ordered_json::array()}};
  for (const Cause& cause : why.causes)
    json["causes"].push_back(
        {{"counter", cause.counter}, {"reports", cause.reports}, {"text", cause.text}, {"hint", cause.hint}});
  return json;
}

std::set<int> kswapd_gave_up(const std::string& zoneinfo) {
  std::set<int> nodes;
  std::istringstream lines(zoneinfo);
  std::string line;
  int node = -1;
  while (std::getline(lines, line)) {
    constexpr std::string_view kNode = "Node ", kGaveUp = "node_unreclaimable:";
    if (line.starts_with(kNode)) {
      const auto [end, error] = std::from_chars(line.data() + kNode.size(), line.data() + line.size(), node);
      if (error != std::errc()) node = -1;
    } else if (const size_t at = line.find(kGaveUp); at != std::string::npos && node >= 0) {
      const size_t value = line.find_first_not_of(' ', at + kGaveUp.size());
      if (value != std::string::npos && line[value] != '0') nodes.insert(node);
    }
  }
  return nodes;
}

std::set<int> kswapd_gave_up() {
  std::ifstream file("/proc/zoneinfo");
  std::ostringstream text;
  text << file.rdbuf();
  return kswapd_gave_up(text.str());
}

Why why(const Snapshot& before, const Snapshot& now, double seconds) {
  // A counter that went back is of a module that was loaded again.
  const auto counted = [&](const std::string& name) -> uint64_t {
    const auto at = now.stats.find(name), was = before.stats.find(name);
    if (at == now.stats.end()) return 0;
    const uint64_t from = was == before.stats.end() ? 0 : was->second;
    return at->second >= from ? at->second - from : at->second;
  };
  Why answer;
  answer.promoted = counted("promoted");
  answer.demoted = counted("demoted");
  answer.reported = counted("reported");
  for (const auto& [name, value] : now.stats) {
    if (!name.starts_with(kSkipped) || counted(name) == 0) continue;
    const Reason* reason = find_reason(std::string_view(name).substr(kSkipped.size()));
    answer.causes.push_back(
        {name, counted(name), reason ? reason->text : "for another reason", reason ? reason->hint : ""});
  }
  std::stable_sort(answer.causes.begin(), answer.causes.end(),
                   [](const Cause& a, const Cause& b) { return a.reports > b.reports; });

  const std::string room = knob_of(now, "room");
  const bool waits = counted("skipped_no_room") + counted("room_waits") + counted("room_holds") > 0;
  std::string target_without_kswapd;
  for (const Device& device : now.devices) {
    const std::string node = info_of(device, "target_node");
    for (const int idle : now.idle_kswapd) {
      if (node == fmt::format("{}", idle)) target_without_kswapd = node;
    }
  }
  for (Cause& cause : answer.causes) {
    if (cause.counter != "skipped_no_room") continue;
    if (room == "exchange") {
      uint64_t kept = 0;
      std::string most;
      for (const auto& [name, value] : now.stats) {
        if (name.starts_with("kept_") && counted(name) > kept) kept = counted(most = name);
      }
      cause.hint = kept > 0 ? fmt::format("{} of the target node that should have made room stayed: {}", pages(kept),
                                          text_of_reason(most.substr(5)))
                            : "all that the target node has is in use, or no page of it was idle yet";
    } else {
      cause.hint = "`neotier kernel set room exchange` makes room page by page";
    }
  }

  const double mib_per_s = static_cast<double>(answer.promoted) / 256 / std::max(seconds, 1e-9);
  const auto state = [&](const char* which) {
    return !now.devices.empty() && std::all_of(now.devices.begin(), now.devices.end(),
                                               [&](const Device& d) { return info_of(d, "state") == which; });
  };
  if (now.devices.empty()) {
    answer.summary = "The module serves no device, so nothing is counted and nothing moves.";
    answer.hint = "`dmesg | grep neotier` says what it found";
  } else if (knob_of(now, "enabled") == "0") {
    answer.summary = "The module is switched off (enabled is 0).";
    answer.hint = "`neotier kernel set enabled 1`";
  } else if (state("failed")) {
    answer.summary = "All devices have failed: their registers held impossible values, or no answer came.";
    answer.hint = "`dmesg | grep neotier` says which; bind or reset it to try again";
  } else if (state("paused")) {
    answer.summary = "All devices are paused: part of their memory is offline, or they are being reset or suspended.";
    answer.hint = "`lsmem` shows what is offline";
  } else if (state("resting")) {
    answer.summary =
        "Looking rests: little could be won, nothing hot lasts, or what may be lost is used up (loss_ppm, "
        "loss_base_ms).";
    answer.hint = "it goes on by itself as time passes; a larger loss_ppm allows more";
  } else if (knob_of(now, "dry_run") == "1") {
    answer.summary =
        fmt::format("Nothing is moved (dry_run is 1); {} would have been.", pages(counted("dry_run_pages")));
    answer.hint = "`neotier kernel set dry_run 0`";
  } else if (answer.promoted > 0) {
    answer.summary = fmt::format("{} came up ({:.1f} MiB/s), {} went down for them.", pages(answer.promoted), mib_per_s,
                                 pages(answer.demoted));
  } else if (room == "kswapd" && waits && !target_without_kswapd.empty()) {
    answer.summary = fmt::format(
        "No room: kswapd of node {} has given up, since it could free nothing there. Hot pages wait until somebody "
        "else "
        "reclaims.",
        target_without_kswapd);
    answer.hint =
        "`neotier kernel set room exchange`, which needs no kswapd; or let the kernel demote (/sys/kernel/mm/numa/"
        "demotion_enabled)";
  } else if (counted("reads") + counted("writes") == 0) {
    answer.summary = "Nobody asks the devices' memory for anything: what programs use is elsewhere, or in the caches.";
  } else if (answer.reported == 0) {
    answer.summary = fmt::format(
        "No page is hot: none had as many requests in an epoch as the threshold asks for ({}). The policy sets it so "
        "that a move repays itself.",
        thresholds(now));
  } else if (answer.causes.empty()) {
    answer.summary = fmt::format("{} reported as hot, and on the way up.", pages(answer.reported));
  } else {
    answer.summary = fmt::format("Nothing came up. Most of what was reported is {}.", answer.causes[0].text);
    answer.hint = answer.causes[0].hint;
  }
  return answer;
}

}  // namespace neotier::kernel
