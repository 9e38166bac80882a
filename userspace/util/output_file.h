// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// What a command writes: opened before the work, whole at its end, or not there.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace neotier {

// A file that does not exist under its name before commit(). Until then what is there already stays as it is, and
// nothing lies beside it, also when the process is killed (Linux O_TMPFILE; where a file system has none, the next
// OutputFile of the same name removes what a dead one has left). A device or a pipe is written to as it is.
//
// All members throw std::runtime_error with one line, "OPTION: cannot write FILE: reason"; after that, and without
// commit(), the former file is intact. Not thread-safe.
class OutputFile {
 public:
  // Checks all that can be known now: the folder, permissions, a folder of that name, a full disk. `option` is for
  // messages and may be empty. An empty `file` is none: write() and commit() do nothing then. "-" is standard output;
  // what the process prints there from now on goes to standard error, so that the two do not mix.
  OutputFile(std::string_view option, const std::filesystem::path& file);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  explicit operator bool() const { return fd_ >= 0; }
  // Whether it is a file on a disk, not a device or a pipe.
  bool regular() const { return regular_; }

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // On the disk and under its name when this returns. Nothing can be written after it.
  void commit();
  // All of the content at once.
  void finish(std::string_view text) {
    write(text);
    commit();
  }
  // In place of write(): what another file holds. It is moved where both lie on one file system, and is gone then.
  void take(const std::filesystem::path& from);

 private:
  [[noreturn]] void fail(const std::string& why);
  void open_unnamed();
  void close_and_remove();

  std::string option_;
  std::filesystem::path file_;   // as it was given
  std::filesystem::path place_;  // of a regular file: without symbolic links
  std::filesystem::path part_;   // beside place_, while it has a name
  int fd_ = -1;
  bool regular_ = false;
};

// Writes a file as a whole. Throws std::runtime_error with one line.
void write_file(const std::filesystem::path& file, std::string_view content);

}  // namespace neotier
