// SPDX-License-Identifier: Apache-2.0
// The real server on a real socket, over an engine in memory; its time-outs by a clock that the test sets.
#include "daemon/server.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <random>
#include <regex>
#include <string>
#include <thread>

#include "daemon/listener.h"
#include "daemon/testing/raw_client.h"
#include "engine/testing/fake_clock.h"
#include "engine/testing/mem_tier.h"
#include "engine/testing/pattern.h"
#include "engine/tiers/make_tiers.h"
#include "neotier_client.h"
#include "util/temporary_folder.h"

namespace neotier::daemon {
namespace {

using engine::make_key;
using engine::pattern;

// Until it is so, at most ten seconds: what another thread does soon.
bool soon(const std::function<bool()>& so) {
  for (int i = 0; i < 10000; i++) {
    if (so()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

struct Rig {
  TemporaryFolder folder;
  std::string path = folder / "s";
  engine::FakeClock clock;
  engine::Engine engine;
  DaemonCounters counters;
  std::mutex said_mutex;
  std::string said;
  Log log{false, [this](const std::string& line) {
            std::lock_guard lock(said_mutex);
            said += line;
          }};
  Clients clients;
  Listener listener{path, 0600, ""};
  Server server;
  std::thread thread;

  static engine::EngineConfig config() {
    engine::EngineConfig config;
    config.max_objects = 10000;
    config.measure = false;
    config.seed = 7;
    config.knobs.hysteresis_ms = 0;
    return config;
  }
  explicit Rig(Limits limits = {}, uint64_t drain_s = 5) : Rig(limits, drain_s, config(), two_tiers()) {}
  static std::vector<engine::TierSetup> two_tiers() { return engine::make_tiers("near/dram=8M,far/dram=16M"); }
  Rig(Limits limits, uint64_t drain_s, const engine::EngineConfig& engine_config, std::vector<engine::TierSetup> tiers)
      : engine(engine_config, std::move(tiers)),
        server({engine, counters, clock, log, [] { return std::string("{}"); },
                [](uint32_t format) { return std::string(format ? "{}" : "text"); }},
               clients, limits, 2, listener.fd()) {
    listener.open();
    thread = std::thread([this, drain_s] { server.run(drain_s * 1000000000); });
  }
  ~Rig() {
    server.stop();
    // Under a clock that stands still nothing else ends the drain.
    std::atomic<bool> ended{false};
    std::thread ticking([&] {
      while (!ended) {
        advance_s(1);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    thread.join();
    ended = true;
    ticking.join();
  }
  void advance_s(uint64_t seconds) {
    clock.advance_ms(seconds * 1000);
    server.wake();
  }
  neotier_client* connect() {
    neotier_client* client = neotier_client_connect(path.c_str(), nullptr);
    EXPECT_NE(client, nullptr) << neotier_error();
    return client;
  }
  // Whether such a line was said, each '#' of it standing for digits.
  ::testing::AssertionResult says(const std::string& line) {
    const std::string pattern = std::regex_replace(line, std::regex("#"), "[0-9]+");
    std::string text;
    const bool found = soon([&] {
      std::lock_guard lock(said_mutex);
      text = said;
      return std::regex_search(text, std::regex(pattern));
    });
    return found ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "said: " << text;
  }
  uint64_t pins() { return engine.status().pins; }
  bool sessions(uint64_t wanted) {
    return soon([&] { return engine.status().sessions == wanted; });
  }
};

struct Connected {
  explicit Connected(Rig& rig) : client(rig.connect()) {}
  ~Connected() { neotier_client_close(client); }
  Connected(const Connected&) = delete;
  Connected& operator=(const Connected&) = delete;
  operator neotier_client*() const { return client; }
  neotier_client* client;
};

const neotier_object_key* key(const engine::Key& key) { return reinterpret_cast<const neotier_object_key*>(&key); }

std::vector<std::byte> body_of(const engine::Key& key) {
  const auto* raw = reinterpret_cast<const std::byte*>(&key);
  return {raw, raw + sizeof key};
}

std::vector<std::byte> put_body(const engine::Key& key, size_t bytes) {
  std::vector<std::byte> body = body_of(key);
  Writer out(body);
  out.number(uint32_t{0});
  out.number(uint64_t{0});
  out.number(uint32_t{1});
  out.text("");
  body.resize(body.size() + bytes, std::byte{5});
  return body;
}

std::vector<std::byte> get_body(const engine::Key& key, uint64_t bytes) {
  std::vector<std::byte> body = body_of(key);
  Writer out(body);
  out.number(uint64_t{0});
  out.number(bytes);
  return body;
}

TEST(Server, EveryCallThroughTheCApi) {
  Rig rig;
  Connected client(rig);
  const auto a = make_key(1), b = make_key(2), none = make_key(9);
  const auto data = pattern(1, 300000);
  ASSERT_EQ(neotier_client_put(client, key(a), data.data(), data.size(), nullptr), 0) << neotier_error();
  EXPECT_EQ(neotier_client_put(client, key(a), data.data(), data.size(), nullptr), NEOTIER_EEXISTS);
  EXPECT_NE(std::string(neotier_error()).find("already"), std::string::npos);
  std::vector<std::byte> back(data.size());
  ASSERT_EQ(neotier_client_get(client, key(a), 0, back.data(), back.size()), 0);
  EXPECT_EQ(back, data);
  ASSERT_EQ(neotier_client_get(client, key(a), 1000, back.data(), 77), 0);
  EXPECT_TRUE(std::equal(back.begin(), back.begin() + 77, data.begin() + 1000));
  EXPECT_EQ(neotier_client_get(client, key(a), 299999, back.data(), 2), NEOTIER_EINVALID);
  EXPECT_EQ(neotier_client_get(client, key(none), 0, back.data(), 2), NEOTIER_ENOTFOUND);

  neotier_put_options options{};
  options.struct_bytes = sizeof options;
  options.kind = NEOTIER_OBJECT_KV;
  options.recompute_ns = 1000000;
  options.tier = "far";
  ASSERT_EQ(neotier_client_put(client, key(b), data.data(), 5000, &options), 0);
  neotier_object_info info{};
  info.struct_bytes = sizeof info;
  ASSERT_EQ(neotier_client_lookup(client, key(b), &info), 0);
  EXPECT_EQ(info.bytes, 5000u);
  EXPECT_EQ(info.kind, NEOTIER_OBJECT_KV + 0u);
  EXPECT_STREQ(info.tier, "far");
  neotier_object_key keys[3] = {*key(a), *key(b), *key(none)};
  EXPECT_EQ(neotier_client_lookup_prefix(client, keys, 3), 2);
  EXPECT_EQ(neotier_client_touch(client, key(b)), 0);
  EXPECT_EQ(neotier_client_describe(client, key(b), NEOTIER_OBJECT_PLAIN, 5), 0);

  uint64_t pin = 0, bytes = 0;
  ASSERT_EQ(neotier_client_pin(client, key(a), 0, &pin, &bytes), 0);
  EXPECT_EQ(bytes, data.size());
  EXPECT_EQ(neotier_client_remove(client, key(a)), NEOTIER_EBUSY);
  EXPECT_EQ(neotier_client_unpin(client, pin), 0);
  EXPECT_EQ(neotier_client_unpin(client, pin), NEOTIER_ENOTFOUND);

  neotier_progress progress{};
  progress.struct_bytes = sizeof progress;
  ASSERT_EQ(neotier_client_move(client, keys, 2, "far", NEOTIER_DEMAND, UINT64_MAX, &progress), 0) << neotier_error();
  EXPECT_EQ(progress.done, 2u);
  EXPECT_EQ(progress.pending, 0u);
  EXPECT_EQ(rig.engine.lookup(a)->tier, "far");
  EXPECT_EQ(neotier_client_move(client, keys, 3, "far", NEOTIER_DEMAND, 60000, nullptr), NEOTIER_ENOTFOUND);
  EXPECT_EQ(neotier_client_move(client, keys, 1, "moon", NEOTIER_DEMAND, 60000, nullptr), NEOTIER_EINVALID);
  EXPECT_EQ(neotier_client_move(client, keys, 0, "far", NEOTIER_DEMAND, 60000, &progress), 0);
  EXPECT_EQ(neotier_client_write_back(client, keys, 1, 60000, nullptr), NEOTIER_EUNSUPPORTED);
  EXPECT_EQ(neotier_client_flush(client), 0);
  neotier_decision decision{};
  decision.struct_bytes = sizeof decision;
  EXPECT_EQ(neotier_client_decide(client, key(a), nullptr, 0, 0, &decision), 0) << neotier_error();
  EXPECT_EQ(neotier_client_tier_service(client, "far", 0), 0) << "the test is neotierd's own user";
  EXPECT_EQ(neotier_client_get(client, key(a), 0, back.data(), 1), NEOTIER_EGONE);
  EXPECT_EQ(neotier_client_tier_service(client, "far", 1), 0);
  char text[8];
  EXPECT_EQ(neotier_client_metrics(client, NEOTIER_PROMETHEUS, text, sizeof text), 4);
  EXPECT_STREQ(text, "text");
  EXPECT_EQ(neotier_client_remove(client, key(a)), 0);
  EXPECT_EQ(neotier_client_ping(client), 0);
  neotier_client_limits limits{};
  limits.struct_bytes = sizeof limits;
  EXPECT_EQ(neotier_client_get_limits(client, &limits), 0);
  EXPECT_EQ(limits.max_message, Limits().max_message);
  EXPECT_EQ(rig.clients.status().at(0).peer.pid, getpid());
}

TEST(Server, PinsGoWithTheirConnectionHoweverItEnds) {
  Rig rig;
  const auto data = pattern(1, 5000);
  ASSERT_TRUE(rig.engine.put(make_key(1), data).is_ok());
  Connected stays(rig);
  uint64_t pin = 0;
  ASSERT_EQ(neotier_client_pin(stays, key(make_key(1)), 0, &pin, nullptr), 0);
  {
    Connected goes(rig);
    ASSERT_EQ(neotier_client_pin(goes, key(make_key(1)), 0, &pin, nullptr), 0);
    ASSERT_EQ(rig.pins(), 2u);
  }
  ASSERT_TRUE(soon([&] { return rig.pins() == 1; }));
  // In the middle of a header, of a body, of a reply, and with a request under way.
  for (int how = 0; how < 4; how++) {
    RawClient raw(rig.path);
    ASSERT_EQ(raw.hello().code, 0);
    std::vector<std::byte> body = body_of(make_key(1));
    body.resize(24);
    raw.request(Operation::kPin, body);
    ASSERT_EQ(raw.reply().code, 0);
    ASSERT_EQ(rig.pins(), 2u);
    if (how == 0) raw.bytes(std::vector<std::byte>(7));
    if (how == 1) raw.bytes(RawClient::frame(Operation::kPut, 500000, std::vector<std::byte>(9000)));
    if (how == 2) raw.request(Operation::kGet, get_body(make_key(1), 5000));
    if (how == 3) raw.request(Operation::kFlush, {});
    raw.hang_up();
    ASSERT_TRUE(soon([&] { return rig.pins() == 1; })) << how;
  }
  ASSERT_TRUE(rig.sessions(1));
  EXPECT_EQ(rig.server.in_flight_bytes(), 0u);
  EXPECT_EQ(rig.engine.status().counters.session_releases, 5u);
}

TEST(Server, GreetingsAreChecked) {
  Rig rig;
  {
    RawClient raw(rig.path);
    raw.request(Operation::kPing, {});
    EXPECT_EQ(raw.reply().code, NEOTIER_EINVALID);
    EXPECT_TRUE(raw.cut_off());
  }
  {
    RawClient raw(rig.path);
    const auto reply = raw.hello(99);
    EXPECT_EQ(reply.code, NEOTIER_EUNSUPPORTED);
    EXPECT_NE(reply.text().find("protocol 99"), std::string::npos);
    EXPECT_TRUE(raw.cut_off());
  }
  {
    RawClient raw(rig.path);
    EXPECT_EQ(raw.hello(kProtocol, "\033[2J").code, NEOTIER_EINVALID);
  }
  {
    RawClient raw(rig.path);
    raw.bytes(RawClient::frame(Operation::kHello, 1 << 20, {}));
    EXPECT_EQ(raw.reply().code, NEOTIER_EINVALID) << "more than a greeting, before one";
    EXPECT_TRUE(raw.cut_off());
  }
  RawClient raw(rig.path);
  EXPECT_EQ(raw.hello().code, 0);
  EXPECT_EQ(raw.hello().code, NEOTIER_EINVALID) << "twice";
  raw.request(Operation::kPing, {});
  EXPECT_EQ(raw.reply().code, 0) << "and goes on";
  raw.request(static_cast<Operation>(999), {});
  EXPECT_EQ(raw.reply().code, NEOTIER_EUNSUPPORTED);
}

TEST(Server, LengthsAreCheckedBeforeAnythingIsTaken) {
  Limits limits;
  limits.max_message = 100000;
  Rig rig(limits);
  {
    RawClient raw(rig.path);
    ASSERT_EQ(raw.hello().code, 0);
    raw.bytes(RawClient::frame(Operation::kPut, UINT32_MAX, {}));
    EXPECT_EQ(raw.reply().code, NEOTIER_EINVALID);
    EXPECT_TRUE(raw.cut_off());
  }
  EXPECT_EQ(rig.counters.protocol_errors, 1u);
  EXPECT_TRUE(rig.says("neotierd: warning: client # .*process #, user #. is cut off: "));
  RawClient raw(rig.path);
  ASSERT_EQ(raw.hello().code, 0);
  raw.request(Operation::kGet, get_body(make_key(1), uint64_t{1} << 60));
  EXPECT_EQ(raw.reply().code, NEOTIER_EINVALID);
  std::vector<std::byte> flags = put_body(make_key(1), 10);
  flags[28] = std::byte{4};
  raw.request(Operation::kPut, flags);
  EXPECT_EQ(raw.reply().code, NEOTIER_EINVALID) << "a flag that there is not";
  std::vector<std::byte> body;
  Writer out(body);
  out.number(UINT32_MAX);
  raw.request(Operation::kLookupPrefix, body);
  EXPECT_EQ(raw.reply().code, NEOTIER_EINVALID);
  Connected client(rig);
  std::vector<std::byte> large(100001);
  EXPECT_EQ(neotier_client_put(client, key(make_key(1)), large.data(), large.size(), nullptr), NEOTIER_EINVALID);
  EXPECT_EQ(neotier_client_put(client, key(make_key(1)), large.data(), 100000, nullptr), 0) << neotier_error();
}

TEST(Server, LimitsOfAClient) {
  Limits limits;
  limits.pinned_bytes = 10000;
  limits.pins = 3;
  limits.objects_in_flight = 2;
  limits.max_clients = 2;
  Rig rig(limits);
  for (uint64_t n = 0; n < 5; n++) ASSERT_TRUE(rig.engine.put(make_key(n), pattern(n, 4000)).is_ok());
  ASSERT_TRUE(rig.engine.put(make_key(9), pattern(9, 1)).is_ok());
  Connected client(rig);
  uint64_t a = 0, b = 0, pin = 0;
  EXPECT_EQ(neotier_client_pin(client, key(make_key(0)), 0, &a, nullptr), 0);
  EXPECT_EQ(neotier_client_pin(client, key(make_key(1)), 0, &b, nullptr), 0);
  EXPECT_EQ(neotier_client_pin(client, key(make_key(2)), 0, &pin, nullptr), NEOTIER_EBUSY) << "12000 of 10000 bytes";
  EXPECT_NE(std::string(neotier_error()).find("pinned_bytes"), std::string::npos);
  EXPECT_EQ(rig.pins(), 2u);
  EXPECT_EQ(neotier_client_pin(client, key(make_key(9)), 0, &pin, nullptr), 0);
  EXPECT_EQ(neotier_client_pin(client, key(make_key(9)), 0, &pin, nullptr), NEOTIER_EBUSY) << "a fourth";
  EXPECT_EQ(neotier_client_unpin(client, a), 0);
  EXPECT_EQ(neotier_client_pin(client, key(make_key(2)), 0, &a, nullptr), 0) << "room again";
  // Another client has limits of its own.
  Connected other(rig);
  EXPECT_EQ(neotier_client_pin(other, key(make_key(0)), 0, &pin, nullptr), 0);
  neotier_object_key keys[3] = {*key(make_key(0)), *key(make_key(1)), *key(make_key(2))};
  EXPECT_EQ(neotier_client_move(other, keys, 3, "far", NEOTIER_PREFETCH, 1000, nullptr), NEOTIER_EBUSY);
  EXPECT_NE(std::string(neotier_error()).find("objects_in_flight"), std::string::npos);
  EXPECT_EQ(neotier_client_connect(rig.path.c_str(), nullptr), nullptr) << "a third";
  EXPECT_NE(std::string(neotier_error()).find("max_clients"), std::string::npos);
  EXPECT_EQ(rig.counters.refused_connections, 1u);
  EXPECT_TRUE(rig.says("neotierd: warning: a client was turned away: # clients are connected already"));
  EXPECT_EQ(rig.counters.limited_requests, 3u);
}

// A device that does not answer, and as many who wait for it as there are threads for that.
TEST(Server, OthersAreServedWhileAllWaitForAMedium) {
  engine::MemTierOptions device;
  device.name = "device";
  device.kind = engine::TierKind::kSsd;
  device.mappable = false;
  std::vector<engine::TierSetup> tiers = engine::make_tiers("near/dram=8M");
  auto made = std::make_unique<engine::MemTier>(device);
  engine::MemTier& held = *made;
  tiers.emplace_back().tier = std::move(made);
  Rig rig({}, 5, Rig::config(), std::move(tiers));
  const auto data = pattern(1, 5000);
  ASSERT_TRUE(rig.engine.put(make_key(1), data, {.tier = "device"}));
  ASSERT_TRUE(rig.engine.put(make_key(2), data, {.tier = "near"}));
  Connected client(rig);
  held.hold();
  std::vector<std::unique_ptr<RawClient>> hostile;
  for (int i = 0; i < 8; i++) {
    hostile.push_back(std::make_unique<RawClient>(rig.path));
    ASSERT_EQ(hostile.back()->hello().code, 0);
    hostile.back()->request(Operation::kGet, get_body(make_key(1), 5000));
  }
  ASSERT_TRUE(soon([&] { return rig.engine.status().jobs >= 2; }));
  for (int i = 0; i < 10; i++) {
    EXPECT_EQ(neotier_client_ping(client), 0);
    neotier_object_info info{};
    info.struct_bytes = sizeof info;
    EXPECT_EQ(neotier_client_lookup(client, key(make_key(2)), &info), 0);
    EXPECT_EQ(neotier_client_touch(client, key(make_key(2))), 0);
    uint64_t pin = 0;
    EXPECT_EQ(neotier_client_pin(client, key(make_key(2)), 0, &pin, nullptr), 0);
    EXPECT_EQ(neotier_client_unpin(client, pin), 0);
    EXPECT_EQ(neotier_client_lookup_prefix(client, key(make_key(2)), 1), 1);
  }
  {
    Connected dies(rig);
    uint64_t pin = 0;
    ASSERT_EQ(neotier_client_pin(dies, key(make_key(2)), 0, &pin, nullptr), 0);
    ASSERT_EQ(rig.pins(), 1u);
  }
  EXPECT_TRUE(soon([&] { return rig.pins() == 0; })) << "what it held goes too";
  for (const auto& one : hostile) EXPECT_FALSE(one->readable()) << "the device still holds";
  held.release();
  for (const auto& one : hostile) EXPECT_EQ(one->reply().body, data);
}

// Four requests of no bytes for what lies on a device.
TEST(Server, AGetOfNoBytesIsAnswered) {
  engine::MemTierOptions device;
  device.name = "device";
  device.kind = engine::TierKind::kSsd;
  device.mappable = false;
  std::vector<engine::TierSetup> tiers(1);
  tiers[0].tier = std::make_unique<engine::MemTier>(device);
  Rig rig({}, 5, Rig::config(), std::move(tiers));
  ASSERT_TRUE(rig.engine.put(make_key(1), pattern(1, 5000)));
  for (int i = 0; i < 4; i++) {
    RawClient raw(rig.path);
    ASSERT_EQ(raw.hello().code, 0);
    raw.request(Operation::kGet, get_body(make_key(1), 0));
    const auto reply = raw.reply();
    EXPECT_EQ(reply.code, 0);
    EXPECT_TRUE(reply.body.empty());
  }
}

TEST(Server, LimitsOfAUser) {
  Limits limits;
  limits.max_clients = 4;
  limits.pinned_bytes = 10000;
  limits.user_pinned_bytes = 10000;
  limits.max_lease_ms = 0;
  Rig rig(limits);
  for (uint64_t n = 0; n < 3; n++) ASSERT_TRUE(rig.engine.put(make_key(n), pattern(n, 4000)));
  auto first = std::make_unique<Connected>(rig);
  Connected second(rig), third(rig);
  EXPECT_EQ(neotier_client_connect(rig.path.c_str(), nullptr), nullptr) << "the fourth place is another user's";
  EXPECT_NE(std::string(neotier_error()).find("user_clients"), std::string::npos) << neotier_error();
  uint64_t a = 0, b = 0, pin = 0;
  EXPECT_EQ(neotier_client_pin(*first, key(make_key(0)), 0, &a, nullptr), 0);
  EXPECT_EQ(neotier_client_pin(second, key(make_key(1)), 0, &b, nullptr), 0);
  EXPECT_EQ(neotier_client_pin(third, key(make_key(2)), 0, &pin, nullptr), NEOTIER_EBUSY);
  EXPECT_NE(std::string(neotier_error()).find("user_pinned_bytes"), std::string::npos) << neotier_error();
  EXPECT_EQ(rig.pins(), 2u);
  EXPECT_EQ(neotier_client_unpin(second, b), 0);
  EXPECT_EQ(neotier_client_pin(third, key(make_key(2)), 0, &pin, nullptr), 0) << neotier_error();
  first.reset();
  ASSERT_TRUE(soon([&] { return rig.pins() == 1; }));
  EXPECT_EQ(neotier_client_pin(second, key(make_key(1)), 0, &b, nullptr), 0) << "what went with its connection";
  Connected again(rig);
}

// Who sends slowly what he has room for leaves some to others; here all are of one user, who may have three quarters.
TEST(Server, RoomIsSharedOutByUser) {
  Limits limits;
  limits.max_message = 300000;
  limits.in_flight_bytes = 400000;
  Rig rig(limits);
  RawClient first(rig.path), second(rig.path);
  ASSERT_EQ(first.hello().code, 0);
  ASSERT_EQ(second.hello().code, 0);
  const auto body = put_body(make_key(1), 200000);
  first.bytes(RawClient::frame(Operation::kPut, static_cast<uint32_t>(body.size()), {}));
  ASSERT_TRUE(soon([&] { return rig.server.in_flight_bytes() == body.size(); }));
  const auto other = put_body(make_key(2), 150000);
  second.bytes_at_most(RawClient::frame(Operation::kPut, static_cast<uint32_t>(other.size()), {}));
  Connected ping(rig);
  for (int i = 0; i < 3; i++) EXPECT_EQ(neotier_client_ping(ping), 0);
  EXPECT_EQ(rig.server.in_flight_bytes(), body.size()) << "both would be more than three quarters";
  first.hang_up();
  second.bytes(other);
  EXPECT_EQ(second.reply().code, 0);
}

// A user with many connections has as many turns as one with one.
TEST(Workers, TurnsGoRoundAmongUsers) {
  struct Job : Work {
    int number = 0;
  };
  std::vector<int> order;
  std::mutex mutex;
  std::atomic<bool> go{false};
  WorkGroup many, one, blocked;
  std::vector<Job> jobs(12);
  Workers workers(1, false, [&](Workers& all, Work& work) {
    const int number = static_cast<Job&>(work).number;
    while (!go) std::this_thread::yield();
    {
      std::lock_guard lock(mutex);
      order.push_back(number);
    }
    all.done(*work.group);
  });
  for (int i = 0; i < 12; i++) {
    jobs[i].number = i;
    jobs[i].group = i < 10 ? &many : i == 10 ? &blocked : &one;
    workers.hand_in(jobs[i]);
  }
  go = true;
  ASSERT_TRUE(soon([&] {
    std::lock_guard lock(mutex);
    return order.size() == 12;
  }));
  std::vector<int> of_many;
  for (const int number : order)
    if (number < 10) of_many.push_back(number);
  EXPECT_TRUE(std::is_sorted(of_many.begin(), of_many.end()));
  EXPECT_LT(std::find(order.begin(), order.end(), 11) - order.begin(), 6) << "behind two others of each";
}

TEST(Server, ALeaseThatRanOutCountsNoMore) {
  Limits limits;
  limits.pins = 1;
  limits.max_lease_ms = 20;
  Rig rig(limits);
  ASSERT_TRUE(rig.engine.put(make_key(1), pattern(1, 100)).is_ok());
  Connected client(rig);
  uint64_t pin = 0;
  ASSERT_EQ(neotier_client_pin(client, key(make_key(1)), 0, &pin, nullptr), 0) << "gets the longest lease";
  EXPECT_EQ(neotier_client_pin(client, key(make_key(1)), 0, &pin, nullptr), NEOTIER_EBUSY);
  ASSERT_TRUE(soon([&] { return rig.pins() == 0; })) << "the engine's own clock";
  rig.clock.advance_ms(21);
  EXPECT_EQ(neotier_client_pin(client, key(make_key(1)), 0, &pin, nullptr), 0) << neotier_error();
}

TEST(Server, WhoStopsInTheMiddleIsCutOff) {
  Limits limits;
  limits.message_timeout_s = 30;
  Rig rig(limits);
  Connected patient(rig);
  RawClient silent(rig.path), header(rig.path), body(rig.path);
  ASSERT_EQ(header.hello().code, 0);
  ASSERT_EQ(body.hello().code, 0);
  header.bytes(std::vector<std::byte>(3));
  body.bytes(RawClient::frame(Operation::kPut, 200000, std::vector<std::byte>(1000)));
  ASSERT_TRUE(soon([&] { return rig.server.in_flight_bytes() == 200000; }));
  ASSERT_TRUE(soon([&] {
    uint64_t received = 0;
    for (const ClientStatus& c : rig.clients.status()) received += c.name == "test" ? c.received_bytes : 0;
    return received == 2 * (16 + 22) + 3 + 16 + 1000;
  }));
  rig.advance_s(29);
  EXPECT_EQ(neotier_client_ping(patient), 0);
  EXPECT_EQ(rig.counters.timeouts, 0u);
  rig.advance_s(2);
  EXPECT_TRUE(silent.cut_off());
  EXPECT_TRUE(header.cut_off());
  EXPECT_TRUE(body.cut_off());
  EXPECT_EQ(rig.counters.timeouts, 3u);
  EXPECT_TRUE(rig.says("neotierd: warning: client # .* is cut off: it stopped in the middle of a request or reply"));
  EXPECT_EQ(rig.server.in_flight_bytes(), 0u);
  EXPECT_EQ(neotier_client_ping(patient), 0) << "it was idle, which is no fault";
}

TEST(Server, ASlowReaderIsCutOffAndStopsNobody) {
  Rig rig;
  ASSERT_TRUE(rig.engine.put(make_key(1), pattern(1, 4 << 20)).is_ok());
  RawClient slow(rig.path);
  ASSERT_EQ(slow.hello().code, 0);
  slow.request(Operation::kGet, get_body(make_key(1), 4 << 20));
  ASSERT_TRUE(slow.readable(10000));
  Connected client(rig);
  std::vector<std::byte> back(4 << 20);
  for (int i = 0; i < 5; i++) ASSERT_EQ(neotier_client_get(client, key(make_key(1)), 0, back.data(), back.size()), 0);
  EXPECT_EQ(back, pattern(1, 4 << 20));
  EXPECT_EQ(rig.counters.timeouts, 0u);
  // The client may have its last reply before the server has seen that it is sent.
  EXPECT_TRUE(soon([&] { return rig.server.in_flight_bytes() == 4u << 20; }));
  rig.advance_s(31);
  EXPECT_TRUE(slow.cut_off());
  EXPECT_EQ(rig.counters.timeouts, 1u);
}

TEST(Server, IdleClientsAreCutOffWhereAsked) {
  Limits limits;
  limits.idle_timeout_s = 60;
  Rig rig(limits);
  RawClient idle(rig.path);
  ASSERT_EQ(idle.hello().code, 0);
  Connected busy(rig);
  ASSERT_EQ(neotier_client_ping(busy), 0);
  rig.advance_s(40);
  ASSERT_EQ(neotier_client_ping(busy), 0);
  rig.advance_s(21);
  EXPECT_TRUE(idle.cut_off());
  EXPECT_EQ(neotier_client_ping(busy), 0);
  EXPECT_TRUE(rig.says("neotierd: client # .* is cut off: it idled longer than"));
}

TEST(Server, RoomForWhatIsUnderWayIsGivenInTurn) {
  Limits limits;
  limits.max_message = 300000;
  limits.in_flight_bytes = 400000;
  Rig rig(limits);
  RawClient first(rig.path);
  ASSERT_EQ(first.hello().code, 0);
  const auto body = put_body(make_key(1), 250000);
  first.bytes(RawClient::frame(Operation::kPut, static_cast<uint32_t>(body.size()), {}));
  ASSERT_TRUE(soon([&] { return rig.server.in_flight_bytes() == body.size(); }));
  // A second one has to wait until the first has gone, whatever it sends.
  RawClient second(rig.path);
  ASSERT_EQ(second.hello().code, 0);
  second.bytes_at_most(RawClient::frame(Operation::kPut, static_cast<uint32_t>(body.size()), {}));
  Connected small(rig);
  for (int i = 0; i < 3; i++) EXPECT_EQ(neotier_client_ping(small), 0) << "small requests need none";
  EXPECT_EQ(rig.server.in_flight_bytes(), body.size());
  first.hang_up();
  second.bytes(body);
  EXPECT_EQ(second.reply().code, 0);
  ASSERT_TRUE(soon([&] { return rig.server.in_flight_bytes() == 0; }));
  EXPECT_TRUE(rig.engine.lookup(make_key(1)));
}

TEST(Server, RandomAndTornFramesHarmNobody) {
  Limits limits;
  limits.max_message = 200000;
  Rig rig(limits);
  std::mt19937_64 random(engine::test_seed());
  Connected client(rig);
  const auto data = pattern(1, 9000);
  ASSERT_EQ(neotier_client_put(client, key(make_key(1)), data.data(), data.size(), nullptr), 0);
  uint64_t pin = 0;
  ASSERT_EQ(neotier_client_pin(client, key(make_key(1)), 0, &pin, nullptr), 0);
  for (int round = 0; round < 400; round++) {
    RawClient raw(rig.path);
    if (random() % 8) {
      EXPECT_EQ(raw.hello().code, 0);
    }
    const uint64_t frames = 1 + random() % 8;
    for (uint64_t i = 0; i < frames; i++) {
      std::vector<std::byte> body;
      const uint64_t kind = random() % 4;
      if (kind == 0) body = put_body(make_key(random() % 4), random() % 3000);
      if (kind == 1) body = get_body(make_key(random() % 4), random() % 2 ? random() % 10000 : random());
      if (kind == 2) body = body_of(make_key(random() % 4));
      if (kind == 3) body.resize(random() % 64);
      // Some bits turned, a claimed length that may be wrong, the end torn off.
      for (uint64_t flips = random() % 3; flips > 0 && !body.empty(); flips--)
        body[random() % body.size()] ^= static_cast<std::byte>(1 << random() % 8);
      const uint64_t claimed = random() % 4 ? body.size() : random() % 2 ? random() % 5000 : random();
      auto frame = RawClient::frame(static_cast<Operation>(random() % 20), static_cast<uint32_t>(claimed), body);
      if (random() % 6 == 0) frame.resize(random() % (frame.size() + 1));
      // Time-outs and tiers out of service are other tests'.
      if (frame.size() > 4 && frame[4] == static_cast<std::byte>(Operation::kTierService)) continue;
      raw.bytes_at_most(frame);
    }
    if (random() % 2) (void)raw.readable(2);
  }
  std::vector<std::byte> back(data.size());
  ASSERT_EQ(neotier_client_get(client, key(make_key(1)), 0, back.data(), back.size()), 0) << neotier_error();
  EXPECT_EQ(back, data) << "pinned, so nobody replaced it";
  ASSERT_TRUE(rig.sessions(1));
  EXPECT_EQ(rig.pins(), 1u);
  ASSERT_TRUE(soon([&] { return rig.server.in_flight_bytes() == 0; }));
}

TEST(Server, StoppingAnswersWhatIsUnderWay) {
  auto rig = std::make_unique<Rig>(Limits(), 1000);
  RawClient idle(rig->path), asks(rig->path);
  ASSERT_EQ(idle.hello().code, 0);
  ASSERT_EQ(asks.hello().code, 0);
  ASSERT_TRUE(rig->engine.put(make_key(1), pattern(1, 6 << 20)).is_ok());
  asks.request(Operation::kGet, get_body(make_key(1), 6 << 20));
  ASSERT_TRUE(asks.readable(10000));
  rig->server.stop();
  EXPECT_TRUE(idle.cut_off());
  const auto reply = asks.reply();
  EXPECT_EQ(reply.code, 0);
  EXPECT_EQ(reply.body, pattern(1, 6 << 20));
  EXPECT_TRUE(asks.cut_off());
  rig->thread.join();
  rig->thread = std::thread([] {});
  EXPECT_EQ(rig->engine.status().sessions, 0u);
}

TEST(Listener, OneDaemonAPath) {
  const TemporaryFolder folder;
  const std::string path = folder / "s";
  {
    Listener first(path, 0640, "");
    EXPECT_FALSE(std::filesystem::exists(path)) << "before it is ready";
    first.open();
    struct stat now {};
    ASSERT_EQ(stat(path.c_str(), &now), 0);
    EXPECT_EQ(now.st_mode & 07777, 0640u);
    EXPECT_THROW(Listener(path, 0600, ""), std::runtime_error);
    first.set_permissions(0600, "");
    ASSERT_EQ(stat(path.c_str(), &now), 0);
    EXPECT_EQ(now.st_mode & 07777, 0600u);
    EXPECT_THROW(first.set_permissions(0600, "no-such-group"), std::runtime_error);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  // What a daemon that was killed leaves behind: a socket without anybody, which the next one replaces.
  const int dead = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(bind(dead, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(dead, 1), 0);
  EXPECT_THROW(Listener(path, 0600, ""), std::runtime_error) << "somebody listens, without the lock";
  close(dead);
  {
    Listener next(path, 0600, "");
    next.open();
    RawClient raw(path);
  }
  std::filesystem::create_directory(path);
  EXPECT_THROW(Listener(path, 0600, ""), std::runtime_error) << "no socket";
  EXPECT_THROW(Listener("/no/such/folder/s", 0600, ""), std::runtime_error);
}

}  // namespace
}  // namespace neotier::daemon
