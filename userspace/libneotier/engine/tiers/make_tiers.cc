// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/make_tiers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>

#include "engine/tiers/cuda/cuda_tier.h"
#include "engine/tiers/memory/memory_tier.h"
#include "engine/tiers/remote/remote_tier.h"
#include "engine/tiers/remote/remote_url.h"
#include "engine/tiers/ssd/ssd_tier.h"
#include "util/host_memory.h"
#include "util/size.h"

namespace fs = std::filesystem;

namespace neotier::engine {

namespace {

struct Words {
  std::string whole, name, kind;
  uint64_t bytes = 0;
  std::map<std::string, std::string> options;

  [[noreturn]] void refuse(const std::string& why) const {
    throw std::runtime_error(fmt::format("tier '{}': {}", remote::without_passwords(whole), why));
  }
  // Each option is asked for once, so what is left over is unknown.
  std::string take(const std::string& option, const std::string& otherwise) {
    const auto it = options.find(option);
    if (it == options.end()) return otherwise;
    std::string value = it->second;
    options.erase(it);
    return value;
  }
  uint64_t take_size(const std::string& option) {
    const std::string value = take(option, "0");
    try {
      return parse_size(value);
    } catch (const std::invalid_argument& error) {
      refuse(fmt::format("{}={}: {}", option, value, error.what()));
    }
  }
  int take_number(const std::string& option, int otherwise) {
    const std::string value = take(option, "");
    if (value.empty()) return otherwise;
    int number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < 0)
      refuse(fmt::format("{}={} is no number", option, value));
    return number;
  }
};

// What stands in brackets is one word, whatever is in it: url=[redis://one:6379,two:6379].
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0, depth = 0;
  for (size_t at = 0; at <= text.size(); at++) {
    if (at < text.size()) {
      if (text[at] == '[') depth++;
      if (text[at] == ']' && depth > 0) depth--;
      if (depth > 0 || text[at] != separator) continue;
    }
    parts.push_back(text.substr(begin, at - begin));
    begin = at + 1;
  }
  return parts;
}

Words parse(const std::string& text) {
  Words words;
  words.whole = text;
  const std::vector<std::string> parts = split(text, ':');
  const size_t equals = parts[0].find('=');
  if (equals == std::string::npos) words.refuse("expected KIND=SIZE, as dram=8G");
  words.kind = parts[0].substr(0, equals);
  const size_t slash = words.kind.find('/');
  words.name = words.kind.substr(0, slash);
  if (slash != std::string::npos) words.kind.erase(0, slash + 1);
  if (words.name.empty() || words.name.size() > 31 || words.name == "host")
    words.refuse("a tier's name has 1 to 31 characters and is not 'host'");
  try {
    words.bytes = parse_size(parts[0].substr(equals + 1));
  } catch (const std::invalid_argument& error) {
    words.refuse(error.what());
  }
  for (size_t i = 1; i < parts.size(); i++) {
    const size_t at = parts[i].find('=');
    if (at == std::string::npos || at == 0) words.refuse(fmt::format("option '{}': expected NAME=VALUE", parts[i]));
    words.options[parts[i].substr(0, at)] = parts[i].substr(at + 1);
  }
  return words;
}

// What a tier will be, everything checked that can be before any is made.
struct Plan {
  TierSetup setup;
  std::function<std::unique_ptr<Tier>()> make;
  uint64_t host_bytes = 0;  // of this machine's memory
};

void plan_memory(Words& words, Plan& plan) {
  MemoryTierOptions options;
  options.name = words.name;
  options.kind = words.kind == "cxl" ? TierKind::kCxl : TierKind::kDram;
  options.capacity_bytes = words.bytes;
  options.node = words.take_number("node", -1);
  if (words.kind == "cxl") {
    const std::string mode = words.take("mode", "bind");
    if (mode == "kernel") {
      options.mode = MemoryMode::kKernel;
    } else if (mode != "bind") {
      words.refuse(fmt::format("mode={}: expected bind or kernel", mode));
    }
  }
  // What is to move page by page begins as pages.
  const bool kernel = options.mode == MemoryMode::kKernel;
  const std::string huge = words.take("huge", kernel ? "no" : "transparent");
  if (huge == "no") {
    options.huge_pages = HugePages::kNone;
  } else if (huge == "explicit" && kernel) {
    words.refuse("huge=explicit with mode=kernel: the kernel does not move these pages; expected no or transparent");
  } else if (huge == "explicit") {
    options.huge_pages = HugePages::kExplicit;
  } else if (huge != "transparent") {
    words.refuse(fmt::format("huge={}: expected no, transparent or explicit", huge));
  }
  plan.host_bytes = words.bytes;
  plan.make = [options] { return std::make_unique<MemoryTier>(options); };
}

// Blocks that are allocated are there, so a file that does not fit is refused and none of it is taken.
void check_room(const Words& words, const fs::path& file) {
  std::error_code error;
  const fs::path folder = fs::absolute(file).parent_path();
  if (!fs::is_directory(folder, error)) words.refuse(fmt::format("no folder {}", folder.string()));
  const fs::space_info space = fs::space(folder, error);
  if (!error && words.bytes > space.available)
    words.refuse(fmt::format("{} does not fit into the {} that are free in {}", format_size(words.bytes),
                             format_size(space.available), folder.string()));
}

void plan_ssd(Words& words, Plan& plan, const Announce& announce) {
  SsdOptions options;
  options.name = words.name;
  options.path = words.take("file", "");
  if (options.path.empty()) words.refuse("file=PATH is missing");
  options.file_bytes = words.bytes;
  options.max_extents = words.take_size("extents");
  std::error_code ignored;
  const bool there = fs::exists(options.path, ignored);
  if (!there) check_room(words, options.path);
  plan.make = [options, there, announce]() -> std::unique_ptr<Tier> {
    if (!there && announce)
      announce(fmt::format("tier {}: making {} of {}", options.name, options.path, format_size(options.file_bytes)));
    auto opened = SsdTier::open(options);
    if (!opened) throw std::runtime_error(opened.status().what());
    return std::move(*opened);
  };
}

void plan_gpu(Words& words, Plan& plan) {
  CudaOptions options;
  options.name = words.name;
  options.capacity_bytes = words.bytes;
  options.device = words.take_number("device", 0);
  if (words.take("stand-in", cuda_available() ? "no" : "yes") != "yes") {
    plan.make = [options] {
      auto opened = open_cuda_tier(options);
      if (!opened) throw std::runtime_error(opened.status().what());
      return std::move(*opened);
    };
    return;
  }
  MemoryTierOptions stand_in;
  stand_in.name = words.name;
  stand_in.kind = TierKind::kGpu;
  stand_in.capacity_bytes = words.bytes;
  plan.host_bytes = words.bytes;
  plan.make = [stand_in] { return std::make_unique<MemoryTier>(stand_in); };
}

// A file's first line.
std::string read_secret(const Words& words, const std::string& path) {
  std::ifstream file(path);
  std::string secret;
  if (!std::getline(file, secret) || secret.empty())
    words.refuse(fmt::format("password_file={}: cannot be read, or is empty", path));
  if (secret.back() == '\r') secret.pop_back();
  return secret;
}

void plan_remote(Words& words, Plan& plan, const Announce& announce) {
  RemoteOptions options;
  remote::ClientOptions& client = options.client;
  client.name = words.name;
  options.capacity_bytes = words.bytes;
  std::string url = words.take("url", "");
  if (url.empty()) words.refuse("url=[redis://HOST:PORT] is missing");
  if (url.starts_with('[') && url.ends_with(']')) url = url.substr(1, url.size() - 2);
  try {
    remote::read_url(url, client);
  } catch (const std::invalid_argument& error) {
    words.refuse(fmt::format("url: {}", error.what()));
  }
  const std::string secret = words.take("password_file", "");
  if (!secret.empty()) client.password = read_secret(words, secret);
  const std::string cluster = words.take("cluster", client.cluster ? "yes" : "no");
  if (cluster != "yes" && cluster != "no") words.refuse(fmt::format("cluster={}: expected yes or no", cluster));
  client.cluster = cluster == "yes";
  if (!client.cluster && client.addresses.size() > 1)
    words.refuse("several servers are a cluster; cluster=no is not so");
  if (client.cluster && client.database != 0) words.refuse("a cluster has no databases");
  if (client.cluster && client.addresses.front().port == 0) words.refuse("a cluster has no sockets");
  client.ca_file = words.take("ca", "");
  client.cert_file = words.take("cert", "");
  client.key_file = words.take("key", "");
  if (client.cert_file.empty() != client.key_file.empty()) words.refuse("cert= and key= belong together");
  if (!client.tls && (!client.ca_file.empty() || !client.cert_file.empty()))
    words.refuse("ca=, cert= and key= are for rediss://");
  client.timeout_ms = static_cast<uint32_t>(words.take_number("timeout_ms", 2000));
  if (client.timeout_ms == 0) words.refuse("timeout_ms=0: expected at least 1");
  client.connections = static_cast<unsigned>(words.take_number("connections", 2));
  if (client.connections == 0 || client.connections > 16) words.refuse("connections: expected 1 to 16");
  options.space = words.take("namespace", "");
  options.ttl_s = static_cast<uint32_t>(words.take_number("ttl_s", 86400));
  plan.make = [options, announce] {
    std::unique_ptr<Tier> tier = make_remote_tier(options);
    if (!tier->in_service() && announce)
      announce(fmt::format("tier {}: no server answers; it is tried again", options.client.name));
    return tier;
  };
}

}  // namespace

std::vector<TierSetup> make_tiers(const std::string& text, const Announce& announce) {
  std::vector<Plan> plans;
  std::set<std::string> names;
  const uint64_t all = host_memory_bytes();
  uint64_t host = 0;
  for (const std::string& part : split(text, ',')) {
    Words words = parse(part);
    Plan& plan = plans.emplace_back();
    TierSetup& setup = plan.setup;
    setup.policy = words.take("policy", placement::kRecommendedKvPolicy);
    setup.object_bytes = words.take_size("object");
    setup.background_bytes_per_s = words.take_size("background");
    const std::string promote = words.take("promote", words.kind == "gpu" ? "no" : "yes");
    if (promote != "yes" && promote != "no") words.refuse(fmt::format("promote={}: expected yes or no", promote));
    setup.promote_to = promote == "yes";
    if (!names.insert(words.name).second) words.refuse(fmt::format("two tiers are called '{}'", words.name));
    if (words.kind == "dram" || words.kind == "cxl") {
      plan_memory(words, plan);
    } else if (words.kind == "ssd") {
      plan_ssd(words, plan, announce);
    } else if (words.kind == "gpu") {
      plan_gpu(words, plan);
    } else if (words.kind == "remote") {
      plan_remote(words, plan, announce);
    } else {
      words.refuse(fmt::format("no kind of tier '{}'; there are: gpu, dram, cxl, ssd, remote", words.kind));
    }
    if (!words.options.empty())
      words.refuse(fmt::format("no option '{}' of {}", words.options.begin()->first, words.kind));
    (void)tier_policy(words.name, setup.policy);
    host += std::min(plan.host_bytes, all + 1);
    if (host > all)
      words.refuse(fmt::format("{}this machine has {} of memory in all",
                               plans.size() > 1 ? "with those before it, " : "", format_size(all)));
  }
  std::vector<TierSetup> setups;
  for (Plan& plan : plans) {
    plan.setup.tier = plan.make();
    setups.push_back(std::move(plan.setup));
  }
  // Copies between a GPU and DRAM then need no staging; where it is not permitted they go through it. Not CXL memory:
  // to register memory pins it, and what lies in a movable zone, as such memory does, is moved to DRAM for that.
  for (const TierSetup& gpu : setups) {
    if (gpu.tier->info().kind != TierKind::kGpu || gpu.tier->info().stand_in) continue;
    for (const TierSetup& other : setups) {
      if (other.tier->info().kind == TierKind::kDram) (void)cuda_register_host(*gpu.tier, other.tier->range());
    }
  }
  return setups;
}

}  // namespace neotier::engine
