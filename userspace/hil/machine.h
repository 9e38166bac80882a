// SPDX-License-Identifier: Apache-2.0
// The emulated machine as QEMU is asked for it: which memory lies where, and how the profilers hang on it.
//
// `numa` is fast and for figures: two NUMA nodes of plain RAM, the second one the slow tier. `cxl` has the true
// topology and is for function: type-3 devices behind root ports of a CXL host bridge, a fixed memory window, and a
// region that the guest makes; QEMU emulates each access to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hil/model/params.h"
#include "neotier/mailbox.h"

namespace neotier::hil {

enum class MachineKind { kNuma, kCxl };
std::string_view to_string(MachineKind kind);

struct MachineOptions {
  MachineKind kind = MachineKind::kNuma;
  uint32_t devices = 1;         // cxl: type-3 devices, interleaved: 1, 2 or 4
  uint32_t granularity = 4096;  // cxl: of the interleave, bytes: 256 to 16384, a power of two
  bool interrupts = false;      // the profiler's fill-level and overflow interrupts, as MSI-X
};

struct Layout {
  uint64_t node0, below_4g;
  uint64_t slow;                  // bytes of the slow tier
  uint64_t numa_base;             // numa: where it begins; cxl: 0, the guest decides
  std::vector<uint64_t> serials;  // cxl: of the type-3 devices, in the order of their root ports; else empty
};

// The smallest capacity of the slow tier, all devices together, that is at least `bytes`.
uint64_t next_capacity(const MachineOptions& machine, uint64_t bytes);

// Throws std::runtime_error in one line where `slow_bytes` (of all devices together) is none that the machine can have.
Layout layout(const MachineOptions& machine, uint64_t node0_bytes, uint64_t slow_bytes);

// Shared memory between guest, QEMU's plugin and this process: the BARs, and what raises their interrupts. It has no
// name that could be left behind; descriptors go with it. Not thread-safe; movable never.
class Bars {
 public:
  // Throws std::runtime_error.
  Bars(uint32_t count, bool interrupts);
  ~Bars();
  Bars(const Bars&) = delete;
  Bars& operator=(const Bars&) = delete;

  // As QEMU opens them.
  const std::vector<std::filesystem::path>& files() const { return files_; }
  neotier_mailbox* mailbox() const { return mailbox_; }  // in the first BAR
  // With interrupts, one for each BAR: QEMU's end of its ivshmem server, and the eventfd of the BAR's only vector.
  const std::vector<int>& server_ends() const { return server_ends_; }
  const std::vector<int>& event_fds() const { return event_fds_; }
  std::vector<int> inherited() const;  // descriptors that QEMU has to have
  // QEMU has its copies.
  void started();

 private:
  void serve(int memory);
  void release();

  std::vector<std::filesystem::path> files_;
  void* first_ = nullptr;
  neotier_mailbox* mailbox_ = nullptr;
  std::vector<int> memory_, own_ends_, server_ends_, event_fds_;
};

// The guest's RAM, node by node, where the plugin reads its page tables: shared memory without a name. Not thread-safe.
class GuestRam {
 public:
  // Throws std::runtime_error.
  explicit GuestRam(const Layout& layout);
  ~GuestRam();
  GuestRam(const GuestRam&) = delete;
  GuestRam& operator=(const GuestRam&) = delete;
  const std::vector<int>& nodes() const { return nodes_; }  // descriptors that QEMU has to have

 private:
  std::vector<int> nodes_;
};

struct QemuPlan {
  MachineOptions machine;
  Layout layout;
  Params params;
  std::optional<uint32_t> shift;  // unset: the guest's time is the modelled one
  uint64_t seed;
  std::filesystem::path kernel_image, initramfs, console_log;
  std::string kernel_arguments;
  std::filesystem::path plugin;
  std::string plugin_options;  // further ones, each with its comma before it
  // The guest can read this machine's files, and its clock is this machine's: nothing then repeats.
  bool share_files = false;
  const GuestRam* ram = nullptr;  // where the parameters ask for a TLB; else QEMU has memory of its own
};

std::vector<std::string> qemu_command(const QemuPlan& plan, const Bars& bars);

}  // namespace neotier::hil
