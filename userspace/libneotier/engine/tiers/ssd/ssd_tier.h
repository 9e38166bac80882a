// SPDX-License-Identifier: Apache-2.0
// The SSD tier: a log-structured file, written and read past the page cache. docs/engine.md has the format and the
// argument why it recovers.
//
// One thread does all I/O; calls from outside leave their wishes with it. A read never waits for room, for the cleaner
// or for a commit. Writes go to the log's head, never over what is wanted; a write of more than window_bytes() is done
// in parts of that size, each of which a crash or a failure leaves as a whole or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/io/file.h"
#include "engine/tier.h"

namespace neotier::engine {

struct SsdOptions {
  std::string name = "ssd";
  std::string path;
  bool create = true;        // where there is no such file; FILE.part until it is complete
  uint64_t file_bytes = 0;   // of a new file, 16 MiB to 8 TiB; of an existing one 0 or its own
  uint64_t max_extents = 0;  // of a new file; 0: one for each 16 KiB. Each costs about 200 bytes of the file
  size_t queue_depth = 256;  // transfers taken and not completed
  // Host memory that most transfers will use: registered with the kernel, in parts of up to 1 GiB, where it permits.
  std::vector<std::span<std::byte>> host_memory;
  std::shared_ptr<FileSystem> file_system;  // NULL: the machine's own
};

// Counted since the tier was opened.
struct SsdStats {
  std::string method;          // of I/O
  uint64_t bytes_read = 0;     // from the file, for transfers
  uint64_t bytes_written = 0;  // to the file, for transfers
  uint64_t bytes_cleaned = 0;  // moved by the cleaner
  uint64_t commits = 0, checkpoints = 0;
  uint64_t corrupt_chunks = 0;  // found by reads
  uint64_t errors = 0;          // accesses of the medium that failed
};

class SsdTier : public Tier {
 public:
  // kInvalid: bad options, or a file that is not an SSD tier's, of another version, cut short or damaged. kBusy:
  // another process has it. kNotFound, kFull, kIo, kCorrupt, kUnsupported.
  static Result<std::unique_ptr<SsdTier>> open(SsdOptions options);
  // Makes all that completed durable, if the medium lets it.
  ~SsdTier() override;

  const TierInfo& info() const override;
  TierUsage usage() const override;
  Result<Extent> allocate(const Key& key, uint64_t bytes) override;
  void free(Extent extent) override;
  void describe(Extent extent, Note note) override;
  std::byte* map(Extent) override { return nullptr; }
  size_t submit(std::span<Transfer* const> transfers) override;
  void cancel(Transfer& transfer) override;
  size_t poll() override { return 0; }
  bool in_service() const override;
  Status come_back() override;
  Result<std::vector<Recovered>> recover() override;

  SsdStats stats() const;
  uint64_t window_bytes() const;
  // Where in the file byte `offset` of an extent lies; nothing where it was never written. For tests and repair.
  std::optional<uint64_t> place_of(Extent extent, uint64_t offset) const;

 private:
  class Store;
  explicit SsdTier(std::unique_ptr<Store> store);
  std::unique_ptr<Store> store_;
};

}  // namespace neotier::engine
