// SPDX-License-Identifier: Apache-2.0
// GGUF versions 2 and 3, little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; block sizes of
// types: ggml-common.h there).
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "model/model.h"

namespace neotier::model {

namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxPairs = 1 << 16;
constexpr uint64_t kMaxKeyBytes = 16 << 20;  // of all keys together; real files have some kilobytes
constexpr uint64_t kMaxString = 64 << 20;    // a chat template or a merged vocabulary; skipped, not stored
constexpr uint64_t kMaxKept = 4096;          // of a string that is stored
constexpr uint64_t kMaxName = 1024;          // ggml itself stops at 63
constexpr unsigned kMaxNesting = 4;

// By the number in the file; no name: a type that was withdrawn.
constexpr Dtype kTypes[] = {
    {"F32", 1, 32},      {"F16", 1, 16},        {"Q4_0", 32, 144},    {"Q4_1", 32, 160},     {nullptr, 0, 0},
    {nullptr, 0, 0},     {"Q5_0", 32, 176},     {"Q5_1", 32, 192},    {"Q8_0", 32, 272},     {"Q8_1", 32, 288},
    {"Q2_K", 256, 672},  {"Q3_K", 256, 880},    {"Q4_K", 256, 1152},  {"Q5_K", 256, 1408},   {"Q6_K", 256, 1680},
    {"Q8_K", 256, 2336}, {"IQ2_XXS", 256, 528}, {"IQ2_XS", 256, 592}, {"IQ3_XXS", 256, 784}, {"IQ1_S", 256, 400},
    {"IQ4_NL", 32, 144}, {"IQ3_S", 256, 880},   {"IQ2_S", 256, 656},  {"IQ4_XS", 256, 1088}, {"I8", 1, 8},
    {"I16", 1, 16},      {"I32", 1, 32},        {"I64", 1, 64},       {"F64", 1, 64},        {"IQ1_M", 256, 448},
    {"BF16", 1, 16},     {nullptr, 0, 0},       {nullptr, 0, 0},      {nullptr, 0, 0},       {"TQ1_0", 256, 432},
    {"TQ2_0", 256, 528}, {nullptr, 0, 0},       {nullptr, 0, 0},      {nullptr, 0, 0},       {"MXFP4", 32, 136},
    {"NVFP4", 64, 288},  {"Q1_0", 128, 144},    {"Q2_0", 64, 144},
};

// Types of metadata values.
enum Value : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64, kValues };
constexpr uint8_t kValueBytes[kValues] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // at least

class Reader {
 public:
  Reader(const Source& source, const std::string& file) : file_(file), in_(source, file, 0, source.bytes()) {
    part_.model.format = Format::kGguf;
    part_.model.files.push_back({file, source.bytes()});
  }

  Result<Part> read() {
    const uint64_t pairs = head();
    for (uint64_t i = 0; i < pairs && in_.ok(); i++) pair();
    for (uint64_t i = 0; i < tensors_ && in_.ok(); i++) tensor();
    if (in_.ok()) place();
    if (!refused_) return refused_;
    if (!in_.ok()) return in_.status();
    if (Status status = part_.model.index(); !status) return status;
    return std::move(part_);
  }

 private:
  // Returns the number of metadata pairs.
  uint64_t head() {
    const uint32_t magic = in_.u32();
    if (in_.ok() && magic != kMagic) in_.fail("the first bytes are not GGUF");
    const uint32_t version = in_.u32();
    if (in_.ok() && version != 2 && version != 3) {
      const char* why = version == 1                                    ? "version 1"
                        : (version & 0xffff) == 0 && version >> 24 != 0 ? "big-endian GGUF"
                                                                        : "a version not known";
      unsupported(fmt::format("{} (field {}), versions 2 and 3 little-endian are read", why, version));
    }
    part_.model.version = version;
    tensors_ = in_.u64();
    const uint64_t pairs = in_.u64();
    // The least that each takes in the file: a count past that is a lie, found before any work.
    if (in_.ok() && (tensors_ > kMaxTensors || tensors_ > in_.left() / 24))
      in_.fail(fmt::format("a count of {} tensors, more than the file has room for (limit {})", tensors_, kMaxTensors));
    if (in_.ok() && (pairs > kMaxPairs || pairs > in_.left() / 13))
      in_.fail(
          fmt::format("a count of {} metadata pairs, more than the file has room for (limit {})", pairs, kMaxPairs));
    return pairs;
  }

  void pair() {
    const uint64_t bytes = in_.u64();
    key_bytes_ += std::min(bytes, kMaxKeyBytes);
    if (in_.ok() && (bytes == 0 || bytes > 65535 || key_bytes_ > kMaxKeyBytes))
      in_.fail(fmt::format("a metadata key of {} bytes (1 to 65535, {} in all)", bytes, kMaxKeyBytes));
    const std::string key = in_.text(bytes, "a metadata key");
    if (in_.ok() && !keys_.insert(key).second) in_.fail(fmt::format("metadata key {} for the second time", shown(key)));
    const uint32_t type = in_.u32();
    if (!in_.ok()) return;
    if (key == "general.architecture")
      part_.model.architecture = kept(key, type);
    else if (key == "general.name")
      part_.model.name = kept(key, type);
    else if (key == "general.alignment")
      alignment_ = uint(key, type, kU32);
    else if (key == "split.no")
      part_.split_no = uint(key, type, kU16);
    else if (key == "split.count")
      part_.split_count = uint(key, type, kU16);
    else if (key.ends_with(".expert_used_count"))
      part_.model.experts_used = uint(key, type, kU32);
    else
      skip_value(type, 0);
  }

  uint32_t uint(const std::string& key, uint32_t type, Value wanted) {
    if (type != wanted)
      in_.fail(fmt::format("{} has value type {}, not {}", shown(key), type, static_cast<int>(wanted)));
    return wanted == kU16 ? in_.u16() : in_.u32();
  }

  std::string kept(const std::string& key, uint32_t type) {
    if (type != kString) in_.fail(fmt::format("{} is no string", shown(key)));
    const uint64_t bytes = in_.u64();
    if (in_.ok() && bytes > kMaxKept) in_.fail(fmt::format("{} has {} bytes, at most {}", shown(key), bytes, kMaxKept));
    return in_.text(bytes, "a metadata string");
  }

  void skip_string() {
    const uint64_t bytes = in_.u64();
    if (in_.ok() && bytes > kMaxString)
      in_.fail(fmt::format("a metadata string of {} bytes (limit {})", bytes, kMaxString));
    in_.skip(bytes, "a metadata string");
  }

  void skip_value(uint32_t type, unsigned nesting) {
    if (!in_.ok()) return;
    if (type >= kValues) return in_.fail(fmt::format("unknown type {} of a metadata value", type));
    if (type == kString) return skip_string();
    if (type == kBool) return check_bool();
    if (type != kArray) return in_.skip(kValueBytes[type], "a metadata value");
    if (nesting == kMaxNesting) return in_.fail(fmt::format("metadata arrays nested more than {} deep", kMaxNesting));
    const uint32_t element = in_.u32();
    const uint64_t count = in_.u64();
    if (!in_.ok()) return;
    if (element >= kValues) return in_.fail(fmt::format("unknown type {} of a metadata array", element));
    if (count > in_.left() / kValueBytes[element])
      return in_.fail(fmt::format("a metadata array of {} values, more than the file has room for", count));
    if (element != kString && element != kArray) return in_.skip(count * kValueBytes[element], "a metadata array");
    for (uint64_t i = 0; i < count && in_.ok(); i++) skip_value(element, nesting + 1);
  }

  void check_bool() {
    if (const uint8_t value = in_.u8(); value > 1) in_.fail(fmt::format("a truth value of {}, not 0 or 1", value));
  }

  void tensor() {
    const uint64_t bytes = in_.u64();
    if (in_.ok() && (bytes == 0 || bytes > kMaxName))
      in_.fail(fmt::format("a tensor name of {} bytes (1 to {})", bytes, kMaxName));
    Tensor t;
    t.name = in_.text(bytes, "a tensor name");
    name_bytes_ += t.name.size();
    if (in_.ok() && name_bytes_ > kMaxNames) in_.fail(fmt::format("more than {} bytes of tensor names", kMaxNames));
    const uint32_t rank = in_.u32();
    if (in_.ok() && rank > kMaxRank)
      in_.fail(fmt::format("tensor {} of {} dimensions (limit {})", shown(t.name), rank, kMaxRank));
    for (uint32_t i = 0; i < rank && in_.ok(); i++) t.shape.push_back(in_.u64());
    std::reverse(t.shape.begin(), t.shape.end());
    const uint32_t type = in_.u32();
    t.offset = in_.u64();
    if (!in_.ok()) return;
    if (type >= std::size(kTypes) || !kTypes[type].name)
      return unsupported(fmt::format("tensor {} of type {}", shown(t.name), type));
    t.dtype = &kTypes[type];
    if (const std::string wrong = tensor_bytes(*t.dtype, t.shape, &t.bytes); !wrong.empty())
      return in_.fail(fmt::format("tensor {}: {}", shown(t.name), wrong));
    part_.model.tensors.push_back(std::move(t));
  }

  // Offsets in the header count from where the data begin.
  void place() {
    if (alignment_ == 0 || (alignment_ & (alignment_ - 1)) != 0 || alignment_ > 1 << 30)
      return in_.fail(fmt::format("general.alignment {} is no power of two up to 2^30", alignment_));
    const uint64_t header = in_.offset();
    const uint64_t begin = (header + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t end = part_.model.files[0].bytes;
    for (Tensor& t : part_.model.tensors) {
      if (t.offset % alignment_ != 0)
        return in_.fail(fmt::format("tensor {}: offset {} is no multiple of {}", shown(t.name), t.offset, alignment_));
      if (begin > end || t.offset > end - begin || t.bytes > end - begin - t.offset)
        return in_.fail(fmt::format("tensor {}: {} bytes at {} of the data go past the file's end ({} bytes)",
                                    shown(t.name), t.bytes, t.offset, end));
      t.offset += begin;
    }
  }

  void unsupported(const std::string& what) {
    if (!in_.ok()) return;
    in_.fail(what);
    refused_ = {Code::kUnsupported,
                fmt::format("{}: {} at offset {}; convert it with the tools of ggml", file_, what, in_.offset())};
  }

  std::string file_;
  Cursor in_;
  Part part_;
  uint64_t tensors_ = 0, key_bytes_ = 0, name_bytes_ = 0;
  uint32_t alignment_ = 32;
  Status refused_;
  std::set<std::string> keys_;
};

}  // namespace

Result<Part> read_gguf(const Source& source, const std::string& file) { return Reader(source, file).read(); }

}  // namespace neotier::model
