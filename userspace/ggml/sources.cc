// SPDX-License-Identifier: Apache-2.0
#include "ggml/sources.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

namespace neotier::ggml {

namespace fs = std::filesystem;

namespace {

// Regular files that the process has open or mapped.
std::set<std::string> open_files() {
  std::set<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", error)) {
    const fs::path target = fs::read_symlink(entry.path(), error);
    if (!error && target.is_absolute()) paths.insert(target.string());
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const size_t at = line.find('/'); at != std::string::npos) paths.insert(line.substr(at));
  return paths;
}

bool is_gguf(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::memcmp(magic, "GGUF", sizeof magic) == 0;
}

}  // namespace

void Sources::look() {
  for (const std::string& path : open_files()) {
    if (std::find(known_.begin(), known_.end(), path) != known_.end()) continue;
    known_.push_back(path);
    if (!is_gguf(path)) continue;
    auto model = model::open_model(path);
    if (!model) continue;
    // The parts of a split model name one another.
    for (const model::ModelFile& file : model->files) known_.push_back(file.path);
    models_.push_back(std::move(*model));
  }
}

bool Sources::same(uint32_t file, uint64_t offset, std::span<const std::byte> part) {
  constexpr size_t kSample = 4096;
  const int fd = open(files_[file].c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool equal = true;
  const size_t length = std::min(kSample, part.size());
  std::byte sample[kSample];
  for (const size_t at : {size_t{0}, part.size() - length})
    equal = equal && pread(fd, sample, length, static_cast<off_t>(offset + at)) == static_cast<ssize_t>(length) &&
            std::memcmp(sample, part.data() + at, length) == 0;
  close(fd);
  return equal;
}

std::optional<Sources::Found> Sources::find(const std::string& tensor, uint64_t bytes, uint64_t at,
                                            std::span<const std::byte> part) {
  for (const bool again : {false, true}) {
    if (again) look();
    for (const model::Model& model : models_) {
      const model::Tensor* const found = model.find(tensor);
      if (!found || found->bytes != bytes) continue;
      const std::string& path = model.files[found->file].path;
      auto known = std::find(files_.begin(), files_.end(), path);
      if (known == files_.end()) known = files_.insert(known, path);
      const auto file = static_cast<uint32_t>(known - files_.begin());
      if (!same(file, found->offset + at, part)) continue;
      experts_used_ = model.experts_used;
      return Found{file, found->offset};
    }
  }
  return std::nullopt;
}

}  // namespace neotier::ggml
