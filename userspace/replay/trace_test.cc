// SPDX-License-Identifier: Apache-2.0
#include "replay/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>

#include "replay/synthetic.h"
#include "util/temporary_folder.h"

namespace neotier::replay {
namespace {

namespace fs = std::filesystem;

class TraceFile : public ::testing::Test {
 protected:
  fs::path file(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }
  std::string error(const std::string& text, const LoadOptions& options = {}) {
    try {
      load_trace(file(text), options);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  }
  const TemporaryFolder folder_;
  const fs::path path_ = folder_ / "trace";
};

TEST_F(TraceFile, Mooncake) {
  const KvTrace t = load_trace(file(R"({"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [7, 9]}

{"timestamp": 4000, "input_length": 700, "output_length": 6, "hash_ids": [7, 12]}
)"));
  EXPECT_EQ(t.format, KvFormat::kMooncake);
  EXPECT_EQ(t.block_tokens, 512u);
  ASSERT_EQ(t.requests.size(), 2u);
  EXPECT_EQ(t.requests[1].time_ns, 3'000'000'000u);
  EXPECT_EQ(t.requests[1].input_tokens, 700u);
  EXPECT_EQ(t.blocks, (std::vector<uint32_t>{0, 1, 0, 2}));
  EXPECT_EQ(t.objects, 3u);
  EXPECT_EQ(next_uses(t), (std::vector<uint64_t>{2, UINT64_MAX, UINT64_MAX, UINT64_MAX}));
}

TEST_F(TraceFile, BailianHasSecondsAndTypes) {
  const KvTrace t = load_trace(file(
      R"({"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 20, "output_length": 5, "type": "text", "turn": 1, "hash_ids": [18446744073709551615, "a0"]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 62.0, "input_length": 40, "output_length": 5, "type": "image", "turn": 2, "hash_ids": ["a0"]}
)"));
  EXPECT_EQ(t.format, KvFormat::kBailian);
  EXPECT_EQ(t.block_tokens, 16u);
  EXPECT_EQ(t.requests[1].time_ns, 500'000'000u);
  EXPECT_EQ(t.requests[1].category, 2u);
  EXPECT_EQ(t.categories, (std::vector<std::string>{"text", "image"}));
  EXPECT_EQ(t.blocks, (std::vector<uint32_t>{0, 1, 1}));
}

TEST_F(TraceFile, LengthsGiveFreshBlocks) {
  const KvTrace azure =
      load_trace(file("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:04.5,513,10\r\n"
                      "2023-11-16 18:17:03.5,512,20\r\n"));
  EXPECT_FALSE(azure.identity);
  EXPECT_EQ(azure.requests[0].output_tokens, 20u);  // put in order
  EXPECT_EQ(azure.requests[1].time_ns, 1'000'000'000u);
  EXPECT_EQ(azure.requests[0].blocks, 1u);
  EXPECT_EQ(azure.requests[1].blocks, 2u);
  EXPECT_EQ(azure.objects, 3u);
  const KvTrace burst =
      load_trace(file("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                      "5,ChatGPT,472,18.0,490,Conversation log\n"));
  EXPECT_EQ(burst.format, KvFormat::kBurstGpt);
  EXPECT_EQ(burst.requests[0].output_tokens, 18u);
}

TEST_F(TraceFile, SaysWhatIsWrongAndWhere) {
  EXPECT_NE(error("").find("is empty"), std::string::npos);
  EXPECT_NE(error("hello\n").find(":1: not a trace"), std::string::npos);
  EXPECT_NE(error("{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n{oops\n")
                .find(":2: not a JSON object"),
            std::string::npos);
  EXPECT_NE(error("{\"timestamp\": 1, \"input_length\": -1, \"output_length\": 1, \"hash_ids\": []}\n")
                .find("\"input_length\" is not a number >= 0"),
            std::string::npos);
  EXPECT_NE(
      error("{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1.5]}\n").find("hash_ids"),
      std::string::npos);
  EXPECT_NE(error("TIMESTAMP,ContextTokens\n").find("no column 'GeneratedTokens'"), std::string::npos);
  EXPECT_NE(error("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n").find(":2: 'yesterday' is no date"),
            std::string::npos);
  EXPECT_NE(error("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:04.5,-3,2\n").find("'-3'"),
            std::string::npos);
  LoadOptions other;
  other.format = "vcr";
  EXPECT_NE(error("{}", other).find("unknown trace format 'vcr'"), std::string::npos);
  EXPECT_THROW(load_trace("/no/such/trace"), std::runtime_error);
}

TEST_F(TraceFile, WrittenIsReadBackTheSame) {
  SyntheticOptions options;
  options.kind = "agents";
  options.requests = 300;
  const KvTrace made = make_synthetic(options);
  OutputFile out("", path_);
  write_mooncake(made, out);
  const KvTrace read = load_trace(path_);
  ASSERT_EQ(read.requests.size(), 300u);
  EXPECT_EQ(read.objects, slice(made, 0, 300).objects);
  EXPECT_EQ(read.blocks, slice(made, 0, 300).blocks);
}

TEST(Synthetic, RepeatsBySeedAndGrowsByPrefix) {
  for (const auto& kind : synthetic_kinds()) {
    SyntheticOptions options;
    options.kind = kind.name;
    options.requests = 500;
    const KvTrace a = make_synthetic(options), b = make_synthetic(options);
    EXPECT_EQ(a.blocks, b.blocks);
    options.seed = 2;
    EXPECT_NE(a.blocks, make_synthetic(options).blocks);
    for (size_t i = 0; i < a.requests.size(); i++) {
      EXPECT_EQ(a.requests[i].blocks, (a.requests[i].input_tokens + 511) / 512);
      if (i > 0) {
        EXPECT_GE(a.requests[i].time_ns, a.requests[i - 1].time_ns);
      }
    }
  }
}

TEST(Slice, IsATraceOfItsOwn) {
  SyntheticOptions options;
  options.requests = 100;
  const KvTrace part = slice(make_synthetic(options), 50, 20);
  EXPECT_EQ(part.requests.size(), 20u);
  EXPECT_EQ(part.requests[0].time_ns, 0u);
  EXPECT_EQ(part.blocks[0], 0u);
  for (uint32_t block : part.blocks) EXPECT_LT(block, part.objects);
}

}  // namespace
}  // namespace neotier::replay
