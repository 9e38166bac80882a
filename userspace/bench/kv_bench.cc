// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#include "bench/paced_tier.h"
#include "engine/engine.h"
#include "engine/tiers/make_tiers.h"
#include "kv/kv_store.h"
#include "util/median.h"
#include "util/quantile.h"

namespace neotier::kv {

namespace {

using engine::Key;
using Clock = std::chrono::steady_clock;
using Ms = std::chrono::duration<double, std::milli>;

constexpr size_t kProbeBlocks = 16;

double ms_since(Clock::time_point begin) { return Ms(Clock::now() - begin).count(); }

void require(const engine::Status& status) {
  if (!status) throw std::runtime_error(status.what());
}

Key key_of(uint64_t block) {
  Key key;
  const uint64_t mixed = (block + 1) * 0x9e3779b97f4a7c15u;
  std::memcpy(key.bytes, &mixed, sizeof mixed);
  std::memcpy(key.bytes + 8, &block, sizeof block);
  return key;
}

uint64_t word_of(uint64_t block, uint64_t i) { return (block + 1) * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u; }

Quantiles quantiles(std::vector<double> values) {
  Quantiles q;
  std::sort(values.begin(), values.end());
  for (const double v : values) q.mean += v / static_cast<double>(values.size());
  q.p50 = quantile(values, 0.5);
  q.p90 = quantile(values, 0.9);
  q.p99 = quantile(values, 0.99);
  return q;
}

class Bench {
 public:
  Bench(const replay::KvTrace& trace, const KvBenchOptions& o) : trace_(trace), o_(o) {
    if (o.before >= trace.requests.size())
      throw std::runtime_error(
          fmt::format("{} requests before and {} in all: none is left to time", o.before, trace.requests.size()));
    if (o.block_bytes == 0 || o.layers == 0 || o.block_bytes % (uint64_t{o.layers} * 8) != 0)
      throw std::runtime_error(fmt::format("a block of {} bytes in {} layers: expected a multiple of {}", o.block_bytes,
                                           o.layers, uint64_t{o.layers} * 8));
    std::vector<engine::TierSetup> tiers = engine::make_tiers(o.tiers);
    engine::EngineConfig config;
    config.events = 1 << 16;
    // A block that is used is wanted in the fastest tier, as in the replay, where each tier sees every request.
    config.knobs.promote_heat = 1;
    config.knobs.hysteresis_ms = 0;
    for (engine::TierSetup& tier : tiers) {
      const engine::TierInfo& info = tier.tier->info();
      if (info.stand_in || (info.kind != engine::TierKind::kDram && info.kind != engine::TierKind::kCxl &&
                            info.kind != engine::TierKind::kSsd))
        throw std::runtime_error(
            fmt::format("tier {}: a stand-in, or a kind that is not measured here; use dram, ssd, "
                        "or cxl on its own node",
                        info.name));
      const auto bytes = static_cast<uint64_t>(static_cast<double>(info.capacity_bytes) * config.knobs.high_watermark);
      result_.tiers.push_back({info.name, bytes, 0, 0});
      config.max_objects = std::max<size_t>(config.max_objects, 4 * info.capacity_bytes / o.block_bytes);
      tier.policy = o.policy;
      tier.object_bytes = o.block_bytes;
    }
    result_.loaded_from.resize(tiers.size());
    std::vector<replay::Tier> paced = result_.tiers;
    replay::parse_links(o.links, paced);
    for (size_t t = 0; t < tiers.size(); t++) {
      if (paced[t].gb_s > 0)
        tiers[t].tier = std::make_unique<bench::PacedTier>(std::move(tiers[t].tier), paced[t].gb_s * 1e9,
                                                           static_cast<uint64_t>(paced[t].latency_us * 1e3));
    }
    engine_ = std::make_unique<engine::Engine>(config, std::move(tiers));
    StoreOptions store;
    store.layers = o.layers;
    store.layer_bytes = o.block_bytes / o.layers;
    store.write = WritePolicy::kWriteThrough;
    // What a block costs to make anew; without it nothing would ever be let go of.
    const uint64_t tokens = trace.block_tokens;
    const auto scaled = [&](uint64_t ns) { return static_cast<uint64_t>(static_cast<double>(ns) * o.prefill_scale); };
    store.recompute_ns = std::max<uint64_t>(1, scaled(replay::prefill_ns(0, tokens)));
    store.recompute_per_position_ns = scaled(replay::prefill_ns(tokens, tokens) - replay::prefill_ns(0, tokens));
    store_ = std::make_unique<KvStore>(*engine_, store);
    session_ = *store_->open_session(store_->tenant("bench", 0), 0);
    for (const replay::KvRequest& r : trace.requests) most_ = std::max<size_t>(most_, r.blocks);
    most_ = std::max(most_, kProbeBlocks);
    data_.resize(most_ * o.block_bytes);
  }

  KvBenchResult run() {
    for (size_t t = 0; t < result_.tiers.size(); t++) probe(t);
    replay::KvOptions options;
    options.block_bytes = o_.block_bytes;
    options.prefill_scale = o_.prefill_scale;
    options.cancelled = o_.cancelled;
    result_.replay =
        replay::replay_tiers(trace_, placement::find_policy(o_.policy, NEOTIER_KV), result_.tiers, options, o_.before);
    for (size_t i = 0; i < o_.before; i++) {
      say(fmt::format("storing what {} requests left: {}", o_.before, i));
      const replay::KvRequest& r = trace_.requests[i];
      const std::vector<Key> keys = keys_of(r);
      const auto found = store_->lookup(session_, keys);
      require(found.status());
      keep(r, keys, *found);
    }
    result_.stored = result_.passed = result_.no_room = 0;
    const auto begin = Clock::now();
    const uint64_t first_ns = trace_.requests[o_.before].time_ns;
    for (size_t i = o_.before; i < trace_.requests.size(); i++) {
      say(fmt::format("request {} of {}", i - o_.before, trace_.requests.size() - o_.before));
      const Ms arrival(static_cast<double>(trace_.requests[i].time_ns - first_ns) * 1e-6 / o_.speed_up);
      const Ms early = arrival - Ms(Clock::now() - begin);
      if (early.count() > 0) std::this_thread::sleep_for(early);
      wait_.push_back(std::max(0.0, -early.count()));
      serve(trace_.requests[i]);
    }
    result_.requests = trace_.requests.size() - o_.before;
    result_.ttft_of = ttft_;
    result_.ttft_ms = quantiles(ttft_);
    result_.load_ms = quantiles(load_);
    result_.wait_ms = quantiles(wait_);
    result_.same_hits_ms = quantiles(same_hits_);
    return result_;
  }

 private:
  void say(const std::string& text) const {
    if (o_.cancelled && o_.cancelled()) throw std::runtime_error("interrupted");
    if (o_.progress) o_.progress(text);
  }

  // Pieces of `blocks` blocks in data_, as the store wants them: by layer, then block.
  std::vector<std::byte*> pieces(size_t blocks) {
    const uint64_t layer_bytes = o_.block_bytes / o_.layers;
    std::vector<std::byte*> all;
    for (uint32_t layer = 0; layer < o_.layers; layer++)
      for (size_t b = 0; b < blocks; b++) all.push_back(data_.data() + b * o_.block_bytes + layer * layer_bytes);
    return all;
  }
  void fill(size_t place, uint64_t block) {
    for (uint64_t i = 0; i < o_.block_bytes / 8; i++) {
      const uint64_t word = word_of(block, i);
      std::memcpy(data_.data() + place * o_.block_bytes + 8 * i, &word, 8);
    }
  }
  bool holds(size_t place, uint64_t block) const {
    for (uint64_t i = 0; i < o_.block_bytes / 8; i++) {
      uint64_t word = 0;
      std::memcpy(&word, data_.data() + place * o_.block_bytes + 8 * i, 8);
      if (word != word_of(block, i)) return false;
    }
    return true;
  }

  // The link of a tier to the caller's memory: single blocks, and as many at a time as requests load.
  void probe(size_t t) {
    replay::Tier& tier = result_.tiers[t];
    say("probing " + tier.name);
    const size_t many = std::min<size_t>(kProbeBlocks, tier.bytes / o_.block_bytes / 2);
    if (many < 2)
      throw std::runtime_error(fmt::format("tier {} has room for fewer than 4 blocks; give it more", tier.name));
    std::vector<double> one, all;
    for (uint64_t round = 0; round < 7; round++) {
      std::vector<Key> keys;
      for (size_t k = 0; k < many; k++) {
        const uint64_t block = UINT64_MAX / 2 + round * kProbeBlocks + k;
        fill(0, block);
        engine::PutOptions put;
        put.kind = engine::ObjectKind::kKv;
        put.tier = tier.name;
        put.replace = true;
        keys.push_back(key_of(block));
        require(engine_->put(keys.back(), std::span(data_).first(o_.block_bytes), put));
      }
      one.push_back(timed_load(std::span(keys).first(1)));
      all.push_back(timed_load(std::span(keys).subspan(1)));
      for (const Key& key : keys)
        while (engine_->remove(key).code() == engine::Code::kBusy) std::this_thread::yield();
    }
    const double first = median(one), rest = median(all) / static_cast<double>(many - 1);
    tier.gb_s = static_cast<double>(o_.block_bytes) / (rest * 1e6);
    tier.latency_us = std::max(0.0, first - rest) * 1e3;
  }
  double timed_load(std::span<const Key> keys) {
    const std::vector<std::byte*> into = pieces(keys.size());
    const auto begin = Clock::now();
    auto load = store_->load(session_, keys, into);
    require(load.status());
    require((*load)->wait(60000));
    return ms_since(begin);
  }

  size_t tier_of(const Key& key) const {
    const auto info = engine_->lookup(key);
    for (size_t t = 0; info && t < result_.tiers.size(); t++)
      if (result_.tiers[t].name == info->tier) return t;
    return result_.tiers.size();
  }

  void serve(const replay::KvRequest& r) {
    const std::vector<Key> keys = keys_of(r);
    const auto begin = Clock::now();
    const auto found = store_->lookup(session_, keys);
    require(found.status());
    std::vector<uint8_t> where;
    for (const Key& key : std::span(keys).first(*found)) where.push_back(static_cast<uint8_t>(tier_of(key)));
    // A block may have left between the two.
    const auto leading =
        static_cast<uint32_t>(std::find(where.begin(), where.end(), result_.tiers.size()) - where.begin());
    const kv::LoadPlan plan = replay::plan_load(r, trace_.block_tokens, o_.block_bytes, std::span(where).first(leading),
                                                result_.tiers, o_.prefill_scale);
    size_t good = 0, wanted = 0;
    const kv::PlanOptions decide{.after_ns = compute_ns(r, r.blocks)};
    const auto load_begin = Clock::now();
    if (*found > 0 && o_.way != LoadWay::kCompute) {
      const std::vector<std::byte*> into = pieces(keys.size());
      auto load = store_->load(session_, keys, into, 0, o_.way == LoadWay::kDecide ? &decide : nullptr);
      require(load.status());
      (void)(*load)->wait(60000);  // what it failed at is computed
      wanted = (*load)->blocks();
      good = (*load)->good_blocks();
    }
    load_.push_back(ms_since(load_begin));
    const auto compute_begin = Clock::now();
    std::this_thread::sleep_for(std::chrono::nanoseconds(compute_ns(r, good)));
    const auto took = static_cast<uint64_t>(ms_since(compute_begin) * 1e6);
    ttft_.push_back(ms_since(begin));
    if (good < r.blocks && took > decide.after_ns)
      require(store_->computed(static_cast<uint32_t>(good), static_cast<uint32_t>(r.blocks - good),
                               took - decide.after_ns));
    same_hits_.push_back(static_cast<double>(plan.ttft_ns) * 1e-6);
    result_.block_refs += r.blocks;
    result_.prefix_hits += *found;
    result_.loaded += good;
    result_.bypassed += *found - wanted;
    result_.failed_blocks += wanted - good;
    for (size_t k = 0; k < good; k++) {
      if (k < where.size() && where[k] < result_.tiers.size()) result_.loaded_from[where[k]]++;
      result_.wrong_blocks += !holds(k, trace_.blocks[r.first + k]);
    }
    keep(r, keys, good);
  }

  // Computing what is left of the prompt with so many blocks there. Its last token is always computed.
  uint64_t compute_ns(const replay::KvRequest& r, size_t blocks) const {
    const uint64_t tokens = std::max<uint64_t>(r.input_tokens, 1);
    const uint64_t have = std::min<uint64_t>(blocks * trace_.block_tokens, tokens - 1);
    return static_cast<uint64_t>(static_cast<double>(replay::prefill_ns(have, tokens - have)) * o_.prefill_scale);
  }

  std::vector<Key> keys_of(const replay::KvRequest& r) const {
    std::vector<Key> keys;
    for (uint32_t k = 0; k < r.blocks; k++) keys.push_back(key_of(trace_.blocks[r.first + k]));
    return keys;
  }

  // Stores the request's blocks, of which the first `good` are in data_ already or need not be.
  void keep(const replay::KvRequest& r, std::span<const Key> keys, size_t good) {
    for (size_t k = good; k < r.blocks; k++) fill(k, trace_.blocks[r.first + k]);
    const std::vector<std::byte*> made = pieces(r.blocks);
    const std::vector<const std::byte*> from(made.begin(), made.end());
    const StoreResult stored = store_->store(session_, keys, from);
    result_.stored += stored.stored;
    result_.passed += stored.passed;
    result_.no_room += !stored.status.is_ok();
  }

  const replay::KvTrace& trace_;
  const KvBenchOptions& o_;
  KvBenchResult result_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<KvStore> store_;
  SessionId session_ = 0;
  size_t most_ = 0;
  std::vector<std::byte> data_;
  std::vector<double> ttft_, load_, wait_, same_hits_;
};

}  // namespace

KvBenchResult run_kv_bench(const replay::KvTrace& trace, const KvBenchOptions& options) {
  return Bench(trace, options).run();
}

}  // namespace neotier::kv
