// SPDX-License-Identifier: Apache-2.0
// The suite on the reference tier: as memory that the host maps, as a device that it does not, and as a durable one.
#include "engine/testing/mem_tier.h"

#include "engine/testing/tier_conformance.h"

namespace neotier::engine {
namespace {

class MemHarness : public TierHarness {
 public:
  MemHarness(bool mappable, bool durable) {
    options_.mappable = mappable;
    if (durable) options_.medium = std::make_shared<MemMedium>();
    tier_ = std::make_unique<MemTier>(options_);
  }
  Tier& tier() override { return *tier_; }
  std::string cannot(Fault fault) const override {
    if (fault == Fault::kCorrupt) return "plain memory has no checksums";
    if (fault == Fault::kCrash && !options_.medium) return "nothing outlives the process";
    return "";
  }
  void hold() override { tier_->hold(); }
  void release() override { tier_->release(); }
  void fail(Op op, unsigned count) override { tier_->fail(op, count); }
  void lose() override { tier_->lose(); }
  void mend() override { tier_->mend(); }
  void crash() override { tier_ = std::make_unique<MemTier>(options_); }

 private:
  MemTierOptions options_;
  std::unique_ptr<MemTier> tier_;
};

struct Mapped : MemHarness {
  Mapped() : MemHarness(true, false) {}
};
struct Unmapped : MemHarness {
  Unmapped() : MemHarness(false, false) {}
};
struct Durable : MemHarness {
  Durable() : MemHarness(false, true) {}
};
using Kinds = ::testing::Types<Mapped, Unmapped, Durable>;
INSTANTIATE_TYPED_TEST_SUITE_P(Mem, TierConformance, Kinds);

}  // namespace
}  // namespace neotier::engine
