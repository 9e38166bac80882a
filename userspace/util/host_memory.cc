// SPDX-License-Identifier: Apache-2.0
#include "util/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace fs = std::filesystem;

namespace neotier {

uint64_t host_memory_bytes() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    if (!line.starts_with("0::/")) continue;
    // Every ancestor's limit holds too.
    for (fs::path group = line.substr(3);; group = group.parent_path()) {
      uint64_t most = 0;
      std::ifstream limit("/sys/fs/cgroup" / group.relative_path() / "memory.max");
      if (limit >> most) bytes = std::min(bytes, most);
      if (!group.has_relative_path()) break;
    }
  }
  return bytes;
}

}  // namespace neotier
