// SPDX-License-Identifier: Apache-2.0
#include "hil/initramfs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "util/process.h"

namespace fs = std::filesystem;

namespace neotier::hil {

namespace {

std::string read_whole(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  if (!in || !(content << in.rdbuf())) throw std::runtime_error(fmt::format("cannot read {}", path.string()));
  return content.str();
}

}  // namespace

bool Initramfs::enter(const std::string& guest_path) {
  if (!present_.insert(guest_path).second) return false;
  const std::string parent = fs::path(guest_path).parent_path();
  if (parent != "/" && !parent.empty()) add_directory(parent);
  return true;
}

void Initramfs::add_entry(const std::string& guest_path, uint32_t mode, std::string_view content, uint32_t major,
                          uint32_t minor) {
  const std::string name = guest_path.substr(1);
  archive_ += fmt::format("070701{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}",
                          inode_++, mode, 0, 0, 1, 0, content.size(), 0, 0, major, minor, name.size() + 1, 0);
  archive_ += name;
  archive_.append(1 + (4 - (archive_.size() + 1) % 4) % 4, '\0');
  archive_ += content;
  archive_.append((4 - archive_.size() % 4) % 4, '\0');
}

void Initramfs::add_directory(const std::string& guest_path) {
  if (enter(guest_path)) add_entry(guest_path, S_IFDIR | 0755, {});
}

void Initramfs::add_text(const std::string& guest_path, std::string_view content, uint32_t mode) {
  if (enter(guest_path)) add_entry(guest_path, S_IFREG | mode, content);
}

void Initramfs::add_file(const fs::path& host_path, const std::string& guest_path) {
  if (present_.contains(guest_path)) return;
  struct stat st;
  if (stat(host_path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) {
    throw std::runtime_error(fmt::format("no such file: {}", host_path.string()));
  }
  add_text(guest_path, read_whole(host_path), st.st_mode & 0777);
}

void Initramfs::add_tree(const fs::path& host_path, const std::string& guest_path) {
  if (!fs::is_directory(host_path)) return add_file(host_path, guest_path);
  add_directory(guest_path);
  // Sorted, so that the same folder makes the same archive everywhere.
  std::set<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(host_path)) entries.insert(entry.path());
  for (const fs::path& entry : entries) {
    const std::string inside = (fs::path(guest_path) / entry.filename()).string();
    if (fs::is_symlink(entry)) {
      add_symlink(inside, fs::read_symlink(entry).string());
    } else {
      add_tree(entry, inside);
    }
  }
}

void Initramfs::add_symlink(const std::string& guest_path, const std::string& target) {
  if (enter(guest_path)) add_entry(guest_path, S_IFLNK | 0777, target);
}

void Initramfs::add_device(const std::string& guest_path, uint32_t major, uint32_t minor) {
  if (enter(guest_path)) add_entry(guest_path, S_IFCHR | 0600, {}, major, minor);
}

void Initramfs::add_libraries(const fs::path& program) {
  // The dynamic loader knows best what it would load; a static program makes it fail, which is no error here.
  const CommandResult listed = run_command({"/lib64/ld-linux-x86-64.so.2", "--list", program.string()});
  constexpr std::string_view kMissing = "error while loading shared libraries: ";
  if (const size_t at = listed.output.find(kMissing); at != std::string::npos && listed.exit_code != 0) {
    const size_t name = at + kMissing.size();
    const std::string_view rest = std::string_view(listed.output).substr(name);
    if (rest.find("cannot open shared object file") != std::string_view::npos) {
      throw std::runtime_error(fmt::format("{} needs a shared library that is missing here: {}", program.string(),
                                           rest.substr(0, rest.find(':'))));
    }
  }
  if (listed.exit_code != 0) return;
  std::istringstream lines(listed.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word.front() == '/') {
        add_file(word, word);
        break;
      }
    }
  }
  // A program asks for its loader by this path.
  add_file("/lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2");
}

std::string Initramfs::add_program(const fs::path& host_path) {
  const fs::path path = fs::absolute(host_path).lexically_normal();
  std::string guest_path = path.string();
  if (present_.contains(guest_path)) return guest_path;
  add_file(path, guest_path);
  const std::string content = read_whole(path);
  if (content.starts_with("#!")) {
    std::istringstream line(content.substr(2, content.find('\n') - 2));
    std::string interpreter;
    line >> interpreter;
    if (!interpreter.empty()) add_program(find_program(interpreter));
  } else {
    add_libraries(path);
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
  Initramfs trailer = *this;
  trailer.add_entry("/TRAILER!!!", 0, {});
  std::ofstream out(file, std::ios::binary);
  out << trailer.archive_;
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

}  // namespace neotier::hil
