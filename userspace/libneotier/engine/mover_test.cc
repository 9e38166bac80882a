// SPDX-License-Identifier: Apache-2.0
// Moves that succeed, fail, are cancelled, overtake one another.
#include "engine/mover.h"

#include "engine/testing/engine_rig.h"

namespace neotier::engine {
namespace {

constexpr uint64_t kKiB = 1024;

class MoverTest : public ::testing::Test {
 protected:
  static EngineConfig config() {
    EngineConfig c;
    c.knobs.chunk_bytes = 16 * kKiB;
    c.knobs.promote_heat = 0;
    return c;
  }
  EngineRig rig{{{"gpu", TierKind::kGpu, 4 << 20, false},
                 {"dram", TierKind::kDram, 4 << 20},
                 {"ssd", TierKind::kSsd, 4 << 20, false}},
                config()};
  MemTier& gpu() { return *rig.mems[0]; }
  MemTier& dram() { return *rig.mems[1]; }
  MemTier& ssd() { return *rig.mems[2]; }

  TicketRef move(uint64_t n, const std::string& tier, MoveClass cls = MoveClass::kDemand) {
    const Key key = make_key(n);
    return rig.engine->move(std::span(&key, 1), tier, cls);
  }
  Code end(const TicketRef& ticket) {
    EXPECT_TRUE(rig.run(ticket));
    return ticket->wait().code();
  }
};

TEST_F(MoverTest, EveryWayBetweenTiers) {
  const char* const names[] = {"gpu", "dram", "ssd"};
  uint64_t n = 0;
  for (const char* from : names) {
    for (const char* to : names) {
      for (const size_t bytes : {1 * kKiB, 16 * kKiB, 100 * kKiB + 1}) {
        ASSERT_TRUE(rig.put(++n, bytes, {.tier = from}));
        EXPECT_EQ(end(move(n, to)), Code::kOk) << from << " " << to;
        EXPECT_EQ(rig.where(n), to);
        EXPECT_TRUE(rig.holds(n, bytes)) << from << " " << to;
      }
    }
  }
  // What was left is free again: 27 objects, each in one place.
  uint64_t extents = 0;
  for (MemTier* tier : rig.mems) extents += tier->usage().extents;
  EXPECT_EQ(extents, n);
}

TEST_F(MoverTest, AFailedMoveLeavesTheObjectWhereItWas) {
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "dram"}));
  ssd().fail(Op::kWrite, 1);
  EXPECT_EQ(end(move(1, "ssd")), Code::kIo);
  EXPECT_EQ(rig.where(1), "dram");
  EXPECT_TRUE(rig.holds(1, 100 * kKiB));
  EXPECT_EQ(ssd().usage().extents, 0u);
  EXPECT_EQ(rig.counters().failed_moves, 1u);
  EXPECT_EQ(end(move(1, "ssd")), Code::kOk);
  gpu().fail(Op::kWrite, 1);
  EXPECT_EQ(end(move(1, "gpu")), Code::kIo) << "the second half of a staged move";
  EXPECT_EQ(rig.where(1), "ssd");
  EXPECT_TRUE(rig.holds(1, 100 * kKiB));
  EXPECT_EQ(gpu().usage().extents, 0u);
}

// A medium that says that it has lost the bytes for good.
TEST_F(MoverTest, ACopyThatIsLostIsForgotten) {
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.recompute_ns = 1, .tier = "ssd"}));
  ASSERT_TRUE(rig.put(2, 100 * kKiB, {.tier = "ssd"}));
  ssd().fail(Op::kRead, 1, Code::kNotFound);
  Bytes read(100 * kKiB);
  EXPECT_EQ(rig.engine->get(make_key(1), 0, read).code(), Code::kNotFound);
  EXPECT_EQ(rig.where(1), "");
  EXPECT_EQ(rig.counters().lost_copies, 1u);
  EXPECT_EQ(ssd().usage().extents, 1u);
  // Whatever it costs: there is nothing to keep. A move finds it as well.
  ssd().fail(Op::kRead, 1, Code::kNotFound);
  EXPECT_EQ(end(move(2, "gpu")), Code::kNotFound);
  EXPECT_EQ(rig.where(2), "");
  EXPECT_EQ(ssd().usage().extents, 0u);
  EXPECT_EQ(gpu().usage().extents, 0u);
  EXPECT_EQ(rig.engine->status().tiers[2].in_service, true);
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "ssd"}));
  EXPECT_TRUE(rig.holds(1, 100 * kKiB));
}

// A load's pin holds it until then.
TEST_F(MoverTest, ALostCopyThatIsPinnedIsForgottenWhenItIsNot) {
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "ssd"}));
  const SessionId session = rig.engine->open_session();
  ASSERT_TRUE(rig.engine->pin(session, make_key(1), 0).is_ok());
  ssd().fail(Op::kRead, 1, Code::kNotFound);
  Bytes read(100 * kKiB);
  EXPECT_EQ(rig.engine->get(make_key(1), 0, read).code(), Code::kNotFound);
  EXPECT_EQ(rig.where(1), "ssd");
  rig.engine->step();
  EXPECT_EQ(rig.where(1), "ssd");
  rig.engine->close_session(session);
  rig.engine->step();
  EXPECT_EQ(rig.where(1), "");
  EXPECT_EQ(ssd().usage().extents, 0u);
}

// That the write half of a move fails so says nothing of the source.
TEST_F(MoverTest, WhatAWriteDoesNotFindIsNotTheSource) {
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "ssd"}));
  gpu().fail(Op::kWrite, 1, Code::kNotFound);
  EXPECT_EQ(end(move(1, "gpu")), Code::kNotFound);
  EXPECT_EQ(rig.where(1), "ssd");
  EXPECT_TRUE(rig.holds(1, 100 * kKiB));
  EXPECT_EQ(rig.counters().lost_copies, 0u);
}

TEST_F(MoverTest, ACancelledMoveLeavesTheObjectWhereItWas) {
  ASSERT_TRUE(rig.put(1, 1000 * kKiB, {.tier = "dram"}));
  ssd().hold();
  const TicketRef ticket = move(1, "ssd");
  EXPECT_EQ(ticket->progress().pending, 1u);
  rig.engine->cancel(ticket);
  ssd().release();
  EXPECT_EQ(end(ticket), Code::kCancelled);
  EXPECT_EQ(rig.where(1), "dram");
  EXPECT_TRUE(rig.holds(1, 1000 * kKiB));
  EXPECT_EQ(ssd().usage().extents, 0u);
  EXPECT_EQ(rig.engine->status().jobs, 0u);
}

TEST_F(MoverTest, ATicketThatIsOneOfTwoIsCancelledAlone) {
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "dram"}));
  ssd().hold();
  const TicketRef first = move(1, "ssd", MoveClass::kPrefetch), second = move(1, "ssd");
  EXPECT_EQ(rig.counters().joins, 1u);
  rig.engine->cancel(first);
  EXPECT_EQ(first->wait_ns(0).code(), Code::kCancelled);
  ssd().release();
  EXPECT_EQ(end(second), Code::kOk);
  EXPECT_EQ(rig.where(1), "ssd");
}

// A load has a ticket for each of its pieces: what one costs to cancel must not depend on how many others there are.
TEST_F(MoverTest, ACancelLooksAtItsOwnJobsAlone) {
  constexpr size_t kPieces = 2000;
  ASSERT_TRUE(rig.put(1, kPieces, {.tier = "ssd"}));
  ssd().hold();
  std::vector<std::byte> into(kPieces);
  std::vector<TicketRef> tickets;
  for (size_t i = 0; i < kPieces; i++) {
    tickets.push_back(std::make_shared<Ticket>());
    rig.engine->get_async(make_key(1), i, {into.data() + i, 1}, tickets.back());
  }
  rig.engine->step();
  const uint64_t before = rig.engine->mover().visits();
  for (const TicketRef& ticket : tickets) rig.engine->cancel(ticket);
  EXPECT_LE(rig.engine->mover().visits() - before, 3 * kPieces);
  ssd().release();
  for (const TicketRef& ticket : tickets) ASSERT_TRUE(rig.run(ticket));
  EXPECT_EQ(tickets.back()->wait_ns(0).code(), Code::kCancelled);
  EXPECT_EQ(rig.engine->status().jobs, 0u);
  EXPECT_EQ(rig.engine->status().queued[0], 0u);
}

TEST_F(MoverTest, AKeyThatIsNamedTwiceIsCancelledOnce) {
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "dram"}));
  const Key keys[] = {make_key(1), make_key(1), make_key(1)};
  ssd().hold();
  const TicketRef ticket = rig.engine->move(keys, "ssd", MoveClass::kDemand);
  EXPECT_EQ(ticket->progress().pending, 3u);
  rig.engine->cancel(ticket);
  ssd().release();
  EXPECT_EQ(end(ticket), Code::kCancelled);
  EXPECT_EQ(ticket->progress().failed, 3u);
  EXPECT_EQ(rig.where(1), "dram");
  // Another one who waits for the same has what he asked for.
  ssd().hold();
  const TicketRef mine = rig.engine->move(keys, "ssd", MoveClass::kDemand), other = move(1, "ssd");
  const TicketRef again = rig.engine->move(keys, "ssd", MoveClass::kDemand);
  rig.engine->cancel(mine);
  EXPECT_EQ(mine->progress().failed, 3u);
  ssd().release();
  EXPECT_EQ(end(other), Code::kOk);
  EXPECT_EQ(end(again), Code::kOk);
  EXPECT_EQ(again->progress().done, 3u);
  EXPECT_EQ(rig.where(1), "ssd");
}

TEST_F(MoverTest, AnObjectGoesOneWayAtATime) {
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "dram"}));
  ssd().hold();
  const TicketRef down = move(1, "ssd");
  EXPECT_EQ(end(move(1, "gpu")), Code::kBusy);
  ssd().release();
  EXPECT_EQ(end(down), Code::kOk);
}

TEST_F(MoverTest, AReplacedObjectsMoveIsThrownAway) {
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "dram"}));
  ssd().hold();
  const TicketRef ticket = move(1, "ssd");
  std::thread let([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ssd().release();
  });
  const auto newer = pattern(77, 50 * kKiB);
  ASSERT_TRUE(rig.engine->put(make_key(1), newer, {.tier = "dram", .replace = true}));
  let.join();
  EXPECT_EQ(end(ticket), Code::kCancelled);
  EXPECT_TRUE(rig.holds(1, 50 * kKiB, 77));
  EXPECT_EQ(ssd().usage().extents, 0u);
}

TEST_F(MoverTest, APinHoldsTheObjectEvenUnderAMove) {
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "dram"}));
  const SessionId session = rig.engine->open_session();
  ssd().hold();
  const TicketRef ticket = move(1, "ssd");
  const Result<PinResult> pin = rig.engine->pin(session, make_key(1), 0);
  ASSERT_TRUE(pin);
  ssd().release();
  EXPECT_EQ(end(ticket), Code::kBusy);
  EXPECT_EQ(rig.where(1), "dram");
  EXPECT_EQ(std::memcmp(pin->data, pattern(1, 100 * kKiB).data(), 100 * kKiB), 0);
  EXPECT_EQ(end(move(1, "ssd")), Code::kBusy);
  EXPECT_EQ(rig.put(1, 8, {.replace = true}).code(), Code::kBusy);
  EXPECT_EQ(rig.engine->remove(make_key(1)).code(), Code::kBusy);
  ASSERT_TRUE(rig.engine->unpin(session, pin->id));
  EXPECT_EQ(end(move(1, "ssd")), Code::kOk);
}

// 64 chunks of prefetch are asked for first; demand that comes then is through after the chunks that were at the tier.
TEST_F(MoverTest, DemandOvertakesPrefetch) {
  for (uint64_t n = 0; n < 4; n++) ASSERT_TRUE(rig.put(n, 256 * kKiB, {.tier = "dram"}));
  ASSERT_TRUE(rig.put(9, 16 * kKiB, {.tier = "dram"}));
  ssd().hold();
  std::vector<Key> keys;
  for (uint64_t n = 0; n < 4; n++) keys.push_back(make_key(n));
  const TicketRef prefetch = rig.engine->move(keys, "ssd", MoveClass::kWriteBack);
  const TicketRef demand = move(9, "ssd");
  ssd().release();
  EXPECT_EQ(end(demand), Code::kOk);
  EXPECT_GE(prefetch->progress().pending, 3u) << "at most 8 of its 64 chunks were before demand";
  EXPECT_EQ(end(prefetch), Code::kOk);
}

TEST_F(MoverTest, RaisedByASecondRequest) {
  for (uint64_t n = 0; n < 8; n++) ASSERT_TRUE(rig.put(n, 256 * kKiB, {.tier = "dram"}));
  ssd().hold();
  std::vector<Key> keys;
  for (uint64_t n = 0; n < 8; n++) keys.push_back(make_key(n));
  const TicketRef all = rig.engine->move(keys, "ssd", MoveClass::kPrefetch);
  const TicketRef last = move(7, "ssd");
  ssd().release();
  EXPECT_EQ(end(last), Code::kOk);
  EXPECT_GE(all->progress().pending, 5u);
  EXPECT_EQ(end(all), Code::kOk);
}

// 1 MB/s in chunks of 16 KiB under a clock that the test moves: what was sent never exceeds rate x time + burst.
TEST(MoverLimits, BackgroundKeepsToItsCap) {
  FakeClock clock;
  std::vector<TierSetup> tiers(2);
  for (int i = 0; i < 2; i++) {
    MemTierOptions options;
    options.name = i ? "ssd" : "dram";
    options.kind = i ? TierKind::kSsd : TierKind::kDram;
    options.mappable = i == 0;
    tiers[i].tier = std::make_unique<MemTier>(options);
  }
  tiers[1].background_bytes_per_s = 1000000;
  EngineConfig config;
  config.max_objects = 100;
  config.measure = config.thread = false;
  config.clock = &clock;
  config.knobs.chunk_bytes = 16 * kKiB;
  Engine engine(config, std::move(tiers));
  std::vector<Key> keys;
  for (uint64_t n = 0; n < 20; n++) {
    keys.push_back(make_key(n));
    ASSERT_TRUE(engine.put(keys.back(), pattern(n, 16 * kKiB), {.tier = "dram"}));
  }
  const TicketRef ticket = engine.move(keys, "ssd", MoveClass::kWriteBack);
  const uint64_t begin = clock.now_ns();
  while (ticket->progress().pending > 0) {
    const double passed_ms = static_cast<double>(clock.now_ns() - begin) * 1e-6;
    ASSERT_LE(ticket->progress().done * 16.384, passed_ms + 2 * 16.384);
    ASSERT_LT(passed_ms, 2000);
    engine.step();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    clock.advance_ms(1);
  }
  EXPECT_TRUE(ticket->wait());
  EXPECT_GE(clock.now_ns() - begin, 290u * 1000000);
}

TEST_F(MoverTest, RoomIsMadeForAMove) {
  // 4 MiB of DRAM full of what cannot be made anew, then one more comes up.
  for (uint64_t n = 0; n < 16; n++) ASSERT_TRUE(rig.put(n, 256 * kKiB, {.tier = "dram"}));
  ASSERT_TRUE(rig.put(99, 256 * kKiB, {.tier = "ssd"}));
  EXPECT_EQ(end(move(99, "dram")), Code::kOk);
  EXPECT_EQ(rig.where(99), "dram");
  for (uint64_t n = 0; n < 16; n++) EXPECT_TRUE(rig.holds(n, 256 * kKiB));
  EXPECT_GE(rig.counters().demotions, 1u);
}

// Neither end has room for the other's object: refused, not waited for.
TEST_F(MoverTest, AnExchangeBetweenFullTiersIsRefused) {
  EngineRig small({{"dram", TierKind::kDram, 8 * kKiB}, {"cxl", TierKind::kCxl, 8 * kKiB}}, config());
  for (uint64_t n = 0; n < 4; n++) ASSERT_TRUE(small.put(n, 4 * kKiB, {.tier = n < 2 ? "dram" : "cxl"}));
  const Key key = make_key(2);
  const TicketRef ticket = small.engine->move(std::span(&key, 1), "dram", MoveClass::kDemand);
  ASSERT_TRUE(small.run(ticket)) << "waits for itself";
  EXPECT_EQ(ticket->wait().code(), Code::kFull);
  for (uint64_t n = 0; n < 4; n++) EXPECT_TRUE(small.holds(n, 4 * kKiB));
}

TEST_F(MoverTest, WaitsWithATimeout) {
  ASSERT_TRUE(rig.put(1, 4 * kKiB, {.tier = "dram"}));
  ssd().hold();
  const TicketRef ticket = move(1, "ssd");
  EXPECT_EQ(ticket->wait_ns(1000000).code(), Code::kTimeout);
  ssd().release();
  EXPECT_EQ(end(ticket), Code::kOk);
}

TEST_F(MoverTest, AnswersForEveryKeyOfABatch) {
  ASSERT_TRUE(rig.put(1, 4 * kKiB, {.tier = "dram"}));
  const Key keys[] = {make_key(1), make_key(2)};
  const TicketRef ticket = rig.engine->move(keys, "ssd", MoveClass::kDemand);
  EXPECT_EQ(end(ticket), Code::kNotFound);
  EXPECT_EQ(ticket->progress().done, 1u);
  EXPECT_EQ(ticket->progress().failed, 1u);
  EXPECT_EQ(end(rig.engine->move(keys, "tape", MoveClass::kDemand)), Code::kInvalid);
}

TEST_F(MoverTest, EndsWithTheEngine) {
  ASSERT_TRUE(rig.put(1, 1000 * kKiB, {.tier = "dram"}));
  ssd().hold();
  const TicketRef ticket = move(1, "ssd");
  rig.engine.reset();  // what is held is cancelled
  EXPECT_EQ(ticket->wait_ns(0).code(), Code::kCancelled);
}

}  // namespace
}  // namespace neotier::engine
