// SPDX-License-Identifier: Apache-2.0
#include "replay/tiers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "replay/cache.h"
#include "util/quantile.h"
#include "util/size.h"

namespace neotier::replay {

namespace {

constexpr double kWeightFlop = 2 * 8.03e9;          // a token
constexpr double kAttentionFlop = 4.0 * 32 * 4096;  // a token and token of context
constexpr double kFlopPerNs = 400e12 * 1e-9;

std::vector<std::pair<std::string, std::string>> pairs_of(const char* option, const std::string& text) {
  std::vector<std::pair<std::string, std::string>> found;
  std::stringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size())
      throw std::runtime_error(fmt::format("{} '{}': expected NAME=VALUE, separated by commas", option, item));
    found.emplace_back(item.substr(0, equals), item.substr(equals + 1));
  }
  return found;
}

void quantiles(std::vector<double>& ms, double* out) {
  std::sort(ms.begin(), ms.end());
  out[0] = quantile(ms, 0.5);
  out[1] = quantile(ms, 0.9);
  out[2] = quantile(ms, 0.99);
}

}  // namespace

uint64_t prefill_ns(uint64_t before, uint64_t tokens) {
  const auto n = static_cast<double>(tokens);
  const double context = static_cast<double>(before) + n / 2;
  return static_cast<uint64_t>(n * (kWeightFlop + kAttentionFlop * context) / kFlopPerNs);
}

kv::LoadPlan plan_load(const KvRequest& r, uint32_t block_tokens, uint64_t block_bytes,
                       std::span<const uint8_t> tier_of, const std::vector<Tier>& tiers, double prefill_scale) {
  const uint64_t tokens = std::max<uint64_t>(r.input_tokens, 1);
  std::vector<kv::PlanTier> links;
  for (const Tier& tier : tiers) links.push_back({tier.latency_us * 1e3, static_cast<double>(block_bytes) / tier.gb_s});
  std::vector<uint64_t> rest;
  for (uint64_t k = 0; k <= tier_of.size(); k++) {
    // The last token is always computed: it makes the first answer.
    const uint64_t have = std::min<uint64_t>(k * block_tokens, tokens - 1);
    rest.push_back(
        static_cast<uint64_t>(std::llround(static_cast<double>(prefill_ns(have, tokens - have)) * prefill_scale)));
  }
  return kv::plan_load(tier_of, links, rest, 1, {});
}

const std::vector<LinkDefault>& default_links() {
  static const std::vector<LinkDefault> links = {
      {"dram", 50, 10, "PCIe 5.0 x16 with large copies: about 80 % of 63 GB/s"},
      {"cxl", 25, 12, "one CXL 2.0 x8 expander behind the same PCIe link: about 80 % of 31.5 GB/s"},
      {"ssd", 6, 100, "one PCIe 4.0 x4 NVMe drive, large reads"},
      {"remote", 10, 50, "100 Gb/s RDMA at 80 %"},
  };
  return links;
}

std::vector<Tier> parse_tiers(const std::string& text, const std::string& links) {
  std::vector<Tier> tiers;
  std::string known;
  for (const LinkDefault& link : default_links()) known += fmt::format("{}{}", known.empty() ? "" : ", ", link.name);
  for (const auto& [name, size] : pairs_of("--tiers", text)) {
    const auto& defaults = default_links();
    const auto link = std::find_if(defaults.begin(), defaults.end(),
                                   [&wanted = name](const LinkDefault& l) { return wanted == l.name; });
    if (link == defaults.end())
      throw std::runtime_error(fmt::format("--tiers: unknown tier '{}'; known: {}", name, known));
    if (std::any_of(tiers.begin(), tiers.end(), [&wanted = name](const Tier& t) { return t.name == wanted; }))
      throw std::runtime_error(fmt::format("--tiers: '{}' is named twice", name));
    tiers.push_back({name, parse_size(size), link->gb_s, link->latency_us});
  }
  if (tiers.empty()) throw std::runtime_error(fmt::format("--tiers names no tier; known: {}", known));
  parse_links(links, tiers);
  return tiers;
}

void parse_links(const std::string& links, std::vector<Tier>& tiers) {
  for (const auto& [name, figures] : pairs_of("--link", links)) {
    const auto tier =
        std::find_if(tiers.begin(), tiers.end(), [&wanted = name](const Tier& t) { return t.name == wanted; });
    if (tier == tiers.end()) throw std::runtime_error(fmt::format("--link: '{}' is not among --tiers", name));
    char rest = 0;
    if (std::sscanf(figures.c_str(), "%lf:%lf%c", &tier->gb_s, &tier->latency_us, &rest) != 2 || !(tier->gb_s > 0) ||
        !(tier->latency_us >= 0))
      throw std::runtime_error(fmt::format("--link '{}={}': expected NAME=GB_PER_S:MICROSECONDS", name, figures));
  }
}

TiersResult replay_tiers(const KvTrace& trace, const placement::PolicyRef& policy, const std::vector<Tier>& tiers,
                         const KvOptions& options, uint64_t first) {
  const uint64_t block_bytes =
      options.block_bytes ? options.block_bytes : uint64_t{trace.block_tokens} * kKvBytesPerToken;
  const std::vector<uint64_t> next = policy->flags & NEOTIER_NEEDS_ORACLE ? next_uses(trace) : std::vector<uint64_t>();
  TiersResult result;
  result.policy = policy->name;
  result.requests = trace.requests.size() - std::min<uint64_t>(first, trace.requests.size());
  std::vector<std::unique_ptr<KvCache>> caches;
  for (const Tier& tier : tiers) {
    KvOptions own = options;
    own.block_bytes = block_bytes;
    own.capacity_blocks = tier.bytes / block_bytes;
    if (own.capacity_blocks == 0)
      throw std::runtime_error(fmt::format("tier {} of {} has no room for a block of {}", tier.name,
                                           format_size(tier.bytes), format_size(block_bytes)));
    caches.push_back(std::make_unique<KvCache>(trace, policy, own));
    result.tiers.push_back({tier, own.capacity_blocks});
  }
  std::vector<double> ttft, recompute, load;
  std::vector<uint8_t> tier_of;
  uint64_t position = 0;
  for (size_t i = 0; i < trace.requests.size(); i++) {
    if (options.cancelled && options.cancelled()) throw std::runtime_error("interrupted");
    const KvRequest& r = trace.requests[i];
    const uint32_t* objects = trace.blocks.data() + r.first;
    const auto serve = [&] {
      for (auto& cache : caches) cache->request(r, i, next.empty() ? nullptr : next.data() + position);
      position += r.blocks;
    };
    if (i < first) {
      serve();
      continue;
    }
    result.block_refs += r.blocks;
    tier_of.assign(r.blocks, static_cast<uint8_t>(tiers.size()));
    uint32_t leading = 0, found = 0;
    for (uint32_t k = 0; k < r.blocks; k++) {
      for (size_t t = 0; t < tiers.size() && tier_of[k] == tiers.size(); t++)
        if (caches[t]->resident(objects[k])) tier_of[k] = static_cast<uint8_t>(t);
      if (tier_of[k] == tiers.size()) continue;
      result.tiers[tier_of[k]].hits++;
      leading += found == k;
      found++;
    }
    const kv::LoadPlan best =
        plan_load(r, trace.block_tokens, block_bytes, std::span(tier_of).first(leading), tiers, options.prefill_scale);
    for (uint32_t k = 0; k < best.load; k++) result.tiers[tier_of[k]].bytes_loaded += block_bytes;
    result.recomputed += leading - best.load;
    result.hits += found;
    result.prefix_hits += leading;
    ttft.push_back(static_cast<double>(best.ttft_ns) * 1e-6);
    recompute.push_back(static_cast<double>(best.compute_all_ns) * 1e-6);
    load.push_back(static_cast<double>(best.load_all_ns) * 1e-6);
    serve();
  }
  for (size_t t = 0; t < tiers.size(); t++) result.tiers[t].bytes_written = caches[t]->inserts() * block_bytes;
  for (size_t i = 0; i < ttft.size(); i++) {
    const auto n = static_cast<double>(ttft.size());
    result.ttft_mean_ms += ttft[i] / n;
    result.ttft_recompute_mean_ms += recompute[i] / n;
    result.ttft_load_mean_ms += load[i] / n;
  }
  quantiles(ttft, result.ttft_ms);
  quantiles(recompute, result.ttft_recompute_ms);
  quantiles(load, result.ttft_load_ms);
  return result;
}

}  // namespace neotier::replay
