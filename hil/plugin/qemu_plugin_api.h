// SPDX-License-Identifier: GPL-2.0-or-later
// The part of QEMU's TCG plugin interface, version 4 (QEMU 9.2 to 10.0), that the plugin uses, declared here because no
// distribution packages the header. Contract: QEMU documentation, "QEMU TCG Plugins".
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

using qemu_plugin_id_t = uint64_t;
using qemu_plugin_meminfo_t = uint32_t;

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
struct qemu_plugin_scoreboard;

struct qemu_plugin_u64 {
  qemu_plugin_scoreboard* score;
  size_t offset;
};

struct qemu_info_t {
  const char* target_name;
  struct {
    int min;
    int cur;
  } version;
  bool system_emulation;
  struct {
    int smp_vcpus;
    int max_vcpus;
  } system;
};

// Values of the interface's enumerations.
constexpr int kPluginNoRegs = 0;
constexpr int kPluginReadRegs = 1;
constexpr int kPluginMemReadWrite = 3;
constexpr int kPluginInlineAddU64 = 0;

struct qemu_plugin_mem_value {
  int type;  // 0 to 4: of 1, 2, 4, 8, 16 bytes
  union {
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    struct {
      uint64_t low, high;
    } u128;
  } data;
};

struct qemu_plugin_register;
struct qemu_plugin_reg_descriptor {
  qemu_plugin_register* handle;
  const char* name;
  const char* feature;
};

// GLib's, of which QEMU has its own copy loaded: as much of its contract as is used.
struct GArray {
  char* data;
  unsigned len;
};
struct GByteArray {
  uint8_t* data;
  unsigned len;
};
GByteArray* g_byte_array_new(void);
GByteArray* g_byte_array_set_size(GByteArray* array, unsigned size);
char* g_array_free(GArray* array, int free_segment);

using qemu_plugin_simple_cb_t = void (*)(qemu_plugin_id_t);
using qemu_plugin_udata_cb_t = void (*)(qemu_plugin_id_t, void*);
using qemu_plugin_vcpu_udata_cb_t = void (*)(unsigned, void*);
using qemu_plugin_vcpu_tb_trans_cb_t = void (*)(qemu_plugin_id_t, qemu_plugin_tb*);
using qemu_plugin_vcpu_mem_cb_t = void (*)(unsigned, qemu_plugin_meminfo_t, uint64_t, void*);

using qemu_plugin_vcpu_simple_cb_t = void (*)(qemu_plugin_id_t, unsigned);

void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t id, qemu_plugin_vcpu_simple_cb_t cb);
void qemu_plugin_reset(qemu_plugin_id_t id, qemu_plugin_simple_cb_t cb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, qemu_plugin_vcpu_tb_trans_cb_t cb);
void qemu_plugin_register_vcpu_insn_exec_cb(qemu_plugin_insn* insn, qemu_plugin_vcpu_udata_cb_t cb, int flags,
                                            void* userdata);
void qemu_plugin_register_vcpu_mem_cb(qemu_plugin_insn* insn, qemu_plugin_vcpu_mem_cb_t cb, int flags, int rw,
                                      void* userdata);
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(qemu_plugin_tb* tb, int op, qemu_plugin_u64 entry, uint64_t imm);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, qemu_plugin_udata_cb_t cb, void* userdata);
size_t qemu_plugin_tb_n_insns(const qemu_plugin_tb* tb);
uint64_t qemu_plugin_tb_vaddr(const qemu_plugin_tb* tb);
qemu_plugin_insn* qemu_plugin_tb_get_insn(const qemu_plugin_tb* tb, size_t index);
size_t qemu_plugin_insn_data(const qemu_plugin_insn* insn, void* dest, size_t len);
size_t qemu_plugin_insn_size(const qemu_plugin_insn* insn);
qemu_plugin_hwaddr* qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t info, uint64_t vaddr);
bool qemu_plugin_hwaddr_is_io(const qemu_plugin_hwaddr* addr);
uint64_t qemu_plugin_hwaddr_phys_addr(const qemu_plugin_hwaddr* addr);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
uint64_t qemu_plugin_insn_vaddr(const qemu_plugin_insn* insn);
qemu_plugin_mem_value qemu_plugin_mem_get_value(qemu_plugin_meminfo_t info);
GArray* qemu_plugin_get_registers(void);
int qemu_plugin_read_register(qemu_plugin_register* handle, GByteArray* buffer);
bool qemu_plugin_read_memory_vaddr(uint64_t addr, GByteArray* data, size_t len);
qemu_plugin_scoreboard* qemu_plugin_scoreboard_new(size_t element_size);
void* qemu_plugin_scoreboard_find(qemu_plugin_scoreboard* score, unsigned vcpu_index);

}  // extern "C"
