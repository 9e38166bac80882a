// SPDX-License-Identifier: GPL-2.0-or-later
// The truth beside the profiler's estimates: how many 64-byte requests each page of the slow tier got in the region of
// interest, without loss. Not thread-safe.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace neotier::hil {

class ExactCounts {
 public:
  // Counts from zero, for a slow tier of `bytes` at host-physical `base`. Without it nothing is counted.
  void start(uint64_t base, uint64_t bytes) {
    base_ = base;
    pages_.assign(bytes >> 12, {});
  }

  void request(uint64_t offset, bool is_write) {
    if (offset >> 12 >= pages_.size()) return;
    Page& page = pages_[offset >> 12];
    ++(is_write ? page.writes : page.reads);
  }

  // Writes the counts and counts no more. Without start() before it, does nothing.
  bool finish(const std::string& file) {
    const bool good = pages_.empty() || write(file);
    pages_.clear();
    return good;
  }

 private:
  // A line "PFN READS WRITES" in decimal for each page that got any, by PFN. False: the file could not be written, and
  // is not there.
  bool write(const std::string& file) const {
    const std::string part = file + ".part";
    std::FILE* out = std::fopen(part.c_str(), "w");
    if (!out) return false;
    for (size_t i = 0; i < pages_.size(); ++i) {
      if (pages_[i].reads == 0 && pages_[i].writes == 0) continue;
      std::fprintf(out, "%llu %u %u\n", static_cast<unsigned long long>((base_ >> 12) + i), pages_[i].reads,
                   pages_[i].writes);
    }
    const bool good = std::ferror(out) == 0;
    if ((std::fclose(out) == 0 && good) && std::rename(part.c_str(), file.c_str()) == 0) return true;
    std::remove(part.c_str());
    return false;
  }

  struct Page {
    uint32_t reads = 0, writes = 0;
  };
  uint64_t base_ = 0;
  std::vector<Page> pages_;
};

}  // namespace neotier::hil
