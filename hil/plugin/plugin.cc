// SPDX-License-Identifier: GPL-2.0-or-later
// The QEMU side of the machine: feeds guest memory accesses to the cache and timing model, the model's CXL requests to
// NeoProf, guest stores to the BAR to NeoProf's bus, and NeoProf's answers back into the BAR. Runs in QEMU's only vCPU
// thread (-accel tcg,thread=single); only DeviceThread has another, and waits for it before anything is seen.
//
// What it cannot see: page walks, instruction fetches, DMA, prefetches (docs/model.md).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hil/model/hierarchy.h"
#include "hil/model/params.h"
#include "hil/plugin/device_thread.h"
#include "hil/plugin/hot_page_source.h"
#include "hil/plugin/qemu_plugin_api.h"
#include "hil/plugin/watch.h"
#include "hw/sim/neoprof_device.h"
#include "neoprof_regs.h"
#include "neotier/mailbox.h"

#define PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))

PLUGIN_EXPORT int qemu_plugin_version;
int qemu_plugin_version = 4;

namespace neotier::hil {
namespace {

// A device that misbehaves, for the driver's tests.
enum class Fault { kNone, kMagic, kVersion, kUnits, kTail };

struct Options {
  Params params = default_params();
  std::string bar_path;
  uint64_t cxl_base = 0, cxl_size = 0;
  uint32_t shift = 0;
  uint64_t calibrate = 0;  // instructions of the region of interest; 0: no calibration
  bool ideal = false;
  bool model = false;  // the golden model instead of the RTL
  Fault fault = Fault::kNone;
  std::string source;  // of a HotPageSource in the profiler's place; empty: none
  uint64_t dram_bytes = 0;
  WatchOptions watch;
};

struct InstructionCounts {
  uint64_t user, kernel;
};

class Machine final : public DeviceSink, public LineObserver, public neoprof::RingObserver {
 public:
  Machine(const Options& options, uint8_t* bar)
      : options_(options),
        bar_(bar),
        mailbox_(reinterpret_cast<neotier_mailbox*>(bar + NEOTIER_MAILBOX_OFFSET)),
        hierarchy_(options.params, options.cxl_base, options.cxl_size, this) {
    neoprof::Straps straps;
    straps.hpa_base = options.cxl_base;
    straps.hpa_size = options.cxl_size;
    straps.peak_lines_per_tick = static_cast<uint32_t>(options.params.cxl_mb_s * kTickNs / 1000 / 64);
    device_ = options.model ? neoprof::make_model_device(straps) : neoprof::make_rtl_device(straps);
    device_->set_observer(this);
    device_thread_ = std::make_unique<DeviceThread>(*device_);
    if (!options.watch.timeline_path.empty() || !options.watch.record_path.empty()) {
      watch_ = std::make_unique<Watch>(options.watch);
    }
    mailbox_->version = NEOTIER_MAILBOX_VERSION;
    mirror_all();
    source_ = make_hot_page_source(options.source, options.params,
                                   {options.cxl_base, options.cxl_size, options.dram_bytes >> 12}, [this](uint64_t pa) {
                                     if (device_enabled_) device_thread_->request(pa - options_.cxl_base, false);
                                   });
    if (source_ || watch_) hierarchy_.set_observer(this);
  }

  void attach(InstructionCounts* counts) { counts_ = counts; }

  uint64_t instructions() const { return counts_->user + counts_->kernel; }

  void memory(uint64_t pa, uint64_t va, unsigned bytes, bool is_store) {
    const uint64_t bar_offset = pa - bar_address_;
    if (bar_offset < NEOTIER_BAR_BYTES) {
      if (bar_offset < NEOPROF_SIZE) bar_access(static_cast<uint32_t>(bar_offset), bytes, is_store);
      return;
    }
    const uint64_t n = instructions();
    if (n >= next_tick_) tick(n);
    if (source_) source_->on_access(pa);
    hierarchy_.access(pa, va, is_store, n);
    const uint64_t in_line = 64 - (pa & 63);
    if (bytes > in_line) hierarchy_.access(pa + in_line, va + in_line, is_store, n);
  }

  void mark(unsigned op) {
    switch (op) {
      case NEOTIER_OP_BAR:
        bar_address_ = mailbox_->arg[0];
        break;
      case NEOTIER_OP_ROI_BEGIN:
        publish(mailbox_->begin);
        mailbox_->guest_ns[0] = mailbox_->arg[0];
        mailbox_->host_ns[0] = host_ns();
        mailbox_->roi_state = 1;
        if (options_.calibrate != 0) {
          calibrate_at_[0] = instructions() + options_.calibrate / 2;
          calibrate_at_[1] = instructions() + options_.calibrate;
        }
        if (watch_) watch_->begin(mailbox_->begin, observe_device());
        break;
      case NEOTIER_OP_ROI_END:
        publish(mailbox_->end);
        mailbox_->guest_ns[1] = mailbox_->arg[0];
        mailbox_->host_ns[1] = host_ns();
        if (watch_ && watch_->active()) watch_->end(mailbox_->end, observe_device());
        mailbox_->roi_state = 2;
        break;
      case NEOTIER_OP_MARK:
        record_mark();
        break;
      case NEOTIER_OP_HOTSET:
        hot_set();
        break;
      case NEOTIER_OP_MOVED:
        if (watch_) watch_->moved(mailbox_->arg[3] & 0xffffffffu, mailbox_->arg[3] >> 32);
        break;
      default:
        break;
    }
  }

  void finish() {
    publish(mailbox_->now);
    if (mailbox_->roi_state == 1) publish(mailbox_->end);
    if (watch_ && mailbox_->roi_state != 2) watch_->abandon();
  }

  // DeviceSink
  // A device that is not enabled ignores requests and time: clocking it could change nothing.
  void request(uint64_t dpa, bool is_write) override {
    if (device_enabled_ && !source_) device_thread_->request(dpa, is_write);
  }

  // LineObserver, where somebody wants to know
  void line(uint64_t hpa, bool cxl, bool is_write) override {
    if (watch_ && watch_->active()) watch_->line(hpa, cxl, is_write);
    if (source_ && !is_write) source_->on_fill(hpa);
  }

  // RingObserver
  void on_ring_entry(uint32_t index, uint64_t entry) override {
    if (watch_) watch_->reported(options_.cxl_base + (entry >> 16 << observed_.unit_shift));
    if (options_.fault == Fault::kUnits) entry |= uint64_t{1} << 60;
    store64(NEOPROF_HOTLIST_OFFSET + index * NEOPROF_HOTLIST_STRIDE, entry);
  }

 private:
  static constexpr uint64_t kTickNs = NEOPROF_TICK_US * 1000;

  static uint64_t host_ns() {
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }

  void store64(uint32_t offset, uint64_t value) { std::memcpy(bar_ + offset, &value, 8); }

  void publish(neotier_counters& to) {
    const uint64_t n = instructions();
    to = hierarchy_.counters(n, counts_->kernel);
    device_thread_->settle();
    mailbox_->device_cycles = device_->cycles();
  }

  // Device time follows guest time: instructions x 2^shift ns.
  void tick(uint64_t n) {
    device_thread_->settle();
    while (n >= next_tick_) {
      if (device_enabled_) device_->tick();
      if (source_) {
        hierarchy_.spend(source_->tick(hierarchy_.now_ps(n)));
        device_thread_->settle();
      }
      next_tick_ += kTickNs >> options_.shift;
      ++ticks_;
    }
    mirror_live();
    if (watch_ && watch_->active()) watch_->tick(hierarchy_.counters(n, counts_->kernel), observe_device());
    if (ticks_ % 64 == 0) publish(mailbox_->now);
    for (int half = 0; half < 2; ++half) {
      if (n >= calibrate_at_[half]) {
        publish(mailbox_->calibration[half]);
        calibrate_at_[half] = UINT64_MAX;
      }
    }
  }

  // The snapshot is not mirrored into the BAR: the guest sees its own.
  const DeviceCounters& observe_device() {
    device_thread_->settle();
    if (!device_enabled_) return observed_;
    const auto field = [](uint64_t value, uint64_t mask) { return (value & mask) / (mask & -mask); };
    device_->write(NEOPROF_CTRL_OFFSET, NEOPROF_CTRL_SNAPSHOT_MASK, 0xff);
    const uint64_t cfg0 = device_->read(NEOPROF_CFG0_OFFSET), cfg1 = device_->read(NEOPROF_CFG1_OFFSET);
    const uint64_t track = field(cfg0, NEOPROF_CFG0_TRACK_MASK);
    observed_.epochs = device_->read(NEOPROF_EPOCHS_OFFSET);
    observed_.lost_tap = device_->read(NEOPROF_LOST_TAP_OFFSET);
    observed_.lost_ring = device_->read(NEOPROF_LOST_RING_OFFSET);
    observed_.lost_candidates = device_->read(NEOPROF_LOST_CANDIDATES_OFFSET);
    observed_.saturated = device_->read(NEOPROF_SATURATED_OFFSET);
    // A source's threshold is its own.
    observed_.threshold = source_ ? UINT64_MAX : field(cfg0, NEOPROF_CFG0_THRESHOLD_MASK);
    observed_.unit_shift = field(cfg1, NEOPROF_CFG1_UNIT_SIZE_MASK) == 21 ? 21 : 12;
    observed_.counts_reads = track == 1 || track == 3 || track == 4 || track == 6;
    observed_.counts_writes = track == 2 || track == 3 || track == 5 || track == 6;
    return observed_;
  }

  void bar_access(uint32_t offset, unsigned bytes, bool is_store) {
    // Where a source stands in for the device, what it says lies in ordinary memory.
    if (!source_) hierarchy_.mmio(is_store);
    const uint64_t n = instructions();
    if (n >= next_tick_) tick(n);
    if (!is_store) return;
    device_thread_->settle();
    // The guest's store has already landed in the shared memory: pass it on, then restore what the device says.
    for (uint32_t word = offset & ~7u; word < offset + bytes; word += 8) {
      uint64_t data;
      std::memcpy(&data, bar_ + word, 8);
      uint8_t strobe = 0;
      for (uint32_t b = 0; b < 8; ++b) {
        if (word + b >= offset && word + b < offset + bytes) strobe |= static_cast<uint8_t>(1u << b);
      }
      device_->write(word, data, strobe);
      if (word == NEOPROF_CTRL_OFFSET || (word == NEOPROF_CFG0_OFFSET && (data & NEOPROF_CFG0_RESET_MASK))) {
        mirror_all();
      } else {
        mirror_word(word);
      }
    }
    mirror_live();
  }

  void mirror_word(uint32_t offset) {
    uint64_t value = device_->read(offset);
    if (offset == NEOPROF_ID_OFFSET && options_.fault == Fault::kMagic) value ^= 1;
    if (offset == NEOPROF_ID_OFFSET && options_.fault == Fault::kVersion) value += uint64_t{0x0100} << 32;
    store64(offset, value);
  }

  void mirror_live() {
    device_->drain();
    uint64_t ring = device_->ring();
    if (options_.fault == Fault::kTail && ring != 0) ring |= uint64_t{0xffff} << 16;
    const uint64_t status = device_->status();
    device_enabled_ = (status & NEOPROF_STATUS_ENABLED_MASK) != 0;
    store64(NEOPROF_STATUS_OFFSET, status);
    store64(NEOPROF_RING_OFFSET, ring);
  }

  // Everything but the hotlist's entries, which the observer keeps current.
  void mirror_all() {
    for (uint32_t offset = 0; offset < NEOPROF_HOTLIST_OFFSET; offset += 8) mirror_word(offset);
    for (uint32_t offset = NEOPROF_ID_OFFSET;
         offset < NEOPROF_HISTOGRAM_OFFSET + NEOPROF_HISTOGRAM_COUNT * NEOPROF_HISTOGRAM_STRIDE; offset += 8) {
      mirror_word(offset);
    }
    mirror_live();
  }

  void record_mark() {
    if (mailbox_->nr_marks >= NEOTIER_MARKS) {
      ++mailbox_->lost_marks;
      return;
    }
    const neotier_counters c = hierarchy_.counters(instructions(), counts_->kernel);
    neotier_mark_record& record = mailbox_->mark[mailbox_->nr_marks++];
    record.kind = mailbox_->arg[1];
    record.value = mailbox_->arg[2];
    record.instructions = c.instructions;
    record.modelled_ps = c.modelled_ps;
    for (int tier = 0; tier < 2; ++tier) {
      record.fills[tier] = c.fills[tier];
      record.stall_ps[tier] = c.stall_ps[tier];
    }
  }

  void hot_set() {
    const uint64_t pages = mailbox_->arg[2];
    if (!options_.ideal || pages > uint64_t{8} * NEOTIER_HOTSET_BYTES) return;
    std::vector<uint64_t> bitmap((pages + 63) / 64);
    std::memcpy(bitmap.data(), bar_ + NEOTIER_HOTSET_OFFSET, bitmap.size() * 8);
    hierarchy_.set_hot(mailbox_->arg[1], pages, std::move(bitmap));
  }

  Options options_;
  uint8_t* bar_;
  neotier_mailbox* mailbox_;
  Hierarchy hierarchy_;
  std::unique_ptr<neoprof::Device> device_;
  std::unique_ptr<DeviceThread> device_thread_;  // every other use of device_ comes after its settle()
  std::unique_ptr<HotPageSource> source_;
  InstructionCounts* counts_ = nullptr;
  uint64_t bar_address_ = UINT64_MAX - NEOTIER_BAR_BYTES;
  uint64_t next_tick_ = 0;
  uint64_t ticks_ = 0;
  bool device_enabled_ = false;
  uint64_t calibrate_at_[2] = {UINT64_MAX, UINT64_MAX};
  std::unique_ptr<Watch> watch_;  // null unless asked for
  DeviceCounters observed_;
};

// Never freed: QEMU calls on_exit after this library's static objects are gone.
Machine* machine;
qemu_plugin_id_t plugin_id;
qemu_plugin_scoreboard* scoreboard;
bool instrument;

void on_memory(unsigned, qemu_plugin_meminfo_t info, uint64_t va, void*) {
  const qemu_plugin_hwaddr* address = qemu_plugin_get_hwaddr(info, va);
  if (!address || qemu_plugin_hwaddr_is_io(address)) return;
  machine->memory(qemu_plugin_hwaddr_phys_addr(address), va, 1u << qemu_plugin_mem_size_shift(info),
                  qemu_plugin_mem_is_store(info));
}

void on_translate(qemu_plugin_id_t, qemu_plugin_tb* tb);
void on_exit(qemu_plugin_id_t, void*) { machine->finish(); }

void on_vcpu(qemu_plugin_id_t, unsigned vcpu) {
  machine->attach(static_cast<InstructionCounts*>(qemu_plugin_scoreboard_find(scoreboard, vcpu)));
}

void register_callbacks(qemu_plugin_id_t id) {
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
  qemu_plugin_register_atexit_cb(id, on_exit, nullptr);
}

// A reset has removed every callback.
void on_reset(qemu_plugin_id_t id) {
  instrument = true;
  register_callbacks(id);
}

void on_mark(unsigned, void* userdata) {
  const unsigned op = static_cast<unsigned>(reinterpret_cast<uintptr_t>(userdata));
  if (op == NEOTIER_OP_INSTRUMENT) {
    // Translated code carries no memory callbacks yet: drop it all and translate again with them.
    if (!instrument) qemu_plugin_reset(plugin_id, on_reset);
    return;
  }
  machine->mark(op);
}

unsigned mark_of(const qemu_plugin_insn* insn) {
  if (qemu_plugin_insn_size(insn) != 8) return 0;
  uint8_t code[8];
  if (qemu_plugin_insn_data(insn, code, sizeof code) != sizeof code) return 0;
  constexpr uint8_t kNop[4] = {0x0f, 0x1f, 0x84, 0x00};
  uint32_t displacement;
  std::memcpy(&displacement, code + 4, 4);
  if (std::memcmp(code, kNop, 4) != 0 || (displacement & 0xffff0000u) != NEOTIER_MARK_MAGIC) return 0;
  return displacement & 0xffffu;
}

void on_translate(qemu_plugin_id_t, qemu_plugin_tb* tb) {
  const size_t n = qemu_plugin_tb_n_insns(tb);
  const bool kernel = qemu_plugin_tb_vaddr(tb) >> 63;
  const size_t field = kernel ? offsetof(InstructionCounts, kernel) : offsetof(InstructionCounts, user);
  qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, kPluginInlineAddU64, {scoreboard, field}, n);
  for (size_t i = 0; i < n; ++i) {
    qemu_plugin_insn* insn = qemu_plugin_tb_get_insn(tb, i);
    if (const unsigned op = mark_of(insn); op != 0 && op < NR_NEOTIER_OP) {
      qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, kPluginNoRegs, reinterpret_cast<void*>(uintptr_t{op}));
    }
    if (instrument) qemu_plugin_register_vcpu_mem_cb(insn, on_memory, kPluginNoRegs, kPluginMemReadWrite, nullptr);
  }
}

int fail(const std::string& why) {
  std::fprintf(stderr, "neotier plugin: %s\n", why.c_str());
  return 1;
}

bool parse_number(std::string_view text, uint64_t& value) {
  const int base = text.starts_with("0x") ? 16 : 10;
  if (base == 16) text.remove_prefix(2);
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size();
}

std::optional<std::string> parse_option(Options& options, std::string_view argument) {
  const size_t equals = argument.find('=');
  const std::string_view key = argument.substr(0, equals);
  const std::string_view text = equals == std::string_view::npos ? "" : argument.substr(equals + 1);
  uint64_t number = 0;
  const bool is_number = parse_number(text, number);
  if (key == "bar") {
    options.bar_path = text;
  } else if (key == "cxl_base" && is_number) {
    options.cxl_base = number;
  } else if (key == "cxl_size" && is_number) {
    options.cxl_size = number;
  } else if (key == "shift" && is_number && number <= 10) {
    options.shift = static_cast<uint32_t>(number);
  } else if (key == "calibrate" && is_number) {
    options.calibrate = number;
  } else if (key == "ideal" && is_number) {
    options.ideal = number != 0;
  } else if (key == "timeline") {
    options.watch.timeline_path = text;
  } else if (key == "record") {
    options.watch.record_path = text;
  } else if (key == "record_all" && is_number) {
    options.watch.record_all = number != 0;
  } else if (key == "device" && (text == "rtl" || text == "model")) {
    options.model = text == "model";
  } else if (key == "source" && (text == "pebs" || text == "ptescan")) {
    options.source = text;
  } else if (key == "dram_bytes" && is_number) {
    options.dram_bytes = number;
  } else if (key == "fault") {
    if (text == "none")
      options.fault = Fault::kNone;
    else if (text == "magic")
      options.fault = Fault::kMagic;
    else if (text == "version")
      options.fault = Fault::kVersion;
    else if (text == "units")
      options.fault = Fault::kUnits;
    else if (text == "tail")
      options.fault = Fault::kTail;
    else
      return "fault='" + std::string(text) + "': expected none, magic, version, units or tail";
  } else {
    return set_param(options.params, key, text);
  }
  return std::nullopt;
}

int install(qemu_plugin_id_t id, const qemu_info_t* info, int argc, char** argv) {
  if (!info->system_emulation || std::string_view(info->target_name) != "x86_64" || info->system.max_vcpus != 1) {
    return fail("needs qemu-system-x86_64 with one vCPU");
  }
  Options options;
  for (int i = 0; i < argc; ++i) {
    if (auto error = parse_option(options, argv[i])) return fail(*error);
  }
  if (auto error = check_params(options.params)) return fail(*error);
  const int fd = open(options.bar_path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return fail("cannot open the BAR's file '" + options.bar_path + "'");
  void* bar = mmap(nullptr, NEOTIER_BAR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (bar == MAP_FAILED) return fail("cannot map the BAR's file '" + options.bar_path + "'");

  try {
    machine = new Machine(options, static_cast<uint8_t*>(bar));
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  scoreboard = qemu_plugin_scoreboard_new(sizeof(InstructionCounts));
  plugin_id = id;
  qemu_plugin_register_vcpu_init_cb(id, on_vcpu);
  register_callbacks(id);
  return 0;
}

}  // namespace
}  // namespace neotier::hil

PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t* info, int argc, char** argv) {
  return neotier::hil::install(id, info, argc, argv);
}
