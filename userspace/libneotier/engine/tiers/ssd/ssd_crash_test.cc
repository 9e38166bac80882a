// SPDX-License-Identifier: Apache-2.0
// Power failures on a medium that loses, reorders and tears what was not synced, in-process; and kill -9 of a process
// that writes to a real file. What was acknowledged as durable must be there; whatever is there must be whole.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "engine/testing/fake_disk.h"
#include "engine/testing/pattern.h"
#include "engine/testing/transfer_batch.h"
#include "engine/tiers/ssd/ssd_tier.h"

namespace neotier::engine {
namespace {

// What the outside knows of an object. Versions count from 1; 0: may be absent.
struct Known {
  uint64_t bytes = 0;
  uint64_t durable = 0;    // the version that a flush acknowledged
  uint64_t attempted = 0;  // the latest that a write was begun for
  uint64_t written = 0;    // the latest whose write was acknowledged
  bool freeing = false;    // free() was called, and no flush has been acknowledged since
  Extent extent = kNoExtent;
};
using Objects = std::map<uint64_t, Known>;

Bytes content(uint64_t key, uint64_t version, uint64_t bytes) { return pattern(key * 1000 + version, bytes); }

// Compares what came back with what is known, and takes it as the new state. Returns "" or what is wrong.
std::string check(Tier& tier, Objects& objects) {
  const Result<std::vector<Recovered>> recovered = tier.recover();
  if (!recovered) return recovered.status().what();
  Objects found;
  for (const Recovered& object : *recovered) {
    uint64_t key = 0;
    std::memcpy(&key, object.key.bytes, sizeof key);
    const std::string name = "object " + std::to_string(key);
    const auto at = objects.find(key);
    if (at == objects.end()) return name + " came back and was never there, or was freed for good";
    if (object.bytes != at->second.bytes) return name + " has another size";
    Bytes read(object.bytes);
    if (const Status status = read_now(tier, object.extent, read); !status) return name + ": " + status.what();
    uint64_t version = std::max<uint64_t>(at->second.durable, 1);
    while (version <= at->second.attempted && read != content(key, version, object.bytes)) version++;
    if (version > at->second.attempted)
      return name + " has bytes of no version from " + std::to_string(at->second.durable) + " to " +
             std::to_string(at->second.attempted);
    if (!found.emplace(key, Known{object.bytes, version, version, version, false, object.extent}).second)
      return name + " came back twice";
  }
  for (const auto& [key, known] : objects)
    if (known.durable > 0 && !known.freeing && !found.contains(key))
      return "object " + std::to_string(key) + " was durable and is lost";
  objects = std::move(found);
  return "";
}

// ---- the medium

class TornWrites : public ::testing::TestWithParam<uint64_t> {};

// A life: random work until the power fails.
void work(Tier& tier, std::mt19937_64& random, Objects& objects, uint64_t& next_key) {
  const auto pick = [&] {
    auto at = objects.begin();
    std::advance(at, static_cast<ptrdiff_t>(random() % objects.size()));
    return at;
  };
  while (tier.in_service()) {
    const uint64_t what = random() % 16;
    if (what < 9 || objects.empty()) {  // some writes at once, new ones and new versions
      TransferBatch batch(tier);
      std::vector<std::pair<uint64_t, Bytes>> writes;
      for (uint64_t count = 1 + random() % 6; count > 0; count--) {
        uint64_t key = next_key;
        if (random() % 3 == 0 && !objects.empty()) key = pick()->first;
        if (objects.contains(key) && objects[key].freeing) continue;
        if (std::any_of(writes.begin(), writes.end(), [&](const auto& w) { return w.first == key; })) continue;
        if (key == next_key) {
          const uint64_t bytes = 1 + random() % (random() % 6 == 0 ? 400000 : 30000);
          const Result<Extent> extent = tier.allocate(make_key(key), bytes);
          if (!extent) continue;
          next_key++;
          objects[key].bytes = bytes;
          objects[key].extent = *extent;
        }
        Known& known = objects[key];
        known.attempted++;
        writes.emplace_back(key, content(key, known.attempted, known.bytes));
      }
      for (auto& [key, bytes] : writes) batch.add(Op::kWrite, objects[key].extent, 0, std::span(bytes));
      batch.run();
      for (size_t i = 0; i < writes.size(); i++)
        if (batch.status(i)) objects[writes[i].first].written = objects[writes[i].first].attempted;
    } else if (what < 13) {
      const auto at = pick();
      if (at->second.freeing) continue;
      tier.free(at->second.extent);
      at->second.freeing = true;
    } else if (what < 15) {
      if (!flush_now(tier)) continue;
      std::erase_if(objects, [](const auto& object) { return object.second.freeing; });
      for (auto& [key, known] : objects) known.durable = known.written;
    } else {
      const auto at = pick();
      if (at->second.freeing || at->second.written == 0 || at->second.written != at->second.attempted) continue;
      Bytes read(at->second.bytes);
      const Status status = read_now(tier, at->second.extent, read);
      if (status) {
        ASSERT_EQ(read, content(at->first, at->second.written, at->second.bytes));
      }
      ASSERT_NE(status.code(), Code::kCorrupt);
    }
  }
}

TEST_P(TornWrites, NothingDurableIsLost) {
  constexpr uint64_t kSeeds = 40, kLives = 3;
  for (uint64_t seed = GetParam() * kSeeds; seed < (GetParam() + 1) * kSeeds; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto disk = std::make_shared<ssd::FakeDisk>(seed);
    SsdOptions options;
    options.path = "tier";
    options.file_bytes = 16 << 20;
    options.file_system = disk;
    Objects objects;
    uint64_t next_key = 1;
    for (uint64_t life = 0; life <= kLives; life++) {
      Result<std::unique_ptr<SsdTier>> tier = SsdTier::open(options);
      ASSERT_TRUE(tier.is_ok()) << tier.status().what();
      const std::string wrong = check(**tier, objects);
      ASSERT_EQ(wrong, "") << "life " << life;
      if (life == kLives) break;
      disk->crash_after(1 + random() % (random() % 2 ? 1500 : 150));
      work(**tier, random, objects, next_key);
      disk->crash();
      tier->reset();
      disk->power_on();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, TornWrites, ::testing::Range<uint64_t>(0, 8));

// ---- the process

struct Message {
  enum What : uint64_t { kBegin = 1, kFree, kDurable } what;
  uint64_t key, bytes, version;
};

// The child: tells before it writes or frees, and after a flush was acknowledged. Never returns.
[[noreturn]] void write_until_killed(const SsdOptions& options, int pipe, uint64_t seed) {
  const auto tell = [&](const Message& message) {
    if (write(pipe, &message, sizeof message) != sizeof message) _exit(1);
  };
  Result<std::unique_ptr<SsdTier>> opened = SsdTier::open(options);
  if (!opened) _exit(2);
  Tier& tier = **opened;
  Objects objects;
  uint64_t next_key = seed << 32;
  const Result<std::vector<Recovered>> recovered = tier.recover();
  if (!recovered) _exit(5);
  for (const Recovered& object : *recovered) {
    uint64_t key = 0;
    std::memcpy(&key, object.key.bytes, sizeof key);
    objects[key] = {object.bytes, 0, 1, 1, false, object.extent};
  }
  std::mt19937_64 random(seed);
  while (true) {
    while (!objects.empty() && (objects.size() > 300 || random() % 8 == 0)) {
      auto at = objects.begin();
      std::advance(at, static_cast<ptrdiff_t>(random() % objects.size()));
      tell({Message::kFree, at->first, 0, 0});
      tier.free(at->second.extent);
      objects.erase(at);
    }
    TransferBatch batch(tier);
    std::vector<std::pair<uint64_t, Bytes>> writes;
    for (int i = 0; i < 8; i++) {
      const uint64_t key = next_key, bytes = 1 + random() % 80000;
      const Result<Extent> extent = tier.allocate(make_key(key), bytes);
      if (!extent) continue;
      next_key++;
      objects[key] = {bytes, 0, 1, 0, false, *extent};
      tell({Message::kBegin, key, bytes, 1});
      writes.emplace_back(key, content(key, 1, bytes));
    }
    for (auto& [key, bytes] : writes) batch.add(Op::kWrite, objects[key].extent, 0, std::span(bytes));
    batch.run();
    for (size_t i = 0; i < batch.size(); i++)
      if (!batch.status(i)) _exit(3);
    if (random() % 2) continue;
    if (!flush_now(tier)) _exit(4);
    tell({Message::kDurable, 0, 0, 0});
  }
}

TEST(KillNine, NothingDurableIsLost) {
  constexpr uint64_t kKills = 100;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe").parent_path() /
                           ("ssd_crash_test." + std::to_string(getpid()) + ".tier");
  SsdOptions options;
  options.path = path;
  options.file_bytes = 32 << 20;
  std::mt19937_64 random(test_seed());
  Objects objects;
  uint64_t acknowledged = 0;
  for (uint64_t kill_number = 1; kill_number <= kKills; kill_number++) {
    SCOPED_TRACE("kill " + std::to_string(kill_number));
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(ends[0]);
      write_until_killed(options, ends[1], kill_number);
    }
    close(ends[1]);
    // After so many messages, and in the middle of whatever follows.
    uint64_t left = 1 + random() % 200;
    bool killed = false;
    Message message{};
    while (read(ends[0], &message, sizeof message) == sizeof message) {
      if (message.what == Message::kBegin) {
        objects[message.key].bytes = message.bytes;
        objects[message.key].attempted = message.version;
      } else if (message.what == Message::kFree) {
        objects[message.key].freeing = true;
      } else {
        // The child tells in order: all that it had begun was written before.
        std::erase_if(objects, [](const auto& object) { return object.second.freeing; });
        for (auto& [key, object] : objects) object.durable = object.attempted;
        acknowledged++;
      }
      if (--left == 0 && !killed) {
        if (random() % 2) usleep(static_cast<useconds_t>(random() % 3000));
        kill(child, SIGKILL);
        killed = true;
        left = UINT64_MAX;
      }
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended by itself: " << status;
    Result<std::unique_ptr<SsdTier>> tier = SsdTier::open(options);
    ASSERT_TRUE(tier.is_ok()) << tier.status().what();
    const std::string wrong = check(**tier, objects);
    ASSERT_EQ(wrong, "");
  }
  std::filesystem::remove(path);
  EXPECT_GT(acknowledged, kKills / 4) << "hardly a flush was acknowledged before a kill: the test shows little";
  std::printf("%llu kills, %llu acknowledged flushes, %zu objects at the end\n",
              static_cast<unsigned long long>(kKills), static_cast<unsigned long long>(acknowledged), objects.size());
}

}  // namespace
}  // namespace neotier::engine
