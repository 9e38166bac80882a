// SPDX-License-Identifier: Apache-2.0
// A file system in memory that behaves as badly as a real one may: what was not synced when the power fails is kept,
// dropped or torn, in any order; accesses fail, come short, or never end. Accesses that are under way together are done
// in random order, a sync among them covers only what was done before it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "engine/io/file.h"

namespace neotier::engine::ssd {

// Thread safety: any thread.
class FakeDisk : public FileSystem {
 public:
  explicit FakeDisk(uint64_t seed);
  ~FakeDisk() override;

  bool exists(const std::string& path) override;
  Result<std::unique_ptr<File>> open(const std::string& path) override;
  Result<std::unique_ptr<File>> create(const std::string& path, uint64_t bytes) override;
  Result<std::unique_ptr<File>> open_to_read(std::span<const std::string> paths) override;
  Status rename(const std::string& from, const std::string& to) override;

  // Accesses that start while held end after release(); with `reads` false, writes and syncs alone are held.
  void hold(bool reads = true);
  void release();
  // The next `count` accesses of `op` end with -error and do nothing, or do only a part.
  void fail(IoOp op, unsigned count, int error);
  void shorten(IoOp op, unsigned count);
  // From now on each read fails with -error by this chance, 0 .. 1.
  void fail_reads(double chance, int error);
  // All accesses fail with ENODEV; what was written stays. Ends a hold.
  void lose();
  void mend();
  // The power fails: now, or at the `accesses`th access from now. Then everything fails until power_on(), which decides
  // what of the unsynced is found.
  void crash();
  void crash_after(uint64_t accesses);
  void power_on();
  bool powered();

  // A file of these bytes, durable.
  void put(const std::string& path, std::vector<std::byte> bytes);
  // Changes a byte where it lies.
  void corrupt(const std::string& path, uint64_t offset);
  void truncate(const std::string& path, uint64_t bytes);
  uint64_t syncs();

 private:
  class OpenFile;
  struct Write {
    uint64_t offset;
    std::vector<std::byte> bytes;
  };
  struct Image {
    std::vector<std::byte> now, durable;
    std::vector<Write> unsynced;
    bool locked = false;
  };
  void execute(Image& image, Io& io);
  void power_off();
  void note_write(Image& image, const Io& io, uint64_t bytes);

  std::mutex mutex_;  // guards all below, and the open files' queues
  std::mt19937_64 random_;
  std::map<std::string, std::shared_ptr<Image>> images_;
  std::vector<OpenFile*> open_;
  bool held_ = false, reads_held_ = false, lost_ = false, powered_ = true;
  uint64_t crash_in_ = 0, syncs_ = 0;  // 0: not planned
  unsigned failures_[3] = {}, shortened_[3] = {};
  int error_ = 0;
  double read_failures_ = 0;
};

}  // namespace neotier::engine::ssd
