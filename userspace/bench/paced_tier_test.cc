// SPDX-License-Identifier: Apache-2.0
// The suite on a paced tier, whose link is fast enough for it; and that a slow one takes its time.
#include "bench/paced_tier.h"

#include "engine/clock.h"
#include "engine/testing/mem_tier.h"
#include "engine/testing/tier_conformance.h"
#include "engine/ticket.h"

namespace neotier::engine {
namespace {

class PacedHarness : public TierHarness {
 public:
  PacedHarness() { start(); }
  Tier& tier() override { return *paced_; }
  std::string cannot(Fault fault) const override {
    return fault == Fault::kCorrupt ? "plain memory has no checksums" : "";
  }
  void hold() override { tier_->hold(); }
  void release() override { tier_->release(); }
  void fail(Op op, unsigned count) override { tier_->fail(op, count); }
  void lose() override { tier_->lose(); }
  void mend() override { tier_->mend(); }
  void crash() override { start(); }

 private:
  void start() {
    paced_.reset();
    MemTierOptions options;
    options.mappable = false;
    options.medium = medium_;
    auto made = std::make_unique<MemTier>(options);
    tier_ = made.get();
    paced_ = std::make_unique<bench::PacedTier>(std::move(made), 1e11, 1000);
  }
  std::shared_ptr<MemMedium> medium_ = std::make_shared<MemMedium>();
  MemTier* tier_ = nullptr;
  std::unique_ptr<bench::PacedTier> paced_;
};
INSTANTIATE_TYPED_TEST_SUITE_P(Paced, TierConformance, ::testing::Types<PacedHarness>);

// 1 MB/s and 1 ms: ten reads of 4 KiB at once are not there before 41.9 ms, and what comes back is what was written.
TEST(PacedTier, ALinkTakesItsTime) {
  bench::PacedTier tier(std::make_unique<MemTier>(MemTierOptions{}), 1e6, 1000000);
  EXPECT_TRUE(tier.info().stand_in);
  const Extent extent = *tier.allocate(Key{}, 40960);
  EXPECT_EQ(tier.map(extent), nullptr);
  std::vector<std::byte> bytes(40960, std::byte{7}), into(40960);
  const auto move = [&](Op op, std::byte* memory) {
    std::vector<Transfer> transfers(10);
    std::vector<Piece> pieces(10);
    std::vector<Transfer*> all;
    Ticket ticket;
    for (size_t i = 0; i < 10; i++) {
      pieces[i] = {memory + i * 4096, 4096};
      transfers[i].op = op;
      transfers[i].extent = extent;
      transfers[i].offset = i * 4096;
      transfers[i].pieces = {&pieces[i], 1};
      transfers[i].done = [&](Transfer&, const Status& status) { ticket.end(status); };
      ticket.expect();
      all.push_back(&transfers[i]);
    }
    const uint64_t begin = SteadyClock().now_ns();
    EXPECT_EQ(tier.submit(all), 10u);
    EXPECT_TRUE(ticket.wait().is_ok());
    return SteadyClock().now_ns() - begin;
  };
  (void)move(Op::kWrite, bytes.data());
  EXPECT_GE(move(Op::kRead, into.data()), 41900000u);
  EXPECT_EQ(into, bytes);
}

}  // namespace
}  // namespace neotier::engine
