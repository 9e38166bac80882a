// SPDX-License-Identifier: Apache-2.0
// Two processes, each with an engine and a KV store of its own, over one server: what one stored, the other finds.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "engine/testing/fake_clock.h"
#include "engine/testing/pattern.h"
#include "engine/testing/redis_proxy.h"
#include "engine/testing/redis_server.h"
#include "engine/tiers/make_tiers.h"
#include "kv/kv_store.h"

namespace neotier::kv {
namespace {

using engine::Bytes;
using engine::find_redis_program;
using engine::Key;
using engine::make_key;
using engine::pattern;

constexpr uint32_t kLayers = 4;
constexpr uint64_t kLayerBytes = 48 << 10;
constexpr size_t kBlocks = 12;

// A server engine's connector.
struct Host {
  engine::Engine engine;
  KvStore store;
  SessionId session;

  explicit Host(const std::string& socket, const std::string& space, const std::string& before = "",
                const StoreOptions& how = options())
      : engine(config(), engine::make_tiers(before + "remote=64M:url=[unix:" + socket + "]:timeout_ms=60000" +
                                            (space.empty() ? "" : ":namespace=" + space))),
        store(engine, how),
        session(*store.open_session(store.tenant("t", 0), 0)) {}
  static engine::EngineConfig config() {
    engine::EngineConfig c;
    c.events = 1024;
    c.max_objects = 1000;
    c.measure = false;
    c.knobs.find_ms = 60000;
    return c;
  }
  static StoreOptions options() {
    StoreOptions o;
    o.layers = kLayers;
    o.layer_bytes = kLayerBytes;
    return o;
  }
  static std::vector<Key> keys(size_t count = kBlocks) {
    std::vector<Key> made;
    for (size_t i = 0; i < count; i++) made.push_back(make_key(i));
    return made;
  }
  StoreResult put(size_t count = kBlocks) {
    std::vector<Bytes> memory;
    std::vector<const std::byte*> from;
    for (uint64_t layer = 0; layer < kLayers; layer++)
      for (uint64_t block = 0; block < count; block++) memory.push_back(pattern(layer * 1000 + block, kLayerBytes));
    for (const Bytes& bytes : memory) from.push_back(bytes.data());
    return store.store(session, keys(count), from);
  }
  // Leading blocks that are found, loaded, and right.
  size_t good(size_t count = kBlocks) {
    const auto found = store.lookup(session, keys(count));
    if (!found || *found == 0) return 0;
    std::vector<Bytes> memory(kLayers * *found, Bytes(kLayerBytes));
    std::vector<std::byte*> into;
    for (Bytes& bytes : memory) into.push_back(bytes.data());
    const auto load = store.load(session, keys(*found), into);
    if (!load) return 0;
    (void)(*load)->wait(60000);
    for (uint64_t layer = 0; layer < kLayers; layer++)
      for (uint64_t block = 0; block < (*load)->good_blocks(); block++)
        if (memory[layer * *found + block] != pattern(layer * 1000 + block, kLayerBytes)) return SIZE_MAX;
    return (*load)->good_blocks();
  }
};

// What another process finds.
size_t found_elsewhere(const std::string& socket, const std::string& space) {
  setenv("NEOTIER_SHARE_SOCKET", socket.c_str(), 1);
  setenv("NEOTIER_SHARE_SPACE", space.c_str(), 1);
  const int status = std::system(std::filesystem::read_symlink("/proc/self/exe").c_str());
  return static_cast<size_t>(WEXITSTATUS(status));
}

// A block is stored when its bytes are; the entry by which others find it is written after that. True once all are
// there.
bool published(engine::RedisServer& server) {
  for (int i = 0; i < 12000; i++) {
    const auto entries = server.ask({"EVAL",
                                     "local n=0 for _,k in ipairs(redis.call('KEYS','*')) do local "
                                     "_,c=string.gsub(k,':','') if c==2 then n=n+1 end end return n",
                                     "0"});
    if (entries.integer == static_cast<long long>(kBlocks)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

TEST(RemoteShare, WhatOneProcessStoredAnotherFinds) {
  NEOTIER_NEEDS_REDIS;
  engine::RedisServer server;
  Host host(server.socket(), "model-a/bf16");
  EXPECT_EQ(host.good(), 0u);
  ASSERT_EQ(host.put().stored, kBlocks);
  ASSERT_TRUE(published(server));
  EXPECT_EQ(host.good(), kBlocks);
  EXPECT_EQ(found_elsewhere(server.socket(), "model-a/bf16"), kBlocks);
  EXPECT_EQ(found_elsewhere(server.socket(), "model-a/fp8"), 0u) << "another layout";
  EXPECT_EQ(found_elsewhere(server.socket(), ""), 0u) << "a private tier";
  EXPECT_EQ(host.good(), kBlocks) << "who has found it deletes nothing";
}

TEST(RemoteShare, WhatAnEngineFoundIsItsOwnToForgetOnly) {
  NEOTIER_NEEDS_REDIS;
  engine::RedisServer server;
  Host writer(server.socket(), "m");
  ASSERT_EQ(writer.put().stored, kBlocks);
  ASSERT_TRUE(published(server));
  {
    Host reader(server.socket(), "m");
    EXPECT_EQ(reader.good(), kBlocks);
    EXPECT_EQ(reader.engine.status().counters.found_copies, kBlocks);
    EXPECT_EQ(reader.put().present, kBlocks) << "nothing is stored twice";
    for (const Key& key : Host::keys()) EXPECT_TRUE(reader.engine.remove(key));
    EXPECT_EQ(reader.good(), kBlocks) << "found again";
  }
  EXPECT_EQ(writer.good(), kBlocks);
  // The writer's own decision.
  for (const Key& key : Host::keys()) EXPECT_TRUE(writer.engine.remove(key));
  for (int i = 0; i < 12000 && server.ask({"DBSIZE"}).integer > 0; i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(server.ask({"DBSIZE"}).integer, 0);
  Host late(server.socket(), "m");
  EXPECT_EQ(late.good(), 0u);
}

// Blocks that are kept in memory are written to the server as well, and stay there when they come up.
TEST(RemoteShare, WhatIsInMemoryIsSharedToo) {
  NEOTIER_NEEDS_REDIS;
  engine::RedisServer server;
  StoreOptions through = Host::options();
  through.write = WritePolicy::kWriteThrough;
  Host writer(server.socket(), "m", "dram=16M,", through);
  ASSERT_EQ(writer.put().stored, kBlocks);
  const std::vector<Key> keys = Host::keys();
  EXPECT_TRUE(writer.engine.write_back(keys)->wait());
  ASSERT_TRUE(published(server));
  EXPECT_EQ(writer.engine.lookup(keys[0])->tier, "dram");
  EXPECT_EQ(writer.engine.lookup(keys[0])->second_tier, "remote");
  Host reader(server.socket(), "m", "dram=16M,");
  EXPECT_EQ(reader.good(), kBlocks);
  EXPECT_TRUE(reader.engine.move(keys, "dram", engine::MoveClass::kDemand)->wait());
  EXPECT_EQ(reader.engine.lookup(keys[0])->second_tier, "remote");
  EXPECT_EQ(found_elsewhere(server.socket(), "m"), kBlocks);
}

// What loading costs is seen, and compared with computing; and a server that is fast again is found out to be so.
TEST(RemoteShare, AServerThatIsSlowIsPassedOverUntilItIsNot) {
  NEOTIER_NEEDS_REDIS;
  engine::RedisServer server;
  engine::RedisProxy proxy(server.file("proxy"), server.socket());
  engine::FakeClock clock;
  StoreOptions options = Host::options();
  options.recompute_ns = 20000000;
  options.clock = &clock;
  Host host(server.file("proxy"), "m", "", options);
  ASSERT_EQ(host.put().stored, kBlocks);
  const PlanOptions decide;
  const auto worth = [&] { return host.store.plan(host.session, Host::keys(), decide)->load; };
  EXPECT_EQ(host.good(), kBlocks);
  EXPECT_EQ(worth(), kBlocks);
  proxy.answer([](const std::vector<std::string>& command, std::string reply) {
    if (command[0] == "GET" || command[0] == "GETRANGE") std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return reply;
  });
  for (int i = 0; i < 10 && worth() > 0; i++) EXPECT_EQ(host.good(), kBlocks);
  EXPECT_EQ(worth(), 0u);
  proxy.answer(nullptr);
  EXPECT_EQ(worth(), 0u);
  std::vector<std::byte> memory(kBlocks * kLayers * kLayerBytes);
  std::vector<std::byte*> into;
  for (size_t i = 0; i < kBlocks * kLayers; i++) into.push_back(memory.data() + i * kLayerBytes);
  for (int second = 0; second < 100 && worth() == 0; second++) {
    EXPECT_EQ((*host.store.load(host.session, Host::keys(), into, 0, &decide))->blocks(), 0u);
    while (host.engine.status().jobs > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    clock.advance_ms(1000);
  }
  EXPECT_GT(worth(), 0u);
  EXPECT_GT(host.store.counters().trials, 0u);
}

// The block's bytes went (the server needed room), its entry stayed; and the other way round.
TEST(RemoteShare, HalfOfWhatWasStoredIsAMiss) {
  NEOTIER_NEEDS_REDIS;
  engine::RedisServer server;
  Host writer(server.socket(), "m");
  ASSERT_EQ(writer.put().stored, kBlocks);
  ASSERT_TRUE(published(server));
  const std::string all = server
                              .ask({"EVAL",
                                    "local n=0 for _,k in ipairs(redis.call('KEYS','*')) do local "
                                    "_,c=string.gsub(k,':','') if c==4 and n<1 then redis.call('DEL',k) n=n+1 end "
                                    "end return tostring(n)",
                                    "0"})
                              .text;
  ASSERT_EQ(all, "1");
  Host reader(server.socket(), "m");
  const size_t before = reader.good();
  EXPECT_LT(before, kBlocks);
  // Known as a miss from then on, by both, and stored again.
  for (int i = 0; i < 12000 && reader.engine.status().counters.lost_copies == 0; i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(reader.engine.status().counters.lost_copies, 1u);
}

// Entries that are none of ours are none; a copy whose bytes were changed is thrown away, and stored again.
TEST(RemoteShare, WhatOthersWroteIsNotTrusted) {
  NEOTIER_NEEDS_REDIS;
  engine::RedisServer server;
  Host writer(server.socket(), "m");
  ASSERT_EQ(writer.put().stored, kBlocks);
  ASSERT_TRUE(published(server));
  server.ask({"EVAL",
              "for _,k in ipairs(redis.call('KEYS','*')) do local _,c=string.gsub(k,':','') if c==2 then "
              "redis.call('SETRANGE',k,40,'\\1\\2\\3') end end",
              "0"});
  {
    Host reader(server.socket(), "m");
    EXPECT_EQ(reader.good(), 0u);
    EXPECT_EQ(reader.engine.status().counters.found_copies, 0u);
  }
  server.ask({"EVAL",
              "for _,k in ipairs(redis.call('KEYS','*')) do local _,c=string.gsub(k,':','') if c==4 then "
              "redis.call('SETRANGE',k,100000,'other') end end",
              "0"});
  EXPECT_EQ(writer.good(), 0u);
  for (int i = 0; i < 12000 && writer.engine.status().counters.lost_copies < kBlocks; i++) {
    (void)writer.good();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(writer.put().stored, kBlocks);
  EXPECT_EQ(writer.good(), kBlocks);
}

}  // namespace
}  // namespace neotier::kv

int main(int argc, char** argv) {
  if (const char* socket = std::getenv("NEOTIER_SHARE_SOCKET")) {
    neotier::kv::Host host(socket, std::getenv("NEOTIER_SHARE_SPACE"));
    return static_cast<int>(std::min<size_t>(host.good(), 99));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
