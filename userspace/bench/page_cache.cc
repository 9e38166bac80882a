// SPDX-License-Identifier: Apache-2.0
#include "bench/page_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <vector>

namespace neotier::experts {

namespace {

bool write_text(const std::string& file, const std::string& text) {
  const int fd = open(file.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool good = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return good;
}

// Where this process's cgroup is mounted, and the file that sets its limit.
struct Group {
  std::string folder, limit;
};

std::vector<Group> own_groups() {
  std::vector<Group> groups;
  std::ifstream in("/proc/self/cgroup");  // number:controllers:path
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.find("memory") != std::string::npos)
      groups.push_back({"/sys/fs/cgroup/memory" + path, "memory.limit_in_bytes"});
    else if (controllers.empty())
      groups.push_back({"/sys/fs/cgroup" + path, "memory.max"});
  }
  return groups;
}

}  // namespace

std::unique_ptr<PageCacheLimit> PageCacheLimit::make(uint64_t bytes, std::string& why) {
  for (const Group& group : own_groups()) {
    const std::string own = group.folder + "/neotier-" + std::to_string(getpid());
    if (mkdir(own.c_str(), 0755) != 0) continue;
    std::unique_ptr<PageCacheLimit> limit(new PageCacheLimit(group.folder, own));
    if (write_text(own + "/" + group.limit, std::to_string(bytes)) &&
        write_text(own + "/cgroup.procs", std::to_string(getpid())))
      return limit;
  }
  why = "no memory cgroup can be made here";
  return nullptr;
}

PageCacheLimit::~PageCacheLimit() {
  // Where that fails the process stays in a group that it was in anyway, and the folder goes when it ends.
  write_text(parent_ + "/cgroup.procs", std::to_string(getpid()));
  rmdir(own_.c_str());
}

void drop_page_cache(const std::string& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

}  // namespace neotier::experts
