// SPDX-License-Identifier: Apache-2.0
// What is the SSD tier's own: its file, its journal, its cleaner, and what it makes of a failing medium.
#include "engine/tiers/ssd/ssd_tier.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "engine/testing/fake_disk.h"
#include "engine/testing/pattern.h"
#include "engine/testing/transfer_batch.h"
#include "engine/tiers/ssd/access.h"
#include "engine/tiers/ssd/format.h"

namespace neotier::engine {
namespace {

std::vector<Recovered> recovered(Tier& tier) {
  Result<std::vector<Recovered>> found = tier.recover();
  return found ? std::move(*found) : std::vector<Recovered>{};
}

// Makes of a closed file what version 1 would have written: 4 bytes each for a record's chunks, and no note.
void make_version_1(FileSystem& disk) {
  Result<std::unique_ptr<File>> file = disk.open("tier");
  ASSERT_TRUE(file.is_ok()) << file.status().what();
  const uint64_t bytes = (*file)->bytes();
  const ssd::Memory memory = ssd::make_memory(bytes);
  ssd::Access all;
  all.prepare(IoOp::kRead, 0, memory.get(), bytes, -1);
  ASSERT_EQ(ssd::run_now(**file, std::span(&all, 1)), 0);
  uint32_t version = 0;
  const Result<ssd::Geometry> g =
      ssd::decode_superblock(std::span(memory.get(), 2 * ssd::kBlock), bytes, "tier", version);
  ASSERT_TRUE(g.is_ok());
  for (size_t copy = 0; copy < 2; copy++) {
    std::byte* const super = memory.get() + copy * ssd::kBlock;
    super[8] = std::byte{1};
    const uint64_t hash = XXH3_64bits(super, 96);
    std::memcpy(super + 96, &hash, sizeof hash);
  }
  for (size_t area = 0; area < 2; area++) {
    std::byte* at = memory.get() + g->journal_offset + area * g->journal_area_bytes;
    std::byte* const end = at + g->journal_area_bytes;
    uint64_t before = 0, now = 0;
    for (;;) {
      ssd::FrameHeader header;
      std::memcpy(&header, at, sizeof header);
      if (header.previous != before || !ssd::check_frame(std::span(at, end), header)) break;
      std::span<const std::byte> records(at + sizeof header, header.payload);
      while (!records.empty()) {
        auto* const raw = const_cast<std::byte*>(records.data());
        ssd::Record record;
        const std::byte* places = nullptr;
        bool damaged = false;
        ASSERT_TRUE(ssd::take_record(records, *g, record, places, damaged));
        if (record.type != ssd::Record::kWrite) continue;
        const uint32_t type = ssd::Record::kWriteV1, chunks[2] = {record.first, record.count};
        std::memcpy(raw, &type, sizeof type);
        std::memcpy(raw + offsetof(ssd::Record, first), chunks, sizeof chunks);
      }
      before = header.hash;
      header.previous = now;
      now = ssd::seal_frame(at, header);
      at += ssd::frame_bytes(header.payload);
    }
  }
  all.prepare(IoOp::kWrite, 0, memory.get(), bytes, -1);
  ASSERT_EQ(ssd::run_now(**file, std::span(&all, 1)), 0);
  all.prepare(IoOp::kSync, 0);
  ASSERT_EQ(ssd::run_now(**file, std::span(&all, 1)), 0);
}

class SsdTierTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<SsdTier>> open(uint64_t bytes = 16 << 20, uint64_t max_extents = 0) {
    SsdOptions options;
    options.path = "tier";
    options.file_bytes = bytes;
    options.max_extents = max_extents;
    options.file_system = disk_;
    return SsdTier::open(std::move(options));
  }
  void start(uint64_t bytes = 16 << 20, uint64_t max_extents = 0) {
    Result<std::unique_ptr<SsdTier>> tier = open(bytes, max_extents);
    ASSERT_TRUE(tier.is_ok()) << tier.status().what();
    tier_ = std::move(*tier);
  }
  void crash() {
    disk_->crash();
    tier_.reset();
    disk_->power_on();
    start(0);
  }
  Extent stored(uint64_t key, uint64_t bytes) {
    Result<Extent> extent = tier_->allocate(make_key(key), bytes);
    EXPECT_TRUE(extent.is_ok()) << extent.status().what();
    Bytes content = pattern(key, bytes);
    const Status written = write_now(*tier_, *extent, content);
    EXPECT_TRUE(written) << written.what();
    return *extent;
  }
  bool holds(Extent extent, uint64_t key, uint64_t bytes) {
    Bytes read(bytes);
    return read_now(*tier_, extent, read) && read == pattern(key, bytes);
  }

  std::shared_ptr<ssd::FakeDisk> disk_ = std::make_shared<ssd::FakeDisk>(test_seed());
  std::unique_ptr<SsdTier> tier_;
};

TEST_F(SsdTierTest, ShortTransfersGoOn) {
  start();
  for (const uint64_t bytes : {uint64_t{65536}, uint64_t{1 << 20}, uint64_t{5000}}) {
    disk_->shorten(IoOp::kWrite, 5);
    disk_->shorten(IoOp::kRead, 5);
    const Extent extent = stored(bytes, bytes);
    EXPECT_TRUE(holds(extent, bytes, bytes));
  }
}

TEST_F(SsdTierTest, NoSpaceIsFull) {
  start();
  const Extent extent = *tier_->allocate(make_key(1), 4096);
  Bytes content = pattern(1, 4096);
  disk_->fail(IoOp::kWrite, 1, ENOSPC);
  EXPECT_EQ(write_now(*tier_, extent, content).code(), Code::kFull);
  EXPECT_TRUE(write_now(*tier_, extent, content));
}

TEST_F(SsdTierTest, AFlushThatFailsIsNotTakenForOne) {
  start();
  const Extent first = stored(1, 100000);
  ASSERT_TRUE(flush_now(*tier_));
  const Extent second = stored(2, 100000);
  disk_->fail(IoOp::kSync, 1, EIO);
  EXPECT_FALSE(flush_now(*tier_));
  // The medium may have forgotten what it took: nothing more before that is written again.
  EXPECT_FALSE(tier_->in_service());
  ASSERT_TRUE(tier_->come_back());
  ASSERT_TRUE(flush_now(*tier_));
  EXPECT_TRUE(holds(first, 1, 100000));
  EXPECT_TRUE(holds(second, 2, 100000));
  crash();
  EXPECT_EQ(recovered(*tier_).size(), 2u);
}

TEST_F(SsdTierTest, WhatALostMediumForgotIsNotNamedLater) {
  start();
  const Extent kept = stored(1, 70000);
  ASSERT_TRUE(flush_now(*tier_));
  const Extent forgotten = stored(2, 70000);
  disk_->lose();
  Bytes read(70000);
  EXPECT_FALSE(read_now(*tier_, kept, read));
  disk_->corrupt("tier", 0 + *tier_->place_of(forgotten, 0));
  disk_->mend();
  ASSERT_TRUE(tier_->come_back());
  EXPECT_EQ(read_now(*tier_, forgotten, read).code(), Code::kCorrupt);
  EXPECT_TRUE(holds(kept, 1, 70000));
  ASSERT_TRUE(flush_now(*tier_));
  crash();
  ASSERT_EQ(recovered(*tier_).size(), 1u);
  EXPECT_EQ(recovered(*tier_).front().key, make_key(1));
}

TEST_F(SsdTierTest, AWriteOfTheJournalMayFail) {
  start();
  const Extent extent = stored(1, 4096);
  disk_->fail(IoOp::kWrite, 1, EIO);
  EXPECT_EQ(flush_now(*tier_).code(), Code::kIo);
  EXPECT_TRUE(tier_->in_service());
  EXPECT_TRUE(flush_now(*tier_));
  EXPECT_TRUE(holds(extent, 1, 4096));
  crash();
  EXPECT_EQ(recovered(*tier_).size(), 1u);
}

TEST_F(SsdTierTest, FlushesTogetherShareACommit) {
  start();
  for (uint64_t key = 0; key < 20; key++) stored(key, 4096);
  const uint64_t before = disk_->syncs();
  TransferBatch batch(*tier_);
  for (int i = 0; i < 50; i++) batch.add_flush();
  batch.run();
  for (size_t i = 0; i < batch.size(); i++) EXPECT_TRUE(batch.status(i));
  // Two syncs a commit: those that come while one is under way share the next.
  EXPECT_LE(disk_->syncs() - before, 4u);
  EXPECT_GE(disk_->syncs() - before, 2u);
}

TEST_F(SsdTierTest, CheckpointsAndTheOrderOfAge) {
  start();
  std::map<uint64_t, Extent> extents;
  std::mt19937_64 random(test_seed());
  uint64_t key = 0;
  for (; key < 300; key++) extents[key] = stored(key, 4096 + key * 100);
  // Slots used again in another order; commits enough to fill the journal's areas some times over.
  for (; tier_->stats().checkpoints < 3; key++) {
    if (const auto at = extents.lower_bound(random() % key); at != extents.end()) {
      tier_->free(at->second);
      extents.erase(at);
    }
    extents[key] = stored(key, 4096);
    ASSERT_TRUE(flush_now(*tier_));
    ASSERT_LT(key, 100000u) << "no checkpoint";
  }
  crash();
  const Result<std::vector<Recovered>> found = tier_->recover();
  ASSERT_TRUE(found.is_ok());
  ASSERT_EQ((*found).size(), extents.size());
  auto expected = extents.begin();  // keys in order of allocation
  for (const Recovered& object : *found) {
    ASSERT_EQ(object.key, make_key(expected->first));
    EXPECT_TRUE(holds(object.extent, expected->first, object.bytes));
    ++expected;
  }
}

// Through checkpoints, the cleaner, and a medium that was lost: each writes records of its own.
TEST_F(SsdTierTest, NotesGoWithWhateverIsWrittenOfAnExtent) {
  start();
  std::vector<std::pair<uint64_t, Extent>> old, young;
  for (uint64_t key = 0; key < 400; key++) {
    auto& list = key % 2 ? young : old;
    list.emplace_back(key, stored(key, 16 << 10));
    tier_->describe(list.back().second, static_cast<Note>(1000 + key));
  }
  for (uint64_t key = 1000; key < 4000 || tier_->stats().checkpoints < 2; key++) {
    const size_t i = key * 31 % young.size();
    tier_->free(young[i].second);
    young[i] = {key, stored(key, 16 << 10)};
    if (key % 8 == 0) {
      ASSERT_TRUE(flush_now(*tier_));
    }
    ASSERT_LT(key, 100000u) << "no checkpoint";
  }
  EXPECT_GT(tier_->stats().bytes_cleaned, 0u);
  tier_->describe(old[3].second, 77);
  disk_->lose();
  Bytes read(16 << 10);
  EXPECT_FALSE(read_now(*tier_, old[0].second, read));
  disk_->mend();
  ASSERT_TRUE(tier_->come_back());
  ASSERT_TRUE(flush_now(*tier_));
  crash();
  size_t seen = 0;
  for (const Recovered& object : recovered(*tier_)) {
    uint64_t key = 0;
    std::memcpy(&key, object.key.bytes, sizeof key);
    EXPECT_EQ(object.note, key >= 1000 ? 0u : key == old[3].first ? 77u : 1000 + key) << key;
    seen++;
  }
  EXPECT_EQ(seen, 400u);
}

TEST_F(SsdTierTest, AFileOfVersion1BecomesOneOfThisVersion) {
  start();
  std::map<uint64_t, uint64_t> kept;
  for (uint64_t key = 0; key < 50; key++) {
    kept[key] = 1000 + key * 5000;
    stored(key, kept[key]);
  }
  tier_->free(stored(99, 5000));
  tier_.reset();
  make_version_1(*disk_);
  for (uint64_t accesses = 1; accesses <= 12; accesses++) {
    // The power may fail at any access of the change.
    disk_->crash_after(accesses);
    { const auto tier = open(0); }
    disk_->crash();
    disk_->power_on();
    start(0);
    const std::vector<Recovered> found = recovered(*tier_);
    ASSERT_EQ(found.size(), kept.size()) << accesses;
    for (const Recovered& object : found) {
      uint64_t key = 0;
      std::memcpy(&key, object.key.bytes, sizeof key);
      EXPECT_EQ(object.note, 0u);
      EXPECT_TRUE(holds(object.extent, key, kept.at(key)));
    }
    tier_.reset();
    if (accesses < 12) make_version_1(*disk_);
  }
  start(0);
  tier_->describe(recovered(*tier_)[7].extent, 5);
  stored(100, 70000);
  ASSERT_TRUE(flush_now(*tier_));
  crash();
  const std::vector<Recovered> found = recovered(*tier_);
  ASSERT_EQ(found.size(), 51u);
  EXPECT_EQ(found[7].note, 5u);
  for (const Recovered& object : found) {
    uint64_t key = 0;
    std::memcpy(&key, object.key.bytes, sizeof key);
    EXPECT_TRUE(holds(object.extent, key, key == 100 ? 70000 : kept.at(key)));
  }
}

TEST_F(SsdTierTest, ReadsGoOnWhileWritesWaitForRoom) {
  start();
  std::vector<Extent> extents;
  constexpr uint64_t kBytes = 128 << 10;
  for (uint64_t key = 0;; key++) {
    const Result<Extent> extent = tier_->allocate(make_key(key), kBytes);
    if (!extent) break;
    Bytes content = pattern(key, kBytes);
    ASSERT_TRUE(write_now(*tier_, *extent, content));
    extents.push_back(*extent);
  }
  // Neither the cleaner nor a commit gets anywhere: the writes fill what is free and wait.
  disk_->hold(false);
  std::vector<Bytes> content;
  for (uint64_t i = 0; i < extents.size(); i++) content.push_back(pattern(i, kBytes));
  TransferBatch writes(*tier_);
  for (uint64_t i = 0; i < extents.size(); i++) writes.add(Op::kWrite, extents[i], 0, std::span(content[i]));
  writes.submit_some();
  for (uint64_t i = 0; i < extents.size(); i++) EXPECT_TRUE(holds(extents[i], i, kBytes)) << i;
  EXPECT_EQ(writes.completed(), 0u);
  disk_->release();
  writes.run();
  for (uint64_t i = 0; i < extents.size(); i++) EXPECT_TRUE(writes.status(i)) << writes.status(i).what();
}

TEST_F(SsdTierTest, CleaningKeepsWhatIsWanted) {
  start();
  // Old objects between short-lived ones: no segment empties by itself.
  std::vector<std::pair<uint64_t, Extent>> old, young;
  for (uint64_t key = 0; key < 400; key++) (key % 2 ? young : old).emplace_back(key, stored(key, 16 << 10));
  for (uint64_t key = 1000; key < 4000; key++) {
    const size_t i = key * 31 % young.size();
    tier_->free(young[i].second);
    young[i] = {key, stored(key, 16 << 10)};
  }
  EXPECT_GT(tier_->stats().bytes_cleaned, 0u);
  for (const auto& [key, extent] : old) EXPECT_TRUE(holds(extent, key, 16 << 10));
  for (const auto& [key, extent] : young) EXPECT_TRUE(holds(extent, key, 16 << 10));
  ASSERT_TRUE(flush_now(*tier_));
  crash();
  EXPECT_EQ(recovered(*tier_).size(), 400u);
  for (const Recovered& object : recovered(*tier_)) {
    uint64_t key = 0;
    std::memcpy(&key, object.key.bytes, sizeof key);
    EXPECT_TRUE(holds(object.extent, key, object.bytes));
  }
}

TEST_F(SsdTierTest, WrittenInPartIsNotNamed) {
  start();
  const auto written = [&](uint64_t key, const std::vector<std::pair<uint64_t, uint64_t>>& parts) {
    const Extent extent = *tier_->allocate(make_key(key), 20000);
    for (const auto& [offset, bytes] : parts) {
      Bytes content = pattern(key, 20000);
      ASSERT_TRUE(write_now(*tier_, extent, std::span(content).subspan(offset, bytes), offset));
    }
  };
  written(1, {{0, 10000}, {10000, 10000}});
  written(2, {{12000, 8000}, {3000, 10000}, {0, 3000}});
  written(3, {{0, 10000}, {10001, 9999}});
  written(4, {{1, 19999}});
  written(5, {{0, 19999}});
  written(6, {{5, 100}, {0, 20000}});
  ASSERT_TRUE(flush_now(*tier_));
  crash();
  const std::vector<Recovered> found = recovered(*tier_);
  ASSERT_EQ(found.size(), 3u);
  const uint64_t whole[] = {1, 2, 6};
  for (size_t i = 0; i < 3; i++) {
    EXPECT_EQ(found[i].key, make_key(whole[i]));
    EXPECT_TRUE(holds(found[i].extent, whole[i], 20000));
  }
}

TEST_F(SsdTierTest, AsManyObjectsAsItWasMadeFor) {
  start(16 << 20, 100);
  for (uint64_t key = 0; key < 100; key++) stored(key, 1);
  const Status full = tier_->allocate(make_key(1), 1).status();
  EXPECT_EQ(full.code(), Code::kFull);
  EXPECT_NE(full.what().find("max_extents"), std::string::npos) << full.what();
}

TEST_F(SsdTierTest, NeedsOneOfItsSuperblocks) {
  start();
  stored(1, 5000);
  tier_.reset();
  disk_->corrupt("tier", 40);
  start(0);
  EXPECT_EQ(recovered(*tier_).size(), 1u) << "closed in order: durable without a flush";
  tier_.reset();
  disk_->corrupt("tier", 4096 + 40);
  const Status damaged = open(0).status();
  EXPECT_EQ(damaged.code(), Code::kInvalid);
  EXPECT_NE(damaged.what().find("damaged"), std::string::npos) << damaged.what();
}

TEST_F(SsdTierTest, RefusesWhatIsNotItsOwn) {
  const auto refused = [&](Code code, const std::string& words, uint64_t bytes = 0) {
    const Status status = open(bytes).status();
    EXPECT_EQ(status.code(), code) << status.what();
    EXPECT_NE(status.what().find(words), std::string::npos) << status.what();
    EXPECT_EQ(status.what().find('\n'), std::string::npos);
    EXPECT_EQ(status.what().find("tier"), 0u) << "names the file first: " << status.what();
  };
  refused(Code::kInvalid, "16 MiB", 4096);
  start();
  refused(Code::kBusy, "in use");
  tier_.reset();
  refused(Code::kInvalid, "was made with", 64 << 20);
  disk_->truncate("tier", 10 << 20);
  refused(Code::kInvalid, "cut short");
  disk_->truncate("tier", 100);
  refused(Code::kInvalid, "not an SSD tier's");
  disk_ = std::make_shared<ssd::FakeDisk>(1);
  { const auto foreign = disk_->create("tier", 16 << 20); }
  refused(Code::kInvalid, "not an SSD tier's");
}

// The power fails at every access of a first start; it is killed before FILE.part has its name.
TEST_F(SsdTierTest, AFirstStartCutShortAnywhere) {
  constexpr uint64_t kAccesses = 20, kSeeds = 3;
  uint64_t unnamed = 0, whole = 0;
  for (uint64_t seed = 0; seed < kAccesses * kSeeds; seed++) {
    for (const uint64_t mib : {16, 32}) {
      disk_ = std::make_shared<ssd::FakeDisk>(seed);
      disk_->crash_after(1 + seed % kAccesses);
      const bool opened = open(16 << 20).is_ok();
      disk_->crash();
      disk_->power_on();
      if (opened) {
        ASSERT_TRUE(disk_->rename("tier", "tier.part"));
      }
      whole += opened;
      unnamed += !opened && disk_->exists("tier.part");
      auto again = open(mib << 20);
      ASSERT_TRUE(again.is_ok()) << "seed " << seed << ": " << again.status().what();
      EXPECT_FALSE(disk_->exists("tier.part"));
      EXPECT_TRUE(recovered(**again).empty());
      tier_ = std::move(*again);
      stored(1, 5000);
      tier_.reset();
    }
  }
  EXPECT_GT(unnamed, kSeeds * 4) << "of those that were cut short";
  EXPECT_GT(whole, kSeeds * 4);
}

TEST_F(SsdTierTest, AnotherTierIsNoUnfinishedOne) {
  start();
  stored(1, 5000);
  ASSERT_TRUE(flush_now(*tier_));
  tier_.reset();
  ASSERT_TRUE(disk_->rename("tier", "tier.part"));
  const auto refused = open(16 << 20);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), Code::kExists) << refused.status().what();
  ASSERT_TRUE(disk_->rename("tier.part", "tier"));
  start(0);
  EXPECT_EQ(recovered(*tier_).size(), 1u);
}

TEST(SsdFormat, OfAnotherVersion) {
  const Result<ssd::Geometry> geometry = ssd::plan_geometry(16 << 20, 0);
  ASSERT_TRUE(geometry.is_ok());
  Bytes blocks(2 * ssd::kBlock);
  for (size_t copy = 0; copy < 2; copy++) {
    ssd::encode_superblock(*geometry,
                           std::span<std::byte, ssd::kBlock>(blocks.data() + copy * ssd::kBlock, ssd::kBlock));
    blocks[copy * ssd::kBlock + 8] = std::byte{3};
  }
  uint32_t version = 0;
  const Status other = ssd::decode_superblock(blocks, 16 << 20, "x", version).status();
  EXPECT_NE(other.what().find("version 3"), std::string::npos) << other.what();
}

// What an earlier life left behind the journal's end must not pass for its continuation.
TEST(SsdFormat, AFrameOnlyInItsPlace) {
  Bytes frame(2 * ssd::kBlock);
  ssd::FrameHeader header;
  header.file_id = 1;
  header.epoch = 2;
  header.sequence = 3;
  header.previous = 4;
  header.payload = 5000;
  ssd::seal_frame(frame.data(), header);
  EXPECT_TRUE(ssd::check_frame(frame, header));
  for (uint64_t ssd::FrameHeader::*field : {&ssd::FrameHeader::file_id, &ssd::FrameHeader::epoch,
                                            &ssd::FrameHeader::sequence, &ssd::FrameHeader::previous}) {
    ssd::FrameHeader other = header;
    other.*field += 1;
    EXPECT_FALSE(ssd::check_frame(frame, other));
  }
  EXPECT_FALSE(ssd::check_frame(std::span(frame).first(ssd::kBlock), header)) << "cut short";
  for (size_t at = 0; at < sizeof header + header.payload; at++) {
    frame[at] ^= std::byte{1};
    ASSERT_FALSE(ssd::check_frame(frame, header)) << "byte " << at;
    frame[at] ^= std::byte{1};
  }
}

// What a file says is checked before it is believed: any bytes at all in the journal's records.
TEST(SsdFormat, RecordsOfAnyBytes) {
  const ssd::Geometry geometry = *ssd::plan_geometry(16 << 20, 0);
  std::mt19937_64 random(test_seed());
  size_t taken = 0;
  for (int round = 0; round < 20000; round++) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % (round % 2 ? 4 : 256));
    std::span<const std::byte> rest(bytes);
    ssd::Record record;
    const std::byte* places = nullptr;
    bool damaged = false;
    while (ssd::take_record(rest, geometry, record, places, damaged)) {
      taken++;
      ASSERT_LT(record.slot, geometry.max_extents);
      if (record.type != ssd::Record::kWrite) continue;
      ASSERT_LE(record.first + record.count, ssd::chunks_of(record.bytes));
      ASSERT_LE(places + record.count * sizeof(ssd::Place), bytes.data() + bytes.size());
    }
  }
  EXPECT_GT(taken, 0u);
}

TEST(SsdFiles, EitherWayOfIo) {
  const std::string path = std::filesystem::read_symlink("/proc/self/exe").parent_path() /
                           ("ssd_tier_unit." + std::to_string(getpid()) + ".tier");
  for (const IoMethod method : {IoMethod::kAny, IoMethod::kThreads, IoMethod::kAny}) {
    SsdOptions options;
    options.path = path;
    options.file_bytes = 16 << 20;
    options.file_system = posix_file_system(method);
    Result<std::unique_ptr<SsdTier>> tier = SsdTier::open(options);
    ASSERT_TRUE(tier.is_ok()) << tier.status().what();
    // One file, whichever way it is used.
    const size_t before = recovered(**tier).size();
    const Status second = SsdTier::open(options).status();
    EXPECT_EQ(second.code(), Code::kBusy) << second.what();
    EXPECT_EQ((*tier)->stats().method.find("pread") != std::string::npos, method == IoMethod::kThreads);
    Bytes content = pattern(before, 9000);
    ASSERT_TRUE(write_now(**tier, *(*tier)->allocate(make_key(before), 9000), content));
    for (const Recovered& object : recovered(**tier)) {
      uint64_t key = 0;
      std::memcpy(&key, object.key.bytes, sizeof key);
      Bytes read(9000);
      EXPECT_TRUE(read_now(**tier, object.extent, read));
      EXPECT_EQ(read, pattern(key, 9000));
    }
    EXPECT_EQ(recovered(**tier).size(), before + 1);
  }
  std::filesystem::remove(path);
  SsdOptions nowhere;
  nowhere.path = "/no/such/folder/tier";
  nowhere.file_bytes = 16 << 20;
  EXPECT_EQ(SsdTier::open(nowhere).status().code(), Code::kNotFound);
  nowhere.path = "/proc/self";
  EXPECT_EQ(SsdTier::open(nowhere).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace neotier::engine
