// SPDX-License-Identifier: Apache-2.0
// What the conformance suite does not know of: clusters, passwords, TLS, servers that lie or lose what they had.
#include "engine/tiers/remote/remote_tier.h"

#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <cstdlib>
#include <map>

#include "engine/testing/pattern.h"
#include "engine/testing/redis_proxy.h"
#include "engine/testing/redis_server.h"
#include "engine/testing/transfer_batch.h"
#include "engine/tiers/make_tiers.h"
#include "engine/tiers/remote/remote_url.h"

namespace neotier::engine {
namespace {

constexpr uint64_t kBytes = 100000;

RemoteOptions options_for(remote::Address address) {
  RemoteOptions options;
  options.client.addresses = {std::move(address)};
  options.client.timeout_ms = 60000;
  options.client.come_back_ms = 60000;
  options.capacity_bytes = 64 << 20;
  return options;
}

Extent stored(RemoteTier& tier, uint64_t key, uint64_t bytes = kBytes) {
  const Result<Extent> extent = tier.allocate(make_key(key), bytes);
  EXPECT_TRUE(extent.is_ok()) << extent.status().what();
  if (!extent) return kNoExtent;
  Bytes content = pattern(key, bytes);
  const Status status = write_now(tier, *extent, content);
  EXPECT_TRUE(status.is_ok()) << status.what();
  return *extent;
}

Status read_back(RemoteTier& tier, Extent extent, uint64_t key, uint64_t bytes = kBytes) {
  Bytes read(bytes);
  Status status = read_now(tier, extent, read);
  if (status.is_ok() && read != pattern(key, bytes)) return {Code::kInvalid, "other bytes than were written"};
  return status;
}

// Values that the server has.
long long values(RedisServer& server) { return server.ask({"DBSIZE"}).integer; }

// For what a server does in its own time.
template <typename Ready>
bool eventually(Ready ready) {
  for (int i = 0; i < 12000; i++) {
    if (ready()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// ---- one server

TEST(RemoteTier, WhatIsGoneIsAMiss) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RemoteTier tier(options_for({server.socket(), 0}));
  const Extent extent = stored(tier, 1);
  server.ask({"FLUSHALL"});
  EXPECT_EQ(read_back(tier, extent, 1).code(), Code::kNotFound);
  Bytes part(10);
  EXPECT_EQ(read_now(tier, extent, part, 5000).code(), Code::kNotFound);
  // A change of a part would make up the rest.
  EXPECT_EQ(write_now(tier, extent, part, 5000).code(), Code::kNotFound);
  EXPECT_TRUE(tier.in_service());
  Bytes anew = pattern(1, kBytes);
  EXPECT_TRUE(write_now(tier, extent, anew));
  EXPECT_TRUE(read_back(tier, extent, 1));
}

TEST(RemoteTier, AServerThatComesBackEmptyHasMissesOnly) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RemoteTier tier(options_for({server.socket(), 0}));
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < 20; i++) extents.push_back(stored(tier, i));
  server.kill();
  const Code code = read_back(tier, extents[0], 0).code();
  EXPECT_EQ(code, Code::kGone);
  EXPECT_FALSE(tier.in_service());
  EXPECT_NE(tier.trouble(), "");
  EXPECT_FALSE(tier.come_back());
  EXPECT_EQ(tier.allocate(make_key(50), 100).status().code(), Code::kGone);
  server.start();
  const Status back = tier.come_back();
  ASSERT_TRUE(back) << back.what();
  for (uint64_t i = 0; i < 20; i++) EXPECT_EQ(read_back(tier, extents[i], i).code(), Code::kNotFound);
  EXPECT_TRUE(read_back(tier, stored(tier, 99), 99));
}

// The server may end a connection that nobody uses: the next transfer does not notice.
TEST(RemoteTier, AConnectionThatWasClosedIsMadeAnew) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RemoteTier tier(options_for({server.socket(), 0}));
  const Extent extent = stored(tier, 1);
  for (int i = 0; i < 5; i++) {
    server.ask({"CLIENT", "KILL", "TYPE", "normal"});
    EXPECT_TRUE(read_back(tier, extent, 1));
    EXPECT_TRUE(tier.in_service());
  }
}

TEST(RemoteTier, FreedIsDeletedAndAPrivateTierLeavesNothing) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  {
    RemoteTier tier(options_for({server.socket(), 0}));
    const Extent large = stored(tier, 1, 3 << 20), small = stored(tier, 2);
    EXPECT_EQ(values(server), 4);
    tier.free(large);
    EXPECT_TRUE(eventually([&] { return values(server) == 1; }));
    EXPECT_TRUE(read_back(tier, small, 2));
  }
  EXPECT_EQ(values(server), 0);
}

TEST(RemoteTier, ValuesEndByTheirTime) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RemoteOptions options = options_for({server.socket(), 0});
  options.ttl_s = 1000;
  RemoteTier tier(options);
  const std::string name = tier.place(stored(tier, 1), 0).first;
  const long long left = server.ask({"TTL", name}).integer;
  EXPECT_GT(left, 0);
  EXPECT_LE(left, 1000);
  options.ttl_s = 0;
  RemoteTier forever(options);
  EXPECT_EQ(server.ask({"TTL", forever.place(stored(forever, 1), 0).first}).integer, -1);
}

TEST(RemoteTier, AFullServerIsFull) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RemoteTier tier(options_for({server.socket(), 0}));
  const Extent there = stored(tier, 1);
  server.ask({"CONFIG", "SET", "maxmemory", "1"});
  const Result<Extent> extent = tier.allocate(make_key(2), kBytes);
  Bytes content = pattern(2, kBytes);
  EXPECT_EQ(write_now(tier, *extent, content).code(), Code::kFull);
  EXPECT_TRUE(read_back(tier, there, 1));
  EXPECT_TRUE(tier.in_service());
}

TEST(RemoteTier, ValuesChangedBehindItsBackAreNotHandedOut) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RemoteTier tier(options_for({server.socket(), 0}));
  const auto change = [&](const std::function<void(const std::string& name, const std::string& value)>& how) {
    const Extent extent = stored(tier, 1);
    const std::string name = tier.place(extent, 0).first;
    how(name, server.ask({"GET", name}).text);
    Bytes part(100);
    EXPECT_EQ(read_back(tier, extent, 1).code(), Code::kCorrupt);
    // By sums that are known, and by those of the header.
    EXPECT_EQ(read_now(tier, extent, part, 70000).code(), Code::kCorrupt);
    tier.free(extent);
  };
  change([&](const std::string& name, const std::string& value) {  // cut short
    server.ask({"SET", name, value.substr(0, value.size() - 40000)});
  });
  change([&](const std::string& name, const std::string& value) {  // longer
    std::string other = value;
    other[70200 + remote::kHeaderBytes] ^= 1;
    server.ask({"SET", name, other + "x"});
  });
  change([&](const std::string& name, const std::string&) { server.ask({"SET", name, "no value of ours"}); });
  change([&](const std::string& name, const std::string&) {
    server.ask({"DEL", name});
    server.ask({"LPUSH", name, "a list"});
  });
  // Another object's, whole and sound.
  const Extent other = stored(tier, 2);
  change([&](const std::string& name, const std::string&) {
    server.ask({"SET", name, server.ask({"GET", tier.place(other, 0).first}).text});
  });
  EXPECT_TRUE(tier.in_service());
}

TEST(RemoteTier, AServerThatDoesNotAnswerIsGoneAfterATime) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RemoteOptions options = options_for({server.socket(), 0});
  options.client.timeout_ms = 300;
  RemoteTier tier(options);
  const Extent extent = stored(tier, 1);
  server.stop();
  EXPECT_EQ(read_back(tier, extent, 1).code(), Code::kGone);
  EXPECT_FALSE(tier.in_service());
  EXPECT_FALSE(tier.come_back());
  server.go_on();
  EXPECT_TRUE(eventually([&] { return tier.come_back().is_ok(); }));
  EXPECT_TRUE(read_back(tier, extent, 1));
}

// The engine's thread, which all tiers want, asks: it is not kept waiting.
TEST(RemoteTier, ComingBackIsNotWaitedFor) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RedisProxy proxy(server.file("proxy"), server.socket());
  RemoteOptions options = options_for({server.file("proxy"), 0});
  options.client.come_back_ms = 1;
  RemoteTier tier(options);
  const Extent extent = stored(tier, 1);
  proxy.lose();
  EXPECT_EQ(read_back(tier, extent, 1).code(), Code::kGone);
  proxy.hold();
  proxy.mend();
  EXPECT_EQ(tier.come_back().code(), Code::kGone) << "it would wait for a minute";
  EXPECT_FALSE(tier.in_service());
  proxy.release();
  EXPECT_TRUE(eventually([&] { return tier.in_service(); })) << "what was asked then is answered now";
  EXPECT_TRUE(eventually([&] { return tier.come_back().is_ok(); }));
  EXPECT_TRUE(read_back(tier, extent, 1));
}

TEST(RemoteTier, AServerThatIsNotThereIsNoErrorAtTheStart) {
  RemoteTier tier(options_for({"/nonexistent/socket", 0}));
  EXPECT_FALSE(tier.in_service());
  EXPECT_NE(tier.trouble().find("/nonexistent/socket"), std::string::npos) << tier.trouble();
  RemoteTier refused(options_for({"127.0.0.1", free_port()}));
  EXPECT_FALSE(refused.in_service());
  EXPECT_FALSE(refused.come_back());
}

TEST(RemoteTier, PasswordsAreAskedForAndNeverShown) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server({"--user", "default", "off", "--user", "kv", "on", ">sesame", "~neotier:*", "+@all"});
  RemoteOptions options = options_for({server.socket(), 0});
  options.client.user = "kv";
  options.client.password = "wrong-secret";
  {
    RemoteTier tier(options);
    EXPECT_FALSE(tier.in_service());
    EXPECT_NE(tier.trouble().find("WRONGPASS"), std::string::npos) << tier.trouble();
    EXPECT_EQ(tier.trouble().find("wrong-secret"), std::string::npos) << tier.trouble();
  }
  options.client.password = "";
  EXPECT_FALSE(RemoteTier(options).in_service());
  options.client.password = "sesame";
  RemoteTier tier(options);
  ASSERT_TRUE(tier.in_service()) << tier.trouble();
  EXPECT_TRUE(read_back(tier, stored(tier, 1), 1));
}

TEST(RemoteTier, ADatabaseOfItsOwn) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RemoteOptions options = options_for({server.socket(), 0});
  options.client.database = 3;
  RemoteTier tier(options);
  const Extent extent = stored(tier, 1);
  EXPECT_EQ(values(server), 0);
  EXPECT_TRUE(read_back(tier, extent, 1));
}

// ---- a server that lies

class LyingServer : public ::testing::TestWithParam<std::string> {};

TEST_P(LyingServer, IsNeverBelieved) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RedisProxy proxy(server.file("proxy"), server.socket());
  RemoteOptions options = options_for({server.file("proxy"), 0});
  options.client.timeout_ms = 500;  // of a reply that never ends
  RemoteTier tier(options);
  const Extent extent = stored(tier, 1), other = stored(tier, 2);
  proxy.answer([](const std::vector<std::string>& command, const std::string& reply) {
    return command[0] == "GET" || command[0] == "GETRANGE" || command[0] == "SET" ? GetParam() : reply;
  });
  Bytes read(kBytes), part(10), content = pattern(3, kBytes);
  for (int i = 0; i < 3; i++) {
    EXPECT_FALSE(read_now(tier, extent, read));
    EXPECT_FALSE(read_now(tier, extent, part, 80000));
    // That a value was stored is a server's word alone.
    if (GetParam() != "+OK\r\n+OK\r\n") {
      EXPECT_FALSE(write_now(tier, other, content));
    }
    EXPECT_FALSE(write_now(tier, other, part, 80000));
  }
  proxy.answer(nullptr);
  EXPECT_TRUE(eventually([&] { return tier.come_back().is_ok(); }));
  EXPECT_TRUE(read_back(tier, extent, 1));
  ASSERT_TRUE(write_now(tier, other, content));
  EXPECT_TRUE(read_back(tier, other, 3));
}

INSTANTIATE_TEST_SUITE_P(RemoteTier, LyingServer,
                         ::testing::Values("",                      // nothing, and the connection ends
                                           "$100\r\nhalf a reply",  // and then silence
                                           "garbage\r\n", "\r\n", "$-7\r\n", "$99999999999999999999\r\n",
                                           ":99999999999999999999\r\n", "$3\r\nabc\r\n", ":17\r\n", "*0\r\n", "*-1\r\n",
                                           "*2\r\n$1\r\na\r\n:1\r\n", "*9999999\r\n",
                                           std::string("$8\r\n\0\0\0\0\0\0\0\0\r\n", 14), "-ERR no\r\n",
                                           "-\x01\x02 line\r\n", "-MOVED 1 127.0.0.1:1\r\n", "-ASK 99999 :0\r\n",
                                           "#t\r\n", "_\r\n", "%1\r\n+a\r\n+b\r\n", "+OK\r\n+OK\r\n"));

TEST(RemoteTier, AReplyWithoutEndTakesNoMemoryWithoutEnd) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server;
  RedisProxy proxy(server.file("proxy"), server.socket());
  RemoteTier tier(options_for({server.file("proxy"), 0}));
  const Extent extent = stored(tier, 1);
  std::atomic<int> asked = 0;
  proxy.answer([&](const std::vector<std::string>& command, std::string reply) {
    if (command[0] != "GET") return reply;
    asked++;
    return "$500000000\r\n" + std::string(64 << 20, 'x');
  });
  EXPECT_EQ(read_back(tier, extent, 1).code(), Code::kIo);
  EXPECT_EQ(asked, 2) << "asked again, once";
}

// ---- TLS

// An authority, and what it has signed for `names`.
struct Certificates {
  TestFolder folder;
  std::string ca = folder.file("ca.pem"), cert = folder.file("cert.pem"), key = folder.file("key.pem");
  explicit Certificates(const std::string& names) {
    const std::string quiet = " > /dev/null 2>&1", own = " -keyout " + folder.file("ca.key") + " -out " + ca;
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test-ca" + own + quiet);
    run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=test -keyout " + key + " -out " +
        folder.file("csr") + quiet);
    std::ofstream(folder.file("ext")) << "subjectAltName=" << names << "\n";
    run("openssl x509 -req -days 2 -in " + folder.file("csr") + " -CA " + ca + " -CAkey " + folder.file("ca.key") +
        " -CAcreateserial -extfile " + folder.file("ext") + " -out " + cert + quiet);
  }
  static void run(const std::string& command) {
    if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  }
  std::vector<std::string> server(uint16_t port, const char* clients = "no") const {
    return {"--tls-port",         std::to_string(port),
            "--tls-cert-file",    cert,
            "--tls-key-file",     key,
            "--tls-ca-cert-file", ca,
            "--tls-auth-clients", clients};
  }
};

#define NEOTIER_NEEDS_OPENSSL \
  if (std::system("openssl version > /dev/null 2>&1") != 0) GTEST_SKIP() << "skipped: no openssl to make certificates"

TEST(RemoteTls, BytesArriveAndTheServerIsChecked) {
  NEOTIER_NEEDS_REDIS;
  NEOTIER_NEEDS_OPENSSL;
  const Certificates good("IP:127.0.0.1"), other("DNS:elsewhere.example");
  const uint16_t port = free_port(), wrong_port = free_port();
  RedisServer server(good.server(port)), wrong(other.server(wrong_port));
  RemoteOptions options = options_for({"127.0.0.1", port});
  options.client.tls = true;
  options.client.ca_file = good.ca;
  {
    RemoteTier tier(options);
    ASSERT_TRUE(tier.in_service()) << tier.trouble();
    const uint64_t large = (3 << 20) + 5;
    const Extent extent = stored(tier, 1, large);
    EXPECT_TRUE(read_back(tier, extent, 1, large));
    Bytes part = pattern(7, 1000);
    ASSERT_TRUE(write_now(tier, extent, part, 500000));
    Bytes read(1000);
    ASSERT_TRUE(read_now(tier, extent, read, 500000));
    EXPECT_EQ(read, part);
  }
  // Signed by nobody that is known; and by somebody, for another.
  options.client.ca_file = other.ca;
  const auto trouble = [&] {
    const RemoteTier tier(options);
    EXPECT_FALSE(tier.in_service());
    return tier.trouble();
  };
  EXPECT_NE(trouble().find("certificate"), std::string::npos);
  options.client.addresses = {{"127.0.0.1", wrong_port}};
  EXPECT_NE(trouble().find("IP address mismatch"), std::string::npos);
  options.client.ca_file = "/nonexistent/ca.pem";
  EXPECT_THROW(RemoteTier{options}, std::runtime_error);
}

TEST(RemoteTls, ANameIsChecked) {
  NEOTIER_NEEDS_REDIS;
  NEOTIER_NEEDS_OPENSSL;
  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &found) != 0)
    GTEST_SKIP() << "skipped: localhost has no address; a line of /etc/hosts gives it one";
  freeaddrinfo(found);
  const Certificates good("DNS:localhost"), other("DNS:elsewhere.example");
  const uint16_t port = free_port(), wrong_port = free_port();
  RedisServer server(good.server(port)), wrong(other.server(wrong_port));
  RemoteOptions options = options_for({"localhost", port});
  options.client.tls = true;
  options.client.ca_file = good.ca;
  EXPECT_TRUE(RemoteTier(options).in_service());
  options.client.ca_file = other.ca;
  options.client.addresses = {{"localhost", wrong_port}};
  const RemoteTier tier(options);
  EXPECT_FALSE(tier.in_service());
  EXPECT_NE(tier.trouble().find("hostname mismatch"), std::string::npos) << tier.trouble();
}

TEST(RemoteTls, AServerMayAskForACertificate) {
  NEOTIER_NEEDS_REDIS;
  NEOTIER_NEEDS_OPENSSL;
  const Certificates pair("IP:127.0.0.1");
  const uint16_t port = free_port();
  RedisServer server(pair.server(port, "yes"));
  RemoteOptions options = options_for({"127.0.0.1", port});
  options.client.tls = true;
  options.client.ca_file = pair.ca;
  EXPECT_FALSE(RemoteTier(options).in_service());
  options.client.cert_file = pair.cert;
  options.client.key_file = pair.key;
  RemoteTier tier(options);
  ASSERT_TRUE(tier.in_service()) << tier.trouble();
  EXPECT_TRUE(read_back(tier, stored(tier, 1), 1));
}

// ---- a cluster

RemoteOptions options_for(RedisCluster& cluster) {
  RemoteOptions options = options_for({"127.0.0.1", cluster[0].port()});
  options.client.cluster = true;
  return options;
}

TEST(RemoteCluster, AllServersAreUsed) {
  NEOTIER_NEEDS_REDIS;
  RedisCluster cluster;
  RemoteTier tier(options_for(cluster));
  ASSERT_TRUE(tier.in_service()) << tier.trouble();
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < 60; i++) extents.push_back(stored(tier, i));
  const Extent large = stored(tier, 1000, 5 << 20);
  for (size_t i = 0; i < 3; i++) EXPECT_GT(values(cluster[i]), 0);
  for (uint64_t i = 0; i < 60; i++) EXPECT_TRUE(read_back(tier, extents[i], i));
  EXPECT_TRUE(read_back(tier, large, 1000, 5 << 20));
  for (const Extent extent : extents) tier.free(extent);
  tier.free(large);
  EXPECT_TRUE(
      eventually([&] { return values(cluster[0]) == 0 && values(cluster[1]) == 0 && values(cluster[2]) == 0; }));
}

// A slot goes from one server to another while values of it are read and written: ASK on the way, MOVED after it.
TEST(RemoteCluster, ASlotThatMovesIsFollowed) {
  NEOTIER_NEEDS_REDIS;
  RedisCluster cluster;
  RemoteTier tier(options_for(cluster));
  const Extent extent = stored(tier, 1);
  const std::string name = tier.place(extent, 0).first;
  const size_t from = cluster.owner(name), to = (from + 1) % 3;
  const std::string slot = std::to_string(cluster[0].ask({"CLUSTER", "KEYSLOT", name}).integer);
  cluster[to].ask({"CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id(from)});
  cluster[from].ask({"CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id(to)});
  EXPECT_TRUE(read_back(tier, extent, 1)) << "not yet moved: where it was";
  cluster[from].ask({"MIGRATE", "127.0.0.1", std::to_string(cluster[to].port()), name, "0", "10000"});
  ASSERT_EQ(values(cluster[to]), 1);
  EXPECT_TRUE(read_back(tier, extent, 1)) << "ASK";
  Bytes part = pattern(9, 100), content = pattern(1, kBytes);
  EXPECT_TRUE(write_now(tier, extent, part, 300)) << "ASK, read and written";
  EXPECT_TRUE(write_now(tier, extent, content));
  EXPECT_TRUE(read_back(tier, extent, 1));
  for (const size_t server : {to, from, 3 - to - from})
    cluster[server].ask({"CLUSTER", "SETSLOT", slot, "NODE", cluster.id(to)});
  EXPECT_TRUE(read_back(tier, extent, 1)) << "MOVED";
  EXPECT_TRUE(write_now(tier, extent, content));
  EXPECT_EQ(values(cluster[from]), 0);
  tier.free(extent);
  EXPECT_TRUE(eventually([&] { return values(cluster[to]) == 0; }));
}

// One of three is killed while others read and write, and comes back empty: misses, and no byte that is wrong.
TEST(RemoteCluster, OneServerKilledUnderLoad) {
  NEOTIER_NEEDS_REDIS;
  RedisCluster cluster;
  RemoteOptions options = options_for(cluster);
  options.client.addresses.push_back({"127.0.0.1", cluster[1].port()});
  RemoteTier tier(options);
  constexpr uint64_t kCount = 90;
  std::vector<Extent> extents;
  std::vector<size_t> owner;
  for (uint64_t i = 0; i < kCount; i++) {
    extents.push_back(stored(tier, i));
    owner.push_back(cluster.owner(tier.place(extents[i], 0).first));
  }
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0, rounds = 0, misses = 0;
  std::vector<std::thread> load;
  for (uint64_t thread = 0; thread < 3; thread++) {
    load.emplace_back([&, thread] {
      while (!stop) {
        for (uint64_t i = thread; i < kCount; i += 3) {
          const Status status = read_back(tier, extents[i], i);
          if (status.is_ok()) continue;
          misses++;
          // The servers that live serve on.
          const bool lost = owner[i] == 2 && (status.code() == Code::kTimeout || status.code() == Code::kIo ||
                                              status.code() == Code::kNotFound);
          if (!lost) wrong++;
        }
        const Result<Extent> extent = tier.allocate(make_key(1000 + thread), kBytes);
        if (extent) {
          Bytes content = pattern(1000 + thread, kBytes);
          if (write_now(tier, *extent, content).is_ok()) {
            const Status status = read_back(tier, *extent, 1000 + thread);
            if (status.code() == Code::kInvalid || status.code() == Code::kCorrupt) wrong++;
          }
          tier.free(*extent);
        }
        rounds++;
      }
    });
  }
  ASSERT_TRUE(eventually([&] { return rounds > 6; }));
  EXPECT_EQ(misses, 0);
  const auto killed = std::chrono::steady_clock::now();
  cluster[2].kill();
  EXPECT_TRUE(eventually([&] { return misses > 10; }));
  EXPECT_TRUE(tier.in_service());
  // New objects find servers that answer, but for those by which it is seen whether the third does again. Without
  // that, one in three would fail.
  int failed = 0;
  for (uint64_t i = 0; i < 60; i++) {
    const Result<Extent> extent = tier.allocate(make_key(2000 + i), 1000);
    ASSERT_TRUE(extent.is_ok()) << extent.status().what();
    Bytes content = pattern(2000 + i, 1000);
    failed += write_now(tier, *extent, content).is_ok() ? 0 : 1;
    tier.free(*extent);
  }
  EXPECT_LE(failed, 6);
  const auto ms_since = [](std::chrono::steady_clock::time_point then) {
    return static_cast<int>(
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - then).count());
  };
  RecordProperty("ms_until_started_again", ms_since(killed));
  cluster[2].start();
  const auto started = std::chrono::steady_clock::now();
  cluster.settle();
  RecordProperty("ms_until_the_cluster_is_whole", ms_since(started));
  // What it had is missing, and what is put there now stays.
  EXPECT_TRUE(eventually([&] {
    for (uint64_t i = 0; i < kCount; i++) {
      if (owner[i] == 2 && read_back(tier, extents[i], i).code() != Code::kNotFound) return false;
    }
    return true;
  }));
  RecordProperty("ms_until_all_is_served", ms_since(started));
  stop = true;
  for (std::thread& thread : load) thread.join();
  EXPECT_EQ(wrong, 0);
  for (uint64_t i = 0; i < kCount; i++) {
    if (owner[i] != 2) {
      EXPECT_TRUE(read_back(tier, extents[i], i)) << i;
      continue;
    }
    Bytes content = pattern(i, kBytes);
    EXPECT_TRUE(write_now(tier, extents[i], content));
    EXPECT_TRUE(read_back(tier, extents[i], i));
  }
}

TEST(RemoteCluster, WithTlsAndAPassword) {
  NEOTIER_NEEDS_REDIS;
  NEOTIER_NEEDS_OPENSSL;
  const Certificates pair("IP:127.0.0.1");
  std::vector<std::string> own = pair.server(0);
  own.erase(own.begin(), own.begin() + 2);  // its port is the server's
  own.insert(own.end(), {"--tls-cluster", "yes", "--requirepass", "sesame", "--masterauth", "sesame"});
  RedisCluster cluster(own, /*tls=*/true);
  RemoteOptions options = options_for(cluster);
  options.client.tls = true;
  options.client.ca_file = pair.ca;
  options.client.password = "sesame";
  RemoteTier tier(options);
  ASSERT_TRUE(tier.in_service()) << tier.trouble();
  for (uint64_t i = 0; i < 30; i++) EXPECT_TRUE(read_back(tier, stored(tier, i), i));
}

// ---- words

TEST(RemoteUrl, IsRead) {
  const auto read = [](const std::string& url) {
    remote::ClientOptions options;
    remote::read_url(url, options);
    return options;
  };
  EXPECT_EQ(read("redis://cache").addresses, (std::vector<remote::Address>{{"cache", 6379}}));
  EXPECT_EQ(read("unix:/run/valkey.sock").addresses, (std::vector<remote::Address>{{"/run/valkey.sock", 0}}));
  const remote::ClientOptions all = read("rediss://kv:p%40ss:w@[2001:db8::1]:7000,b:7001/");
  EXPECT_EQ(all.addresses, (std::vector<remote::Address>{{"2001:db8::1", 7000}, {"b", 7001}}));
  EXPECT_TRUE(all.tls);
  EXPECT_TRUE(all.cluster);
  EXPECT_EQ(all.user, "kv");
  EXPECT_EQ(all.password, "p@ss:w");
  EXPECT_EQ(read("valkey://:only@h:1/12").database, 12u);
  EXPECT_EQ(read("valkey://:only@h:1/12").password, "only");
  for (const char* url :
       {"", "redis", "redis:", "redis:/h", "http://h", "redis://", "redis://h:0", "redis://h:65536", "redis://h:x",
        "redis://h/x", "redis://[::1", "redis://[::1]x", "redis://h,,i", "unix:x", "redis://u:%4@h", "redis://u:%zz@h"})
    EXPECT_THROW(read(url), std::invalid_argument) << url;
}

TEST(RemoteUrl, NoErrorShowsAPassword) {
  for (const std::string tiers :
       {"dram=1M,remote=1M:url=[redis://kv:sesame@h:x]", "remote=1M:url=[redis://kv:sesame@h:1]:huge=no",
        "remote=1M:url=[redis://kv:ses@ame@h:1]:cluster=no:timeout_ms=0", "remote=1M:url=redis://kv:sesame@h"}) {
    try {
      (void)make_tiers(tiers);
      ADD_FAILURE() << "taken: " << tiers;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()).find("ses"), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("ame@"), std::string::npos) << error.what();
    }
  }
}

TEST(RemoteUrl, TiersAreMadeOfWords) {
  NEOTIER_NEEDS_REDIS;
  RedisServer server({"--requirepass", "sesame"});
  const std::string secret = server.file("secret");
  std::ofstream(secret) << "sesame\n";
  const std::string words =
      "dram=1M,far/remote=64M:url=[unix:" + server.socket() + "]:password_file=" + secret + ":namespace=m/bf16";
  const std::vector<TierSetup> tiers = make_tiers(words);
  ASSERT_EQ(tiers.size(), 2u);
  EXPECT_EQ(tiers[1].tier->info().name, "far");
  EXPECT_EQ(tiers[1].tier->info().kind, TierKind::kRemote);
  EXPECT_TRUE(tiers[1].tier->in_service());
  std::vector<std::string> lines;
  server.kill();
  const auto down = make_tiers(words, [&](const std::string& line) { lines.push_back(line); });
  EXPECT_FALSE(down[1].tier->in_service());
  ASSERT_EQ(lines.size(), 1u);
  for (const std::string wrong : {"remote=1M", "remote=1M:url=[redis://h]:ca=x", "remote=1M:url=[redis://h,i/3]",
                                  "remote=1M:url=[redis://h,i]:cluster=no", "remote=1M:url=[rediss://h]:cert=x",
                                  "remote=1M:url=[redis://h]:password_file=/nonexistent",
                                  "remote=1M:url=[redis://h]:connections=0", "remote=1M:url=[redis://h"})
    EXPECT_THROW((void)make_tiers(wrong), std::runtime_error) << wrong;
}

}  // namespace
}  // namespace neotier::engine
