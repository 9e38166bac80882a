// SPDX-License-Identifier: Apache-2.0
// The binary interface between ggml and a backend that it loads by GGML_BACKEND_PATH, version 3 of ggml's own count, as
// far as this backend uses it. Ours and not ggml's header: Debian packages none of a backend's side, and what is stated
// here compiles where there is no ggml. A host of another version refuses the backend, as kApiVersion is not its own.
//
// Slots of a table that this backend never fills are `Unused`. Offsets: tests/engines/llama compares the public ones
// with the installed headers; the tables' were read from libggml-base.so.0.27.0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace neotier::ggml {

inline constexpr int kApiVersion = 3;
using Unused = void*;

struct BufferType;
struct Buffer;
struct Stream;  // ggml_backend
struct Device;
struct Registration;
struct Graph;    // ggml_cgraph, only by its functions
struct Context;  // ggml_context, likewise

inline constexpr int kDims = 4;
inline constexpr int kSources = 10;

struct Tensor {
  int type;
  Buffer* buffer;
  int64_t ne[kDims];
  size_t nb[kDims];
  int op;
  int32_t op_params[16];
  int32_t flags;
  Tensor* src[kSources];
  Tensor* view_src;
  size_t view_offs;
  void* data;
  char name[64];
  void* extra;
  char padding[8];
};
static_assert(offsetof(Tensor, src) == 152 && offsetof(Tensor, data) == 248 && sizeof(Tensor) == 336);

enum Status : int { kFailed = -1, kSuccess = 0 };
enum DeviceType : int { kCpu = 0, kAccelerator = 3 };

struct BufferTypeTable {
  const char* (*name)(BufferType*);
  Buffer* (*alloc)(BufferType*, size_t bytes);
  Buffer* (*alloc_n)(BufferType*, Tensor** tensors, int count);
  size_t (*alignment)(BufferType*);
  Unused max_size, alloc_size, alloc_size_n;
  bool (*is_host)(BufferType*);
};
struct BufferType {
  BufferTypeTable table;
  Device* device;
  void* context;
};

struct BufferTable {
  void (*free)(Buffer*);
  void* (*base)(Buffer*);
  Status (*init_tensor)(Buffer*, Tensor*);  // may be NULL
  void (*memset_tensor)(Buffer*, Tensor*, uint8_t value, size_t offset, size_t bytes);
  void (*set_tensor)(Buffer*, Tensor*, const void* data, size_t offset, size_t bytes);
  void (*get_tensor)(Buffer*, const Tensor*, void* data, size_t offset, size_t bytes);
  Unused set_tensor_2d, get_tensor_2d, copy_tensor;
  void (*clear)(Buffer*, uint8_t value);
  Unused reset;
};
struct Buffer {
  BufferTable table;
  BufferType* type;
  void* context;
  size_t size;
  int usage;
};

struct StreamTable {
  const char* (*name)(Stream*);
  void (*free)(Stream*);
  Unused set_async, get_async, set_2d_async, get_2d_async, copy_async, synchronize;
  Unused plan_create, plan_free, plan_update, plan_compute;
  Status (*compute)(Stream*, Graph*);
  Unused event_record, event_wait, optimize;
};
struct Stream {
  uint8_t* guid;  // of 16 bytes
  StreamTable table;
  Device* device;
  void* context;
};

struct DeviceCaps {
  bool async, host_buffer, buffer_from_host_ptr, events, mmap_support;
};
struct DeviceProperties {
  const char *name, *description;
  size_t memory_free, memory_total;
  int type;
  const char* id;
  DeviceCaps caps;
};
struct DeviceTable {
  const char* (*name)(Device*);
  const char* (*description)(Device*);
  void (*memory)(Device*, size_t* free, size_t* total);
  int (*type)(Device*);
  void (*properties)(Device*, DeviceProperties*);
  Stream* (*init)(Device*, const char* parameters);
  BufferType* (*buffer_type)(Device*);
  Unused host_buffer_type, buffer_from_host_ptr;
  bool (*supports_op)(Device*, const Tensor*);
  bool (*supports_buffer_type)(Device*, BufferType*);
  Unused offload_op, event_new, event_free, event_synchronize;
};
struct Device {
  DeviceTable table;
  Registration* registration;
  void* context;
};

struct RegistrationTable {
  const char* (*name)(Registration*);
  size_t (*devices)(Registration*);
  Device* (*device)(Registration*, size_t index);
  void* (*procedure)(Registration*, const char* name);
};
struct Registration {
  int api_version;
  RegistrationTable table;
  void* context;
};

struct InitParameters {
  size_t bytes;
  void* memory;
  bool no_alloc;
};

static_assert(offsetof(BufferTypeTable, is_host) == 0x38 && offsetof(BufferType, device) == 0x40);
static_assert(offsetof(BufferTable, clear) == 0x48 && offsetof(Buffer, size) == 0x68 && sizeof(Buffer) == 0x78);
static_assert(offsetof(Stream, table.compute) == 0x68 && offsetof(Stream, device) == 0x88);
static_assert(offsetof(DeviceTable, supports_op) == 0x48 && offsetof(DeviceTable, offload_op) == 0x58);

// Of the host's libggml-base.
extern "C" {
Buffer* ggml_backend_buffer_init(BufferType*, BufferTable, void* context, size_t bytes);
Status ggml_backend_tensor_alloc(Buffer*, Tensor*, void* address);
void ggml_backend_buffer_free(Buffer*);
bool ggml_backend_buft_is_host(BufferType*);
Device* ggml_backend_dev_by_type(int type);
Registration* ggml_backend_dev_backend_reg(Device*);
void* ggml_backend_reg_get_proc_address(Registration*, const char* name);
Stream* ggml_backend_dev_init(Device*, const char* parameters);
Status ggml_backend_graph_compute(Stream*, Graph*);
void ggml_backend_free(Stream*);
size_t ggml_nbytes(const Tensor*);
const char* ggml_op_name(int op);
int ggml_graph_n_nodes(Graph*);
Tensor* ggml_graph_node(Graph*, int index);
Context* ggml_init(InitParameters);
void ggml_free(Context*);
Graph* ggml_new_graph_custom(Context*, size_t nodes, bool grads);
size_t ggml_graph_overhead_custom(size_t nodes, bool grads);
void ggml_graph_clear(Graph*);
void ggml_graph_add_node(Graph*, Tensor*);
}

// The operation on experts, in this ggml: numbers change between its versions, names do not, and in all of them it is
// among the first.
inline int multiply_by_ids() {
  static const int found = [] {
    int op = 0;
    while (op < 64 && std::strcmp(ggml_op_name(op), "MUL_MAT_ID") != 0) op++;
    return op;
  }();
  return found;
}

}  // namespace neotier::ggml
