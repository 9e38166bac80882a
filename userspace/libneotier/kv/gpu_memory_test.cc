// SPDX-License-Identifier: Apache-2.0
// Blocks in and out of a device's memory: on a GPU where there is one (gpu_memory_test), and on the stand-in for CUDA's
// run time (gpu_memory_stand_in_test).
#include "kv/gpu_memory.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "engine/testing/cuda_stream.h"
#include "engine/testing/mem_tier.h"
#include "engine/testing/pattern.h"
#include "engine/tiers/cuda/cuda_tier.h"
#include "engine/tiers/make_tiers.h"
#include "util/temporary_folder.h"

namespace neotier::kv {
namespace {

using engine::Bytes;
using engine::Code;
using engine::CopyLane;
using Stream = engine::CudaStream;
using engine::DeviceCopy;
using engine::Key;
using engine::make_key;
using engine::pattern;
using engine::Status;

struct Layout {
  const char* name;
  uint32_t layers;
  std::vector<uint64_t> pieces;
  std::vector<uint32_t> layer_pieces;
  uint64_t bytes() const { return std::accumulate(pieces.begin(), pieces.end(), uint64_t{0}); }
};

const Layout kTogether{"a piece a layer", 5, {3000, 3000, 3000, 3000, 3000}, {}};
const Layout kApart{"K and V apart", 4, {4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096}, {2, 2, 2, 2}};
const Layout kUneven{"sizes of their own", 3, {1001, 77, 64, 9000, 16, 16}, {1, 4, 1}};

std::vector<Key> block_keys(uint64_t first, size_t nr) {
  std::vector<Key> keys;
  for (size_t i = 0; i < nr; i++) keys.push_back(make_key(first + i));
  return keys;
}

class DeviceGpuMemory : public ::testing::Test {
 protected:
  static constexpr size_t kCacheBlocks = 96;  // of the device's cache

  void open(const std::string& tiers, const Layout& layout, uint64_t staging_blocks = 64) {
    open(engine::make_tiers(tiers), layout, staging_blocks);
  }
  void open(std::vector<engine::TierSetup> tiers, const Layout& layout, uint64_t staging_blocks) {
    layout_ = layout;
    engine::EngineConfig config;
    config.max_objects = 4000;
    config.events = 4096;
    config.measure = false;
    engine_ = std::make_unique<engine::Engine>(config, std::move(tiers));
    StoreOptions options;
    options.layers = layout.layers;
    options.piece_bytes = layout.pieces;
    options.layer_pieces = layout.layer_pieces;
    options.recompute_ns = 1000000;
    options.lease_ms = lease_ms_;
    store_ = std::make_unique<KvStore>(*engine_, options);
    session_ = *store_->open_session(store_->tenant("t", 0), 0);
    auto gpu = GpuMemory::open(*store_, 0, staging_blocks * ((layout.bytes() + 4095) / 4096 * 4096));
    ASSERT_TRUE(gpu) << gpu.status().what();
    gpu_ = std::move(*gpu);
    auto copies = engine::open_device_copies(0);
    ASSERT_TRUE(copies);
    copies_ = std::move(*copies);
    auto memory = copies_->allocate(kCacheBlocks * layout.bytes());
    ASSERT_TRUE(memory);
    cache_ = *memory;
    auto host = copies_->pinned(kCacheBlocks * layout.bytes());
    ASSERT_TRUE(host);
    host_ = std::move(*host);
  }
  void TearDown() override {
    gpu_.reset();
    host_.reset();
    copies_.reset();
    store_.reset();
    engine_.reset();
  }
  std::string ssd(const char* size = "16M") {
    return std::string("ssd=") + size + ":file=" + (file_ = folder_ / ("tier" + std::to_string(files_++)));
  }
  // A tier that no device reads. What is sent there comes from there as the test likes.
  static engine::MemTier& add_far(std::vector<engine::TierSetup>& tiers, const char* name = "far") {
    engine::MemTierOptions options;
    options.name = name;
    options.kind = engine::TierKind::kSsd;
    options.mappable = false;
    auto tier = std::make_unique<engine::MemTier>(options);
    engine::MemTier& made = *tier;
    tiers.emplace_back().tier = std::move(tier);
    tiers.back().promote_to = tiers.size() == 1;
    return made;
  }
  // One such that blocks are stored in, and one that they are sent to.
  engine::MemTier& open_far(const Layout& layout, uint64_t staging_blocks) {
    std::vector<engine::TierSetup> tiers;
    (void)add_far(tiers, "near");
    engine::MemTier& far = add_far(tiers);
    open(std::move(tiers), layout, staging_blocks);
    return far;
  }
  void send_far(const Key& key) {
    const Status moved = engine_->move({&key, 1}, "far", engine::MoveClass::kDemand)->wait();
    ASSERT_TRUE(moved) << moved.what();
  }
  // Blocks first, first + 1, ... to the tiers, past the device.
  void keep(uint64_t first, size_t nr) {
    std::vector<Bytes> blocks;
    for (size_t i = 0; i < nr; i++) blocks.push_back(content(first + i, layout_.bytes()));
    std::vector<const std::byte*> from;
    for (size_t piece = 0, at = 0; piece < layout_.pieces.size(); at += layout_.pieces[piece++])
      for (const Bytes& block : blocks) from.push_back(block.data() + at);
    const StoreResult stored = store_->store(session_, block_keys(first, nr), from);
    ASSERT_TRUE(stored.status) << stored.status.what();
    ASSERT_EQ(stored.stored, nr);
  }
  // What lies on the last SSD tier of a block comes back as something else, from there on.
  void corrupt(uint64_t block, size_t offset) {
    ASSERT_TRUE(engine_->flush());
    const Bytes bytes = content(block, layout_.bytes());
    std::vector<char> all(std::filesystem::file_size(file_));
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.read(all.data(), static_cast<std::streamsize>(all.size()));
    const auto* const wanted = reinterpret_cast<const char*>(bytes.data()) + offset;
    const auto at = std::search(all.begin(), all.end(), wanted, wanted + 4096);
    ASSERT_NE(at, all.end());
    file.seekp(at - all.begin());
    file.put(static_cast<char>(*at ^ 1));
  }
  // Slots that no block goes through any more; a moment after the last has.
  size_t free_slots_at_last() {
    for (int i = 0; i < 1000 && gpu_->staging().free_slots() < gpu_->staging().slots(); i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return gpu_->staging().free_slots();
  }

  // A cache as engines have it: of each piece all blocks' side by side.
  std::byte* place(size_t piece, size_t block) {
    const auto end = layout_.pieces.begin() + static_cast<std::ptrdiff_t>(piece);
    return cache_ + std::accumulate(layout_.pieces.begin(), end, uint64_t{0}) * kCacheBlocks +
           block * layout_.pieces[piece];
  }
  // Cache blocks numbers[i] for block i.
  std::vector<std::byte*> places(const std::vector<size_t>& numbers) {
    std::vector<std::byte*> all;
    for (size_t piece = 0; piece < layout_.pieces.size(); piece++)
      for (const size_t number : numbers) all.push_back(place(piece, number));
    return all;
  }
  std::vector<size_t> some_numbers(size_t nr, uint64_t seed) {
    std::vector<size_t> numbers(kCacheBlocks);
    std::iota(numbers.begin(), numbers.end(), size_t{0});
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937_64(seed));
    numbers.resize(nr);
    return numbers;
  }
  void copy_all(CopyLane lane, std::byte* to, const std::byte* from) {
    const DeviceCopy one{to, from, kCacheBlocks * layout_.bytes()};
    ASSERT_TRUE(copies_->copy(lane, {&one, 1}));
    auto mark = copies_->mark(lane);
    ASSERT_TRUE(mark);
    ASSERT_TRUE(copies_->wait(**mark, 20000));
  }
  void wipe(uint8_t with) {
    std::fill(host_->bytes().begin(), host_->bytes().end(), std::byte{with});
    copy_all(CopyLane::kIn, cache_, host_->bytes().data());
  }
  static Bytes content(uint64_t block, uint64_t bytes, uint64_t version = 0) {
    return pattern(block + version * 100000, bytes);
  }
  std::byte* host_of(const std::byte* device) { return host_->bytes().data() + (device - cache_); }
  // Puts blocks first, first + 1, ... into those places; the rest of the cache becomes what wipe() would make it.
  void put_in_cache(uint64_t first, const std::vector<size_t>& numbers, uint64_t version = 0) {
    std::fill(host_->bytes().begin(), host_->bytes().end(), std::byte{0xEE});
    for (size_t i = 0; i < numbers.size(); i++) {
      const Bytes bytes = content(first + i, layout_.bytes(), version);
      for (size_t piece = 0, at = 0; piece < layout_.pieces.size(); at += layout_.pieces[piece++])
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), layout_.pieces[piece],
                    host_of(place(piece, numbers[i])));
    }
    copy_all(CopyLane::kIn, cache_, host_->bytes().data());
  }
  ::testing::AssertionResult cache_has(uint64_t first, const std::vector<size_t>& numbers, uint64_t version = 0) {
    copy_all(CopyLane::kOut, host_->bytes().data(), cache_);
    for (size_t i = 0; i < numbers.size(); i++) {
      const Bytes bytes = content(first + i, layout_.bytes(), version);
      for (size_t piece = 0, at = 0; piece < layout_.pieces.size(); at += layout_.pieces[piece++]) {
        const std::byte* const got = host_of(place(piece, numbers[i]));
        if (!std::equal(got, got + layout_.pieces[piece], bytes.begin() + static_cast<std::ptrdiff_t>(at)))
          return ::testing::AssertionFailure() << "block " << first + i << ", piece " << piece;
      }
    }
    return ::testing::AssertionSuccess();
  }
  // Beside these places, from that layer on, nothing was written since wipe(0xEE). After cache_has().
  void expect_untouched(const std::vector<size_t>& written, size_t from_piece = 0) {
    for (size_t number = 0; number < kCacheBlocks; number++) {
      if (std::find(written.begin(), written.end(), number) != written.end()) continue;
      for (size_t piece = from_piece; piece < layout_.pieces.size(); piece++) {
        const std::byte* const at = host_of(place(piece, number));
        EXPECT_TRUE(std::all_of(at, at + layout_.pieces[piece], [](std::byte b) { return b == std::byte{0xEE}; }))
            << "place " << number << ", piece " << piece;
      }
    }
  }
  StoreResult save(const std::vector<Key>& keys, const std::vector<size_t>& numbers, Stream& stream,
                   uint32_t first_position = 0) {
    const std::vector<std::byte*> all = places(numbers);
    auto save = gpu_->save(session_, keys, std::vector<const std::byte*>(all.begin(), all.end()), first_position);
    EXPECT_TRUE(save) << save.status().what();
    for (uint32_t layer = 0; layer < layout_.layers; layer++) EXPECT_TRUE((*save)->layer(layer, stream.stream));
    EXPECT_TRUE((*save)->behind(stream.stream));
    return (*save)->finish();
  }

  Layout layout_;
  uint64_t lease_ms_ = 60000;
  TemporaryFolder folder_{"neotier-gpu"};
  int files_ = 0;
  std::string file_;  // the last one's
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<GpuMemory> gpu_;
  std::unique_ptr<engine::DeviceCopies> copies_;
  std::byte* cache_ = nullptr;
  std::unique_ptr<engine::PinnedMemory> host_;
  SessionId session_ = 0;
};

TEST_F(DeviceGpuMemory, ComesBackFromEveryKindOfTier) {
  for (const Layout& layout : {kTogether, kApart, kUneven}) {
    for (const std::string& tiers :
         {std::string("dram=4M"), std::string("cxl=4M"), ssd(), "dram=256K," + ssd(), std::string("gpu=4M:promote=yes"),
          std::string("gpu=4M:stand-in=yes:promote=yes,dram=4M")}) {
      SCOPED_TRACE(layout.name + (", " + tiers));
      open(tiers, layout);
      Stream stream;
      const auto keys = block_keys(10, 40);
      const auto from = some_numbers(40, 1), to = some_numbers(40, 2);
      put_in_cache(10, from);
      const StoreResult stored = save(keys, from, stream);
      ASSERT_TRUE(stored.status) << stored.status.what();
      EXPECT_EQ(stored.stored, 40u);
      for (const bool streams : {true, false}) {
        wipe(0xEE);
        auto load = gpu_->load(session_, keys, places(to), 0, nullptr, stream.stream);
        ASSERT_TRUE(load) << load.status().what();
        ASSERT_EQ((*load)->blocks(), 40u);
        for (uint32_t layer = 0; layer < layout.layers; layer++) {
          const Status status =
              streams ? (*load)->let_wait(stream.stream, layer, 20000) : (*load)->wait_layer(layer, 20000);
          ASSERT_TRUE(status) << status.what();
        }
        if (streams) stream.wait();
        EXPECT_EQ((*load)->good_blocks(), 40u);
        EXPECT_TRUE(cache_has(10, to));
      }
      expect_untouched(to);
      EXPECT_EQ(gpu_->staging().free_slots(), gpu_->staging().slots());
      TearDown();
    }
  }
}

// A layer that has been waited for is whole before the others have come.
TEST_F(DeviceGpuMemory, LayerByLayer) {
  open(ssd(), kApart);
  Stream stream;
  const auto keys = block_keys(1, 30);
  const auto numbers = some_numbers(30, 3);
  put_in_cache(1, numbers);
  ASSERT_TRUE(save(keys, numbers, stream).status);
  wipe(0);
  auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  ASSERT_TRUE((*load)->let_wait(stream.stream, 0, 20000));
  stream.copy(host_->bytes().data(), cache_, kCacheBlocks * 2 * 4096);  // that layer alone: the others are coming
  stream.wait();
  for (size_t i = 0; i < numbers.size(); i++) {
    const Bytes bytes = content(1 + i, layout_.bytes());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 4096, host_of(place(0, numbers[i]))));
  }
  EXPECT_TRUE((*load)->wait(20000));
  EXPECT_TRUE(cache_has(1, numbers));
}

// The blocks' memory may still be read by what the caller's stream has: the load comes after that.
TEST_F(DeviceGpuMemory, ALoadComesAfterWhatItsStreamHas) {
  for (const std::string& tiers : {std::string("dram=4M"), ssd()}) {
    open(tiers, kApart);
    Stream stream;
    const auto keys = block_keys(1, 20);
    const auto numbers = some_numbers(20, 4);
    put_in_cache(1, numbers);
    ASSERT_TRUE(save(keys, numbers, stream).status);
    put_in_cache(1, numbers, 7);  // what was there before
    Stream reader;
    auto before = copies_->pinned(kCacheBlocks * layout_.bytes());
    ASSERT_TRUE(before);
    reader.sleep();
    reader.copy((*before)->bytes().data(), cache_, kCacheBlocks * layout_.bytes());
    auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, reader.stream);
    ASSERT_TRUE(load);
    EXPECT_TRUE((*load)->wait(20000));
    reader.wait();
    EXPECT_TRUE(std::equal((*before)->bytes().begin(), (*before)->bytes().end(), host_->bytes().begin()));
    EXPECT_TRUE(cache_has(1, numbers));
    load->reset();
    TearDown();
  }
}

// What computes the blocks comes before their copies, what overwrites them after.
TEST_F(DeviceGpuMemory, ASaveTakesWhatItsStreamHasMade) {
  open("dram=4M", kApart);
  Stream stream;
  const auto keys = block_keys(1, 20);
  const auto numbers = some_numbers(20, 5);
  put_in_cache(1, numbers, 3);
  auto made = copies_->pinned(kCacheBlocks * layout_.bytes()), later = copies_->pinned(kCacheBlocks * layout_.bytes());
  ASSERT_TRUE(made && later);
  put_in_cache(1, numbers, 4);
  std::copy(host_->bytes().begin(), host_->bytes().end(), (*later)->bytes().begin());
  put_in_cache(1, numbers);
  std::copy(host_->bytes().begin(), host_->bytes().end(), (*made)->bytes().begin());
  wipe(0x11);
  stream.sleep();
  stream.copy(cache_, (*made)->bytes().data(), kCacheBlocks * layout_.bytes());
  const auto all = places(numbers);
  const std::vector<const std::byte*> from(all.begin(), all.end());
  // Another save holds up the copies, so that what is to come after them would be first.
  Stream slow;
  slow.sleep();
  slow.sleep();
  auto before = gpu_->save(session_, block_keys(500, 20), from, 0);
  ASSERT_TRUE(before);
  ASSERT_TRUE((*before)->layer(0, slow.stream));
  auto save = gpu_->save(session_, keys, from, 0);
  ASSERT_TRUE(save);
  for (uint32_t layer = 0; layer < layout_.layers; layer++) ASSERT_TRUE((*save)->layer(layer, stream.stream));
  ASSERT_TRUE((*save)->behind(stream.stream));
  stream.copy(cache_, (*later)->bytes().data(), kCacheBlocks * layout_.bytes());
  EXPECT_EQ((*save)->finish().stored, 20u);
  stream.wait();
  EXPECT_TRUE(cache_has(1, numbers, 4));
  wipe(0);
  auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  EXPECT_TRUE((*load)->wait(20000));
  EXPECT_TRUE(cache_has(1, numbers));
}

// A save keeps its slots until it ends, so it takes no more than there are.
TEST_F(DeviceGpuMemory, ASaveTakesAsMuchAsThereIsStagingFor) {
  open(ssd(), kApart, 6);
  Stream stream;
  const auto keys = block_keys(1, 10);
  const auto numbers = some_numbers(10, 6);
  put_in_cache(1, numbers);
  const auto all = places(numbers);
  const std::vector<const std::byte*> from(all.begin(), all.end());
  {
    auto save = gpu_->save(session_, keys, from, 0);
    ASSERT_TRUE(save);
    EXPECT_EQ((*save)->blocks(), 6u);
    auto none = gpu_->save(session_, keys, from, 0);
    ASSERT_TRUE(none);
    EXPECT_EQ((*none)->blocks(), 0u);
    for (uint32_t layer = 0; layer < layout_.layers; layer++) {
      EXPECT_TRUE((*save)->layer(layer, stream.stream));
      EXPECT_TRUE((*none)->layer(layer, stream.stream));
    }
    EXPECT_EQ((*save)->finish().stored, 6u);
    EXPECT_EQ((*none)->finish().stored, 0u);
  }
  EXPECT_EQ(gpu_->staging().free_slots(), gpu_->staging().slots());
  std::vector<const std::byte*> rest;
  for (size_t piece = 0; piece < layout_.pieces.size(); piece++)
    rest.insert(rest.end(), from.begin() + static_cast<std::ptrdiff_t>(piece * 10 + 6),
                from.begin() + static_cast<std::ptrdiff_t>(piece * 10 + 10));
  {
    auto save = gpu_->save(session_, std::span(keys).subspan(6), rest, 6);
    ASSERT_TRUE(save);
    for (uint32_t layer = 0; layer < layout_.layers; layer++) EXPECT_TRUE((*save)->layer(layer, stream.stream));
    EXPECT_EQ((*save)->finish().stored, 4u);
  }
  wipe(0);
  auto load = gpu_->load(session_, keys, all, 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  EXPECT_EQ((*load)->blocks(), 10u);
  EXPECT_EQ((*load)->plan().load, 10u);
  EXPECT_TRUE((*load)->wait(20000));
  EXPECT_EQ((*load)->good_blocks(), 10u);
  EXPECT_TRUE(cache_has(1, numbers));
  load->reset();
  EXPECT_EQ(gpu_->staging().free_slots(), gpu_->staging().slots());
}

// What is decided, pinned and told is of all blocks, however few of them find room at once.
TEST_F(DeviceGpuMemory, ALoadLargerThanStaging) {
  for (const Layout& layout : {kTogether, kApart, kUneven}) {
    for (const std::string& tiers : {ssd(), std::string("cxl=4M"), "dram=256K," + ssd()}) {
      SCOPED_TRACE(layout.name + (", " + tiers));
      open(tiers, layout, 2);
      Stream stream;
      keep(10, 80);
      const auto keys = block_keys(10, 80);
      const auto to = some_numbers(80, 2);
      const std::vector<uint64_t> costs(80, 1000000000000);  // never sooner computed than loaded
      for (const bool streams : {true, false}) {
        wipe(0xEE);
        ASSERT_TRUE(store_->lookup(session_, keys, {.cost_ns = costs}));
        PlanOptions decide;
        auto load = gpu_->load(session_, keys, places(to), 0, &decide, stream.stream);
        ASSERT_TRUE(load) << load.status().what();
        ASSERT_EQ((*load)->blocks(), 80u);
        EXPECT_EQ((*load)->plan().load, 80u);
        EXPECT_EQ(engine_->remove(keys.back()).code(), Code::kBusy) << "it is pinned before its turn comes";
        for (uint32_t layer = 0; layer < layout.layers; layer++) {
          const Status status =
              streams ? (*load)->let_wait(stream.stream, layer, 20000) : (*load)->wait_layer(layer, 20000);
          ASSERT_TRUE(status) << status.what();
        }
        if (streams) stream.wait();
        EXPECT_EQ((*load)->good_blocks(), 80u);
        EXPECT_TRUE(cache_has(10, to));
        expect_untouched(to);
        EXPECT_EQ(free_slots_at_last(), gpu_->staging().slots()) << "others want them before the load is freed";
      }
      EXPECT_EQ(store_->counters().loaded_blocks, 160u);
      TearDown();
    }
  }
}

// Who waits for one of several loads has no part in the others, and a save that holds all it can get ends later.
TEST_F(DeviceGpuMemory, LoadsThatShareOneSlot) {
  open(ssd(), kApart, 1);
  Stream stream;
  keep(1, 80);
  const auto numbers = some_numbers(84, 3);
  const std::vector<size_t> saved(numbers.begin() + 80, numbers.end());
  put_in_cache(500, saved);
  const auto all = places(saved);
  auto save = gpu_->save(session_, block_keys(500, 4), std::vector<const std::byte*>(all.begin(), all.end()), 0);
  ASSERT_TRUE(save);
  EXPECT_EQ((*save)->blocks(), 1u);
  EXPECT_EQ(gpu_->staging().free_slots(), 1u);
  for (uint32_t layer = 0; layer < layout_.layers; layer++) ASSERT_TRUE((*save)->layer(layer, stream.stream));
  ASSERT_TRUE((*save)->behind(stream.stream));
  std::vector<std::unique_ptr<Loading>> loads;
  for (size_t i = 0; i < 4; i++) {
    const SessionId session = *store_->open_session(0, 0);
    const std::vector<size_t> to(numbers.begin() + i * 20, numbers.begin() + (i + 1) * 20);
    auto load = gpu_->load(session, block_keys(1 + i * 20, 20), places(to), 0, nullptr, stream.stream);
    ASSERT_TRUE(load);
    loads.push_back(std::move(*load));
  }
  for (size_t i = loads.size(); i-- > 0;) EXPECT_TRUE(loads[i]->wait(20000));
  loads.clear();
  EXPECT_TRUE(cache_has(1, {numbers.begin(), numbers.begin() + 80}));
  EXPECT_EQ((*save)->finish().stored, 1u);
  save->reset();
  EXPECT_EQ(gpu_->staging().free_slots(), 2u);
  EXPECT_EQ(*store_->lookup(session_, block_keys(500, 4)), 1u);
}

// Loads take slots in turn: one that is small does not wait until a large one has come to a block that does not come.
TEST_F(DeviceGpuMemory, ASmallLoadPassesALargeOne) {
  engine::MemTier& far = open_far(kApart, 1);
  Stream stream;
  keep(1, 60);
  keep(100, 4);
  const auto keys = block_keys(1, 60);
  send_far(keys[39]);
  far.hold();
  const auto numbers = some_numbers(64, 3);
  const std::vector<size_t> large_to(numbers.begin(), numbers.begin() + 60),
      small_to(numbers.begin() + 60, numbers.end());
  const auto all = places(small_to);
  auto save = gpu_->save(session_, block_keys(500, 4), std::vector<const std::byte*>(all.begin(), all.end()), 0);
  ASSERT_TRUE(save);
  ASSERT_EQ(gpu_->staging().free_slots(), 1u);
#ifdef NEOTIER_CUDA_STAND_IN
  cuda_stand_in::hold();  // so that the large one does not pass before the other comes
#endif
  auto large = gpu_->load(session_, keys, places(large_to), 0, nullptr, stream.stream);
  ASSERT_TRUE(large);
  auto small = gpu_->load(*store_->open_session(0, 0), block_keys(100, 4), all, 0, nullptr, stream.stream);
  ASSERT_TRUE(small);
#ifdef NEOTIER_CUDA_STAND_IN
  cuda_stand_in::release();
  EXPECT_TRUE((*small)->wait(5000));
#endif
  EXPECT_EQ((*large)->wait_layer(0, 100).code(), Code::kTimeout);
  far.release();
  EXPECT_TRUE((*large)->wait(20000));
  EXPECT_TRUE((*small)->wait(20000));
  EXPECT_TRUE(cache_has(1, large_to));
  EXPECT_TRUE(cache_has(100, small_to));
}

TEST_F(DeviceGpuMemory, CancelledInTheMiddle) {
  engine::MemTier& far = open_far(kApart, 2);
  Stream stream;
  keep(1, 60);
  const auto keys = block_keys(1, 60);
  send_far(keys[20]);
  far.hold();
  wipe(0xEE);
  const auto numbers = some_numbers(60, 3);
  auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  EXPECT_EQ((*load)->blocks(), 60u);
  EXPECT_EQ((*load)->wait_layer(0, 200).code(), Code::kTimeout);
  (*load)->cancel();
  EXPECT_EQ((*load)->good_blocks(), 0u) << "nothing has been waited for";
  EXPECT_EQ((*load)->wait_layer(0, 20000).code(), Code::kCancelled);
  const size_t good = (*load)->good_blocks();
  EXPECT_LE(good, 20u);
  EXPECT_EQ((*load)->wait(20000).code(), Code::kCancelled);
  EXPECT_EQ((*load)->good_blocks(), 0u) << "no other layer has come";
  EXPECT_EQ(free_slots_at_last(), gpu_->staging().slots());
  EXPECT_EQ(store_->counters().failed_blocks, 60u);
  load->reset();
  far.release();
  EXPECT_FALSE(cache_has(1, numbers));
  expect_untouched({numbers.begin(), numbers.begin() + 20});
  for (size_t i = 0; i < good; i++) {
    const Bytes bytes = content(1 + i, layout_.bytes());
    for (const size_t piece : {size_t{0}, size_t{1}}) {
      const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(piece * 4096);
      EXPECT_TRUE(std::equal(at, at + 4096, host_of(place(piece, numbers[i]))));
    }
  }
  auto again = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(again);
  EXPECT_TRUE((*again)->wait(20000));
  EXPECT_TRUE(cache_has(1, numbers));
  (*again)->cancel();
  EXPECT_TRUE((*again)->wait(0)) << "all of it was there before";
  EXPECT_EQ((*again)->good_blocks(), 60u);
}

// The memory is its caller's again.
TEST_F(DeviceGpuMemory, FreedInTheMiddle) {
  engine::MemTier& far = open_far(kApart, 2);
  Stream stream;
  keep(1, 60);
  const auto keys = block_keys(1, 60);
  const auto numbers = some_numbers(60, 3);
  for (const int ms : {0, 1, 3, 100}) {
    send_far(keys[20]);
    far.hold();
    auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
    ASSERT_TRUE(load);
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    load->reset();
    EXPECT_EQ(gpu_->staging().free_slots(), gpu_->staging().slots());
    EXPECT_TRUE(engine_->remove(keys[59])) << "it is pinned no more";
    keep(60, 1);
    wipe(0xEE);
    far.release();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(cache_has(1, numbers));
    expect_untouched({});
  }
}

// Blocks before it are good in all layers; of it and of those behind nothing more is written.
TEST_F(DeviceGpuMemory, ABlockThatFailsInALaterPart) {
  const Layout large{"a chunk of the disk a layer", 4, {65536, 65536, 65536, 65536}, {}};
  open(ssd("64M"), large, 2);
  Stream stream;
  keep(1, 60);
  const auto keys = block_keys(1, 60);
  const auto numbers = some_numbers(60, 3);
  corrupt(31, 2 * 65536);
  wipe(0xEE);
  auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  for (const uint32_t layer : {0u, 1u}) EXPECT_TRUE((*load)->let_wait(stream.stream, layer, 20000));
  EXPECT_EQ((*load)->good_blocks(), 60u);
  const Status third = (*load)->let_wait(stream.stream, 2, 20000);
  EXPECT_EQ(third.code(), Code::kCorrupt) << third.what();
  EXPECT_EQ((*load)->good_blocks(), 30u);
  EXPECT_EQ((*load)->wait_layer(3, 20000).code(), Code::kCorrupt);
  EXPECT_EQ((*load)->wait(20000).code(), Code::kCorrupt);
  EXPECT_EQ((*load)->good_blocks(), 30u);
  EXPECT_EQ((*load)->blocks(), 60u);
  EXPECT_EQ(store_->counters().failed_blocks, 30u);
  EXPECT_EQ(free_slots_at_last(), gpu_->staging().slots());
  const std::vector<size_t> good(numbers.begin(), numbers.begin() + 30);
  EXPECT_TRUE(cache_has(1, good));
  expect_untouched(good, 2);
}

// Nor read: nobody waits for what is of no use.
TEST_F(DeviceGpuMemory, BlocksBehindOneThatFailsAreNotReadAnyMore) {
  std::vector<engine::TierSetup> tiers = engine::make_tiers(ssd());
  engine::MemTier& far = add_far(tiers);
  open(std::move(tiers), kApart, 2);
  Stream stream;
  keep(1, 60);
  const auto keys = block_keys(1, 60);
  send_far(keys[50]);
  far.hold();
  corrupt(31, 0);
  const auto numbers = some_numbers(60, 3);
  auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  EXPECT_EQ((*load)->wait(5000).code(), Code::kCorrupt);
  EXPECT_EQ((*load)->good_blocks(), 30u);
  EXPECT_TRUE(cache_has(1, {numbers.begin(), numbers.begin() + 30}));
  load->reset();
  far.release();
}

// Who looks from time to time, and does not wait, sees it come: each look sends on all that is there.
TEST_F(DeviceGpuMemory, ComesWhileSomebodyLooks) {
  open(ssd(), kTogether);
  Stream stream;
  const auto keys = block_keys(1, 10);
  const auto numbers = some_numbers(10, 3);
  put_in_cache(1, numbers);
  ASSERT_TRUE(save(keys, numbers, stream).status);
  wipe(0);
  auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  // Fewer looks than there are layers.
  unsigned looks = 0;
  for (unsigned ms = 100; looks++, (*load)->wait(0).code() == Code::kTimeout && looks < layout_.layers; ms *= 4)
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  EXPECT_LT(looks, layout_.layers);
  EXPECT_TRUE(cache_has(1, numbers));
}

// No lease ends while the device may still read.
TEST_F(DeviceGpuMemory, BlocksStayForAsLongAsTheDeviceReadsThem) {
  lease_ms_ = 1;
  open("dram=4M", kApart);
  Stream stream;
  const auto keys = block_keys(1, 4);
  const auto numbers = some_numbers(4, 6);
  put_in_cache(1, numbers);
  ASSERT_TRUE(save(keys, numbers, stream).status);
  wipe(0);
  stream.sleep();
  auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(engine_->remove(keys[0]).code(), Code::kBusy);
  EXPECT_TRUE((*load)->wait(20000));
  EXPECT_TRUE(cache_has(1, numbers));
  load->reset();
  EXPECT_TRUE(engine_->remove(keys[0]));
}

// As many as are worth it, and no more.
TEST_F(DeviceGpuMemory, ADecisionIsKept) {
  open("dram=4M", kApart);
  Stream stream;
  const auto keys = block_keys(1, 10);
  const auto numbers = some_numbers(10, 6);
  put_in_cache(1, numbers);
  ASSERT_TRUE(save(keys, numbers, stream).status);
  const std::vector<uint64_t> costs(10, 1);  // ns: sooner computed than loaded
  RequestTraits traits;
  traits.cost_ns = costs;
  ASSERT_TRUE(store_->lookup(session_, keys, traits));
  wipe(0xEE);
  PlanOptions decide;
  auto load = gpu_->load(session_, keys, places(numbers), 0, &decide, stream.stream);
  ASSERT_TRUE(load);
  EXPECT_EQ((*load)->plan().found, 10u);
  EXPECT_EQ((*load)->plan().load, 0u);
  EXPECT_EQ((*load)->blocks(), 0u);
  EXPECT_TRUE((*load)->wait(20000));
  load->reset();
  copy_all(CopyLane::kOut, host_->bytes().data(), cache_);
  EXPECT_TRUE(
      std::all_of(host_->bytes().begin(), host_->bytes().end(), [](std::byte b) { return b == std::byte{0xEE}; }));
}

TEST_F(DeviceGpuMemory, WhatIsNotFinishedIsNotStored) {
  open("dram=4M", kApart);
  Stream stream;
  const auto keys = block_keys(1, 10);
  const auto all = places(some_numbers(10, 7));
  const std::vector<const std::byte*> from(all.begin(), all.end());
  {
    auto save = gpu_->save(session_, keys, from, 0);
    ASSERT_TRUE(save);
    EXPECT_TRUE((*save)->layer(1, stream.stream));
    EXPECT_EQ((*save)->layer(1, stream.stream).code(), Code::kExists);
    EXPECT_EQ((*save)->layer(4, stream.stream).code(), Code::kInvalid);
    EXPECT_EQ((*save)->finish().status.code(), Code::kInvalid) << "three layers are missing";
  }
  EXPECT_EQ(*store_->lookup(session_, keys), 0u);
  EXPECT_EQ(gpu_->staging().free_slots(), gpu_->staging().slots());
  EXPECT_EQ(gpu_->save(session_, keys, std::span(from).first(5), 0).status().code(), Code::kInvalid);
  EXPECT_EQ(gpu_->load(session_, keys, std::span(all).first(5), 0, nullptr, stream.stream).status().code(),
            Code::kInvalid);
  EXPECT_EQ(gpu_->load(4711, keys, all, 0, nullptr, stream.stream).status().code(), Code::kNotFound);
  auto load = gpu_->load(session_, keys, all, 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  EXPECT_EQ((*load)->blocks(), 0u);
  EXPECT_TRUE((*load)->wait(0));
  EXPECT_EQ((*load)->wait_layer(4, 0).code(), Code::kInvalid);
  const auto queue = std::make_shared<engine::CompletionQueue>();
  EXPECT_EQ((*load)->notify(queue, 1).code(), Code::kUnsupported);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(gpu_->load(session_, keys, all, 0, nullptr, stream.stream).status().code(), Code::kInvalid);
  EXPECT_EQ(cudaStreamEndCapture(stream.stream, &graph), cudaSuccess);
  if (graph) cudaGraphDestroy(graph);
}

// A pinned block stays where it is while the device may read it, whatever is stored meanwhile.
class ManyThreads : public DeviceGpuMemory, public ::testing::WithParamInterface<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Staging, ManyThreads, ::testing::Values(1, 3, 64));

TEST_P(ManyThreads, SaveAndLoad) {
  open("dram=1M," + ssd(), kApart, GetParam());
  constexpr size_t kBlocks = 8, kThreads = 4;
  put_in_cache(0, some_numbers(kBlocks, 1));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (size_t t = 0; t < kThreads; t++) {
    threads.emplace_back([&, t] {
      Stream stream;
      const SessionId session = *store_->open_session(0, 0);
      auto up = copies_->pinned(kBlocks * layout_.bytes());
      ASSERT_TRUE(up);
      // Places of this thread's own: its blocks side by side, piece by piece.
      std::vector<std::byte*> mine;
      std::vector<const std::byte*> from;
      for (size_t piece = 0; piece < layout_.pieces.size(); piece++)
        for (size_t i = 0; i < kBlocks; i++) mine.push_back(place(piece, t * kBlocks + i));
      from.assign(mine.begin(), mine.end());
      const auto each = [&](auto what) {
        for (size_t piece = 0, at = 0; piece < layout_.pieces.size(); at += layout_.pieces[piece++])
          for (size_t i = 0; i < kBlocks; i++) what(piece, i, (*up)->bytes().data() + i * layout_.bytes() + at);
      };
      for (uint64_t round = 0; round < 12; round++) {
        const uint64_t first = 1000 * (t + 1) + round / 3 * kBlocks;
        const auto keys = block_keys(first, kBlocks);
        for (size_t i = 0; i < kBlocks; i++) {
          const Bytes bytes = content(first + i, layout_.bytes());
          std::copy(bytes.begin(), bytes.end(), (*up)->bytes().data() + i * layout_.bytes());
        }
        each([&](size_t piece, size_t i, std::byte* host) {
          stream.copy(mine[piece * kBlocks + i], host, layout_.pieces[piece]);
        });
        auto save = gpu_->save(session, keys, from, 0);
        ASSERT_TRUE(save);
        for (uint32_t layer = 0; layer < layout_.layers; layer++) ASSERT_TRUE((*save)->layer(layer, stream.stream));
        ASSERT_TRUE((*save)->behind(stream.stream));
        (void)(*save)->finish();
        std::fill((*up)->bytes().begin(), (*up)->bytes().end(), std::byte{0});
        each([&](size_t piece, size_t i, std::byte* host) {
          stream.copy(mine[piece * kBlocks + i], host, layout_.pieces[piece]);
        });
        auto load = gpu_->load(session, keys, mine, 0, nullptr, stream.stream);
        ASSERT_TRUE(load);
        for (uint32_t layer = 0; layer < layout_.layers; layer++)
          ASSERT_TRUE((*load)->let_wait(stream.stream, layer, 20000));
        each([&](size_t piece, size_t i, std::byte* host) {
          stream.copy(host, mine[piece * kBlocks + i], layout_.pieces[piece]);
        });
        stream.wait();
        for (size_t i = 0; i < (*load)->good_blocks(); i++) {
          const Bytes bytes = content(first + i, layout_.bytes());
          if (!std::equal(bytes.begin(), bytes.end(), (*up)->bytes().data() + i * layout_.bytes())) wrong++;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(free_slots_at_last(), GetParam() + 1);
}

#ifdef NEOTIER_CUDA_STAND_IN
TEST_F(DeviceGpuMemory, CopiesThatFail) {
  using cuda_stand_in::Call;
  open("dram=4M", kApart);
  Stream stream;
  const auto keys = block_keys(1, 10);
  const auto numbers = some_numbers(10, 8);
  const auto all = places(numbers);
  put_in_cache(1, numbers);
  {
    auto save = gpu_->save(session_, keys, std::vector<const std::byte*>(all.begin(), all.end()), 0);
    ASSERT_TRUE(save);
    cuda_stand_in::fail(Call::kLaunch, 1, cudaErrorLaunchOutOfResources);
    for (uint32_t layer = 0; layer < layout_.layers; layer++) EXPECT_TRUE((*save)->layer(layer, stream.stream));
    EXPECT_EQ((*save)->finish().status.code(), Code::kIo) << "a layer of it was not copied";
  }
  EXPECT_EQ(*store_->lookup(session_, keys), 0u);
  ASSERT_TRUE(save(keys, numbers, stream).status);
  cuda_stand_in::fail(Call::kLaunch, 1, cudaErrorIllegalAddress);
  {
    auto failing = gpu_->load(session_, keys, all, 0, nullptr, stream.stream);
    ASSERT_TRUE(failing);
    EXPECT_EQ((*failing)->wait(20000).code(), Code::kGone);
    EXPECT_EQ((*failing)->good_blocks(), 0u);
  }
  auto load = gpu_->load(session_, keys, all, 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  EXPECT_TRUE((*load)->wait_layer(0, 20000));
  cuda_stand_in::fail(Call::kQuery, 1, cudaErrorLaunchFailure);
  EXPECT_EQ((*load)->wait_layer(1, 20000).code(), Code::kGone);
  EXPECT_EQ((*load)->good_blocks(), 0u);
  load->reset();
  EXPECT_EQ(gpu_->staging().free_slots(), gpu_->staging().slots());
}

// As the first layer is on its way. Slots come back all the same.
TEST_F(DeviceGpuMemory, CopiesOfAPartThatFail) {
  using cuda_stand_in::Call;
  engine::MemTier& far = open_far(kApart, 2);
  Stream stream;
  keep(1, 60);
  const auto keys = block_keys(1, 60);
  const auto numbers = some_numbers(60, 8);
  for (const Call call : {Call::kLaunch, Call::kRecord, Call::kQuery}) {
    send_far(keys[20]);
    far.hold();
    auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
    ASSERT_TRUE(load);
    EXPECT_EQ((*load)->wait_layer(0, 200).code(), Code::kTimeout);
    cuda_stand_in::fail(call, 1, cudaErrorLaunchFailure);
    far.release();
    EXPECT_EQ((*load)->wait(20000).code(), Code::kGone);
    EXPECT_EQ((*load)->good_blocks(), 0u);
    EXPECT_EQ(free_slots_at_last(), gpu_->staging().slots());
    cuda_stand_in::fail(call, 0, cudaSuccess);
  }
  auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  EXPECT_TRUE((*load)->wait(20000));
  EXPECT_TRUE(cache_has(1, numbers));
}

// Slots take layers, not blocks: what computes the first layer does not wait until staging has been filled again.
TEST_F(DeviceGpuMemory, TheFirstLayerOfAllBlocksComesFirst) {
  open(ssd(), kApart, 4);
  Stream stream;
  keep(1, 20);
  const auto numbers = some_numbers(20, 9);
  wipe(0);
  cuda_stand_in::hold();
  auto load = gpu_->load(session_, block_keys(1, 20), places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  // Its five slots have room for the layer of twenty blocks.
  EXPECT_TRUE((*load)->let_wait(stream.stream, 0, 20000));
  EXPECT_EQ((*load)->let_wait(stream.stream, 1, 100).code(), Code::kTimeout);
  cuda_stand_in::release();
  EXPECT_TRUE((*load)->wait(20000));
  EXPECT_TRUE(cache_has(1, numbers));
}

// What is in a slot stays there until the device has read it, however long that takes.
TEST_F(DeviceGpuMemory, ASlotIsFilledAgainOnceItIsRead) {
  open(ssd(), kApart, 2);
  Stream stream;
  keep(1, 60);
  const auto numbers = some_numbers(60, 9);
  wipe(0);
  cuda_stand_in::hold();
  auto load = gpu_->load(session_, block_keys(1, 60), places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  EXPECT_EQ((*load)->wait(200).code(), Code::kTimeout);
  EXPECT_EQ(gpu_->staging().free_slots(), 0u);
  cuda_stand_in::release();
  EXPECT_TRUE((*load)->wait(20000));
  EXPECT_TRUE(cache_has(1, numbers));
}

// What a load reads and writes is its own until the device is through with it.
TEST_F(DeviceGpuMemory, NothingIsLetGoUnderTheDevice) {
  open(ssd(), kApart);
  Stream stream;
  const auto keys = block_keys(1, 10);
  const auto numbers = some_numbers(10, 9);
  put_in_cache(1, numbers);
  ASSERT_TRUE(save(keys, numbers, stream).status);
  cuda_stand_in::hold();
  auto load = gpu_->load(session_, keys, places(numbers), 0, nullptr, stream.stream);
  ASSERT_TRUE(load);
  EXPECT_EQ((*load)->wait_layer(0, 200).code(), Code::kTimeout);
  (*load)->cancel();
  for (uint32_t layer = 0; layer < layout_.layers; layer++)
    EXPECT_EQ((*load)->wait_layer(layer, 0).code(), Code::kTimeout) << "asked for, and not copied";
  EXPECT_EQ((*load)->good_blocks(), 0u);
  std::atomic<bool> gone{false};
  // Nor where the device has nothing left to mark a place with.
  cuda_stand_in::fail(cuda_stand_in::Call::kRecord, 1000, cudaErrorMemoryAllocation);
  std::thread ends([&] {
    load->reset();
    gone = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(gone);
  EXPECT_EQ(gpu_->staging().free_slots(), gpu_->staging().slots() - 10);
  cuda_stand_in::release();
  ends.join();
  cuda_stand_in::fail(cuda_stand_in::Call::kRecord, 0, cudaSuccess);
  EXPECT_EQ(gpu_->staging().free_slots(), gpu_->staging().slots());
}
#endif

}  // namespace
}  // namespace neotier::kv

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!neotier::engine::cuda_available()) {
    std::puts("skipped: no CUDA device on this machine");
    return 0;
  }
  return RUN_ALL_TESTS();
}
