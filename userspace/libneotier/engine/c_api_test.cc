// SPDX-License-Identifier: Apache-2.0
// The C API through the shared library.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "neotier.h"

namespace {

neotier_config config(const char* tiers) {
  neotier_config c{};
  c.struct_bytes = sizeof c;
  c.abi = NEOTIER_ABI;
  c.tiers = tiers;
  c.max_objects = 1000;
  return c;
}

TEST(CApi, ALifeOfAnObject) {
  const neotier_config c = config("dram=4M,cxl=4M");
  neotier_engine* engine = neotier_open(&c);
  ASSERT_NE(engine, nullptr) << neotier_error();
  const neotier_object_key key = {{1, 2, 3}};
  const std::vector<unsigned char> data(100000, 0x42);
  neotier_put_options put{};
  put.struct_bytes = sizeof put;
  put.kind = NEOTIER_OBJECT_KV;
  put.recompute_ns = 5000000;
  ASSERT_EQ(neotier_put(engine, &key, data.data(), data.size(), &put), 0) << neotier_error();
  EXPECT_EQ(neotier_put(engine, &key, data.data(), data.size(), nullptr), NEOTIER_EEXISTS);
  EXPECT_NE(std::string(neotier_error()), "");

  neotier_object_info info{};
  info.struct_bytes = sizeof info;
  ASSERT_EQ(neotier_lookup(engine, &key, &info), 0);
  EXPECT_STREQ(info.tier, "dram");
  EXPECT_EQ(info.bytes, data.size());
  EXPECT_EQ(info.kind, unsigned{NEOTIER_OBJECT_KV});

  const neotier_session session = neotier_session_open(engine);
  uint64_t pin = 0;
  const void* at = nullptr;
  ASSERT_EQ(neotier_pin(engine, session, &key, 0, &pin, &at), 0);
  ASSERT_NE(at, nullptr);
  EXPECT_EQ(std::memcmp(at, data.data(), data.size()), 0);
  EXPECT_EQ(neotier_remove(engine, &key), NEOTIER_EBUSY);
  EXPECT_EQ(neotier_unpin(engine, session, pin), 0);
  neotier_session_close(engine, session);

  neotier_ticket* ticket = neotier_move(engine, &key, 1, "cxl", NEOTIER_DEMAND);
  ASSERT_NE(ticket, nullptr);
  EXPECT_EQ(neotier_ticket_wait(ticket, UINT64_MAX), 0) << neotier_error();
  neotier_progress progress{};
  progress.struct_bytes = sizeof progress;
  ASSERT_EQ(neotier_ticket_poll(ticket, &progress), 0);
  EXPECT_EQ(progress.done, 1u);
  neotier_ticket_free(ticket);
  ASSERT_EQ(neotier_lookup(engine, &key, &info), 0);
  EXPECT_STREQ(info.tier, "cxl");

  std::vector<unsigned char> back(data.size());
  ticket = neotier_get_async(engine, &key, 0, back.data(), back.size());
  EXPECT_EQ(neotier_ticket_wait(ticket, UINT64_MAX), 0) << neotier_error();
  neotier_ticket_cancel(ticket);
  neotier_ticket_free(ticket);
  EXPECT_EQ(back, data);

  neotier_decision decision{};
  decision.struct_bytes = sizeof decision;
  ASSERT_EQ(neotier_decide(engine, &key, nullptr, 0, 0, &decision), 0);
  EXPECT_EQ(decision.choice, unsigned{NEOTIER_LOAD});
  EXPECT_LT(decision.load_ns, decision.recompute_ns);

  EXPECT_EQ(neotier_lookup_prefix(engine, &key, 1), 1u);
  EXPECT_EQ(neotier_tier_service(engine, "cxl", 0), 0);
  EXPECT_EQ(neotier_get(engine, &key, 0, back.data(), back.size()), NEOTIER_EGONE);
  EXPECT_EQ(neotier_tier_service(engine, "cxl", 1), 0);
  EXPECT_EQ(neotier_get(engine, &key, 0, back.data(), back.size()), 0);
  EXPECT_EQ(neotier_flush(engine), 0);
  EXPECT_EQ(neotier_remove(engine, &key), 0);
  neotier_close(engine);
}

TEST(CApi, AnEngineOfThingsThatMayGoNeverFills) {
  neotier_config c = config("dram=1M,cxl=1M");
  const std::vector<unsigned char> data(100000, 7);
  for (const bool all : {true, false}) {
    c.discard = all;
    neotier_engine* engine = neotier_open(&c);
    ASSERT_NE(engine, nullptr) << neotier_error();
    neotier_put_options put{};
    put.struct_bytes = sizeof put;
    put.discard = !all;
    for (uint8_t n = 0; n < 100; n++) {
      const neotier_object_key key = {{n}};
      ASSERT_EQ(neotier_put(engine, &key, data.data(), data.size(), all ? nullptr : &put), 0) << neotier_error();
    }
    neotier_close(engine);
  }
}

TEST(CApi, GetsOfNothing) {
  const neotier_config c = config("gpu=1M:stand-in=yes");
  neotier_engine* engine = neotier_open(&c);
  ASSERT_NE(engine, nullptr) << neotier_error();
  const neotier_object_key key = {{1}};
  neotier_put_options put{};
  put.struct_bytes = sizeof put;
  put.tier = "gpu";
  ASSERT_EQ(neotier_put(engine, &key, "abc", 3, &put), 0) << neotier_error();
  EXPECT_EQ(neotier_get(engine, &key, 3, nullptr, 0), 0) << neotier_error();
  EXPECT_EQ(neotier_get(engine, &key, 4, nullptr, 0), NEOTIER_EINVALID);
  EXPECT_EQ(neotier_get(engine, &key, 0, nullptr, 3), NEOTIER_EINVALID);
  EXPECT_EQ(neotier_put(engine, &key, nullptr, 3, &put), NEOTIER_EINVALID);
  neotier_ticket* ticket = neotier_get_async(engine, &key, 0, nullptr, 0);
  EXPECT_EQ(neotier_ticket_wait(ticket, UINT64_MAX), 0) << neotier_error();
  neotier_ticket_free(ticket);
  ticket = neotier_move(engine, nullptr, 0, "gpu", NEOTIER_DEMAND);
  EXPECT_EQ(neotier_ticket_wait(ticket, UINT64_MAX), 0) << neotier_error();
  neotier_ticket_free(ticket);
  neotier_close(engine);
}

TEST(CApi, StructsOfOtherVersions) {
  neotier_config c = config("dram=1M");
  c.abi = 99;
  EXPECT_EQ(neotier_open(&c), nullptr);
  EXPECT_NE(std::string(neotier_error()).find("ABI 99"), std::string::npos);
  c.abi = NEOTIER_ABI;
  c.struct_bytes = 0;
  EXPECT_EQ(neotier_open(&c), nullptr);
  // An older program's struct ends early: what it does not know has its default.
  c.struct_bytes = offsetof(neotier_config, seed);
  c.hysteresis_ms = 12345;
  neotier_engine* engine = neotier_open(&c);
  ASSERT_NE(engine, nullptr) << neotier_error();
  // An older program's result is filled as far as it goes.
  const neotier_object_key key = {{1}};
  ASSERT_EQ(neotier_put(engine, &key, "abc", 3, nullptr), 0);
  neotier_object_info info;
  std::memset(&info, 0x55, sizeof info);
  info.struct_bytes = offsetof(neotier_object_info, pins);
  ASSERT_EQ(neotier_lookup(engine, &key, &info), 0);
  EXPECT_EQ(info.bytes, 3u);
  EXPECT_EQ(info.pins, 0x55555555u);
  neotier_close(engine);
}

TEST(CApi, WrongTiersAreOneLine) {
  for (const auto& [tiers, word] : std::vector<std::pair<std::string, std::string>>{
           {"", "KIND=SIZE"},
           {"dram", "KIND=SIZE"},
           {"dram=12Q", "no size"},
           {"tape=1G", "no kind of tier 'tape'"},
           {"dram=1M:colour=red", "no option 'colour'"},
           {"dram=1M:node=99", "no NUMA node 99"},
           {"dram=1M:node=x", "is no number"},
           {"dram=1M:huge=maybe", "huge=maybe"},
           {"cxl=1M:node=0:mode=move", "mode=move: expected bind or kernel"},
           {"cxl=1M:node=0:mode=kernel:huge=explicit", "expected no or transparent"},
           {"dram=1M:node=0:mode=kernel", "no option 'mode' of dram"},
           {"dram=1M:policy=nonsense", "unknown policy"},
           {"dram=1M,dram=2M", "two tiers are called"},
           {"ssd=64M", "file=PATH"},
           {"dram=0", "less than a page"},
       }) {
    const neotier_config c = config(tiers.c_str());
    EXPECT_EQ(neotier_open(&c), nullptr) << tiers;
    const std::string error = neotier_error();
    EXPECT_NE(error.find(word), std::string::npos) << tiers << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

// Both formats say where the pages of a tier lie that the kernel moves, and of no other tier.
TEST(CApi, StatusHasTheNodesOfWhatTheKernelMoves) {
  const neotier_config c = config("dram=2M,cxl=4M:node=0:mode=kernel");
  neotier_engine* engine = neotier_open(&c);
  ASSERT_NE(engine, nullptr) << neotier_error();
  std::string text(1 << 20, '\0');
  const auto metrics = [&](uint32_t format) {
    const int64_t bytes = neotier_metrics(engine, format, text.data(), text.size());
    EXPECT_GT(bytes, 0);
    return text.substr(0, static_cast<size_t>(bytes));
  };
  const auto json = nlohmann::json::parse(metrics(NEOTIER_JSON).c_str());
  EXPECT_FALSE(json["tiers"][0]["kernel_moves"]);
  EXPECT_TRUE(json["tiers"][0]["sampled_nodes"].empty());
  EXPECT_TRUE(json["tiers"][1]["kernel_moves"]);
  uint64_t sum = 0;
  for (const auto& n : json["tiers"][1]["sampled_nodes"]) sum += n["bytes"].get<uint64_t>();
  EXPECT_EQ(sum, 4u << 20) << json["tiers"][1];
  const std::string prometheus = metrics(NEOTIER_PROMETHEUS);
  EXPECT_NE(prometheus.find("neotier_tier_node_bytes{tier=\"cxl\",node=\"0\"} "), std::string::npos) << prometheus;
  EXPECT_EQ(prometheus.find("neotier_tier_node_bytes{tier=\"dram\""), std::string::npos);
  neotier_close(engine);
}

// DRAM, CXL memory and a real SSD file: what does not fit above goes down, and what was flushed is there at the next
// start.
TEST(CApi, ThreeTiersAndARestart) {
  const std::string file = "c_api_test." + std::to_string(getpid()) + ".tier";
  const std::string tiers = "dram=2M,cxl=2M,ssd=32M:file=" + file;
  const neotier_config c = config(tiers.c_str());
  constexpr int kObjects = 40;
  const auto content = [](int n) { return std::vector<unsigned char>(200000, static_cast<unsigned char>(n + 1)); };
  std::vector<unsigned char> back(200000);
  {
    neotier_engine* engine = neotier_open(&c);
    ASSERT_NE(engine, nullptr) << neotier_error();
    for (int n = 0; n < kObjects; n++) {
      const neotier_object_key key = {{static_cast<uint8_t>(n), 1}};
      ASSERT_EQ(neotier_put(engine, &key, content(n).data(), 200000, nullptr), 0) << n << ": " << neotier_error();
    }
    std::vector<neotier_object_key> all;
    for (int n = 0; n < kObjects; n++) {
      all.push_back({{static_cast<uint8_t>(n), 1}});
      ASSERT_EQ(neotier_get(engine, &all.back(), 0, back.data(), back.size()), 0) << n << ": " << neotier_error();
      ASSERT_EQ(back, content(n)) << n;
    }
    neotier_ticket* ticket = neotier_write_back(engine, all.data(), all.size());
    ASSERT_NE(ticket, nullptr);
    // Those that are on their way elsewhere answer so: they are on the SSD already, or come to it by the second call.
    (void)neotier_ticket_wait(ticket, 20000);
    neotier_ticket_free(ticket);
    ticket = neotier_write_back(engine, all.data(), all.size());
    EXPECT_EQ(neotier_ticket_wait(ticket, 20000), 0) << neotier_error();
    neotier_ticket_free(ticket);
    ASSERT_EQ(neotier_flush(engine), 0) << neotier_error();
    neotier_close(engine);
  }
  neotier_engine* engine = neotier_open(&c);
  ASSERT_NE(engine, nullptr) << neotier_error();
  for (int n = 0; n < kObjects; n++) {
    const neotier_object_key key = {{static_cast<uint8_t>(n), 1}};
    ASSERT_EQ(neotier_get(engine, &key, 0, back.data(), back.size()), 0) << n << ": " << neotier_error();
    ASSERT_EQ(back, content(n)) << n;
  }
  neotier_object_info info{};
  info.struct_bytes = sizeof info;
  const neotier_object_key key = {{3, 1}};
  ASSERT_EQ(neotier_lookup(engine, &key, &info), 0);
  EXPECT_EQ(info.recovered, 1u);
  neotier_close(engine);
  std::remove(file.c_str());
}

TEST(CApi, APinSaysWhereAGpuFindsTheBytes) {
  const neotier_config c = config("a/dram=1M,g/gpu=1M:stand-in=yes");
  neotier_engine* engine = neotier_open(&c);
  ASSERT_NE(engine, nullptr) << neotier_error();
  const neotier_object_key key = {{7}};
  const std::vector<unsigned char> data(100000, 0x42);
  ASSERT_EQ(neotier_put(engine, &key, data.data(), data.size(), nullptr), 0) << neotier_error();
  const neotier_session session = neotier_session_open(engine);
  for (const bool on_gpu : {false, true}) {
    neotier_ticket* ticket = neotier_move(engine, &key, 1, on_gpu ? "g" : "a", NEOTIER_DEMAND);
    ASSERT_NE(ticket, nullptr) << neotier_error();
    ASSERT_EQ(neotier_ticket_wait(ticket, UINT64_MAX), 0) << neotier_error();
    neotier_ticket_free(ticket);
    uint64_t pin = 0;
    const void *host = &pin, *device = &pin;
    ASSERT_EQ(neotier_pin_device(engine, session, &key, 0, &pin, &host, &device), 0) << neotier_error();
    EXPECT_EQ(on_gpu ? host : device, nullptr);
    ASSERT_NE(on_gpu ? device : host, nullptr);
    EXPECT_EQ(std::memcmp(on_gpu ? device : host, data.data(), data.size()), 0);
    EXPECT_EQ(neotier_unpin(engine, session, pin), 0);
  }
  neotier_session_close(engine, session);
  neotier_close(engine);
}

TEST(CApi, WhatHasEndedComesToAQueue) {
  const neotier_config c = config("dram=16M");
  neotier_engine* engine = neotier_open(&c);
  ASSERT_NE(engine, nullptr) << neotier_error();
  const neotier_object_key key = {{7}};
  const std::vector<unsigned char> data(100000, 0x42);
  ASSERT_EQ(neotier_put(engine, &key, data.data(), data.size(), nullptr), 0);

  neotier_queue* queue = neotier_queue_open();
  ASSERT_NE(queue, nullptr) << neotier_error();
  pollfd readable{neotier_queue_fd(queue), POLLIN, 0};
  EXPECT_EQ(poll(&readable, 1, 0), 0);
  uint64_t tags[2] = {};
  EXPECT_EQ(neotier_queue_take(queue, tags, 2), 0u);

  constexpr size_t kNr = 300;
  std::vector<std::vector<unsigned char>> into(kNr, std::vector<unsigned char>(data.size()));
  std::vector<neotier_ticket*> tickets;
  for (size_t i = 0; i < kNr; i++) {
    tickets.push_back(neotier_get_async(engine, &key, 0, into[i].data(), data.size()));
    ASSERT_EQ(neotier_ticket_notify(tickets[i], queue, i), 0);
  }
  std::set<uint64_t> seen;
  while (seen.size() < kNr) {
    ASSERT_EQ(poll(&readable, 1, 10000), 1) << seen.size();
    const size_t nr = neotier_queue_take(queue, tags, 2);
    ASSERT_GT(nr, 0u);
    for (size_t i = 0; i < nr; i++) {
      EXPECT_TRUE(seen.insert(tags[i]).second) << tags[i];
      EXPECT_EQ(neotier_ticket_wait(tickets[tags[i]], 0), 0);
      EXPECT_EQ(into[tags[i]], data);
    }
  }
  EXPECT_EQ(poll(&readable, 1, 0), 0);

  // Of what has ended long since, at once. What is still to come may find the queue closed.
  ASSERT_EQ(neotier_ticket_notify(tickets[0], queue, UINT64_MAX), 0);
  EXPECT_EQ(poll(&readable, 1, 0), 1);
  for (neotier_ticket* ticket : tickets) neotier_ticket_free(ticket);
  neotier_ticket* last = neotier_get_async(engine, &key, 0, into[0].data(), data.size());
  EXPECT_EQ(neotier_ticket_notify(last, queue, 1), 0);
  neotier_queue_close(queue);
  EXPECT_EQ(neotier_ticket_wait(last, UINT64_MAX), 0);
  neotier_ticket_free(last);
  neotier_close(engine);
}

TEST(CApi, MetricsFitOrAreCut) {
  const neotier_config c = config("a/dram=1M,g/gpu=1M:stand-in=yes");
  neotier_engine* engine = neotier_open(&c);
  ASSERT_NE(engine, nullptr) << neotier_error();
  const int64_t length = neotier_metrics(engine, NEOTIER_PROMETHEUS, nullptr, 0);
  ASSERT_GT(length, 1000);
  std::string text(static_cast<size_t>(length) + 100, '\0');
  EXPECT_NEAR(static_cast<double>(neotier_metrics(engine, NEOTIER_JSON, text.data(), 10)), 4000, 4000);
  EXPECT_EQ(text[9], '\0');
  EXPECT_EQ(neotier_metrics(engine, 7, nullptr, 0), NEOTIER_EINVALID);
  neotier_close(engine);
}

}  // namespace
