// SPDX-License-Identifier: Apache-2.0
// The suite on the SSD tier: on a medium with faults, and on the machine's own files by both ways of I/O.
#include <unistd.h>

#include <filesystem>

#include "engine/testing/fake_disk.h"
#include "engine/testing/tier_conformance.h"
#include "engine/tiers/ssd/ssd_tier.h"

namespace neotier::engine {
namespace {

constexpr uint64_t kFileBytes = 32 << 20;

std::unique_ptr<SsdTier> open_tier(const std::string& path, std::shared_ptr<FileSystem> system) {
  SsdOptions options;
  options.path = path;
  options.file_bytes = kFileBytes;
  options.queue_depth = 64;
  options.file_system = std::move(system);
  Result<std::unique_ptr<SsdTier>> tier = SsdTier::open(std::move(options));
  if (!tier) throw std::runtime_error(tier.status().what());
  return std::move(*tier);
}

class OnFakeDisk : public TierHarness {
 public:
  Tier& tier() override { return *tier_; }
  std::string cannot(Fault) const override { return ""; }
  void hold() override { disk_->hold(); }
  void release() override { disk_->release(); }
  void fail(Op op, unsigned count) override { disk_->fail(static_cast<IoOp>(op), count, EIO); }
  void corrupt(Extent extent, uint64_t offset) override { disk_->corrupt("tier", *tier_->place_of(extent, offset)); }
  void lose() override { disk_->lose(); }
  void mend() override { disk_->mend(); }
  void crash() override {
    disk_->crash();
    tier_.reset();
    disk_->power_on();
    tier_ = open_tier("tier", disk_);
  }

 private:
  std::shared_ptr<ssd::FakeDisk> disk_ = std::make_shared<ssd::FakeDisk>(test_seed());
  std::unique_ptr<SsdTier> tier_ = open_tier("tier", disk_);
};

// On a file beside the test's program: /tmp may be a file system without direct I/O.
template <IoMethod method>
class OnFiles : public TierHarness {
 public:
  OnFiles() { tier_ = open_tier(path_, posix_file_system(method)); }
  ~OnFiles() override {
    tier_.reset();
    std::filesystem::remove(path_);
  }
  Tier& tier() override { return *tier_; }
  std::string cannot(Fault fault) const override {
    return fault == Fault::kCorrupt ? "" : "a real file fails by itself; the fake disk's run has these";
  }
  void corrupt(Extent extent, uint64_t offset) override {
    // Through the page cache of another descriptor, which the tier's direct reads see.
    std::FILE* const file = std::fopen(path_.c_str(), "r+b");
    const auto at = static_cast<long>(*tier_->place_of(extent, offset));
    std::fseek(file, at, SEEK_SET);
    const int byte = std::fgetc(file);
    std::fseek(file, at, SEEK_SET);
    std::fputc(byte ^ 0x10, file);
    std::fclose(file);
  }

 private:
  const std::string path_ = std::filesystem::read_symlink("/proc/self/exe").parent_path() /
                            ("ssd_tier_test." + std::to_string(getpid()) + ".tier");
  std::unique_ptr<SsdTier> tier_;
};

using Media = ::testing::Types<OnFakeDisk, OnFiles<IoMethod::kAny>, OnFiles<IoMethod::kThreads>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Ssd, TierConformance, Media);

}  // namespace
}  // namespace neotier::engine
