// SPDX-License-Identifier: Apache-2.0
// Builds the guest's initramfs: an uncompressed cpio archive (format "newc", Linux
// Documentation/driver-api/early-userspace).
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace neotier::hil {

// Most bytes of files that a guest takes along: it holds them twice while it unpacks them.
constexpr uint64_t kMostFileBytes = 1ull << 30;

// Not thread-safe. Paths in the guest are absolute; missing parent directories are added. Adding the same guest path a
// second time does nothing. All members throw std::runtime_error with one line (what, where, what to do).
class Initramfs {
 public:
  // `limit`: most bytes that it may have.
  explicit Initramfs(uint64_t limit = kMostFileBytes) : limit_(limit) {}

  void add_directory(const std::string& guest_path);
  void add_text(const std::string& guest_path, std::string_view content, uint32_t mode);
  void add_file(const std::filesystem::path& host_path, const std::string& guest_path);
  // A file, or a folder with all that is in it. Symbolic links stay links; what is neither file, folder nor link (a
  // socket, a device) is left out.
  void add_tree(const std::filesystem::path& host_path, const std::string& guest_path);
  void add_symlink(const std::string& guest_path, const std::string& target);
  void add_device(const std::string& guest_path, uint32_t major, uint32_t minor);
  // An executable of the host at its own absolute path, with its interpreter and shared libraries at theirs. Returns
  // the path in the guest.
  std::string add_program(const std::filesystem::path& host_path);
  // What a program named to the kernel, at its own path: the folders and symbolic links on the way to it, and it with
  // its time of modification, if it is a file or a folder. What is not there, cannot be read, or is a device is left
  // out: the program did not read it either. `executed`: with the interpreters and libraries it needs.
  void add_named(const std::filesystem::path& host_path, bool executed);
  // busybox, and the small commands it stands in for under /bin where the guest has no program of that name.
  void add_busybox();
  void write(const std::filesystem::path& file) const;
  uint64_t bytes() const { return archive_.size(); }

 private:
  bool enter(const std::string& guest_path);
  bool holds(const std::string& guest_path) const;
  void add_entry(const std::string& guest_path, uint32_t mode, std::string_view content, uint32_t modified = 0,
                 std::pair<uint32_t, uint32_t> device = {0, 0});
  void require_room(const std::string& guest_path, uint64_t bytes) const;
  void add_libraries(const std::filesystem::path& program, bool required);

  uint64_t limit_;
  std::string archive_;
  std::set<std::string> present_;
  std::set<std::string> directories_;
  std::vector<std::pair<uint64_t, std::string>> large_;  // bytes and guest path of the largest files
  uint32_t inode_ = 1;
};

// PROGRAM as a shell would find it: a path, or a name in PATH. Throws std::runtime_error if there is no such
// executable.
std::filesystem::path find_program(const std::string& program);

// What a version manager's shim (pyenv's, rbenv's and the like: a script that looks for the program that it stands for)
// would run in the current folder; `program` itself where it is none.
std::filesystem::path resolve_shim(const std::filesystem::path& program);

// Programs of this machine that a shell line calls by name: each word where a command may stand, found as a shell
// would. A word that is found nowhere is left out: the guest's shell has its own commands, and says what it misses.
std::vector<std::filesystem::path> shell_programs(const std::string& line);

}  // namespace neotier::hil
