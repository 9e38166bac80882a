// SPDX-License-Identifier: Apache-2.0
// What is published is what runs: the KV store and the expert store serve recorded traces, and their policies see, call
// for call, what the replay shows them.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/engine.h"
#include "engine/testing/fake_clock.h"
#include "engine/testing/mem_tier.h"
#include "experts/expert_store.h"
#include "experts/synthetic_model.h"
#include "kv/kv_store.h"
#include "model/model.h"
#include "placement/policy.h"
#include "replay/cache.h"
#include "replay/kv.h"
#include "replay/moe_replay.h"
#include "replay/moe_schedule.h"
#include "replay/tiers.h"
#include "replay/trace.h"
#include "util/temporary_folder.h"

namespace neotier::replay {
namespace {

namespace fs = std::filesystem;

fs::path data_folder() {
  const char* set = std::getenv("NEOTIER_DATA");
  return set ? fs::path(set) : fs::path(NEOTIER_SOURCE_DIR) / "../shared/data";
}

// Declares `trace`, beginning when the engine's clock does.
#define CONVERSATION_OR_SKIP()                                                                          \
  const fs::path file = data_folder() / "mooncake" / "conversation_trace.jsonl";                        \
  if (!fs::exists(file))                                                                                \
    GTEST_SKIP() << "skipped: no mooncake/conversation_trace.jsonl in $NEOTIER_DATA or ../shared/data"; \
  KvTrace trace = load_trace(file);                                                                     \
  for (KvRequest & r : trace.requests) r.time_ns += engine::FakeClock().now_ns()

// ---- a policy that writes down what it is told and passes it on

struct Call {
  const char* what = "";
  uint32_t object = 0;
  uint64_t words = 0;  // a hash of all the rest
  bool operator==(const Call& o) const {
    return std::strcmp(what, o.what) == 0 && object == o.object && words == o.words;
  }
};

struct Listener {
  const neotier_placement* inner = nullptr;
  std::vector<Call> calls;
  std::vector<bool> seen;

  void hear(const char* what, uint32_t object, std::initializer_list<uint64_t> words) {
    uint64_t hash = 1469598103934665603u;
    for (const uint64_t word : words) hash = (hash ^ word) * 1099511628211u;
    calls.push_back({what, object, hash});
  }
  // A handle that was never used means nothing to a policy: hosts are free to have one for it or not.
  uint32_t known(uint32_t object) const { return object < seen.size() && seen[object] ? object : NEOTIER_NO_OBJECT; }
  void use(uint32_t object) {
    if (object >= seen.size()) seen.resize(object + 1);
    seen[object] = true;
  }
};

Listener* g_listener = nullptr;

uint64_t words_of(const neotier_access& a) {
  uint64_t weight = 0;
  std::memcpy(&weight, &a.weight, sizeof a.weight);
  uint64_t hash = 0;
  for (const uint64_t word :
       {uint64_t{a.position}, uint64_t{a.row}, uint64_t{a.flags}, a.bytes, a.cost_ns, a.next_use, weight})
    hash = (hash ^ word) * 1099511628211u;
  return hash;
}

void heard_event(void* state, const neotier_event* e) {
  Listener& l = *g_listener;
  uint64_t uses = 0;
  for (uint32_t i = 0; i < e->nr; i++)
    uses = ((uses ^ l.known(e->access[i].object)) * 1099511628211u ^ words_of(e->access[i])) * 1099511628211u;
  l.hear("on_event", e->nr, {e->tick, e->now_ns, e->kind, e->group, e->category, uses});
  if (l.inner->on_event) l.inner->on_event(state, e);
}

int heard_hit(void* state, const neotier_event* e, uint32_t i) {
  g_listener->use(e->access[i].object);
  g_listener->hear("on_hit", e->access[i].object, {e->tick, e->kind, i, words_of(e->access[i])});
  return g_listener->inner->on_hit(state, e, i);
}

int heard_insert(void* state, const neotier_event* e, uint32_t i) {
  g_listener->use(e->access[i].object);
  g_listener->hear("on_insert", e->access[i].object, {e->tick, e->kind, i, words_of(e->access[i])});
  return g_listener->inner->on_insert(state, e, i);
}

int heard_remove(void* state, uint32_t object, neotier_remove_reason reason) {
  g_listener->hear("on_remove", object, {static_cast<uint64_t>(reason)});
  return g_listener->inner->on_remove(state, object, reason);
}

uint32_t heard_victims(void* state, const neotier_event* e, uint32_t i, uint32_t want, uint32_t* out) {
  const uint32_t found = g_listener->inner->victims(state, e, i, want, out);
  g_listener->hear("victims", e->access[i].object, {e->tick, e->kind, i, want, found, found ? out[0] : 0});
  return found;
}

int heard_admit(void* state, const neotier_event* e, uint32_t i) {
  g_listener->use(e->access[i].object);
  const int answer = g_listener->inner->admit ? g_listener->inner->admit(state, e, i) : 1;
  g_listener->hear("admit", e->access[i].object, {e->tick, e->kind, i, words_of(e->access[i]), answer ? 1u : 0u});
  return answer;
}

// One at a time.
class Heard {
 public:
  explicit Heard(const std::string& name) : inner_(placement::find_policy(name, NEOTIER_KV)), heard_(*inner_) {
    listener_.inner = inner_.get();
    g_listener = &listener_;
    heard_.on_event = heard_event;
    heard_.on_hit = heard_hit;
    heard_.on_insert = heard_insert;
    heard_.on_remove = heard_remove;
    heard_.victims = heard_victims;
    heard_.admit = heard_admit;
  }
  ~Heard() { g_listener = nullptr; }
  placement::PolicyRef policy() const {
    return placement::PolicyRef(&heard_, [](const neotier_placement*) {});
  }
  const std::vector<Call>& calls() const { return listener_.calls; }

 private:
  placement::PolicyRef inner_;
  neotier_placement heard_;
  Listener listener_;
};

// ---- the KV store under a trace

constexpr uint64_t kBlockBytes = 64;

engine::Key key_of(uint32_t block) {
  engine::Key key{};
  const uint64_t mixed = (block + 1) * 0x9e3779b97f4a7c15u;
  std::memcpy(key.bytes, &mixed, sizeof mixed);
  std::memcpy(key.bytes + 8, &block, sizeof block);
  return key;
}

struct Server {
  engine::FakeClock clock;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<kv::KvStore> store;
  kv::TenantId tenant = 0;

  // One tier of so many blocks.
  Server(const KvTrace& trace, uint64_t blocks, const placement::PolicyRef& policy) {
    std::vector<engine::TierSetup> setups(1);
    engine::MemTierOptions tier;
    tier.name = "dram";
    tier.capacity_bytes = blocks * kBlockBytes;
    setups[0].tier = std::make_unique<engine::MemTier>(tier);
    setups[0].own_policy = policy;
    setups[0].object_bytes = kBlockBytes;
    engine::EngineConfig config;
    config.max_objects = trace.objects + 1;
    config.history = config.max_objects;
    config.events = 1 << 16;
    config.seed = 1;
    config.measure = false;
    config.clock = &clock;
    engine = std::make_unique<engine::Engine>(config, std::move(setups));
    kv::StoreOptions options;
    options.layers = 1;
    options.layer_bytes = kBlockBytes;
    options.clock = &clock;
    store = std::make_unique<kv::KvStore>(*engine, options);
    tenant = store->tenant("t", 0);
  }
};

struct Served {
  uint64_t blocks = 0, prefix = 0;
};

// One request at a time, as a connector serves it: looked up, what is there loaded, all stored.
class Caller {
 public:
  Caller(Server& server, const KvTrace& trace)
      : server_(server), trace_(trace), session_(*server.store->open_session(server.tenant, 0)) {}

  Served serve(const KvRequest& r, std::string& wrong) {
    const Served served = begin(r, wrong);
    finish(wrong);
    return served;
  }

  // What comes before the prefill.
  Served begin(const KvRequest& r, std::string& wrong) {
    keys_.clear();
    costs_.clear();
    for (uint32_t k = 0; k < r.blocks; k++) {
      keys_.push_back(key_of(trace_.blocks[r.first + k]));
      costs_.push_back(prefill_ns(uint64_t{k} * trace_.block_tokens, trace_.block_tokens));
    }
    Served served;
    for (const engine::Key& key : keys_) served.blocks += server_.engine->lookup_prefix({&key, 1});
    const auto found = server_.store->lookup(session_, keys_, {.category = r.category, .cost_ns = costs_});
    if (!found) {
      wrong = found.status().what();
      return served;
    }
    served.prefix = *found;
    bytes_.assign(keys_.size() * kBlockBytes, std::byte{});
    into_.clear();
    for (size_t k = 0; k < keys_.size(); k++) into_.push_back(bytes_.data() + k * kBlockBytes);
    if (*found > 0) {
      auto load = server_.store->load(session_, std::span(keys_).first(*found), std::span(into_).first(*found));
      if (!load || !(*load)->wait(60000)) wrong = "a load failed";
      for (size_t k = 0; load && k < (*load)->good_blocks(); k++) {
        if (std::memcmp(into_[k], keys_[k].bytes, sizeof keys_[k].bytes) != 0) wrong = "other bytes";
      }
    }
    return served;
  }

  // What comes after it.
  void finish(std::string& wrong) {
    for (size_t k = 0; k < keys_.size(); k++) std::memcpy(into_[k], keys_[k].bytes, sizeof keys_[k].bytes);
    const std::vector<const std::byte*> from(into_.begin(), into_.end());
    const kv::StoreResult stored = server_.store->store(session_, keys_, from);
    if (!stored.status) wrong = stored.status.what();
  }

 private:
  Server& server_;
  const KvTrace& trace_;
  kv::SessionId session_;
  std::vector<engine::Key> keys_;
  std::vector<uint64_t> costs_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte*> into_;
};

KvOptions options_for(uint64_t blocks) {
  KvOptions options;
  options.capacity_blocks = blocks;
  options.block_bytes = kBlockBytes;
  return options;
}

struct Case {
  const char* policy;
  uint64_t blocks;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.policy << ", " << c.blocks << " blocks"; }

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  std::string name = std::string(info.param.policy) + "_" + std::to_string(info.param.blocks);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class EngineIsReplay : public ::testing::TestWithParam<Case> {};

TEST_P(EngineIsReplay, CallForCall) {
  CONVERSATION_OR_SKIP();
  const Case c = GetParam();
  std::vector<KvCache::Hits> expected;
  std::vector<Call> calls;
  {
    const Heard heard(c.policy);
    KvCache cache(trace, heard.policy(), options_for(c.blocks));
    for (size_t i = 0; i < trace.requests.size(); i++) expected.push_back(cache.request(trace.requests[i], i, nullptr));
    calls = heard.calls();
  }
  const Heard heard(c.policy);
  Server server(trace, c.blocks, heard.policy());
  Caller caller(server, trace);
  std::string wrong;
  uint64_t hits = 0, refs = 0;
  for (size_t i = 0; i < trace.requests.size(); i++) {
    const KvRequest& r = trace.requests[i];
    server.clock.advance_ns(r.time_ns - server.clock.now_ns());
    const Served served = caller.serve(r, wrong);
    ASSERT_EQ(wrong, "") << "request " << i;
    ASSERT_EQ(served.blocks, expected[i].blocks) << "request " << i;
    ASSERT_EQ(served.prefix, expected[i].prefix) << "request " << i;
    hits += served.blocks;
    refs += r.blocks;
  }
  std::printf("%s, %llu blocks: hit rate %.4f, %zu calls\n", c.policy, static_cast<unsigned long long>(c.blocks),
              static_cast<double>(hits) / static_cast<double>(refs), calls.size());
  ASSERT_GT(calls.size(), trace.requests.size());
  for (size_t i = 0; i < std::min(calls.size(), heard.calls().size()); i++) {
    const Call &a = calls[i], &b = heard.calls()[i];
    ASSERT_EQ(a, b) << "call " << i << ": the replay's " << a.what << " of " << a.object << ", the engine's " << b.what
                    << " of " << b.object;
  }
  EXPECT_EQ(calls.size(), heard.calls().size());
}

INSTANTIATE_TEST_SUITE_P(Recommended, EngineIsReplay,
                         ::testing::Values(Case{"hazard", 5000}, Case{"hazard", 10000}, Case{"hazard", 20000}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Others, EngineIsReplay,
                         ::testing::Values(Case{"lru", 10000}, Case{"arc", 10000}, Case{"gdsf", 10000}), name_of);
// By `scripts/test engine-replay`.
INSTANTIATE_TEST_SUITE_P(Long, EngineIsReplay,
                         ::testing::Values(Case{"s3-fifo", 10000}, Case{"lhd", 10000}, Case{"reuse-probability", 10000},
                                           Case{"lru", 5000}, Case{"lru", 20000}, Case{"arc", 5000}, Case{"arc", 20000},
                                           Case{"gdsf", 5000}, Case{"gdsf", 20000}, Case{"s3-fifo", 5000},
                                           Case{"s3-fifo", 20000}, Case{"lhd", 5000}, Case{"lhd", 20000},
                                           Case{"reuse-probability", 5000}, Case{"reuse-probability", 20000}),
                         name_of);

constexpr size_t kCallers = 8;

// Eight requests of a trace under way at a time, as a server schedules them: none begins before the eighth before it
// has ended, however long the machine makes one of them wait.
class InOrder {
 public:
  explicit InOrder(size_t requests) : ended_(requests) {}
  // The next one's number; those past the end are no requests.
  size_t begin() {
    std::unique_lock lock(mutex_);
    const size_t mine = next_++;
    changed_.wait(lock, [&] { return mine < all_ended_ + kCallers || mine >= ended_.size(); });
    return mine;
  }
  void end(size_t request) {
    const std::lock_guard lock(mutex_);
    ended_[request] = true;
    while (all_ended_ < ended_.size() && ended_[all_ended_]) all_ended_++;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> ended_;
  size_t next_ = 0, all_ended_ = 0;
};

struct Rates {
  double hits = 0, prefix = 0;
};

Rates rates_of(const KvTrace& trace, uint64_t hits, uint64_t prefix) {
  const auto refs = static_cast<double>(trace.blocks.size());
  return {static_cast<double>(hits) / refs, static_cast<double>(prefix) / refs};
}

// The whole trace, by threads of their own. The machine decides how they mix, so no two runs are alike.
Rates eight_threads(const KvTrace& trace, const Case& c, std::string& wrong) {
  Server server(trace, c.blocks, placement::find_policy(c.policy, NEOTIER_KV));
  InOrder order(trace.requests.size());
  std::atomic<uint64_t> hits{0}, prefix{0};
  std::mutex mutex;
  std::vector<std::thread> callers;
  for (size_t n = 0; n < kCallers; n++) {
    callers.emplace_back([&] {
      Caller caller(server, trace);
      std::string mine;
      for (size_t i = order.begin(); i < trace.requests.size(); i = order.begin()) {
        const Served served = caller.serve(trace.requests[i], mine);
        order.end(i);
        hits += served.blocks;
        prefix += served.prefix;
      }
      const std::lock_guard lock(mutex);
      if (!mine.empty()) wrong = mine;
    });
  }
  for (std::thread& caller : callers) caller.join();
  if (const uint64_t pins = server.engine->status().pins; pins != 0) wrong = std::to_string(pins) + " pins are left";
  return rates_of(trace, hits, prefix);
}

class EightCallers : public ::testing::TestWithParam<Case> {};

TEST_P(EightCallers, HitAsOftenAsTheReplay) {
  CONVERSATION_OR_SKIP();
  const Case c = GetParam();
  const KvResult expected = replay(trace, placement::find_policy(c.policy, NEOTIER_KV), options_for(c.blocks));
  // One run's rates stray by some .002 with the threads' order; what eight callers cost is the mean of several.
  constexpr int kRuns = 5;
  Rates mean;
  std::string wrong;
  for (int run = 0; run < kRuns; run++) {
    const Rates got = eight_threads(trace, c, wrong);
    ASSERT_EQ(wrong, "");
    std::printf("%s, %llu blocks, eight callers: hit rate %.4f, the replay's %.4f; prefixes %.4f, %.4f\n", c.policy,
                static_cast<unsigned long long>(c.blocks), got.hits, expected.hit_rate(), got.prefix,
                expected.prefix_hit_rate());
    mean.hits += got.hits / kRuns;
    mean.prefix += got.prefix / kRuns;
  }
  EXPECT_NEAR(mean.hits, expected.hit_rate(), .005);
  // What is being copied has its place already and serves nobody yet: some 100 blocks of the 10,000, and a prefix
  // ends where one is missing.
  EXPECT_NEAR(mean.prefix, expected.prefix_hit_rate(), .0075);
}

// The same without the machine's part in it: eight requests under way, each looked up before those before it are
// stored, by one thread.
TEST_P(EightCallers, LateByEightRequestsTheyStillHitAsOften) {
  CONVERSATION_OR_SKIP();
  const Case c = GetParam();
  const KvResult expected = replay(trace, placement::find_policy(c.policy, NEOTIER_KV), options_for(c.blocks));
  Server server(trace, c.blocks, placement::find_policy(c.policy, NEOTIER_KV));
  std::vector<Caller> callers;
  for (size_t n = 0; n < kCallers; n++) callers.emplace_back(server, trace);
  std::string wrong;
  uint64_t hits = 0, prefix = 0;
  for (size_t i = 0; i < trace.requests.size() + kCallers; i++) {
    Caller& caller = callers[i % kCallers];
    if (i >= kCallers) caller.finish(wrong);
    if (i >= trace.requests.size()) continue;
    const Served served = caller.begin(trace.requests[i], wrong);
    hits += served.blocks;
    prefix += served.prefix;
  }
  ASSERT_EQ(wrong, "");
  const Rates got = rates_of(trace, hits, prefix);
  std::printf("%s, %llu blocks, late by eight: hit rate %.4f, the replay's %.4f; prefixes %.4f, %.4f\n", c.policy,
              static_cast<unsigned long long>(c.blocks), got.hits, expected.hit_rate(), got.prefix,
              expected.prefix_hit_rate());
  EXPECT_NEAR(got.hits, expected.hit_rate(), .002);
  EXPECT_NEAR(got.prefix, expected.prefix_hit_rate(), .002);
  EXPECT_EQ(server.engine->status().pins, 0u);
}

INSTANTIATE_TEST_SUITE_P(Recommended, EightCallers, ::testing::Values(Case{"hazard", 10000}), name_of);
INSTANTIATE_TEST_SUITE_P(Long, EightCallers,
                         ::testing::Values(Case{"hazard", 5000}, Case{"hazard", 20000}, Case{"lru", 10000},
                                           Case{"s3-fifo", 10000}),
                         name_of);

// ---- experts

// The expert store under recorded routing: hit for hit as in the replay, the policy being the recommended one.
TEST(ExpertsAreReplay, HitForHit) {
  const fs::path folder = data_folder() / "gpt-oss-20b-routing";
  if (!fs::exists(folder / "routes.u8"))
    GTEST_SKIP() << "skipped: no gpt-oss-20b-routing in $NEOTIER_DATA or ../shared/data";
  const RoutingTrace trace = RoutingTrace::load(folder).first(800);
  const RoutingShape& shape = trace.shape();
  const auto policy = placement::find_policy(placement::kRecommendedExpertPolicy, NEOTIER_EXPERTS);
  TemporaryFolder scratch("neotier-engine-replay");
  experts::SyntheticModel model;
  model.layers = shape.layers;
  model.experts = shape.experts;
  model.top_k = shape.top_k;
  model.hidden = model.ff = 32;
  const std::string file = (scratch.path() / "model.gguf").string();
  ASSERT_TRUE(experts::write_synthetic_model(model, file).is_ok());
  const auto opened = model::open_model(file);
  ASSERT_TRUE(opened.is_ok()) << opened.status().what();
  for (const uint32_t slots : {4u, 8u, 12u}) {
    experts::StoreOptions options;
    options.policy = policy;
    options.top_k = shape.top_k;
    options.slots = slots;
    options.resident_files = true;
    auto store = experts::ExpertStore::open(*opened, options);
    ASSERT_TRUE(store.is_ok()) << store.status().what();
    MoeOptions replayed;
    replayed.experts_per_layer = slots;
    const MoeResult expected = replay(trace, policy, nullptr, replayed);
    const BatchSchedule schedule(trace, 1);
    for (uint64_t s = 0; s < schedule.steps(); s++) {
      const auto rows = schedule.step(s);
      for (uint32_t layer = 0; layer < shape.layers; layer++) {
        std::vector<experts::Use> uses;
        for (const auto& row : rows) {
          const auto chosen = trace.experts(row.token, layer);
          for (uint32_t k = 0; k < shape.top_k; k++)
            uses.push_back({chosen[k], row.row, k, row.begins && layer == 0, 0});
        }
        auto step = (*store)->begin(layer, uses);
        ASSERT_TRUE(step.is_ok()) << step.status().what();
        while (auto ready = (*step)->next()) ASSERT_TRUE(ready->status.is_ok()) << ready->status.what();
      }
    }
    const experts::StoreCounters counters = (*store)->counters();
    std::printf("learned, %u slots: hit rate %.4f\n", slots, expected.hit_rate());
    EXPECT_EQ(counters.uses, expected.uses);
    EXPECT_EQ(counters.hits, expected.hits) << slots;
    EXPECT_EQ(counters.loads, expected.loads) << slots;
    EXPECT_EQ(counters.bypassed, expected.bypassed) << slots;
    EXPECT_EQ(counters.streamed, expected.streamed) << slots;
  }
}

}  // namespace
}  // namespace neotier::replay
