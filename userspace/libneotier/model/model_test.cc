// SPDX-License-Identifier: Apache-2.0
// safetensors: files of the safetensors library, malformed ones; what open_model() takes and refuses.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "model/experts.h"
#include "util/temporary_folder.h"
#include "util/testing/content.h"

namespace neotier::model {

namespace {

namespace fs = std::filesystem;

const std::string kData = NEOTIER_SOURCE_DIR "/tests/data/model/";

std::string file_of(const std::string& header, size_t data, uint64_t length = 0) {
  std::string out(8, '\0');
  if (length == 0) length = header.size();
  std::memcpy(out.data(), &length, 8);
  return out + header + std::string(data, 'd');
}

Result<Part> read(const std::string& bytes) {
  return read_safetensors(MemorySource(std::as_bytes(std::span(bytes))), "x.safetensors");
}

void refused(const std::string& bytes, const std::string& text) {
  const Result<Part> part = read(bytes);
  ASSERT_FALSE(part.is_ok()) << text;
  EXPECT_EQ(part.status().code(), Code::kCorrupt);
  EXPECT_NE(part.status().what().find(text), std::string::npos) << part.status().what();
  EXPECT_EQ(part.status().what().find('\n'), std::string::npos);
}

Status index_status(const std::string& text) {
  return read_shard_index(MemorySource(std::as_bytes(std::span(text))), "i.json").status();
}

// Bytes of the t-th tensor that was given to the writer (tests/data/model/README.md).
bool has_pattern(const std::string& bytes, const Tensor& tensor, size_t t) {
  for (size_t i = 0; i < tensor.bytes; i++)
    if (static_cast<uint8_t>(bytes[tensor.offset + i]) != static_cast<uint8_t>(i * 7 + t * 13)) return false;
  return true;
}

TEST(Safetensors, ReadsMixtral) {
  const Result<Model> m = open_model(kData + "mixtral.safetensors");
  ASSERT_TRUE(m.is_ok()) << m.status().what();
  EXPECT_EQ(m->tensors.size(), 1u + 2 * (1 + 4 * 3) + 2);
  const std::string bytes = content(kData + "mixtral.safetensors");
  size_t t = 0;
  const auto expect = [&](const std::string& name) {
    const Tensor* tensor = m->find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_TRUE(has_pattern(bytes, *tensor, t)) << name;
    t++;
  };
  expect("model.embed_tokens.weight");
  for (int l = 0; l < 2; l++) {
    expect(fmt::format("model.layers.{}.block_sparse_moe.gate.weight", l));
    for (int e = 0; e < 4; e++)
      for (const char* w : {"w1", "w2", "w3"})
        expect(fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}.weight", l, e, w));
  }
  expect("step");
  EXPECT_TRUE(m->find("step")->shape.empty());
  EXPECT_EQ(m->find("step")->bytes, 8u);
  EXPECT_EQ(m->find("none")->bytes, 0u);
  const Result<ExpertMap> map = find_experts(*m);
  ASSERT_TRUE(map.is_ok()) << map.status().what();
  ASSERT_EQ(map->layers.size(), 2u);
  EXPECT_EQ(map->layers[1].experts, 4u);
  EXPECT_EQ(map->layers[1].bytes, 3u * 3 * 8 * 2);
  const char* names[] = {"w1", "w3", "w2"};  // gate, up, down
  for (uint32_t i = 0; i < 3; i++)
    EXPECT_EQ(m->tensors[map->extents(1, 2)[i].tensor].name,
              fmt::format("model.layers.1.block_sparse_moe.experts.2.{}.weight", names[i]));
}

TEST(Safetensors, ReadsShardsWithScalesApart) {
  for (const char* path : {"sharded", "sharded/model.safetensors.index.json"}) {
    const Result<Model> m = open_model(kData + path);
    ASSERT_TRUE(m.is_ok()) << m.status().what();
    EXPECT_EQ(m->files.size(), 2u);
    const Result<ExpertMap> map = find_experts(*m);
    ASSERT_TRUE(map.is_ok()) << map.status().what();
    ASSERT_EQ(map->layers.size(), 2u);
    EXPECT_EQ(map->layers[0].layer, 1u);  // 0 is dense
    EXPECT_EQ(map->layers[0].experts, 5u);
    EXPECT_EQ(map->layers[0].extents, 6u);
    EXPECT_EQ(map->layers[0].bytes, 3u * (32 + 4));
    const auto e = map->extents(1, 3);
    EXPECT_EQ(e[1].piece, Piece::kScale);
    EXPECT_NE(e[0].file, e[1].file);
  }
}

TEST(Safetensors, ReadsGptOssMergedExperts) {
  const Result<Model> m = open_model(kData + "gpt-oss.safetensors");
  ASSERT_TRUE(m.is_ok()) << m.status().what();
  const Result<ExpertMap> map = find_experts(*m);
  ASSERT_TRUE(map.is_ok()) << map.status().what();
  ASSERT_EQ(map->layers.size(), 2u);
  EXPECT_EQ(map->layers[0].experts, 4u);
  const auto e = map->extents(0, 1);
  ASSERT_EQ(e.size(), 6u);
  EXPECT_EQ(e[0].role, Role::kGateUp);
  EXPECT_EQ(e[0].offset, m->find("model.layers.0.mlp.experts.gate_up_proj_blocks")->offset + 64 * 16);
  EXPECT_EQ(e[1].piece, Piece::kScale);
  EXPECT_EQ(e[2].piece, Piece::kBias);
  EXPECT_EQ(map->layers[0].bytes, 64u * 16 + 64 + 128 + 32 * 16 + 32 + 64);
}

TEST(Safetensors, RefusesBadHeaders) {
  refused("", "goes past the end");
  refused(file_of("{}", 0, 1ULL << 40), "a header of 1099511627776 bytes");
  refused(file_of("{}", 0, 3), "the header of 3 bytes goes past the end");
  refused(file_of("", 8, 0), "no JSON");
  refused(file_of("[]", 0), "the header is an array");
  refused(file_of("7", 0), "the header is a number");
  refused(file_of(R"({"a":)", 0), "no JSON at offset");
  refused(file_of(R"({} {})", 0), "no JSON");
  refused(file_of("{\"a\xff\":{}}", 0), "no JSON");
  refused(file_of(R"({"a":3})", 0), "a number in 'a'");
  refused(file_of(R"({"__metadata__":{"a":{}}})", 0), "an object in '__metadata__'");
  refused(file_of(R"({"__metadata__":{"a":1}})", 0), "a number in '__metadata__'");
  refused(file_of(R"({"__metadata__":"x"})", 0), "text in '__metadata__'");
  refused(file_of(std::string(100000, '['), 0), "an array");
  std::string deep;
  for (int i = 0; i < 50000; i++) deep += "{\"dtype\":";
  refused(file_of(deep, 0), "an object in 'dtype'");
}

TEST(Safetensors, RefusesBadTensors) {
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return file_of(fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets), 8);
  };
  ASSERT_TRUE(read(one("F32", "[2]", "[0,8]")).is_ok());
  refused(one("F33", "[2]", "[0,8]"), "unknown dtype 'F33'");
  refused(one("F32", "[3]", "[0,8]"), "make 12 bytes");
  refused(one("F32", "[2]", "[8,0]"), "data_offsets 8 to 0");
  refused(one("F32", "[2]", "[8,16]"), "go past the data's 8 bytes");
  refused(one("F32", "[2]", "[18446744073709551608,18446744073709551616]"), "a fraction");
  refused(one("U8", "[8]", "[18446744073709551600,18446744073709551608]"), "go past the data");
  refused(one("F32", "[4294967296,4294967296]", "[0,8]"), "past 2^64");
  refused(one("F32", "[2305843009213693952]", "[0,8]"), "past 2^64 bits");
  refused(one("F4", "[3]", "[0,1]"), "no whole bytes");
  refused(one("F32", "[-2]", "[0,8]"), "a negative number in 'a'");
  refused(one("F32", "[2.0]", "[0,8]"), "a fraction");
  refused(one("F32", "[[2]]", "[0,8]"), "an array in 'a'");
  refused(one("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), "more than 8 dimensions");
  refused(one("F32", "2", "[0,8]"), "a number in 'a'");
  refused(one("F32", "[2]", "[0]"), "lacks data_offsets");
  refused(one("F32", "[2]", "[0,8,8]"), "more than two");
  refused(one("U8", "[4]", "[0,4]"), "4 bytes that belong to no tensor");
  refused(one("U8", "[4]", "[4,8]"), "4 bytes that belong to no tensor");
  refused(file_of(R"({"a":{"dtype":"U8","shape":[0]}})", 0), "lacks dtype, shape or data_offsets");
  refused(file_of(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0), "has 'dtype' twice");
  refused(file_of(R"({"a":{"size":1}})", 0), "unknown field 'size'");
  const char* both =
      R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},"{}":{{"dtype":"U8","shape":[4],"data_offsets":[{},{}]}}}})";
  refused(file_of(fmt::format(fmt::runtime(both), "a", 4, 8), 8), "'a' for the second time");
  refused(file_of(fmt::format(fmt::runtime(both), "b", 2, 6), 6), "'b' overlaps 'a'");
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string whole = content(kData + "gpt-oss.safetensors");
  ASSERT_TRUE(read(whole).is_ok());
  for (size_t n = 0; n < whole.size(); n += n < 1800 ? 1 : 61) EXPECT_FALSE(read(whole.substr(0, n)).is_ok()) << n;
  EXPECT_FALSE(read(whole + "x").is_ok());
}

TEST(ShardIndex, RefusesWhatIsNoIndex) {
  const auto wrong = [](const std::string& text, const std::string& what) {
    const Status s = index_status(text);
    EXPECT_FALSE(s.is_ok()) << text;
    EXPECT_NE(s.what().find(what), std::string::npos) << s.what();
  };
  EXPECT_TRUE(index_status(R"({"metadata":{"x":[1,{"y":2.5}]},"weight_map":{"a":"f"}})").is_ok());
  wrong("", "no JSON");
  wrong("[]", "an array, not an object");
  wrong("3", "a number, not an object");
  wrong("{}", "no tensor in a weight_map");
  wrong(R"({"weight_map":{}})", "no tensor");
  wrong(R"({"weight_map":[]})", "an array in weight_map");
  wrong(R"({"weight_map":3})", "a number in weight_map");
  wrong(R"({"weight_map":{"a":{"b":"c"}}})", "an object or array in weight_map");
  wrong(R"({"weight_map":{"a":"../f"}})", "no plain file name");
  wrong(R"({"weight_map":{"a":"/etc/passwd"}})", "no plain file name");
  wrong(R"({"weight_map":{"a":".."}})", "no plain file name");
  wrong(R"({"weight_map":{"a":"f\u0000"}})", "no plain file name");
  wrong(R"({"weight_map":{"a":"f\ng"}})", "no plain file name");
  wrong(R"({"weight_map":{"a":"f"},"weight_map":{"b":"f"}})", "second time");
  wrong(R"({"x":)" + std::string(100000, '['), "nested more than 16 deep");
}

TEST(Safetensors, ManyExpertsNeedBytes) {
  const Result<Part> p = read(content(kData + "corpus/safetensors-2"));  // 65536 experts of nothing, in 200 bytes
  ASSERT_TRUE(p.is_ok()) << p.status().what();
  EXPECT_NE(find_experts(p->model).status().what().find("cannot be cut into experts"), std::string::npos);
}

// Whole or one line.
TEST(Corpus, EveryFileIsReadOrRefused) {
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(kData + "corpus")) {
    files++;
    const std::string bytes = content(entry.path().string());
    const MemorySource source(std::as_bytes(std::span(bytes)));
    for (const Result<Part>& part : {read_gguf(source, "f"), read_safetensors(source, "f")}) {
      EXPECT_EQ(part.status().what().find('\n'), std::string::npos);
      if (!part) continue;
      const Result<ExpertMap> map = find_experts(part->model);
      if (map) {
        for (const Extent& e : map->all) EXPECT_LE(e.offset + e.bytes, bytes.size()) << entry.path();
      }
    }
    EXPECT_EQ(index_status(bytes).what().find('\n'), std::string::npos);
  }
  EXPECT_GT(files, 10u);
}

class Folder : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  void refused(const std::string& name, const std::string& text) {
    const Status s = open_model((folder_ / name).string()).status();
    EXPECT_FALSE(s.is_ok()) << text;
    EXPECT_NE(s.what().find(text), std::string::npos) << s.what();
  }
  const TemporaryFolder folder_;
};

TEST_F(Folder, SaysWhatIsWrongWithAPath) {
  refused("", "no .gguf, no .safetensors");
  refused("none.gguf", "cannot open");
  put("notes.txt", "these are no weights at all");
  refused("notes.txt", "no other format is read");
  put("short", "x");
  refused("short", "too short");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  refused("pipe", "not a regular file");
  put("a.safetensors", content(kData + "mixtral.safetensors"));
  EXPECT_TRUE(open_model(folder_.path().string()).is_ok());
  put("b.safetensors", content(kData + "mixtral.safetensors"));
  refused("", "more than one model file");
}

TEST_F(Folder, ShardsMustHoldWhatTheIndexSays) {
  const std::string index = content(kData + "sharded/model.safetensors.index.json");
  put("model.safetensors.index.json", index);
  refused("", "cannot open");
  for (int i = 1; i <= 2; i++)
    put(fmt::format("model-0000{}-of-00002.safetensors", i),
        content(kData + "sharded/model-00001-of-00002.safetensors"));
  refused("", "is not in model-00002-of-00002.safetensors");
  put("model.safetensors.index.json", R"({"weight_map":{"a":"f","a":"g"}})");
  refused("", "named twice");
}

}  // namespace

}  // namespace neotier::model
