// SPDX-License-Identifier: Apache-2.0
// NeoTier as a ggml backend: an accelerator that claims the operations on expert weights (MUL_MAT_ID), brings the
// experts that they are about to use, and lets the CPU backend compute. Only public functions of ggml are called.
//
// Invariant: a weight that is not there is waited for, never read as something else. While a model is being loaded its
// buffer says that the CPU cannot address it, so that every way of loading hands the bytes over here.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml/abi.h"
#include "ggml/settings.h"
#include "ggml/weights.h"
#include "util/output_file.h"

namespace neotier::ggml {

namespace {

constexpr const char* kName = "NeoTier";
constexpr const char* kDescription = "experts in memory by a budget, the others in the model's file";
constexpr size_t kAlignment = 64;
constexpr size_t kMostNodes = 256;  // of a part of a graph that is computed at once

Settings g_settings;
BufferType g_type;
Device g_device;
Registration g_registration;
std::atomic<int> g_loading = 0;  // models whose experts have not all been handed over

void say(const std::string& line) { std::fprintf(stderr, "neotier: %s\n", line.c_str()); }

// The host has no way to hear that a weight could not be taken, and would go on without it.
[[noreturn]] void end_host(const std::string& why) {
  say(why);
  std::fflush(nullptr);
  std::_Exit(1);
}

// Nothing is thrown at the host, which is C in parts.
template <typename Body, typename Answer>
Answer guarded(const Body& body, Answer otherwise) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    say(error.what());
    return otherwise;
  }
}

std::byte* bytes_of(const Tensor* tensor, size_t offset) { return static_cast<std::byte*>(tensor->data) + offset; }

// ---- buffers: of expert weights, or plain memory for whatever else the host puts here.

struct Memory {
  std::shared_ptr<Weights> weights;  // NULL: plain
  std::unique_ptr<std::byte, void (*)(void*)> plain{nullptr, std::free};
};

Memory& memory_of(Buffer* buffer) { return *static_cast<Memory*>(buffer->context); }

void buffer_free(Buffer* buffer) {
  const std::unique_ptr<Memory> memory(&memory_of(buffer));
  if (!memory->weights) return;
  if (!memory->weights->complete()) g_loading--;
  if (g_settings.stats.empty()) return;
  try {
    OutputFile("NEOTIER_EXPERTS_STATS", g_settings.stats).finish(memory->weights->stats() + "\n");
  } catch (const std::exception& error) {
    say(error.what());
  }
}

void* buffer_base(Buffer* buffer) {
  const Memory& memory = memory_of(buffer);
  return memory.weights ? memory.weights->base() : memory.plain.get();
}

void buffer_set(Buffer* buffer, Tensor* tensor, const void* data, size_t offset, size_t bytes) {
  const Memory& memory = memory_of(buffer);
  if (!memory.weights) {
    std::memcpy(bytes_of(tensor, offset), data, bytes);
    return;
  }
  if (bytes == 0) return;
  const std::string why = guarded([&] { return memory.weights->set(tensor->data, data, offset, bytes); },
                                  std::string("a weight could not be taken"));
  if (!why.empty()) end_host(why);
  if (!memory.weights->complete()) return;
  g_loading--;
  if (!g_settings.quiet) say(memory.weights->summary());
}

void buffer_get(Buffer*, const Tensor* tensor, void* data, size_t offset, size_t bytes) {
  std::memcpy(data, bytes_of(tensor, offset), bytes);
}

void buffer_memset(Buffer* buffer, Tensor* tensor, uint8_t value, size_t offset, size_t bytes) {
  if (memory_of(buffer).weights) end_host(std::string(tensor->name) + " is overwritten; NeoTier only reads weights");
  std::memset(bytes_of(tensor, offset), value, bytes);
}

void buffer_clear(Buffer* buffer, uint8_t value) {
  if (!memory_of(buffer).weights) std::memset(buffer_base(buffer), value, buffer->size);
}

Buffer* make_buffer(BufferType* type, std::unique_ptr<Memory> memory, size_t bytes) {
  BufferTable table = {};
  table.free = buffer_free;
  table.base = buffer_base;
  table.memset_tensor = buffer_memset;
  table.set_tensor = buffer_set;
  table.get_tensor = buffer_get;
  table.clear = buffer_clear;
  return ggml_backend_buffer_init(type, table, memory.release(), bytes);
}

Buffer* allocate(BufferType* type, size_t bytes) {
  auto memory = std::make_unique<Memory>();
  const size_t room = (bytes + kAlignment) / kAlignment * kAlignment;
  memory->plain.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, room)));
  return memory->plain ? make_buffer(type, std::move(memory), bytes) : nullptr;
}

size_t padded(const Tensor* tensor) { return (ggml_nbytes(tensor) + kAlignment - 1) / kAlignment * kAlignment; }

// The host names the tensors of a model: the experts among them get addresses with a budget behind them.
Buffer* allocate_named(BufferType* type, Tensor** tensors, int count) {
  std::vector<Tensor*> experts, others;
  for (int i = 0; i < count; i++) {
    if (tensors[i]->data || tensors[i]->view_src) continue;
    uint32_t layer = 0;
    std::string role;
    (parse_expert_name(tensors[i]->name, &layer, &role) ? experts : others).push_back(tensors[i]);
  }
  if (!experts.empty() && !others.empty()) {
    say(fmt::format("{} is no expert's, and lies among experts; give only those to NeoTier", others[0]->name));
    return nullptr;
  }
  if (experts.empty()) {
    size_t bytes = 0;
    for (const Tensor* t : others) bytes += padded(t);
    Buffer* const buffer = allocate(type, bytes);
    size_t at = 0;
    for (Tensor* t : others) {
      if (buffer) (void)ggml_backend_tensor_alloc(buffer, t, static_cast<std::byte*>(buffer_base(buffer)) + at);
      at += padded(t);
    }
    return buffer;
  }
  std::string why;
  auto memory = std::make_unique<Memory>();
  memory->weights = Weights::plan(experts, g_settings, &why);
  if (!memory->weights) {
    say(why);
    return nullptr;
  }
  const Weights& weights = *memory->weights;
  g_loading++;
  Buffer* const buffer = make_buffer(type, std::move(memory), weights.bytes());
  for (size_t i = 0; i < experts.size(); i++)
    if (ggml_backend_tensor_alloc(buffer, experts[i], static_cast<std::byte*>(weights.base()) + weights.at(i)) !=
        kSuccess)
      end_host(std::string(experts[i]->name) + " cannot be placed");
  if (g_settings.repack) memory_of(buffer).weights->repack_as(Repack::of(experts));
  return buffer;
}

Buffer* type_alloc(BufferType* type, size_t bytes) {
  return guarded([&] { return allocate(type, bytes); }, static_cast<Buffer*>(nullptr));
}

Buffer* type_alloc_n(BufferType* type, Tensor** tensors, int count) {
  return guarded([&] { return allocate_named(type, tensors, count); }, static_cast<Buffer*>(nullptr));
}

// ---- streams: look at the experts' numbers, bring them, let the CPU backend compute.

struct Run {
  Stream* cpu = nullptr;
  Context* context = nullptr;  // of `part`
  Graph* part = nullptr;
  // The step that is open, and of whom.
  std::shared_ptr<Weights> weights;
  neotier_moe_step* step = nullptr;
  uint32_t layer = 0;
  std::vector<bool> computed;
  std::vector<int32_t> ids, chosen;  // the step's, and the operation's

  void end_step() {
    if (step) neotier_moe_end(step);
    step = nullptr;
    weights.reset();
  }
};

Run& run_of(Stream* stream) { return *static_cast<Run*>(stream->context); }

struct Operation {
  std::shared_ptr<Weights> weights;
  const Weights::Part* part = nullptr;
};

Operation operation_of(const Tensor* node) {
  Operation operation;
  const Tensor* const weights = node->src[0];
  if (node->op != multiply_by_ids() || !weights || !weights->buffer || weights->buffer->type != &g_type)
    return operation;
  operation.weights = memory_of(weights->buffer).weights;
  if (operation.weights) operation.part = operation.weights->find(weights->data);
  return operation;
}

// As the CPU backend is to see it, for the time of a computation.
class Shown {
 public:
  Shown(Tensor* node, Tensor* weights) : node_(node), own_(node->src[0]) {
    if (weights) node_->src[0] = weights;
  }
  ~Shown() { node_->src[0] = own_; }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

 private:
  Tensor *node_, *own_;
};

void read_ids(const Tensor* ids, std::vector<int32_t>& into) {
  const auto used = static_cast<size_t>(ids->ne[0]), rows = static_cast<size_t>(ids->ne[1]);
  into.resize(used * rows);
  for (size_t row = 0; row < rows; row++)
    for (size_t rank = 0; rank < used; rank++)
      std::memcpy(&into[row * used + rank], bytes_of(ids, row * ids->nb[1] + rank * ids->nb[0]), sizeof(int32_t));
}

// A step is of a layer and its choices; a part that comes a second time is another step's.
bool prepare(Run& run, const Operation& operation, const Tensor* node) {
  const Weights::Part& part = *operation.part;
  if (!operation.weights->complete()) throw std::runtime_error("a model is computed with before all of it was loaded");
  const Tensor* const ids = node->src[2];
  read_ids(ids, run.chosen);
  if (!run.step || run.weights != operation.weights || run.layer != part.layer || run.computed[part.part] ||
      run.chosen != run.ids) {
    run.end_step();
    run.ids.swap(run.chosen);
    run.step = neotier_moe_begin(operation.weights->moe(), part.layer, run.ids.data(), static_cast<size_t>(ids->ne[1]),
                                 static_cast<size_t>(ids->ne[0]));
    if (!run.step) return false;
    run.weights = operation.weights;
    run.layer = part.layer;
    run.computed.assign(operation.weights->parts(), false);
  }
  return neotier_moe_wait(run.step, part.part) == 0;
}

void computed(Run& run, const Operation& operation) {
  neotier_moe_done(run.step, operation.part->part);
  run.computed[operation.part->part] = true;
  for (const bool done : run.computed)
    if (!done) return;
  run.end_step();
}

ggml::Status compute_nodes(Run& run, Graph* graph, int first, int last) {
  if (first == last) return kSuccess;
  if (first == 0 && last == ggml_graph_n_nodes(graph)) return ggml_backend_graph_compute(run.cpu, graph);
  while (first < last) {
    ggml_graph_clear(run.part);
    for (size_t n = 0; n < kMostNodes && first < last; n++)
      ggml_graph_add_node(run.part, ggml_graph_node(graph, first++));
    if (const ggml::Status status = ggml_backend_graph_compute(run.cpu, run.part); status != kSuccess) return status;
  }
  return kSuccess;
}

// One operation on experts at a time, so that one part of them is all that has to be there at once.
ggml::Status compute(Run& run, Graph* graph) {
  const int nodes = ggml_graph_n_nodes(graph);
  int first = 0;
  for (int i = 0; i < nodes; i++) {
    Tensor* const node = ggml_graph_node(graph, i);
    const Operation operation = operation_of(node);
    if (!operation.part) continue;
    // What comes before it may make its choices.
    if (const ggml::Status status = compute_nodes(run, graph, first, i); status != kSuccess) return status;
    first = i;
    if (!prepare(run, operation, node)) {
      say(neotier_error());
      run.end_step();
      return kFailed;
    }
    {
      const Shown shown(node, operation.weights->shown(*operation.part));
      if (const ggml::Status status = compute_nodes(run, graph, i, i + 1); status != kSuccess) return status;
    }
    first = i + 1;
    computed(run, operation);
  }
  return compute_nodes(run, graph, first, nodes);
}

ggml::Status stream_compute(Stream* stream, Graph* graph) {
  return guarded([&] { return compute(run_of(stream), graph); }, kFailed);
}

void stream_free(Stream* stream) {
  const std::unique_ptr<Stream> own(stream);
  const std::unique_ptr<Run> run(&run_of(stream));
  run->end_step();
  if (run->context) ggml_free(run->context);
  if (run->cpu) ggml_backend_free(run->cpu);
}

Stream* make_stream(Device* device) {
  static uint8_t guid[16] = {'N', 'e', 'o', 'T', 'i', 'e', 'r', ' ', 'e', 'x', 'p', 'e', 'r', 't', 's', 1};
  Device* const cpu = ggml_backend_dev_by_type(kCpu);
  auto run = std::make_unique<Run>();
  run->cpu = cpu ? ggml_backend_dev_init(cpu, nullptr) : nullptr;
  run->context = ggml_init({ggml_graph_overhead_custom(kMostNodes, false), nullptr, true});
  if (run->context) run->part = ggml_new_graph_custom(run->context, kMostNodes, false);
  auto stream = std::make_unique<Stream>();
  stream->guid = guid;
  stream->table.name = [](Stream*) { return kName; };
  stream->table.free = stream_free;
  stream->table.compute = stream_compute;
  stream->device = device;
  if (!run->cpu || !run->part) {
    say("there is no CPU backend to compute with");
    stream->context = run.release();
    stream_free(stream.release());
    return nullptr;
  }
  stream->context = run.release();
  return stream.release();
}

Stream* device_init(Device* device, const char*) {
  return guarded([&] { return make_stream(device); }, static_cast<Stream*>(nullptr));
}

void set_threads(Stream* stream, int threads) {
  Registration* const cpu = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(kCpu));
  if (void* const set = ggml_backend_reg_get_proc_address(cpu, "ggml_backend_set_n_threads"))
    reinterpret_cast<void (*)(Stream*, int)>(set)(run_of(stream).cpu, threads);
}

void set_abort(Stream* stream, bool (*callback)(void*), void* data) {
  Registration* const cpu = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(kCpu));
  if (void* const set = ggml_backend_reg_get_proc_address(cpu, "ggml_backend_set_abort_callback"))
    reinterpret_cast<void (*)(Stream*, bool (*)(void*), void*)>(set)(run_of(stream).cpu, callback, data);
}

void* procedure(Registration*, const char* name) {
  if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) return reinterpret_cast<void*>(set_threads);
  if (std::strcmp(name, "ggml_backend_set_abort_callback") == 0) return reinterpret_cast<void*>(set_abort);
  return nullptr;
}

void device_memory(Device*, size_t* free, size_t* total) { *free = *total = 0; }

void device_properties(Device* device, DeviceProperties* properties) {
  *properties = {};
  properties->name = kName;
  properties->description = kDescription;
  properties->type = kAccelerator;
  // The file may be mapped for all other weights; experts are handed over from there.
  properties->caps.mmap_support = true;
  device_memory(device, &properties->memory_free, &properties->memory_total);
}

bool device_supports_op(Device*, const Tensor* node) {
  if (node->op != multiply_by_ids() || !node->src[0]) return false;
  const Buffer* const buffer = node->src[0]->buffer;
  return !buffer || buffer->type == &g_type;
}

}  // namespace

}  // namespace neotier::ggml

using namespace neotier::ggml;

extern "C" __attribute__((visibility("default"))) Registration* ggml_backend_init() {
  try {
    g_settings = settings_of_environment();
  } catch (const std::exception& error) {
    // Without its memory limit the model is not what was asked for.
    end_host(error.what());
  }
  g_type.table.name = [](BufferType*) { return kName; };
  g_type.table.alloc = type_alloc;
  g_type.table.alloc_n = type_alloc_n;
  g_type.table.alignment = [](BufferType*) { return kAlignment; };
  g_type.table.is_host = [](BufferType*) { return g_loading == 0; };
  g_type.device = &g_device;
  g_device.table.name = [](Device*) { return kName; };
  g_device.table.description = [](Device*) { return kDescription; };
  g_device.table.memory = device_memory;
  g_device.table.type = [](Device*) { return static_cast<int>(kAccelerator); };
  g_device.table.properties = device_properties;
  g_device.table.init = device_init;
  g_device.table.buffer_type = [](Device*) { return &g_type; };
  g_device.table.supports_op = device_supports_op;
  g_device.table.supports_buffer_type = [](Device*, BufferType* type) {
    return type == &g_type || ggml_backend_buft_is_host(type);
  };
  g_device.registration = &g_registration;
  g_registration.api_version = kApiVersion;
  g_registration.table.name = [](Registration*) { return kName; };
  g_registration.table.devices = [](Registration*) -> size_t { return 1; };
  g_registration.table.device = [](Registration*, size_t) { return &g_device; };
  g_registration.table.procedure = procedure;
  return &g_registration;
}
