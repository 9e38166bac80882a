// SPDX-License-Identifier: Apache-2.0
// GGUF: files of ggml's own writer, and files broken in every way we could think of.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "model/experts.h"
#include "util/testing/content.h"

namespace neotier::model {

namespace {

const std::string kData = NEOTIER_SOURCE_DIR "/tests/data/model/";

// A GGUF file, field by field.
class Builder {
 public:
  std::string bytes;
  Builder& u8(uint8_t v) { return raw(&v, 1); }
  Builder& u16(uint16_t v) { return raw(&v, 2); }
  Builder& u32(uint32_t v) { return raw(&v, 4); }
  Builder& u64(uint64_t v) { return raw(&v, 8); }
  Builder& text(const std::string& s) {
    u64(s.size());
    bytes += s;
    return *this;
  }
  Builder& head(uint64_t tensors, uint64_t pairs, uint32_t version = 3) {
    return u32(0x46554747).u32(version).u64(tensors).u64(pairs);
  }
  Builder& tensor(const std::string& name, const std::vector<uint64_t>& ne, uint32_t type, uint64_t offset) {
    text(name).u32(static_cast<uint32_t>(ne.size()));
    for (const uint64_t n : ne) u64(n);
    return u32(type).u64(offset);
  }
  Builder& data(size_t n, size_t alignment = 32) {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment + n);
    return *this;
  }

 private:
  Builder& raw(const void* p, size_t n) {
    bytes.append(static_cast<const char*>(p), n);
    return *this;
  }
};

Result<Part> read(const std::string& bytes) {
  return read_gguf(MemorySource(std::as_bytes(std::span(bytes))), "x.gguf");
}

void refused(const Builder& b, const std::string& text, Code code = Code::kCorrupt) {
  const Result<Part> part = read(b.bytes);
  ASSERT_FALSE(part.is_ok()) << text;
  EXPECT_EQ(part.status().code(), code) << part.status().what();
  EXPECT_NE(part.status().what().find(text), std::string::npos) << part.status().what();
  EXPECT_EQ(part.status().what().find('\n'), std::string::npos);
  EXPECT_EQ(part.status().what().rfind("x.gguf: ", 0), 0u);
}

// Bytes of tensor number t, as tests/data/model/README.md says.
uint8_t pattern(size_t t, size_t i) { return static_cast<uint8_t>(i * 7 + t * 13); }

TEST(Gguf, ReadsWhatGgmlWrote) {
  const Result<Model> m = open_model(kData + "gpt-oss.gguf");
  ASSERT_TRUE(m.is_ok()) << m.status().what();
  EXPECT_EQ(m->version, 3u);
  EXPECT_EQ(m->architecture, "gpt-oss");
  EXPECT_EQ(m->name, "tiny");
  EXPECT_EQ(m->experts_used, 2u);
  ASSERT_EQ(m->tensors.size(), 15u);
  const std::string bytes = content(kData + "gpt-oss.gguf");
  for (size_t t = 0; t < m->tensors.size(); t++) {
    const Tensor& tensor = m->tensors[t];
    for (size_t i = 0; i < tensor.bytes; i++)
      ASSERT_EQ(static_cast<uint8_t>(bytes[tensor.offset + i]), pattern(t, i)) << tensor.name << " " << i;
  }
  const Tensor* gate = m->find("blk.1.ffn_gate_exps.weight");
  ASSERT_NE(gate, nullptr);
  EXPECT_STREQ(gate->dtype->name, "MXFP4");
  EXPECT_EQ(gate->shape, (std::vector<uint64_t>{4, 32, 64}));
  EXPECT_EQ(m->find("blk.9.ffn_gate_exps.weight"), nullptr);

  const Result<ExpertMap> map = find_experts(*m);
  ASSERT_TRUE(map.is_ok()) << map.status().what();
  ASSERT_EQ(map->layers.size(), 2u);
  EXPECT_EQ(map->layers[0].experts, 4u);
  EXPECT_EQ(map->layers[0].extents, 6u);
  const auto e = map->extents(1, 3);
  EXPECT_EQ(e[0].role, Role::kGate);
  EXPECT_EQ(e[0].piece, Piece::kWeight);
  EXPECT_EQ(e[0].bytes, 32u * 64 / 32 * 17);
  EXPECT_EQ(e[0].offset, gate->offset + 3 * e[0].bytes);
  EXPECT_EQ(e[5].role, Role::kDown);
  EXPECT_EQ(e[5].piece, Piece::kBias);
  EXPECT_EQ(e[5].bytes, 64u * 4);
  // Each layer's experts cover their tensors to the byte.
  uint64_t of_experts = 0, of_tensors = 0;
  for (const Extent& x : map->all) of_experts += x.bytes;
  for (const Tensor& t : m->tensors)
    if (t.name.find("_exps") != std::string::npos) of_tensors += t.bytes;
  EXPECT_EQ(of_experts, of_tensors);
}

TEST(Gguf, ReadsSplitFilesFromAnyPart) {
  for (const char* part : {"split/m-00001-of-00002.gguf", "split/m-00002-of-00002.gguf", "split"}) {
    const Result<Model> m = open_model(kData + part);
    ASSERT_TRUE(m.is_ok()) << m.status().what();
    EXPECT_EQ(m->files.size(), 2u);
    EXPECT_EQ(m->tensors.size(), 15u);
    const Result<ExpertMap> map = find_experts(*m);
    ASSERT_TRUE(map.is_ok()) << map.status().what();
    // The cut goes through the last tensor of layer 0: gate in the first file, bias of down in the second.
    EXPECT_EQ(map->extents(0, 0)[0].file, 0u);
    EXPECT_EQ(map->extents(0, 0)[5].file, 1u);
  }
}

TEST(Gguf, ReadsExpertsInTensorsOfTheirOwn) {
  const Result<Model> m = open_model(kData + "per-expert.gguf");
  ASSERT_TRUE(m.is_ok()) << m.status().what();
  const Result<ExpertMap> map = find_experts(*m);
  ASSERT_TRUE(map.is_ok()) << map.status().what();
  ASSERT_EQ(map->layers.size(), 1u);
  EXPECT_EQ(map->layers[0].experts, 3u);
  for (uint32_t e = 0; e < 3; e++)
    for (uint32_t i = 0; i < 3; i++) EXPECT_EQ(map->extents(0, e)[i].offset, m->tensors[e * 3 + i].offset);
}

TEST(Gguf, ReadsVersion2AndOtherAlignments) {
  Builder b;
  b.head(2, 1, 2).text("general.alignment").u32(4).u32(4096);
  b.tensor("a", {3}, 0, 0).tensor("b", {}, 0, 4096).data(4096 + 4, 4096);
  const Result<Part> p = read(b.bytes);
  ASSERT_TRUE(p.is_ok()) << p.status().what();
  EXPECT_EQ(p->model.tensors[1].offset, 8192u);
  EXPECT_EQ(p->model.tensors[1].bytes, 4u);
}

TEST(Gguf, RefusesBadHeads) {
  refused(Builder().u32(0x46554746).u32(3).u64(0).u64(0), "not GGUF at offset 4");
  refused(Builder().head(0, 0, 1), "version 1", Code::kUnsupported);
  refused(Builder().head(0, 0, 0x03000000), "big-endian", Code::kUnsupported);
  refused(Builder().head(0, 0, 9), "a version not known", Code::kUnsupported);
  refused(Builder().head(UINT64_MAX, 0), "a count of 18446744073709551615 tensors");
  refused(Builder().head(0, UINT64_MAX), "a count of 18446744073709551615 metadata pairs");
  refused(Builder().head(1 << 20, 0), "more than the file has room for");
  refused(Builder(), "goes past the end");
}

TEST(Gguf, RefusesBadMetadata) {
  const auto pair = [](const std::string& key, uint32_t type) { return Builder().head(0, 1).text(key).u32(type); };
  refused(pair("k", 13).u64(0), "unknown type 13");
  refused(pair("k", 8).u64(1ULL << 40), "a metadata string of 1099511627776 bytes");
  refused(pair("k", 8).u64(9), "past the end");
  refused(pair("k", 7).u8(2), "a truth value of 2");
  refused(pair("k", 9).u32(4).u64(UINT64_MAX / 4), "more than the file has room for");
  refused(pair("k", 9).u32(99).u64(0), "unknown type 99 of a metadata array");
  refused(pair("k", 9).u32(9).u64(1).u32(9).u64(1).u32(9).u64(1).u32(9).u64(1).u32(9).u64(1).u64(0).u64(0), "nested");
  refused(pair("general.alignment", 4).u32(24), "no power of two");
  refused(pair("general.alignment", 4).u32(0), "no power of two");
  refused(pair("general.alignment", 8).text("32"), "has value type 8");
  refused(pair("general.name", 4).u32(1), "is no string");
  refused(pair("general.name", 8).text(std::string(5000, 'x')), "5000 bytes");
  refused(Builder().head(0, 2).text("k").u32(4).u32(1).text("k").u32(4).u32(1), "'k' for the second time");
  refused(Builder().head(0, 1).text("").u32(4).u32(1).u64(0), "key of 0 bytes");
}

TEST(Gguf, RefusesBadTensors) {
  const auto one = [](const std::vector<uint64_t>& ne, uint32_t type, uint64_t offset, size_t bytes) {
    return Builder().head(1, 0).tensor("t", ne, type, offset).data(bytes);
  };
  refused(one({8}, 0, 0, 31), "go past the file's end");
  refused(one({8}, 0, 16, 64), "no multiple of 32");
  refused(one({8}, 0, UINT64_MAX - 31, 64), "go past the file's end");
  refused(one({1ULL << 33, 1ULL << 33}, 0, 0, 64), "past 2^64");
  refused(one({1ULL << 62}, 0, 0, 64), "past 2^64 bits");
  refused(one({33}, 8, 0, 64), "no multiple of the 32");
  refused(one({8}, 77, 0, 64), "of type 77", Code::kUnsupported);
  refused(one({8}, 4, 0, 64), "of type 4", Code::kUnsupported);
  refused(one({1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 0, 64), "9 dimensions");
  refused(Builder().head(1, 0).text(std::string(2000, 'n')).u32(0).u32(0).u64(0), "name of 2000 bytes");
  refused(Builder().head(2, 0).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32).data(64), "'t' for the second time");
  refused(Builder().head(2, 0).tensor("t", {9}, 0, 0).tensor("u", {8}, 0, 32).data(64), "'u' overlaps 't'");
  refused(Builder().head(1, 0).tensor("a\nb\x01", {7}, 8, 0).data(64), "'a\\x0ab\\x01'");
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string whole = content(kData + "gpt-oss.gguf");
  const Result<Part> part = read(whole);
  ASSERT_TRUE(part.is_ok());
  const Tensor& last = part->model.tensors.back();
  for (size_t n = 0; n < last.offset + last.bytes; n += n < 1500 ? 1 : 97)
    EXPECT_FALSE(read(whole.substr(0, n)).is_ok()) << n;
}

TEST(Gguf, RefusesPartsThatDoNotBelongTogether) {
  const std::string folder = ::testing::TempDir() + "neotier-split";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto copy = [&](const char* from, const char* to) {
    std::filesystem::copy_file(kData + "split/" + from, folder + "/" + to,
                               std::filesystem::copy_options::overwrite_existing);
  };
  copy("m-00001-of-00002.gguf", "other.gguf");
  EXPECT_NE(open_model(folder + "/other.gguf").status().what().find("name it"), std::string::npos);
  copy("m-00001-of-00002.gguf", "m-00001-of-00002.gguf");
  EXPECT_NE(open_model(folder + "/m-00001-of-00002.gguf").status().what().find("cannot open"), std::string::npos);
  copy("m-00001-of-00002.gguf", "m-00002-of-00002.gguf");
  EXPECT_NE(open_model(folder + "/m-00001-of-00002.gguf").status().what().find("belongs to another model"),
            std::string::npos);
  EXPECT_NE(open_model(folder).status().what().find("more than one model"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(Experts, RefusesLayersWithHoles) {
  const auto broken = [](const std::vector<std::string>& names, const std::string& text) {
    Builder b;
    b.head(names.size(), 0);
    for (size_t i = 0; i < names.size(); i++) b.tensor(names[i], {8, 2}, 0, i * 64);
    b.data(names.size() * 64);
    const Result<Part> p = read(b.bytes);
    ASSERT_TRUE(p.is_ok()) << p.status().what();
    const Result<ExpertMap> map = find_experts(p->model);
    ASSERT_FALSE(map.is_ok()) << text;
    EXPECT_NE(map.status().what().find(text), std::string::npos) << map.status().what();
  };
  const std::string up = "blk.3.ffn_up.", down = "blk.3.ffn_down.", w = ".weight";
  broken({up + "0" + w}, "layer 3: expert 0 has no down weights");
  broken({down + "0" + w}, "layer 3: expert 0 has no up weights");
  broken({up + "0" + w, down + "0" + w, up + "2" + w, down + "2" + w}, "a number is left out");
  broken({up + "0" + w, down + "0" + w, up + "1" + w}, "expert 1 lacks pieces");
  broken({"blk.3.ffn_up_exps.weight", "blk.3.ffn_down_exps.weight", up + "0" + w}, "layer 3");
}

TEST(Experts, NoneInADenseModel) {
  const Result<Part> p = read(Builder().head(1, 0).tensor("blk.0.ffn_up.weight", {8}, 0, 0).data(32).bytes);
  ASSERT_TRUE(p.is_ok());
  EXPECT_TRUE(find_experts(p->model)->layers.empty());
}

}  // namespace

}  // namespace neotier::model
