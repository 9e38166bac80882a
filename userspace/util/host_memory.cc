// SPDX-License-Identifier: Apache-2.0
#include "util/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace fs = std::filesystem;

namespace neotier {

namespace {

// Of each cgroup that this process is in, and of their ancestors: the limit, and what is used. Bytes.
template <typename Each>
void for_each_group(const Each& each) {
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    const bool v2 = line.starts_with("0::/");
    const size_t v1 = line.find(":memory:/");
    if (!v2 && v1 == std::string::npos) continue;
    const fs::path root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    // Every ancestor's limit holds too.
    for (fs::path group = line.substr(v2 ? 3 : v1 + 8);; group = group.parent_path()) {
      const fs::path folder = root / group.relative_path();
      uint64_t most = 0, used = 0;
      std::ifstream(folder / (v2 ? "memory.current" : "memory.usage_in_bytes")) >> used;
      if (std::ifstream(folder / (v2 ? "memory.max" : "memory.limit_in_bytes")) >> most) each(most, used);
      if (!group.has_relative_path()) break;
    }
  }
}

}  // namespace

uint64_t host_memory_bytes() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for_each_group([&](uint64_t most, uint64_t) { bytes = std::min(bytes, most); });
  return bytes;
}

uint64_t free_memory_bytes() {
  uint64_t bytes = host_memory_bytes();
  std::ifstream machine("/proc/meminfo");
  for (std::string name, unit; machine >> name;) {
    uint64_t kib = 0;
    if (!(machine >> kib) || !std::getline(machine, unit)) break;
    if (name == "MemAvailable:") bytes = std::min(bytes, kib << 10);
  }
  for_each_group([&](uint64_t most, uint64_t used) { bytes = std::min(bytes, most - std::min(most, used)); });
  return bytes;
}

}  // namespace neotier
