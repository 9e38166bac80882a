// SPDX-License-Identifier: Apache-2.0
#include "hil/machine.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace neotier::hil {

namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kCxlUnit = 256 * kMiB;  // of a type-3 device's capacity and of a fixed memory window
// By which QEMU estimates when a timer is due, where time is not counted by it: 4 ns an instruction. Few programs wait
// longer, and the plugin has it look again at each tick of the device. More would stop the vCPU more often.
constexpr uint32_t kUsualShift = 2;
constexpr int kFirstSlot = 3;  // of the profilers' PCI functions: the guest finds them in this order

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

// One message of the ivshmem client protocol (QEMU documentation, docs/specs/ivshmem-spec.rst): a number, and a
// descriptor or none (-1).
void send_message(int socket, int64_t number, int descriptor) {
  iovec data{&number, sizeof number};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != sizeof number) fail("cannot hand an ivshmem message to QEMU");
}

void close_all(std::vector<int>& descriptors) {
  for (const int descriptor : descriptors) close(descriptor);
  descriptors.clear();
}

// The backend of a node's memory.
std::string memory_backend(const QemuPlan& plan, size_t node, uint64_t bytes) {
  if (!plan.ram) return fmt::format("memory-backend-ram,id=m{},size={}", node, bytes);
  return fmt::format("memory-backend-file,id=m{},size={},share=on,mem-path=/proc/self/fd/{}", node, bytes,
                     plan.ram->nodes().at(node));
}

// Where the plugin finds what the guest has at an address: q35 puts node 0's memory under the hole below 4 GiB, and the
// rest of it, then node 1's, above.
std::string ram_arguments(const QemuPlan& plan) {
  if (!plan.ram) return "";
  const Layout& map = plan.layout;
  const std::vector<int>& nodes = plan.ram->nodes();
  std::string text = fmt::format(",ram={}:0:0:{}", nodes[0], map.below_4g);
  if (map.node0 > map.below_4g) {
    text += fmt::format(",ram={}:{}:{}:{}", nodes[0], 4096 * kMiB, map.below_4g, map.node0 - map.below_4g);
  }
  return text + fmt::format(",ram={}:{}:0:{}", nodes[1], map.numa_base, map.slow);
}

std::vector<std::string> numa_arguments(const QemuPlan& plan) {
  const Params& p = plan.params;
  const auto hmat = [](int target, const char* type, const std::string& value) {
    return fmt::format("hmat-lb,initiator=0,target={},hierarchy=memory,data-type=access-{},{}={}", target, type, type,
                       value);
  };
  return {"-object", memory_backend(plan, 1, plan.layout.slow),
          "-numa",   "node,nodeid=0,memdev=m0,cpus=0",
          "-numa",   "node,nodeid=1,memdev=m1,initiator=0",
          "-numa",   hmat(0, "latency", std::to_string(p.dram_ns)),
          "-numa",   hmat(0, "bandwidth", fmt::format("{}M", p.dram_mb_s)),
          "-numa",   hmat(1, "latency", std::to_string(p.cxl_ns)),
          "-numa",   hmat(1, "bandwidth", fmt::format("{}M", p.cxl_mb_s))};
}

std::vector<std::string> cxl_arguments(const QemuPlan& plan) {
  std::vector<std::string> arguments = {"-numa", "node,nodeid=0,memdev=m0,cpus=0", "-device",
                                        "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl,addr=2"};
  const uint64_t each = plan.layout.slow / plan.layout.serials.size();
  for (size_t i = 0; i < plan.layout.serials.size(); ++i) {
    arguments.insert(arguments.end(),
                     {"-object", fmt::format("memory-backend-ram,id=cxlmem{},size={}", i, each), "-device",
                      fmt::format("cxl-rp,port={},bus=cxl,id=rp{},chassis=0,slot={}", i, i, i + 1), "-device",
                      fmt::format("cxl-type3,bus=rp{},volatile-memdev=cxlmem{},id=type3-{},sn={}", i, i, i,
                                  plan.layout.serials[i])});
  }
  arguments.insert(arguments.end(), {"-machine", fmt::format("cxl-fmw.0.targets.0=cxl,cxl-fmw.0.size={}M",
                                                             round_up(plan.layout.slow, kCxlUnit) / kMiB)});
  return arguments;
}

}  // namespace

std::string_view to_string(MachineKind kind) { return kind == MachineKind::kCxl ? "cxl" : "numa"; }

uint64_t next_capacity(const MachineOptions& machine, uint64_t bytes) {
  return round_up(bytes, machine.kind == MachineKind::kCxl ? kCxlUnit * machine.devices : 64 * kMiB);
}

Layout layout(const MachineOptions& machine, uint64_t node0_bytes, uint64_t slow_bytes) {
  Layout map;
  map.node0 = node0_bytes;
  map.below_4g = std::min<uint64_t>(node0_bytes, 2048 * kMiB);
  if (machine.kind == MachineKind::kNuma) {
    map.slow = next_capacity(machine, slow_bytes);
    // q35 puts `max-ram-below-4g` bytes under 4 GiB and the rest above it: with node 0 below (or reaching above), node
    // 1 is one piece.
    map.numa_base = (4096 * kMiB) + (node0_bytes - map.below_4g);
    return map;
  }
  if (const uint64_t next = next_capacity(machine, slow_bytes); next != slow_bytes) {
    throw std::runtime_error(fmt::format(
        "--cxl {}M: {} type-3 device{} come in multiples of {}M together; the next is {}M", slow_bytes / kMiB,
        machine.devices, machine.devices == 1 ? "" : "s", kCxlUnit * machine.devices / kMiB, next / kMiB));
  }
  map.slow = slow_bytes;
  map.numa_base = 0;
  for (uint64_t i = 0; i < machine.devices; ++i) map.serials.push_back(0x4e540001 + i);
  return map;
}

Bars::Bars(uint32_t count, bool interrupts) {
  try {
    for (uint32_t i = 0; i < count; ++i) {
      memory_.push_back(memfd_create("neotier-bar", MFD_CLOEXEC));
      const int fd = memory_.back();
      if (fd < 0 || ftruncate(fd, NEOTIER_BAR_BYTES) != 0) fail("cannot make shared memory for a BAR");
      // QEMU has it under the same number.
      files_.push_back(fmt::format("/proc/self/fd/{}", fd));
      if (i == 0) first_ = mmap(nullptr, NEOTIER_BAR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (first_ == MAP_FAILED) fail("cannot map a BAR");
      if (interrupts) serve(fd);
    }
  } catch (...) {
    release();
    throw;
  }
  mailbox_ = reinterpret_cast<neotier_mailbox*>(static_cast<uint8_t*>(first_) + NEOTIER_MAILBOX_OFFSET);
}

Bars::~Bars() { release(); }

void Bars::release() {
  if (first_ && first_ != MAP_FAILED) munmap(first_, NEOTIER_BAR_BYTES);
  close_all(memory_);
  close_all(own_ends_);
  close_all(server_ends_);
  close_all(event_fds_);
}

// The whole of what an ivshmem server says to its only client, written before there is one: a few messages fit a
// socket's buffer, so that no thread has to serve it and no socket has a name that could be left behind. Our end stays
// open as long as the client lives.
void Bars::serve(int memory) {
  constexpr int64_t kProtocol = 0, kPeer = 0, kMemory = -1;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("cannot make a socket for ivshmem");
  own_ends_.push_back(ends[0]);
  server_ends_.push_back(ends[1]);
  event_fds_.push_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event_fds_.back() < 0) fail("cannot make an eventfd");
  send_message(ends[0], kProtocol, -1);
  send_message(ends[0], kPeer, -1);
  send_message(ends[0], kMemory, memory);
  send_message(ends[0], kPeer, event_fds_.back());
}

std::vector<int> Bars::inherited() const {
  std::vector<int> all = memory_;
  all.insert(all.end(), server_ends_.begin(), server_ends_.end());
  all.insert(all.end(), event_fds_.begin(), event_fds_.end());
  return all;
}

void Bars::started() {
  close_all(server_ends_);
  close_all(event_fds_);
}

GuestRam::GuestRam(const Layout& layout) {
  for (const uint64_t bytes : {layout.node0, layout.slow}) {
    nodes_.push_back(memfd_create("neotier-ram", MFD_CLOEXEC));
    if (nodes_.back() >= 0 && ftruncate(nodes_.back(), static_cast<off_t>(bytes)) == 0) continue;
    const int error = errno;
    close_all(nodes_);
    errno = error;
    fail("cannot make shared memory for the guest");
  }
}

GuestRam::~GuestRam() { close_all(nodes_); }

// A guest with this machine's clock takes its timer for broken where this machine is busy, and panics: it must not
// check.
//
// What makes a run repeat: one vCPU thread, instruction-counted time, fixed seeds and clocks, no input from the host
// (docs/model.md). String instructions are off since the kernel's would be emulated byte by byte.
std::vector<std::string> qemu_command(const QemuPlan& plan, const Bars& bars) {
  const bool cxl = plan.machine.kind == MachineKind::kCxl;
  std::string plugin = plan.plugin.string();
  for (const auto& file : bars.files()) plugin += fmt::format(",bar={}", file.string());
  for (const uint64_t serial : plan.layout.serials) plugin += fmt::format(",serial={:#x}", serial);
  for (const int fd : bars.event_fds()) plugin += fmt::format(",irq_fd={}", fd);
  const bool modelled_clock = !plan.shift && !plan.share_files;
  const uint32_t shift = plan.shift.value_or(kUsualShift);
  plugin += fmt::format(",cxl_base={:#x},cxl_size={:#x},clock={},shift={}{}", plan.layout.numa_base, plan.layout.slow,
                        modelled_clock ? "modelled" : "instructions", shift, plan.plugin_options);
  plugin += ram_arguments(plan);
  for (const ParamInfo& info : param_table()) plugin += fmt::format(",{}={}", info.name, plan.params.*info.field);

  std::vector<std::string> command = {
      "qemu-system-x86_64", "-accel", "tcg,thread=single", "-machine",
      fmt::format("q35,{},hpet=off,max-ram-below-4g={}", cxl ? "cxl=on" : "hmat=on", plan.layout.below_4g), "-cpu",
      // hypervisor=off: a kernel that sees a hypervisor does not trust cache flushes and refuses to commit a region.
      fmt::format("max,rdrand=off,rdseed=off,erms=off,fsrm=off,la57=off{}", cxl ? ",hypervisor=off" : ""), "-smp", "1",
      "-m", fmt::format("{}M", (plan.layout.node0 + (cxl ? 0 : plan.layout.slow)) / kMiB), "-seed",
      std::to_string(plan.seed), "-rtc", "base=2026-01-01T00:00:00,clock=vm", "-nodefaults", "-display", "none",
      "-monitor", "none", "-no-reboot", "-serial", fmt::format("file:{}", plan.console_log.string()), "-object",
      memory_backend(plan, 0, plan.layout.node0)};
  const auto add = [&](const std::vector<std::string>& more) {
    command.insert(command.end(), more.begin(), more.end());
  };
  if (plan.share_files) {
    // Beyond the profilers' slots.
    add({"-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap", "-device",
         fmt::format("virtio-9p-pci,fsdev=host,mount_tag=host,bus=pcie.0,addr={}", kFirstSlot + NEOTIER_DEVICES)});
  } else {
    add({"-icount", fmt::format("shift={},sleep=off", shift)});
  }
  add(cxl ? cxl_arguments(plan) : numa_arguments(plan));
  for (size_t i = 0; i < bars.files().size(); ++i) {
    if (plan.machine.interrupts) {
      add({"-chardev", fmt::format("socket,id=doorbell{},fd={}", i, bars.server_ends()[i]), "-device",
           fmt::format("ivshmem-doorbell,chardev=doorbell{},vectors=1,bus=pcie.0,addr={}", i, kFirstSlot + i)});
    } else {
      add({"-object",
           fmt::format("memory-backend-file,id=bar{},size={},share=on,mem-path={}", i, NEOTIER_BAR_BYTES,
                       bars.files()[i].string()),
           "-device", fmt::format("ivshmem-plain,memdev=bar{},bus=pcie.0,addr={}", i, kFirstSlot + i)});
    }
  }
  // cryptomgr.notests: the kernel would test its ciphers beside the program, with half a billion instructions.
  add({"-kernel", plan.kernel_image.string(), "-initrd", plan.initramfs.string(), "-append",
       "console=ttyS0 loglevel=5 panic=-1 oops=panic nokaslr norandmaps random.trust_cpu=off "
       "random.trust_bootloader=off swiotlb=noforce mitigations=off iomem=relaxed cryptomgr.notests " +
           plan.kernel_arguments + (plan.share_files ? " no_timer_check" : ""),
       "-plugin", plugin});
  return command;
}

}  // namespace neotier::hil
