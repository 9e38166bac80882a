// SPDX-License-Identifier: Apache-2.0
// Each allocation of a workload fails once, one after the other, in whatever thread it is made: the process lives on,
// every ticket ends, no byte is lost or another's, and all works again afterwards. Operator new of the whole program
// does the failing, so this is a program of its own.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "daemon/listener.h"
#include "daemon/server.h"
#include "daemon/testing/failing_new.h"
#include "daemon/testing/raw_client.h"
#include "engine/engine.h"
#include "engine/testing/pattern.h"
#include "engine/tiers/memory/memory_tier.h"
#include "engine/tiers/ssd/ssd_tier.h"
#include "kv/kv_store.h"
#include "util/temporary_folder.h"

namespace neotier {
namespace {

using engine::Code;
using engine::Engine;
using engine::Key;
using engine::make_key;
using engine::pattern;
using engine::Status;

// What a call that gives no status throws is the caller's to catch.
template <typename Call>
void careless(Call call) {
  try {
    call();
  } catch (const std::bad_alloc&) {
    return;
  }
}

// Runs `workload` with the first allocation failing, then with the second, until it needs fewer; then with some in a
// row. `check` after each.
void fail_each(const std::function<void()>& workload, const std::function<void()>& check) {
  for (const int64_t count : {1, 40}) {
    for (int64_t nth = 0, quiet = 0; quiet < 3; nth += count == 1 ? 1 : 7) {
      SCOPED_TRACE("allocation " + std::to_string(nth) + ", " + std::to_string(count) + " fail");
      const uint64_t failed = FailingNew::count_while(nth, count, workload);
      // Threads may have needed a few less this time.
      quiet = failed == 0 ? quiet + 1 : 0;
      check();
      if (::testing::Test::HasFailure()) return;
      ASSERT_LT(nth, 20000);
    }
  }
}

std::string scratch_file(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / (name + "." + std::to_string(getpid()));
}

std::vector<engine::TierSetup> tiers_over(const std::string& file, engine::IoMethod method) {
  std::vector<engine::TierSetup> tiers(3);
  engine::MemoryTierOptions memory;
  memory.name = "gpu";
  memory.kind = engine::TierKind::kGpu;
  memory.capacity_bytes = 1 << 20;
  tiers[0].tier = std::make_unique<engine::MemoryTier>(memory);
  tiers[0].promote_to = false;
  memory.name = "dram";
  memory.kind = engine::TierKind::kDram;
  tiers[1].tier = std::make_unique<engine::MemoryTier>(memory);
  engine::SsdOptions ssd;
  ssd.path = file;
  ssd.file_bytes = 16 << 20;
  ssd.file_system = engine::posix_file_system(method);
  auto opened = engine::SsdTier::open(ssd);
  if (!opened) throw std::runtime_error(opened.status().what());
  tiers[2].tier = std::move(*opened);
  for (auto& tier : tiers) tier.object_bytes = 50000;
  return tiers;
}

engine::EngineConfig config() {
  engine::EngineConfig config;
  config.max_objects = 1000;
  config.events = 1000;
  config.measure = false;
  config.knobs.chunk_bytes = 16 << 10;
  config.knobs.retry_ms = 1;
  config.knobs.hysteresis_ms = 0;
  return config;
}

class OutOfMemory : public ::testing::TestWithParam<engine::IoMethod> {
 protected:
  ~OutOfMemory() override { std::filesystem::remove(file_); }
  // Until the mover has nothing left.
  void settle() {
    for (int i = 0; i < 20000; i++) {
      const engine::EngineStatus status = engine_->status();
      bool serving = true;
      for (const auto& tier : status.tiers) serving &= tier.in_service;
      if (status.jobs == 0 && serving) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "still under way after 20 s";
  }

  const std::string file_ = scratch_file("out_of_memory_test");
  std::unique_ptr<Engine> engine_ = std::make_unique<Engine>(config(), tiers_over(file_, GetParam()));
};

TEST_P(OutOfMemory, TheEngineAndItsTiersLiveOn) {
  constexpr size_t kBytes = 100000;
  std::array<uint64_t, 4> version{};  // 0: not known to be there
  uint64_t next = 1000;
  std::vector<std::byte> content, into(kBytes), async(kBytes);
  std::vector<engine::TicketRef> tickets;
  tickets.reserve(100);
  engine::SessionId session = engine_->open_session();
  const auto put = [&](uint64_t n, const char* tier) {
    next++;
    careless([&] {
      content = pattern(next, kBytes);
      engine::PutOptions options;
      options.tier = tier;
      options.replace = true;
      if (engine_->put(make_key(n), content, options)) version[n] = next;
    });
  };
  for (uint64_t n = 0; n < 4; n++) put(n, n % 2 ? "dram" : "ssd");
  const auto workload = [&] {
    put(1, "dram");
    put(2, "ssd");
    const Key keys[] = {make_key(1), make_key(2), make_key(3)};
    for (const char* tier : {"gpu", "ssd", "dram"}) {
      careless([&] {
        tickets.push_back(engine_->move(keys, tier, engine::MoveClass::kDemand));
        (void)tickets.back()->wait();
      });
    }
    careless([&] { tickets.push_back(engine_->write_back(keys)); });
    for (uint64_t n = 0; n < 4; n++) {
      const Status status = engine_->get(make_key(n), 0, into);
      if (!status && status.code() != Code::kNoMemory && status.code() != Code::kGone)
        ADD_FAILURE() << n << ": " << status.what();
    }
    careless([&] {
      auto ticket = std::make_shared<engine::Ticket>();
      tickets.push_back(ticket);
      engine_->get_async(make_key(0), 0, async, ticket);
      engine_->cancel(ticket);
    });
    const auto pin = engine_->pin(session, make_key(3), 1);
    (void)engine_->pin(session, make_key(1), 0);
    careless([&] { engine_->close_session(engine_->open_session()); });
    if (pin) (void)engine_->unpin(session, pin->id);
    (void)engine_->describe(make_key(0), engine::ObjectKind::kKv, next * 1000000);
    (void)engine_->lookup(make_key(0));
    (void)engine_->remove(make_key(3));
    version[3] = 0;
    put(3, "ssd");
    (void)engine_->flush();
    careless([&] { (void)engine_->status(); });
  };
  const auto check = [&] {
    for (const engine::TicketRef& ticket : tickets)
      ASSERT_NE(ticket->wait_ns(uint64_t{10} * 1000000000).code(), Code::kTimeout);
    tickets.clear();
    settle();
    engine_->close_session(session);
    session = engine_->open_session();
    for (uint64_t n = 0; n < 4; n++) {
      if (version[n] == 0) continue;
      const Status status = engine_->get(make_key(n), 0, into);
      ASSERT_TRUE(status) << n << ": " << status.what();
      ASSERT_EQ(into, pattern(version[n], kBytes)) << n;
    }
    put(0, "ssd");
    ASSERT_EQ(version[0], next);
    put(3, "dram");
    ASSERT_EQ(version[3], next);
    ASSERT_TRUE(engine_->flush());
  };
  fail_each(workload, check);
  // What was flushed last is what a new process finds.
  engine_.reset();
  engine_ = std::make_unique<Engine>(config(), tiers_over(file_, GetParam()));
  ASSERT_TRUE(engine_->get(make_key(0), 0, into));
  EXPECT_EQ(into, pattern(version[0], kBytes));
}

TEST_P(OutOfMemory, TheStoreOfBlocksLivesOn) {
  kv::StoreOptions options;
  options.layers = 3;
  options.layer_bytes = 8192;
  options.recompute_ns = 1000000;
  options.write = kv::WritePolicy::kWriteThrough;
  kv::KvStore store(*engine_, options);
  const kv::TenantId tenant = store.tenant("t", 20 * store.block_bytes());
  const kv::SessionId session = *store.open_session(tenant, 0);
  constexpr size_t kBlocks = 4;
  std::vector<std::byte> bytes = pattern(1, kBlocks * store.block_bytes()), back(bytes.size());
  std::vector<const std::byte*> from;
  std::vector<std::byte*> into;
  for (size_t i = 0; i < kBlocks * options.layers; i++) {
    from.push_back(bytes.data() + i * options.layer_bytes);
    into.push_back(back.data() + i * options.layer_bytes);
  }
  uint64_t first = 0;
  std::vector<Key> keys(kBlocks);
  const auto workload = [&] {
    for (size_t i = 0; i < kBlocks; i++) keys[i] = make_key(first + i);
    first += kBlocks;
    careless([&] { (void)store.store(session, keys, from); });
    careless([&] { (void)store.lookup(session, keys); });
    careless([&] {
      auto load = store.load(session, keys, into);
      if (load && (*load)->wait(10000).code() == Code::kTimeout) ADD_FAILURE() << "a load that does not end";
    });
    careless([&] { (void)store.close_session(*store.open_session(tenant, 1)); });
    careless([&] { store.tick(); });
  };
  const auto check = [&] {
    settle();
    ASSERT_EQ(engine_->status().pins, 0u);
    for (size_t i = 0; i < kBlocks; i++) keys[i] = make_key(first + i);
    first += kBlocks;
    ASSERT_EQ(store.store(session, keys, from).stored, kBlocks);
    auto load = store.load(session, keys, into);
    ASSERT_TRUE(load);
    ASSERT_EQ((*load)->blocks(), kBlocks);
    ASSERT_TRUE((*load)->wait(10000));
    ASSERT_EQ(back, bytes);
    for (const kv::TenantStatus& status : store.tenants()) {
      ASSERT_EQ(status.used_bytes, status.blocks * store.block_bytes());
      ASSERT_LE(status.used_bytes, status.quota_bytes);
    }
  };
  fail_each(workload, check);
}

// The daemon's loop and its workers: a client may be cut off, and none is forgotten.
TEST(OutOfMemoryDaemon, TheServerLivesOn) {
  using daemon::Operation;
  using daemon::RawClient;
  const TemporaryFolder folder;
  const std::string path = folder / "s";
  engine::SteadyClock clock;
  std::vector<engine::TierSetup> tiers(1);
  engine::MemoryTierOptions memory;
  memory.capacity_bytes = 4 << 20;
  tiers[0].tier = std::make_unique<engine::MemoryTier>(memory);
  Engine engine(config(), std::move(tiers));
  daemon::DaemonCounters counters;
  daemon::Log log(false, [](const std::string&) {});
  daemon::Clients clients;
  daemon::Listener listener(path, 0600, "");
  daemon::Limits limits;
  daemon::Server server({engine, counters, clock, log, [] { return std::string(2000, 'x'); },
                         [](uint32_t) { return std::string(2000, 'y'); }},
                        clients, limits, 2, listener.fd());
  listener.open();
  std::thread loop([&] { server.run(0); });

  std::vector<std::byte> put;
  daemon::Writer out(put);
  const Key key = make_key(1);
  out.bytes(&key, sizeof key);
  out.number(uint32_t{0});
  out.number(uint64_t{0});
  out.number(uint32_t{1});
  out.text("");
  put.resize(put.size() + 100000, std::byte{5});
  std::vector<std::byte> get, pin;
  daemon::Writer(get).bytes(&key, sizeof key);
  daemon::Writer(get).number(uint64_t{0});
  daemon::Writer(get).number(uint64_t{100000});
  daemon::Writer(pin).bytes(&key, sizeof key);
  daemon::Writer(pin).number(uint64_t{0});
  const std::pair<Operation, const std::vector<std::byte>*> requests[] = {
      {Operation::kPut, &put},       {Operation::kGet, &get},     {Operation::kPin, &pin},
      {Operation::kStatus, nullptr}, {Operation::kPing, nullptr}, {static_cast<Operation>(99), nullptr}};
  // What was not answered as it has to be; nothing: all was.
  const auto talk = [&]() -> std::string {
    RawClient client(path);
    const std::vector<std::byte> none;
    RawClient::Reply reply = client.hello();
    if (reply.code != 0) return fmt::format("hello: {} {}", reply.code, reply.text());
    for (const auto& [operation, body] : requests) {
      client.request(operation, body ? *body : none);
      reply = client.reply();
      if (reply.code == (operation == static_cast<Operation>(99) ? NEOTIER_EUNSUPPORTED : 0)) continue;
      if (reply.code == -1000 && !client.cut_off()) ADD_FAILURE() << "neither answered nor cut off";
      return fmt::format("operation {}: {} {}", static_cast<int>(operation), reply.code, reply.text());
    }
    return "";
  };
  const auto workload = [&] {
    for (int i = 0; i < 2; i++) careless([&] { (void)talk(); });
  };
  const auto all_have_left = [&] {
    for (int i = 0; i < 10000 && !clients.status().empty(); i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return clients.status().empty();
  };
  const auto check = [&] {
    // What a client pins nobody else may put, and it is pinned until the server has seen that the client left. One
    // that is greeted was let in behind all the others.
    ASSERT_EQ(RawClient(path).hello().code, 0);
    ASSERT_TRUE(all_have_left());
    ASSERT_EQ(talk(), "");
    ASSERT_TRUE(all_have_left());
    ASSERT_EQ(engine.status().sessions, 0u);
    ASSERT_EQ(engine.status().pins, 0u);
    ASSERT_EQ(server.in_flight_bytes(), 0u);
  };
  fail_each(workload, check);
  server.stop();
  loop.join();
}

INSTANTIATE_TEST_SUITE_P(EitherWayOfIo, OutOfMemory,
                         ::testing::Values(engine::IoMethod::kAny, engine::IoMethod::kThreads));

}  // namespace
}  // namespace neotier
