// SPDX-License-Identifier: Apache-2.0
// Experts of every layout that is known, on files of independent writers (tests/data/model/README.md) and of our own.
#include "experts/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/tiers/memory/memory_tier.h"
#include "experts/expert_store.h"
#include "util/testing/content.h"

namespace neotier::experts {

namespace {

const std::string kData = NEOTIER_SOURCE_DIR "/tests/data/model/";

std::vector<float> row(const compute::Matrix& m, size_t r) {
  std::vector<float> out(m.columns);
  compute::dequantise(m, r, out);
  return out;
}

// The store's copy of each expert is what lies in the file, to the byte, in every layout that can be computed with.
void same_in_store(const std::string& name) {
  const auto model = model::open_model(kData + name);
  ASSERT_TRUE(model.is_ok()) << model.status().what();
  const auto layout = Layout::of(*model);
  ASSERT_TRUE(layout.is_ok()) << layout.status().what();
  std::vector<std::vector<std::byte>> files;
  std::vector<const std::byte*> bases;
  for (const auto& f : model->files) files.push_back(content_bytes(f.path));
  for (const auto& f : files) bases.push_back(f.data());
  StoreOptions o;
  o.policy = placement::find_policy("lru", NEOTIER_EXPERTS);
  o.top_k = 1;
  o.slots = 1;
  auto store = ExpertStore::open(*model, o);
  ASSERT_TRUE(store.is_ok()) << store.status().what();
  for (uint32_t layer = 0; layer < layout->layers(); layer++)
    for (uint32_t e = 0; e < layout->experts(); e++) {
      const Use use{e, 0, 0, false, 1};
      auto step = (*store)->begin(layer, std::span(&use, 1));
      ASSERT_TRUE(step.is_ok()) << step.status().what();
      const auto ready = (*step)->next();
      ASSERT_TRUE(ready && ready->status.is_ok());
      std::deque<std::vector<float>> biases;
      const compute::Expert direct = layout->view_in_place(layer, e, bases, biases);
      ASSERT_TRUE(compute::check(direct, layout->hidden()).is_ok());
      const std::pair<const compute::Matrix*, const compute::Matrix*> pairs[] = {
          {&direct.gate, &ready->weights.gate}, {&direct.up, &ready->weights.up}, {&direct.down, &ready->weights.down}};
      for (const auto& [a, b] : pairs)
        for (uint32_t r = 0; r < a->rows; r++) {
          const auto x = row(*a, r), y = row(*b, r);
          ASSERT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0) << name << " row " << r;
        }
      ASSERT_EQ(direct.up_bias != nullptr, ready->weights.up_bias != nullptr);
      for (uint32_t i = 0; direct.up_bias && i < direct.up.rows; i++)
        ASSERT_EQ(std::bit_cast<uint32_t>(direct.up_bias[i]), std::bit_cast<uint32_t>(ready->weights.up_bias[i]));
    }
}

TEST(Layout, GgufOfGgml) { same_in_store("gpt-oss.gguf"); }
TEST(Layout, SplitGguf) { same_in_store("split"); }
TEST(Layout, GptOssInSafetensors) { same_in_store("gpt-oss.safetensors"); }

TEST(Layout, RunsAreWholeBlocksAndPiecesThatTouchAreOne) {
  const auto model = model::open_model(kData + "gpt-oss.gguf");
  ASSERT_TRUE(model.is_ok());
  const auto layout = Layout::of(*model);
  ASSERT_TRUE(layout.is_ok());
  for (uint32_t e = 0; e < layout->experts(); e++) {
    const auto runs = layout->runs(0, e);
    uint64_t at = 0;
    for (size_t i = 0; i < runs.size(); i++) {
      EXPECT_EQ(runs[i].offset % kIoBlock, 0u);
      EXPECT_EQ(runs[i].bytes % kIoBlock, 0u);
      EXPECT_EQ(runs[i].at, at);
      if (i > 0) {
        EXPECT_GT(runs[i].offset, runs[i - 1].offset + runs[i - 1].bytes);
      }
      at += runs[i].bytes;
    }
    EXPECT_LE(at, layout->slot_bytes());
  }
}

// Where the CPU cannot read the slot, nothing of it may be converted: gpt-oss in safetensors has its biases in turns.
TEST(Layout, ConvertedBiasesKeepSlotsWhereTheCpuReachesThem) {
  for (const bool converted : {false, true}) {
    const auto model = model::open_model(kData + (converted ? "gpt-oss.safetensors" : "gpt-oss.gguf"));
    ASSERT_TRUE(model.is_ok());
    const auto layout = Layout::of(*model);
    ASSERT_TRUE(layout.is_ok());
    EXPECT_EQ(layout->only_points(), !converted);
    engine::MemoryTierOptions m;
    m.name = "gpu";
    m.kind = engine::TierKind::kGpu;
    m.capacity_bytes = 8 << 20;
    StoreOptions o;
    o.policy = placement::find_policy("lru", NEOTIER_EXPERTS);
    o.top_k = 1;
    o.slots = 1;
    o.memory = std::make_shared<engine::MemoryTier>(m);
    const auto store = ExpertStore::open(*model, o);
    EXPECT_EQ(store.is_ok(), !converted);
    if (converted) {
      EXPECT_EQ(store.status().code(), Code::kUnsupported);
      EXPECT_NE(store.status().what().find("gpu: this model's biases have to be converted"), std::string::npos);
    }
  }
}

// Each of the reasons by itself, by what a file's header may say; no byte of it is read.
TEST(Layout, BiasesThatAreNarrowOrInTurnsOrAskewAreConverted) {
  const auto gguf = model::open_model(kData + "gpt-oss.gguf");
  const auto tensors = model::open_model(kData + "gpt-oss.safetensors");
  ASSERT_TRUE(gguf.is_ok() && tensors.is_ok());
  const auto bias = [](const model::Tensor& t) {
    return t.name.find("exps.bias") != std::string::npos || t.name.find("proj_bias") != std::string::npos;
  };
  const auto dtype_of = [&](const model::Model& m) {
    return std::find_if(m.tensors.begin(), m.tensors.end(), bias)->dtype;
  };
  const auto wide = dtype_of(*gguf), narrow = dtype_of(*tensors);
  ASSERT_STREQ(wide->name, "F32");
  ASSERT_STREQ(narrow->name, "BF16");
  const auto only_points = [&](model::Model m, const model::Dtype* dtype, uint64_t askew) {
    for (model::Tensor& t : m.tensors)
      if (bias(t)) {
        t.bytes = t.bytes * (dtype == wide ? 4 : 2) / (t.dtype == wide ? 4 : 2);
        t.dtype = dtype;
        t.offset += askew;
      }
    const auto layout = Layout::of(m);
    EXPECT_TRUE(layout.is_ok()) << layout.status().what();
    return layout.is_ok() && layout->only_points();
  };
  EXPECT_TRUE(only_points(*gguf, wide, 0));
  EXPECT_FALSE(only_points(*gguf, narrow, 0));
  EXPECT_FALSE(only_points(*gguf, wide, 2));
  EXPECT_FALSE(only_points(*tensors, wide, 0));
}

TEST(Layout, SaysWhatCannotBeComputed) {
  model::Model none;
  none.files.push_back({"x.gguf", 0});
  EXPECT_EQ(Layout::of(none).status().what(), "x.gguf: no experts in this model");
}

}  // namespace

}  // namespace neotier::experts
