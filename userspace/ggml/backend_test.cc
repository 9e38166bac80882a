// SPDX-License-Identifier: Apache-2.0
// The backend in a stand-in host: ggml's functions as far as the backend calls them, and a CPU backend that compares
// the weights it is to compute with against the model's file. tests/engines/test_llama.py has the real one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "experts/synthetic_model.h"
#include "ggml/abi.h"
#include "ggml/weights.h"
#include "model/model.h"
#include "util/temporary_folder.h"
#include "util/testing/content.h"

extern "C" neotier::ggml::Registration* ggml_backend_init();

namespace neotier::ggml {

struct Graph {
  std::vector<Tensor*> nodes;
};
struct Context {
  Graph graph;
};

namespace {

constexpr int kMultiplyByIds = 29, kOther = 7;

// What the stand-in's CPU backend saw.
struct Seen {
  int graphs = 0, threads = 0, streams = 0;
  uint64_t experts = 0, wrong = 0, repacked = 0;
  std::vector<int> nodes;  // of each graph
  const std::byte* file = nullptr;
  std::map<const void*, uint64_t> offset_of;  // tensor's address: of its bytes in the file
} g_seen;

Device g_cpu;
Registration g_cpu_registration;

// The CPU backend's other layout: here each bit the other way round.
BufferType g_repack;
bool g_has_repack = false;

Buffer* repack_alloc(BufferType* type, size_t bytes) {
  BufferTable table = {};
  table.free = [](Buffer* buffer) { std::free(buffer->context); };
  table.base = [](Buffer* buffer) { return buffer->context; };
  table.init_tensor = [](Buffer*, Tensor* tensor) {
    tensor->extra = &g_repack;
    return kSuccess;
  };
  table.set_tensor = [](Buffer*, Tensor* tensor, const void* data, size_t offset, size_t n) {
    EXPECT_EQ(offset, 0u);
    EXPECT_EQ(n, tensor->nb[2]);
    for (size_t i = 0; i < n; i++) static_cast<std::byte*>(tensor->data)[i] = ~static_cast<const std::byte*>(data)[i];
  };
  return ggml_backend_buffer_init(type, table, std::malloc(bytes), bytes);
}

}  // namespace

extern "C" {

Buffer* ggml_backend_buffer_init(BufferType* type, BufferTable table, void* context, size_t bytes) {
  return new Buffer{table, type, context, bytes, 0};
}
Status ggml_backend_tensor_alloc(Buffer* buffer, Tensor* tensor, void* address) {
  tensor->buffer = buffer;
  tensor->data = address;
  return kSuccess;
}
bool ggml_backend_buft_is_host(BufferType* type) { return type->table.is_host && type->table.is_host(type); }
Device* ggml_backend_dev_by_type(int type) { return type == kCpu ? &g_cpu : nullptr; }
Registration* ggml_backend_dev_backend_reg(Device*) { return &g_cpu_registration; }
void ggml_backend_buffer_free(Buffer* buffer) {
  buffer->table.free(buffer);
  delete buffer;
}
void* ggml_backend_reg_get_proc_address(Registration*, const char* name) {
  if (g_has_repack && std::strcmp(name, "ggml_backend_dev_get_extra_bufts") == 0)
    return reinterpret_cast<void*>(+[](Device*) {
      static BufferType* types[] = {&g_repack, nullptr};
      g_repack.table.name = [](BufferType*) { return "CPU_REPACK"; };
      g_repack.table.alloc = repack_alloc;
      // Down's matrices stay as they are.
      g_cpu.table.supports_op = [](Device*, const Tensor* node) {
        return std::strstr(node->src[0]->name, "down") == nullptr;
      };
      return types;
    });
  if (std::strcmp(name, "ggml_backend_set_n_threads") != 0) return nullptr;
  return reinterpret_cast<void*>(+[](Stream*, int threads) { g_seen.threads = threads; });
}
Stream* ggml_backend_dev_init(Device* device, const char*) {
  g_seen.streams++;
  auto* const stream = new Stream{};
  stream->device = device;
  return stream;
}
void ggml_backend_free(Stream* stream) {
  g_seen.streams--;
  delete stream;
}
Status ggml_backend_graph_compute(Stream*, Graph* graph) {
  g_seen.graphs++;
  g_seen.nodes.push_back(static_cast<int>(graph->nodes.size()));
  for (const Tensor* node : graph->nodes) {
    if (node->op != kMultiplyByIds) continue;
    const Tensor &weights = *node->src[0], &ids = *node->src[2];
    for (int64_t row = 0; row < ids.ne[1]; row++)
      for (int64_t k = 0; k < ids.ne[0]; k++) {
        int32_t id = 0;
        std::memcpy(&id, static_cast<std::byte*>(ids.data) + row * ids.nb[1] + k * ids.nb[0], sizeof id);
        g_seen.experts++;
        const bool repacked = weights.buffer->type == &g_repack;
        g_seen.repacked += repacked;
        const std::byte* const here = static_cast<std::byte*>(weights.data) + id * weights.nb[2];
        const std::byte* const there = g_seen.file + g_seen.offset_of.at(weights.data) + id * weights.nb[2];
        bool equal = !repacked || weights.extra == &g_repack;
        for (size_t i = 0; i < weights.nb[2]; i++) equal = equal && here[i] == (repacked ? ~there[i] : there[i]);
        g_seen.wrong += !equal;
      }
  }
  return kSuccess;
}
size_t ggml_nbytes(const Tensor* tensor) { return tensor->nb[3]; }
const char* ggml_op_name(int op) { return op == kMultiplyByIds ? "MUL_MAT_ID" : "ANOTHER"; }
int ggml_graph_n_nodes(Graph* graph) { return static_cast<int>(graph->nodes.size()); }
Tensor* ggml_graph_node(Graph* graph, int index) { return graph->nodes[index]; }
Context* ggml_init(InitParameters) { return new Context; }
void ggml_free(Context* context) { delete context; }
Graph* ggml_new_graph_custom(Context* context, size_t, bool) { return &context->graph; }
size_t ggml_graph_overhead_custom(size_t nodes, bool) { return 64 * nodes; }
void ggml_graph_clear(Graph* graph) { graph->nodes.clear(); }
void ggml_graph_add_node(Graph* graph, Tensor* tensor) { graph->nodes.push_back(tensor); }

}  // extern "C"

namespace {

enum class Way { kMapped, kCopied };

experts::SyntheticModel shape_of(uint32_t ff) {
  experts::SyntheticModel shape;
  shape.layers = 3;
  shape.experts = 8;
  shape.top_k = 2;
  shape.hidden = 64;
  shape.ff = ff;
  shape.format = compute::Format::kQ8_0;
  shape.biases = false;
  return shape;
}

class Backend : public ::testing::Test {
 protected:
  void SetUp() override {
    g_seen = {};
    make_model(96);
    auto range = neotier_range_open(4096, -1);
    if (!range) GTEST_SKIP() << neotier_error();
    neotier_range_close(range);
    for (const char* name : {"MEMORY", "POLICY", "PREDICTOR", "NODE", "STATS", "REPACK"})
      unsetenv((std::string("NEOTIER_EXPERTS_") + name).c_str());
    setenv("NEOTIER_QUIET", "1", 1);
    g_has_repack = false;
  }
  void make_model(uint32_t ff) {
    file_ = folder_.path() / "model.gguf";
    ASSERT_TRUE(experts::write_synthetic_model(shape_of(ff), file_));
    auto model = model::open_model(file_);
    ASSERT_TRUE(model) << model.status().what();
    model_ = std::move(*model);
    content_ = content_bytes(file_);
    g_seen.file = content_.data();
  }
  void TearDown() override {
    if (buffer_) free_buffer();
    if (descriptor_ >= 0) close(descriptor_);
    EXPECT_EQ(g_seen.streams, 0) << "a CPU stream was left";
  }

  void init(const char* memory = nullptr) {
    if (memory) setenv("NEOTIER_EXPERTS_MEMORY", memory, 1);
    registration_ = ggml_backend_init();
    device_ = registration_->table.device(registration_, 0);
    type_ = device_->table.buffer_type(device_);
  }
  uint64_t all() const {
    uint64_t sum = 0;
    for (const model::Tensor& t : model_.tensors) sum += t.name.find("_exps") != std::string::npos ? t.bytes : 0;
    return sum;
  }
  // The model's expert tensors, as llama.cpp describes them.
  void describe() {
    tensors_.clear();
    for (const model::Tensor& t : model_.tensors) {
      if (t.name.find("_exps.weight") == std::string::npos) continue;
      auto one = std::make_unique<Tensor>();
      std::snprintf(one->name, sizeof one->name, "%s", t.name.c_str());
      one->ne[0] = static_cast<int64_t>(t.shape[2]);
      one->ne[1] = static_cast<int64_t>(t.shape[1]);
      one->ne[2] = static_cast<int64_t>(t.shape[0]);
      one->ne[3] = 1;
      one->nb[2] = t.bytes / t.shape[0];
      one->nb[3] = t.bytes;
      tensors_.push_back(std::move(one));
    }
  }
  bool allocate() {
    describe();
    std::vector<Tensor*> list;
    for (const auto& t : tensors_) list.push_back(t.get());
    buffer_ = type_->table.alloc_n(type_, list.data(), static_cast<int>(list.size()));
    for (const auto& t : tensors_)
      if (buffer_) g_seen.offset_of[t->data] = model_.find(t->name)->offset;
    return buffer_ != nullptr;
  }
  void free_buffer() {
    buffer_->table.free(buffer_);
    delete buffer_;
    buffer_ = nullptr;
  }
  // Hands all tensors over in pieces, from the file's mapping or from a copy of it.
  void hand_over(Way way, size_t piece = 10000) {
    descriptor_ = open(file_.c_str(), O_RDONLY | O_CLOEXEC);
    const std::byte* from = content_.data();
    void* mapping = nullptr;
    if (way == Way::kMapped) {
      mapping = mmap(nullptr, content_.size(), PROT_READ, MAP_SHARED, descriptor_, 0);
      from = static_cast<const std::byte*>(mapping);
      close(descriptor_);
      descriptor_ = -1;
    }
    for (const auto& t : tensors_)
      for (size_t at = 0; at < t->nb[3]; at += piece)
        buffer_->table.set_tensor(buffer_, t.get(), from + model_.find(t->name)->offset + at, at,
                                  std::min(piece, t->nb[3] - at));
    if (mapping) munmap(mapping, content_.size());
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }
  Tensor* tensor(uint32_t layer, const std::string& role) {
    const std::string name = "blk." + std::to_string(layer) + ".ffn_" + role + "_exps.weight";
    for (const auto& t : tensors_)
      if (name == t->name) return t.get();
    return nullptr;
  }
  // ids[row][rank], each row at `stride` numbers.
  Tensor* ids_of(const std::vector<std::vector<int32_t>>& rows, size_t stride = 5) {
    numbers_.push_back(std::vector<int32_t>(rows.size() * stride, -77));
    auto t = std::make_unique<Tensor>();
    t->ne[0] = static_cast<int64_t>(rows[0].size());
    t->ne[1] = static_cast<int64_t>(rows.size());
    t->nb[0] = sizeof(int32_t);
    t->nb[1] = stride * sizeof(int32_t);
    for (size_t row = 0; row < rows.size(); row++)
      std::copy(rows[row].begin(), rows[row].end(), numbers_.back().begin() + static_cast<ptrdiff_t>(row * stride));
    t->data = numbers_.back().data();
    nodes_.push_back(std::move(t));
    return nodes_.back().get();
  }
  Tensor* node(int op, Tensor* weights = nullptr, Tensor* ids = nullptr) {
    auto t = std::make_unique<Tensor>();
    t->op = op;
    t->src[0] = weights;
    t->src[2] = ids;
    nodes_.push_back(std::move(t));
    return nodes_.back().get();
  }
  // A token batch through all layers: gate and up in one graph with others between them, down in the next.
  void pass(Stream* stream, const std::vector<std::vector<int32_t>>& rows) {
    for (uint32_t layer = 0; layer < 3; layer++) {
      Tensor* const ids = ids_of(rows);
      Graph first{{node(kOther), node(kMultiplyByIds, tensor(layer, "gate"), ids), node(kOther),
                   node(kMultiplyByIds, tensor(layer, "up"), ids), node(kOther)}};
      Graph second{{node(kMultiplyByIds, tensor(layer, "down"), ids)}};
      ASSERT_EQ(stream->table.compute(stream, &first), kSuccess);
      ASSERT_EQ(stream->table.compute(stream, &second), kSuccess);
    }
    nodes_.clear();
    numbers_.clear();
  }
  void free_stream(Stream* stream) { stream->table.free(stream); }

  TemporaryFolder folder_{"ggml"};
  std::filesystem::path file_;
  model::Model model_;
  std::vector<std::byte> content_;
  Registration* registration_ = nullptr;
  Device* device_ = nullptr;
  BufferType* type_ = nullptr;
  Buffer* buffer_ = nullptr;
  std::vector<std::unique_ptr<Tensor>> tensors_, nodes_;
  std::vector<std::vector<int32_t>> numbers_;
  int descriptor_ = -1;
};

TEST_F(Backend, IsAnAcceleratorThatClaimsWhatItsWeightsAreUsedBy) {
  init();
  EXPECT_EQ(registration_->api_version, 3);
  EXPECT_EQ(registration_->table.devices(registration_), 1u);
  EXPECT_EQ(device_->table.type(device_), static_cast<int>(kAccelerator));
  DeviceProperties p = {};
  device_->table.properties(device_, &p);
  EXPECT_STREQ(p.name, "NeoTier");
  EXPECT_FALSE(p.caps.buffer_from_host_ptr) << "the mapping itself is not ours to keep within a budget";
  Tensor weights = {};
  Tensor* const claimed = node(kMultiplyByIds, &weights);
  EXPECT_TRUE(device_->table.supports_op(device_, claimed)) << "weights that are not placed yet";
  EXPECT_FALSE(device_->table.supports_op(device_, node(kOther, &weights)));
  BufferType other = {};
  Buffer elsewhere = {};
  elsewhere.type = &other;
  weights.buffer = &elsewhere;
  EXPECT_FALSE(device_->table.supports_op(device_, claimed));
  EXPECT_TRUE(device_->table.supports_buffer_type(device_, type_));
  EXPECT_FALSE(device_->table.supports_buffer_type(device_, &other)) << "no memory that the CPU reads";
}

class BackendLoads : public Backend, public ::testing::WithParamInterface<std::tuple<Way, const char*>> {};

TEST_P(BackendLoads, WhatIsComputedWithIsTheFile) {
  const auto [way, memory] = GetParam();
  const auto stats = folder_.path() / "stats.json";
  setenv("NEOTIER_EXPERTS_STATS", stats.c_str(), 1);
  init(memory);
  ASSERT_TRUE(type_->table.is_host(type_));
  ASSERT_TRUE(allocate());
  EXPECT_FALSE(type_->table.is_host(type_)) << "so that no way of loading writes past the backend";
  hand_over(way);
  EXPECT_TRUE(type_->table.is_host(type_));
  Stream* const stream = device_->table.init(device_, nullptr);
  ASSERT_NE(stream, nullptr);
  reinterpret_cast<void (*)(Stream*, int)>(registration_->table.procedure(registration_, "ggml_backend_set_n_threads"))(
      stream, 3);
  EXPECT_EQ(g_seen.threads, 3);
  pass(stream, {{0, 1, 2, 3, 4}, {5, 6, 7, 0, 1}});  // as a host warms up: all of them
  for (int32_t token = 0; token < 20; token++) pass(stream, {{token % 8, (token * 3 + 1) % 8}});
  pass(stream, {{1, 2}, {3, 4}, {5, 6}, {7, 0}});
  EXPECT_EQ(g_seen.wrong, 0u);
  EXPECT_EQ(g_seen.experts, 3u * 3 * (10 + 20 * 2 + 8));
  free_stream(stream);
  free_buffer();
  const auto json = nlohmann::json::parse(content(stats));
  EXPECT_EQ(json.at("events"), 3 * 22);
  EXPECT_EQ(json.at("faults"), 0) << "all had been announced";
  EXPECT_EQ(json.at("experts"), 8);
  EXPECT_LE(json.at("resident_peak_bytes"), json.at("budget_bytes"));
  if (std::string(memory) == "all") {
    EXPECT_EQ(json.at("slots"), 8);
    EXPECT_EQ(json.at("stall_free"), json.at("uses")) << "they were read while the model was loaded";
  } else {
    EXPECT_LT(json.at("slots"), 8);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BackendLoads,
                         ::testing::Combine(::testing::Values(Way::kMapped, Way::kCopied),
                                            ::testing::Values("all", "400K")));

TEST_F(Backend, AnyOrderOfPartsAndLayersIsRight) {
  init("400K");
  ASSERT_TRUE(allocate());
  hand_over(Way::kMapped);
  Stream* const stream = device_->table.init(device_, nullptr);
  Tensor *const one = ids_of({{3, 5}}), *const two = ids_of({{6, 0}});
  // Down first, one part twice, two layers in turns, a graph of nothing but others, an empty one.
  Graph odd{{node(kMultiplyByIds, tensor(1, "down"), one), node(kMultiplyByIds, tensor(1, "down"), two),
             node(kMultiplyByIds, tensor(2, "gate"), one), node(kMultiplyByIds, tensor(1, "up"), two),
             node(kMultiplyByIds, tensor(2, "up"), one)}};
  Graph others{{node(kOther), node(kOther)}}, empty;
  EXPECT_EQ(stream->table.compute(stream, &odd), kSuccess);
  EXPECT_EQ(stream->table.compute(stream, &others), kSuccess);
  EXPECT_EQ(stream->table.compute(stream, &empty), kSuccess);
  EXPECT_EQ(g_seen.wrong, 0u);
  EXPECT_EQ(g_seen.experts, 10u);
  EXPECT_EQ(g_seen.nodes.back(), 2) << "what is not ours is computed at once";
  Stream* const second = device_->table.init(device_, nullptr);
  pass(second, {{4, 2}});
  free_stream(stream);
  pass(second, {{2, 7}});
  free_stream(second);
  EXPECT_EQ(g_seen.wrong, 0u);
}

TEST_F(Backend, WhereAllFitTheyAreLaidOutAsTheCpuBackendLikes) {
  make_model(512);  // 34,816 bytes a matrix: no whole pages
  const auto repacked = [&](const char* memory) {
    g_seen.experts = g_seen.repacked = 0;
    g_seen.offset_of.clear();
    g_has_repack = true;
    init(memory);
    EXPECT_TRUE(allocate());
    hand_over(Way::kMapped);
    Stream* const stream = device_->table.init(device_, nullptr);
    Tensor* const node_weights = tensor(0, "gate");
    for (int32_t token = 0; token < 8; token++) pass(stream, {{token, (token + 3) % 8}});
    EXPECT_EQ(node_weights->buffer->type, type_) << "the host's own tensors stay as they were";
    free_stream(stream);
    free_buffer();
    EXPECT_EQ(g_seen.wrong, 0u);
    EXPECT_EQ(g_seen.experts, 3u * 3 * 8 * 2);
    return g_seen.repacked;
  };
  EXPECT_EQ(repacked("all"), 0u) << "parts that are no whole pages";
  make_model(2048 * 4);  // 136 pages
  EXPECT_EQ(repacked("all"), 3u * 2 * 8 * 2) << "gate and up";
  EXPECT_EQ(repacked("8M"), 0u) << "experts that come and go are left as they are in the file";
  setenv("NEOTIER_EXPERTS_REPACK", "0", 1);
  EXPECT_EQ(repacked("all"), 0u);
}

TEST_F(Backend, OtherChoicesAreAnotherStep) {
  const auto stats = folder_.path() / "stats.json";
  setenv("NEOTIER_EXPERTS_STATS", stats.c_str(), 1);
  init("400K");
  ASSERT_TRUE(allocate());
  hand_over(Way::kMapped);
  Stream* const stream = device_->table.init(device_, nullptr);
  // As where a computation was given up after gate.
  Graph given_up{{node(kMultiplyByIds, tensor(1, "gate"), ids_of({{3, 5}}))}};
  Graph next{{node(kMultiplyByIds, tensor(1, "up"), ids_of({{6, 0}}))}};
  EXPECT_EQ(stream->table.compute(stream, &given_up), kSuccess);
  EXPECT_EQ(stream->table.compute(stream, &next), kSuccess);
  EXPECT_EQ(g_seen.wrong, 0u);
  free_stream(stream);
  free_buffer();
  EXPECT_EQ(nlohmann::json::parse(content(stats)).at("faults"), 0) << "the second choices were announced too";
}

TEST_F(Backend, PlainMemoryForWhatIsNoExpert) {
  init();
  Buffer* const small = type_->table.alloc(type_, 0);
  ASSERT_NE(small, nullptr) << "llama.cpp asks so whether a tensor may lie here";
  small->table.free(small);
  delete small;
  Tensor a = {}, b = {};
  std::snprintf(a.name, sizeof a.name, "output.weight");
  std::snprintf(b.name, sizeof b.name, "blk.0.ffn_gate_inp.weight");
  a.nb[3] = 100;
  b.nb[3] = 200;
  Tensor* list[] = {&a, &b};
  Buffer* const buffer = type_->table.alloc_n(type_, list, 2);
  ASSERT_NE(buffer, nullptr);
  EXPECT_TRUE(type_->table.is_host(type_));
  const std::vector<std::byte> bytes(200, std::byte{5});
  buffer->table.clear(buffer, 0);
  buffer->table.set_tensor(buffer, &b, bytes.data(), 0, 200);
  std::vector<std::byte> back(200);
  buffer->table.get_tensor(buffer, &b, back.data(), 0, 200);
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(*static_cast<std::byte*>(a.data), std::byte{0});
  buffer->table.memset_tensor(buffer, &a, 9, 1, 2);
  EXPECT_EQ(static_cast<std::byte*>(a.data)[2], std::byte{9});
  buffer->table.free(buffer);
  delete buffer;
}

TEST_F(Backend, RefusesABudgetBelowOneOperation) {
  init("8K");
  testing::internal::CaptureStderr();
  EXPECT_FALSE(allocate());
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("NEOTIER_EXPERTS_MEMORY: 8 KiB are less than one operation needs; give "), std::string::npos)
      << line;
  EXPECT_TRUE(type_->table.is_host(type_));
}

TEST_F(Backend, RefusesExpertsOfAnotherShape) {
  init();
  describe();
  std::vector<Tensor*> list;
  for (const auto& t : tensors_) list.push_back(t.get());
  const auto refused = [&](auto change) {
    describe();
    for (size_t i = 0; i < tensors_.size(); i++) list[i] = tensors_[i].get();
    change();
    testing::internal::CaptureStderr();
    Buffer* const buffer = type_->table.alloc_n(type_, list.data(), static_cast<int>(list.size()));
    return !buffer && !testing::internal::GetCapturedStderr().empty();
  };
  EXPECT_TRUE(refused([&] { list[0]->ne[2] = 7; })) << "its bytes are not those of so many";
  EXPECT_TRUE(refused([&] {
    list[0]->ne[2] = 4;
    list[0]->nb[2] *= 2;
  })) << "fewer than the others";
  EXPECT_TRUE(refused([&] { std::snprintf(list[0]->name, sizeof list[0]->name, "output.weight"); }));
  EXPECT_TRUE(refused([&] { list.pop_back(); })) << "a layer lacks a part";
}

TEST_F(Backend, BytesThatAreInNoOpenFileEndTheHost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  content_[model_.find("blk.1.ffn_up_exps.weight")->offset] ^= std::byte{1};
  const auto load = [&](bool open_file) {
    init("all");
    allocate();
    if (open_file) descriptor_ = open(file_.c_str(), O_RDONLY | O_CLOEXEC);
    for (const auto& t : tensors_)
      buffer_->table.set_tensor(buffer_, t.get(), content_.data() + model_.find(t->name)->offset, 0, t->nb[3]);
    std::_Exit(0);
  };
  EXPECT_EXIT(load(true), testing::ExitedWithCode(1), "blk.1.ffn_up_exps.weight is in no GGUF file");
  EXPECT_EXIT(load(false), testing::ExitedWithCode(1), "_exps.weight is in no GGUF file");
}

TEST_F(Backend, WeightsAreOnlyRead) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto write = [&](bool set) {
    init("all");
    allocate();
    hand_over(Way::kMapped);
    Tensor* const t = tensors_[0].get();
    if (set)
      buffer_->table.set_tensor(buffer_, t, content_.data(), 0, 64);
    else
      buffer_->table.memset_tensor(buffer_, t, 0, 0, 64);
    std::_Exit(0);
  };
  EXPECT_EXIT(write(true), testing::ExitedWithCode(1), "only reads weights");
  EXPECT_EXIT(write(false), testing::ExitedWithCode(1), "only reads weights");
}

TEST_F(Backend, WeightsThatWereNotHandedOverAreNotComputedWith) {
  init("all");
  ASSERT_TRUE(allocate());
  Stream* const stream = device_->table.init(device_, nullptr);
  Graph graph{{node(kMultiplyByIds, tensor(2, "down"), ids_of({{3, 5}}))}};
  testing::internal::CaptureStderr();
  EXPECT_EQ(stream->table.compute(stream, &graph), kFailed);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "neotier: a model is computed with before all of it was loaded\n");
  free_stream(stream);
  free_buffer();
  EXPECT_TRUE(type_->table.is_host(type_)) << "a model that was given up is no longer being loaded";
}

TEST_F(Backend, AFileThatBecameShorterFailsTheOperation) {
  init("400K");
  ASSERT_TRUE(allocate());
  hand_over(Way::kMapped);
  std::filesystem::resize_file(file_, 4096);
  Stream* const stream = device_->table.init(device_, nullptr);
  Graph graph{{node(kMultiplyByIds, tensor(2, "down"), ids_of({{3, 5}}))}};
  testing::internal::CaptureStderr();
  EXPECT_EQ(stream->table.compute(stream, &graph), kFailed);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("has the file become shorter?"), std::string::npos);
  free_stream(stream);
}

TEST_F(Backend, WordsOfTheEnvironmentThatAreNoneEndTheHost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto with = [&](const char* name, const char* value) {
    setenv(name, value, 1);
    init();
    std::_Exit(allocate() ? 0 : 1);
  };
  EXPECT_EXIT(with("NEOTIER_EXPERTS_MEMORY", "much"), testing::ExitedWithCode(1), "'much' is no size.*or all");
  EXPECT_EXIT(with("NEOTIER_EXPERTS_MEMORY", "0"), testing::ExitedWithCode(1), "no room for experts");
  EXPECT_EXIT(with("NEOTIER_EXPERTS_POLICY", ""), testing::ExitedWithCode(1), "POLICY is set and empty");
  EXPECT_EXIT(with("NEOTIER_EXPERTS_REPACK", "yes"), testing::ExitedWithCode(1), "'yes' is neither 0 nor 1");
  EXPECT_EXIT(with("NEOTIER_EXPERTS_NODE", "fast"), testing::ExitedWithCode(1), "'fast' is no NUMA node");
  EXPECT_EXIT(with("NEOTIER_EXPERTS_NODE", "900"), testing::ExitedWithCode(1), "node 900");
}

TEST_F(Backend, APolicyThatIsNoneEndsTheHostAtTheLastTensor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto load = [&] {
    setenv("NEOTIER_EXPERTS_POLICY", "oldest", 1);
    init();
    allocate();
    hand_over(Way::kMapped);
    std::_Exit(0);
  };
  EXPECT_EXIT(load(), testing::ExitedWithCode(1), "oldest");
}

TEST(ExpertName, IsALayerAndARole) {
  uint32_t layer = 0;
  std::string role;
  ASSERT_TRUE(parse_expert_name("blk.12.ffn_gate_up_exps.weight", &layer, &role));
  EXPECT_EQ(layer, 12u);
  EXPECT_EQ(role, "gate_up");
  for (const char* name :
       {"", "blk.1.ffn_gate_exps.bias", "blk..ffn_up_exps.weight", "blk.1.ffn_norm.weight", "blk.x.ffn_up_exps.weight",
        "blk.1.ffn_sideways_exps.weight", "blk.99999999999.ffn_up_exps.weight", "blk.1_ffn_up_exps.weight"})
    EXPECT_FALSE(parse_expert_name(name, &layer, &role)) << name;
}

}  // namespace
}  // namespace neotier::ggml
