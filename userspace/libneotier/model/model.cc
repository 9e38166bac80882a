// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

namespace neotier::model {

namespace fs = std::filesystem;

namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";

Status invalid(const std::string& what) { return {Code::kInvalid, what}; }

// PREFIX-00001-of-00003.gguf
struct SplitName {
  std::string prefix;
  uint32_t no = 0, count = 0;  // no from 0
  std::string part(uint32_t i) const { return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, i + 1, count); }
};

std::optional<SplitName> split_name(const std::string& path) {
  constexpr size_t kTail = sizeof("-00001-of-00003.gguf") - 1;
  if (path.size() <= kTail) return std::nullopt;
  const std::string tail = path.substr(path.size() - kTail);
  unsigned no = 0, count = 0;
  int used = 0;
  if (std::sscanf(tail.c_str(), "-%5u-of-%5u.gguf%n", &no, &count, &used) != 2 || used != kTail || no == 0 ||
      no > count)
    return std::nullopt;
  return SplitName{path.substr(0, path.size() - kTail), no - 1, count};
}

// Takes a further file's tensors in.
Status append(Model& model, Model&& part) {
  const uint32_t file = static_cast<uint32_t>(model.files.size());
  if (model.tensors.size() + part.tensors.size() > kMaxTensors)
    return invalid(fmt::format("{}: more than {} tensors in the model", part.files[0].path, kMaxTensors));
  model.files.push_back(std::move(part.files[0]));
  for (Tensor& t : part.tensors) {
    t.file = file;
    model.tensors.push_back(std::move(t));
  }
  return {};
}

Result<Part> read_part(const std::string& path, Result<Part> (*read)(const Source&, const std::string&)) {
  Result<std::unique_ptr<Source>> source = open_file(path);
  if (!source) return source.status();
  return read(**source, path);
}

Result<Model> open_gguf(const std::string& path) {
  Result<Part> first = read_part(path, read_gguf);
  if (!first) return first.status();
  if (first->split_count <= 1) return std::move(first->model);
  const auto name = split_name(path);
  if (!name || name->count != first->split_count || name->no != first->split_no)
    return invalid(fmt::format("{}: says it is part {} of {}, its name does not; name it …-{:05}-of-{:05}.gguf", path,
                               first->split_no + 1, first->split_count, first->split_no + 1, first->split_count));
  if (name->count > kMaxFiles) return invalid(fmt::format("{}: more than {} parts", path, kMaxFiles));
  Model model;
  for (uint32_t i = 0; i < name->count; i++) {
    Result<Part> part = read_part(name->part(i), read_gguf);
    if (!part) return part.status();
    if (part->split_no != i || part->split_count != name->count)
      return invalid(fmt::format("{}: says it is part {} of {}; it belongs to another model", name->part(i),
                                 part->split_no + 1, part->split_count));
    if (i == 0) {  // which alone has the metadata of the whole
      model = std::move(part->model);
    } else if (Status status = append(model, std::move(part->model)); !status) {
      return status;
    }
  }
  if (Status status = model.index(); !status) return status;
  return model;
}

Result<Model> open_sharded(const fs::path& path) {
  Result<std::unique_ptr<Source>> source = open_file(path.string());
  if (!source) return source.status();
  Result<ShardIndex> shards = read_shard_index(**source, path.string());
  if (!shards) return shards.status();
  Model model;
  model.format = Format::kSafetensors;
  // Tensors that the index does not name are not the model's.
  std::sort(shards->tensors.begin(), shards->tensors.end());
  for (size_t i = 1; i < shards->tensors.size(); i++)
    if (shards->tensors[i].first == shards->tensors[i - 1].first)
      return invalid(fmt::format("{}: tensor {} is named twice", path.string(), shown(shards->tensors[i].first)));
  size_t found = 0;
  for (uint32_t f = 0; f < shards->files.size(); f++) {
    Result<Part> part = read_part((path.parent_path() / shards->files[f]).string(), read_safetensors);
    if (!part) return part.status();
    std::erase_if(part->model.tensors, [&](const Tensor& t) {
      return !std::binary_search(shards->tensors.begin(), shards->tensors.end(), std::pair(t.name, f));
    });
    found += part->model.tensors.size();
    if (Status status = append(model, std::move(part->model)); !status) return status;
  }
  if (Status status = model.index(); !status) return status;
  if (found != shards->tensors.size())
    for (const auto& [tensor, shard] : shards->tensors)
      if (!model.find(tensor))
        return Status(Code::kNotFound, fmt::format("{}: tensor {} is not in {}; fetch that file again", path.string(),
                                                   shown(tensor), shards->files[shard]));
  return model;
}

// The file in a folder that open_model() would be given.
Result<std::string> choose(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kIndexName, error)) return (folder / kIndexName).string();
  std::vector<std::string> found;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string path = i->path().string();
    if (!path.ends_with(".safetensors") && !path.ends_with(".gguf")) continue;
    if (const auto split = split_name(path); split && split->no > 0) continue;
    found.push_back(path);
    if (found.size() > 1) break;
  }
  if (error) return Status(Code::kIo, fmt::format("cannot read {}: {}", folder.string(), error.message()));
  if (found.empty())
    return Status(Code::kNotFound,
                  fmt::format("{}: no .gguf, no .safetensors and no {} in it", folder.string(), kIndexName));
  if (found.size() > 1)
    return invalid(
        fmt::format("{}: more than one model file and no {}; name one of them", folder.string(), kIndexName));
  return found[0];
}

}  // namespace

const char* to_string(Format format) { return format == Format::kGguf ? "GGUF" : "safetensors"; }

std::string tensor_bytes(const Dtype& dtype, const std::vector<uint64_t>& shape, uint64_t* bytes) {
  uint64_t elements = 1, bits = 0;
  for (const uint64_t n : shape)
    if (__builtin_mul_overflow(elements, n, &elements)) return "the product of its dimensions is past 2^64";
  const uint64_t inner = shape.empty() ? 1 : shape.back();
  if (inner % dtype.block_elements != 0)
    return fmt::format("rows of {} elements are no multiple of the {} of a {} block", inner, dtype.block_elements,
                       dtype.name);
  if (__builtin_mul_overflow(elements / dtype.block_elements, uint64_t{dtype.block_bits}, &bits))
    return "its size is past 2^64 bits";
  if (bits % 8 != 0) return fmt::format("{} bits of {} are no whole bytes", bits, dtype.name);
  *bytes = bits / 8;
  return {};
}

const Tensor* Model::find(std::string_view tensor) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), tensor,
                                   [&](uint32_t i, std::string_view wanted) { return tensors[i].name < wanted; });
  return at != by_name_.end() && tensors[*at].name == tensor ? &tensors[*at] : nullptr;
}

Status Model::index() {
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.file, a.offset, a.bytes, a.name) < std::tie(b.file, b.offset, b.bytes, b.name);
  });
  by_name_.resize(tensors.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  for (size_t i = 1; i < tensors.size(); i++) {
    const Tensor &a = tensors[by_name_[i - 1]], &b = tensors[by_name_[i]];
    if (a.name == b.name)
      return malformed(files[b.file].path, b.offset, fmt::format("tensor {} for the second time", shown(b.name)));
    const Tensor &before = tensors[i - 1], &after = tensors[i];
    if (before.file == after.file && before.offset + before.bytes > after.offset)
      return malformed(files[after.file].path, after.offset,
                       fmt::format("tensor {} overlaps {}", shown(after.name), shown(before.name)));
  }
  return {};
}

Result<Model> open_model(const std::string& path) {
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    Result<std::string> chosen = choose(path);
    if (!chosen) return chosen.status();
    file = std::move(*chosen);
  }
  if (file.ends_with(".json")) return open_sharded(file);
  Result<std::unique_ptr<Source>> source = open_file(file);
  if (!source) return source.status();
  std::byte magic[4] = {};
  if ((*source)->bytes() < 16)
    return Status(Code::kCorrupt,
                  fmt::format("{}: {} bytes, too short for a model; fetch it again", file, (*source)->bytes()));
  if (Status status = (*source)->read(0, magic); !status) return status;
  if (std::string_view(reinterpret_cast<const char*>(magic), 4) == "GGUF") return open_gguf(file);
  if (!file.ends_with(".safetensors"))
    return invalid(
        fmt::format("{}: neither begins with GGUF nor is named .safetensors; no other format is read", file));
  Result<Part> part = read_safetensors(**source, file);
  if (!part) return part.status();
  return std::move(part->model);
}

}  // namespace neotier::model
