// SPDX-License-Identifier: Apache-2.0
#include "hil/initramfs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "util/process.h"

namespace fs = std::filesystem;

namespace neotier::hil {

namespace {

constexpr const char* kLoader = "/lib64/ld-linux-x86-64.so.2";

// Throws std::system_error.
std::string read_whole(const fs::path& path, uint64_t size_hint) {
  const auto fail = [&] { throw std::system_error(errno, std::generic_category(), path.string()); };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail();
  std::string content;
  content.reserve(size_hint);
  char piece[65536];
  ssize_t n;
  while ((n = read(fd, piece, sizeof piece)) > 0) content.append(piece, static_cast<size_t>(n));
  const int error = errno;
  close(fd);
  errno = error;
  if (n < 0) fail();
  return content;
}

// The words of a script's first line after "#!", or nothing.
std::vector<std::string> shebang(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  char start[512] = {};
  in.read(start, sizeof start - 1);
  const std::string_view text(start, static_cast<size_t>(in.gcount()));
  if (!text.starts_with("#!")) return {};
  std::istringstream line{std::string(text.substr(2, text.find('\n') - 2))};
  return {std::istream_iterator<std::string>(line), {}};
}

}  // namespace

bool Initramfs::enter(const std::string& guest_path) {
  if (!present_.insert(guest_path).second) return false;
  const std::string parent = fs::path(guest_path).parent_path();
  if (parent != "/" && !parent.empty()) add_directory(parent);
  return true;
}

void Initramfs::require_room(const std::string& guest_path, uint64_t bytes) const {
  if (archive_.size() + bytes <= limit_) return;
  auto largest = large_;
  largest.emplace_back(bytes, guest_path);
  std::sort(largest.rbegin(), largest.rend());
  std::string names;
  for (size_t i = 0; i < std::min<size_t>(3, largest.size()); ++i) {
    names += fmt::format("{}{} ({} MiB)", i == 0 ? "" : ", ", largest[i].second, largest[i].first >> 20);
  }
  throw std::runtime_error(fmt::format(
      "the files that go along are too large: the guest holds them in memory, at most {} MiB; the largest: {}; "
      "use a smaller input",
      limit_ >> 20, names));
}

void Initramfs::add_entry(const std::string& guest_path, uint32_t mode, std::string_view content, uint32_t modified,
                          std::pair<uint32_t, uint32_t> device) {
  require_room(guest_path, content.size());
  if (content.size() >= 1 << 20) large_.emplace_back(content.size(), guest_path);
  const std::string name = guest_path.substr(1);
  archive_ +=
      fmt::format("070701{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}", inode_++,
                  mode, 0, 0, 1, modified, content.size(), 0, 0, device.first, device.second, name.size() + 1, 0);
  archive_ += name;
  archive_.append(1 + (4 - (archive_.size() + 1) % 4) % 4, '\0');
  archive_ += content;
  archive_.append((4 - archive_.size() % 4) % 4, '\0');
}

// Whether the guest would find something at the path, links on the way followed as on the host.
bool Initramfs::holds(const std::string& guest_path) const {
  if (present_.contains(guest_path)) return true;
  std::error_code error;
  const fs::path real = fs::canonical(guest_path, error);
  return !error && present_.contains(real.string()) && present_.contains(fs::path(guest_path).parent_path().string()) &&
         !directories_.contains(fs::path(guest_path).parent_path().string());
}

void Initramfs::add_directory(const std::string& guest_path) {
  if (!enter(guest_path)) return;
  directories_.insert(guest_path);
  add_entry(guest_path, S_IFDIR | 0755, {});
}

void Initramfs::add_text(const std::string& guest_path, std::string_view content, uint32_t mode) {
  if (enter(guest_path)) add_entry(guest_path, S_IFREG | mode, content);
}

void Initramfs::add_file(const fs::path& host_path, const std::string& guest_path) {
  if (present_.contains(guest_path)) return;
  struct stat st;
  if (stat(host_path.c_str(), &st) != 0) throw std::runtime_error(fmt::format("no such file: {}", host_path.string()));
  if (!S_ISREG(st.st_mode)) {
    throw std::runtime_error(
        fmt::format("{} is neither a file nor a folder, so it cannot go along", host_path.string()));
  }
  require_room(guest_path, static_cast<uint64_t>(st.st_size));
  try {
    add_text(guest_path, read_whole(host_path, static_cast<uint64_t>(st.st_size)), st.st_mode & 0777);
  } catch (const std::system_error& error) {
    throw std::runtime_error(fmt::format("cannot read {}: {}", host_path.string(), error.code().message()));
  }
}

void Initramfs::add_tree(const fs::path& host_path, const std::string& guest_path) {
  std::error_code error;
  if (!fs::is_directory(host_path, error)) return add_file(host_path, guest_path);
  add_directory(guest_path);
  // Sorted, so that the same folder makes the same archive everywhere.
  std::set<fs::path> entries;
  fs::directory_iterator folder(host_path, error);
  if (error) throw std::runtime_error(fmt::format("cannot read {}: {}", host_path.string(), error.message()));
  for (const auto& entry : folder) entries.insert(entry.path());
  for (const fs::path& entry : entries) {
    const std::string inside = (fs::path(guest_path) / entry.filename()).string();
    const fs::file_status status = fs::symlink_status(entry, error);
    if (fs::is_symlink(status)) {
      add_symlink(inside, fs::read_symlink(entry).string());
    } else if (fs::is_regular_file(status) || fs::is_directory(status)) {
      add_tree(entry, inside);
    }
  }
}

void Initramfs::add_named(const fs::path& host_path, bool executed) {
  constexpr int kMostLinks = 40;  // as the kernel's
  std::deque<std::string> left;
  const auto push = [&left](const fs::path& path) {
    std::vector<std::string> parts;
    for (const fs::path& part : path) {
      if (part != "/" && part != "." && !part.empty()) parts.push_back(part);
    }
    left.insert(left.begin(), parts.begin(), parts.end());
  };
  push(host_path);
  fs::path at = "/";
  int links = 0;
  while (!left.empty()) {
    const std::string part = left.front();
    left.pop_front();
    if (part == "..") {
      at = at.parent_path();
      continue;
    }
    const fs::path next = at / part;
    if (next == "/proc" || next == "/sys" || next == "/dev") return;  // the guest has its own
    struct stat st;
    if (lstat(next.c_str(), &st) != 0) return;
    const bool is_directory = directories_.contains(next.string());
    if (S_ISLNK(st.st_mode) && !is_directory) {
      std::error_code error;
      const fs::path target = fs::read_symlink(next, error);
      if (error || ++links > kMostLinks) return;
      if (!present_.contains(next.string())) add_symlink(next.string(), target.string());
      if (target.is_absolute()) at = "/";
      push(target);
    } else if (S_ISDIR(st.st_mode) || is_directory) {
      add_directory(next.string());
      at = next;
    } else {
      if (!S_ISREG(st.st_mode) || !left.empty()) return;
      if (present_.contains(next.string())) return;
      require_room(next.string(), static_cast<uint64_t>(st.st_size));
      std::string content;
      try {
        content = read_whole(next, static_cast<uint64_t>(st.st_size));
      } catch (const std::system_error&) {
        return;
      }
      // Python takes a compiled file for stale unless its source has the time that is written in it.
      if (enter(next.string())) {
        add_entry(next.string(), S_IFREG | (st.st_mode & 0777), content, static_cast<uint32_t>(st.st_mtime));
      }
      if (!executed) return;
      if (const std::vector<std::string> words = shebang(next); !words.empty()) {
        add_named(words.front(), true);
      } else {
        add_libraries(next, false);
      }
    }
  }
}

void Initramfs::add_symlink(const std::string& guest_path, const std::string& target) {
  if (enter(guest_path)) add_entry(guest_path, S_IFLNK | 0777, target);
}

void Initramfs::add_device(const std::string& guest_path, uint32_t major, uint32_t minor) {
  if (enter(guest_path)) add_entry(guest_path, S_IFCHR | 0600, {}, 0, {major, minor});
}

void Initramfs::add_libraries(const fs::path& program, bool required) {
  // The dynamic loader knows best what it would load; a static program makes it fail, which is no error here.
  const CommandResult listed = run_command({kLoader, "--list", program.string()});
  constexpr std::string_view kMissing = "error while loading shared libraries: ";
  if (const size_t at = listed.output.find(kMissing); at != std::string::npos && listed.exit_code != 0 && required) {
    const size_t name = at + kMissing.size();
    const std::string_view rest = std::string_view(listed.output).substr(name);
    if (rest.find("cannot open shared object file") != std::string_view::npos) {
      throw std::runtime_error(fmt::format(
          "{} needs a shared library that is missing here: {}; install it, or name its folder in LD_LIBRARY_PATH",
          program.string(), rest.substr(0, rest.find(':'))));
    }
  }
  if (listed.exit_code != 0) return;
  std::istringstream lines(listed.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word.front() == '/') {
        required ? add_file(word, word) : add_named(word, false);
        break;
      }
    }
  }
  // A program asks for its loader by this path.
  required ? add_file(kLoader, kLoader) : add_named(kLoader, false);
}

std::string Initramfs::add_program(const fs::path& host_path) {
  const fs::path path = fs::absolute(host_path).lexically_normal();
  std::string guest_path = path.string();
  if (holds(guest_path)) return guest_path;
  add_file(path, guest_path);
  const std::vector<std::string> words = shebang(path);
  if (words.empty()) {
    add_libraries(path, true);
    return guest_path;
  }
  add_program(find_program(words.front()));
  if (fs::path(words.front()).filename() == "env") {
    for (size_t i = 1; i < words.size(); ++i) {
      if (words[i].starts_with('-') || words[i].find('=') != std::string::npos) continue;
      add_program(resolve_shim(find_program(words[i])));
      break;
    }
  }
  return guest_path;
}

void Initramfs::add_busybox() {
  const std::string busybox = add_program(find_program("busybox"));
  std::istringstream names(run_command({busybox, "--list"}).output);
  for (std::string name; names >> name;) {
    bool there = false;
    for (const char* directory : {"/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/"}) {
      there = there || present_.contains(directory + name);
    }
    if (!there) add_symlink("/bin/" + name, busybox);
  }
}

void Initramfs::write(const fs::path& file) const {
  Initramfs trailer;
  trailer.add_entry("/TRAILER!!!", 0, {});
  std::ofstream out(file, std::ios::binary);
  out << archive_ << trailer.archive_;
  if (!out.flush()) throw std::runtime_error(fmt::format("cannot write {}: is the disk full?", file.string()));
}

namespace {

std::optional<fs::path> look_up(const std::string& program) {
  const auto usable = [](const fs::path& path) { return fs::is_regular_file(path) && access(path.c_str(), X_OK) == 0; };
  if (program.find('/') != std::string::npos) {
    if (usable(program)) return program;
  } else if (const char* path = std::getenv("PATH")) {
    std::istringstream directories(path);
    for (std::string directory; std::getline(directories, directory, ':');) {
      if (usable(fs::path(directory) / program)) return fs::path(directory) / program;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<fs::path> shell_programs(const std::string& line) {
  static constexpr std::string_view kBefore[] = {"do", "then", "else", "elif", "if",   "while", "until",
                                                 "!",  "exec", "time", "env",  "nice", "nohup"};
  std::vector<fs::path> found;
  std::string word;
  bool command = true;  // the next word is one
  char quote = 0;
  const auto end_word = [&] {
    if (word.empty()) return;
    const bool assignment = word.find('=') != std::string::npos;
    const bool keyword = std::find(std::begin(kBefore), std::end(kBefore), word) != std::end(kBefore);
    if (command && !assignment) {
      if (const auto path = look_up(word); path && std::find(found.begin(), found.end(), *path) == found.end()) {
        found.push_back(*path);
      }
      command = keyword;
    }
    word.clear();
  };
  for (const char c : line) {
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (std::string_view(";|&(){}`\n").find(c) != std::string_view::npos) {
      end_word();
      command = true;
    } else if (c == ' ' || c == '\t') {
      end_word();
    } else if (c == '<' || c == '>') {
      end_word();
      command = false;
    } else {
      word += c;
    }
  }
  end_word();
  return found;
}

fs::path find_program(const std::string& program) {
  if (const auto path = look_up(program)) return *path;
  throw std::runtime_error(
      fmt::format("no such program: '{}' is no executable file and not in PATH; name one after '--'", program));
}

fs::path resolve_shim(const fs::path& program) {
  if (program.parent_path().filename() != "shims" || shebang(program).empty()) return program;
  const fs::path root = program.parent_path().parent_path();
  for (const char* manager : {"pyenv", "rbenv", "nodenv", "plenv", "goenv", "jenv"}) {
    std::optional<fs::path> tool = look_up((root / "bin" / manager).string());
    if (!tool) tool = look_up((root / "libexec" / manager).string());
    if (!tool) continue;
    const CommandResult found = run_command({tool->string(), "which", program.filename().string()});
    const std::string path = found.output.substr(0, found.output.find('\n'));
    if (found.exit_code == 0 && look_up(path)) return path;
  }
  return program;
}

}  // namespace neotier::hil
