// SPDX-License-Identifier: Apache-2.0
// safetensors (https://huggingface.co/docs/safetensors, "Format"): u64 length of a JSON header, the header, the data.
// And the index of a sharded model. JSON is taken as events, not as a tree, so that memory follows the tensors named.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/model.h"

namespace neotier::model {

namespace {

using nlohmann::json;

constexpr Dtype kTypes[] = {
    {"BOOL", 1, 8},        {"F4", 1, 4},      {"F6_E2M3", 1, 6}, {"F6_E3M2", 1, 6}, {"U8", 1, 8},
    {"I8", 1, 8},          {"F8_E5M2", 1, 8}, {"F8_E4M3", 1, 8}, {"F8_E8M0", 1, 8}, {"F8_E4M3FNUZ", 1, 8},
    {"F8_E5M2FNUZ", 1, 8}, {"I16", 1, 16},    {"U16", 1, 16},    {"F16", 1, 16},    {"BF16", 1, 16},
    {"I32", 1, 32},        {"U32", 1, 32},    {"F32", 1, 32},    {"C64", 1, 64},    {"F64", 1, 64},
    {"I64", 1, 64},        {"U64", 1, 64},
};

const Dtype* find_type(const std::string& name) {
  const auto* found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Dtype& t) { return t.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

// What both readers have in common: depth, the first error, numbers that must be whole.
class Events : public nlohmann::json_sax<json> {
 public:
  Status status;

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a truth value"); }
  bool number_integer(number_integer_t) override { return value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a fraction"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool binary(binary_t&) override { return value("bytes"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop(position, "the header is no JSON");
  }

 protected:
  explicit Events(std::string file, uint64_t base) : file_(std::move(file)), base_(base) {}
  // A value where no such value belongs.
  virtual bool value(const char* what) = 0;

  bool stop(const std::string& what) { return stop(0, what); }
  bool stop(uint64_t position, const std::string& what) {
    if (status.is_ok()) status = malformed(file_, base_ + position, what);
    return false;
  }
  bool count_name(const std::string& name) {
    names_ += name.size();
    if (names_ > kMaxNames) return stop(fmt::format("more than {} bytes of tensor names", kMaxNames));
    return true;
  }

 private:
  std::string file_;
  uint64_t base_;
  uint64_t names_ = 0;
};

// { "__metadata__": { text: text }, NAME: { "dtype": text, "shape": [n…], "data_offsets": [begin, end] } }
class HeaderEvents final : public Events {
 public:
  HeaderEvents(const std::string& file, std::vector<Tensor>* out) : Events(file, 8), out_(out) {}

  bool start_object(size_t) override {
    if (depth_ == 0 && !array_) return ++depth_, true;
    if (depth_ == 1 && !array_) {
      tensor_ = Tensor();
      tensor_.name = name_;
      seen_ = 0;
      return ++depth_, true;
    }
    return value("an object");
  }
  bool key(string_t& text) override {
    if (depth_ == 1) {
      metadata_ = text == "__metadata__";
      name_ = text;
      return count_name(text);
    }
    if (metadata_) return true;
    field_ = text == "dtype" ? kDtype : text == "shape" ? kShape : text == "data_offsets" ? kOffsets : kOther;
    if (field_ == kOther) return stop(fmt::format("tensor {} has an unknown field {}", shown(name_), shown(text)));
    if (seen_ & field_) return stop(fmt::format("tensor {} has {} twice", shown(name_), shown(text)));
    seen_ |= field_;
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && metadata_) return true;
    if (depth_ != 2 || array_ || field_ != kDtype) return value("text");
    tensor_.dtype = find_type(text);
    return tensor_.dtype || stop(fmt::format("tensor {} has an unknown dtype {}", shown(name_), shown(text)));
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || array_ || metadata_ || (field_ != kShape && field_ != kOffsets)) return value("an array");
    array_ = true;
    nr_offsets_ = 0;
    return true;
  }
  bool number_unsigned(number_unsigned_t n) override {
    if (!array_) return value("a number");
    if (field_ == kShape) {
      if (tensor_.shape.size() == kMaxRank)
        return stop(fmt::format("tensor {} has more than {} dimensions", shown(name_), kMaxRank));
      tensor_.shape.push_back(n);
      return true;
    }
    if (nr_offsets_ == 2) return stop(fmt::format("tensor {} has more than two data_offsets", shown(name_)));
    offsets_[nr_offsets_++] = n;
    return true;
  }
  bool end_array() override {
    if (field_ == kOffsets && nr_offsets_ != 2) return stop(fmt::format("tensor {} lacks data_offsets", shown(name_)));
    array_ = false;
    return true;
  }
  bool end_object() override {
    depth_--;
    if (depth_ != 1 || metadata_) return true;
    if (seen_ != (kDtype | kShape | kOffsets))
      return stop(fmt::format("tensor {} lacks dtype, shape or data_offsets", shown(name_)));
    const std::string wrong = tensor_bytes(*tensor_.dtype, tensor_.shape, &tensor_.bytes);
    if (!wrong.empty()) return stop(fmt::format("tensor {}: {}", shown(name_), wrong));
    if (offsets_[0] > offsets_[1] || offsets_[1] - offsets_[0] != tensor_.bytes)
      return stop(fmt::format("tensor {}: data_offsets {} to {}, but dtype and shape make {} bytes", shown(name_),
                              offsets_[0], offsets_[1], tensor_.bytes));
    if (out_->size() == kMaxTensors) return stop(fmt::format("more than {} tensors", kMaxTensors));
    tensor_.offset = offsets_[0];
    out_->push_back(std::move(tensor_));
    return true;
  }

 private:
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4, kOther = 0 };
  bool value(const char* what) override {
    if (depth_ == 0) return stop(fmt::format("the header is {}, not an object", what));
    return stop(fmt::format("{} in {} where it does not belong", what, shown(name_)));
  }

  std::vector<Tensor>* out_;
  Tensor tensor_;
  std::string name_;
  uint64_t offsets_[2] = {};
  unsigned depth_ = 0, seen_ = 0, nr_offsets_ = 0;
  Field field_ = kOther;
  bool array_ = false, metadata_ = false;
};

// { "metadata": {…}, "weight_map": { TENSOR: FILE } }. Anything else in it is passed over.
class IndexEvents final : public Events {
 public:
  IndexEvents(const std::string& file, ShardIndex* out) : Events(file, 0), out_(out) {}
  bool has_map = false;

  bool start_object(size_t) override { return open(false); }
  bool start_array(size_t) override { return open(true); }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& text) override {
    if (depth_ == 1) {
      in_map_ = text == "weight_map";
      if (in_map_ && has_map) return stop("weight_map for the second time");
      has_map |= in_map_;
    } else if (depth_ == 2 && in_map_) {
      name_ = text;
      return count_name(text);
    }
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ != 2 || !in_map_) return true;
    if (out_->tensors.size() == kMaxTensors) return stop(fmt::format("more than {} tensors", kMaxTensors));
    // Not a path: an index must not reach out of its folder. Nor what would break a message's line.
    const bool control =
        std::any_of(text.begin(), text.end(), [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; });
    if (text.empty() || text.size() > 255 || text.find('/') != std::string::npos || text[0] == '.' || control)
      return stop(fmt::format("tensor {} lies in {}, which is no plain file name", shown(name_), shown(text)));
    if (out_->files.empty() || out_->files[last_] != text) {
      const auto found = std::find(out_->files.begin(), out_->files.end(), text);
      last_ = static_cast<uint32_t>(found - out_->files.begin());
      if (found == out_->files.end()) {
        if (out_->files.size() == kMaxFiles) return stop(fmt::format("more than {} files", kMaxFiles));
        out_->files.push_back(text);
      }
    }
    out_->tensors.emplace_back(name_, last_);
    return true;
  }

 private:
  static constexpr unsigned kMaxDepth = 16;
  bool open(bool array) {
    if (depth_ == 0 && array) return stop("the index is an array, not an object");
    if (depth_ == 1 && in_map_ && array) return value("an array");
    if (depth_ == 2 && in_map_) return value("an object or array");
    if (depth_ == kMaxDepth) return stop(fmt::format("JSON nested more than {} deep", kMaxDepth));
    return ++depth_, true;
  }
  bool value(const char* what) override {
    if (depth_ == 0) return stop(fmt::format("the index is {}, not an object", what));
    if (in_map_ && depth_ <= 2) return stop(fmt::format("{} in weight_map, where a file's name belongs", what));
    return true;
  }

  ShardIndex* out_;
  std::string name_;
  uint32_t last_ = 0;
  unsigned depth_ = 0;
  bool in_map_ = false;
};

Status parse(const std::string& text, Events& events) {
  json::sax_parse(text, &events);
  return std::move(events.status);
}

}  // namespace

Result<Part> read_safetensors(const Source& source, const std::string& file) {
  Cursor in(source, file, 0, source.bytes());
  const uint64_t header = in.u64();
  if (in.ok() && header > kMaxHeaderBytes)
    in.fail(fmt::format("a header of {} bytes, at most {}", header, kMaxHeaderBytes));
  const std::string text = in.text(header, "the header");
  if (!in.ok()) return in.status();
  Part part;
  part.model.format = Format::kSafetensors;
  part.model.files.push_back({file, source.bytes()});
  HeaderEvents events(file, &part.model.tensors);
  if (Status status = parse(text, events); !status) return status;
  const uint64_t begin = in.offset(), data = in.left();
  for (Tensor& t : part.model.tensors) {
    if (t.offset > data || t.bytes > data - t.offset)
      return malformed(file, begin,
                       fmt::format("tensor {}: data_offsets {} to {} go past the data's {} bytes", shown(t.name),
                                   t.offset, t.offset + t.bytes, data));
    t.offset += begin;
  }
  if (Status status = part.model.index(); !status) return status;
  // The format allows no holes: bytes that no tensor has may be another file's.
  uint64_t at = begin;
  for (const Tensor& t : part.model.tensors) {
    if (t.offset != at) return malformed(file, at, fmt::format("{} bytes that belong to no tensor", t.offset - at));
    at += t.bytes;
  }
  if (at != source.bytes())
    return malformed(file, at, fmt::format("{} bytes that belong to no tensor", source.bytes() - at));
  return part;
}

Result<ShardIndex> read_shard_index(const Source& source, const std::string& file) {
  if (source.bytes() > kMaxHeaderBytes)
    return Status(Code::kCorrupt, fmt::format("{}: {} bytes, an index has at most {}; is it one?", file, source.bytes(),
                                              kMaxHeaderBytes));
  Cursor in(source, file, 0, source.bytes());
  const std::string text = in.text(source.bytes(), "the index");
  if (!in.ok()) return in.status();
  ShardIndex index;
  IndexEvents events(file, &index);
  if (Status status = parse(text, events); !status) return status;
  if (!events.has_map || index.tensors.empty()) return malformed(file, 0, "no tensor in a weight_map");
  return index;
}

}  // namespace neotier::model
