// SPDX-License-Identifier: GPL-2.0-or-later
// The QEMU side of the machine: feeds guest memory accesses to the cache and timing model, the model's CXL requests to
// NeoProf, guest stores to the BAR to NeoProf's bus, and NeoProf's answers back into the BAR. Runs in QEMU's only vCPU
// thread (-accel tcg,thread=single); only DeviceThread has another, and waits for it before anything is seen.
//
// What it cannot see: instruction fetches, DMA (docs/model.md).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hil/model/device_size.h"
#include "hil/model/hierarchy.h"
#include "hil/model/params.h"
#include "hil/plugin/bar_device.h"
#include "hil/plugin/guest_clock.h"
#include "hil/plugin/guest_memory.h"
#include "hil/plugin/hot_page_source.h"
#include "hil/plugin/page_counts.h"
#include "hil/plugin/paging.h"
#include "hil/plugin/qemu_plugin_api.h"
#include "hil/plugin/watch.h"
#include "neoprof_regs.h"
#include "neotier/interleave.h"
#include "neotier/mailbox.h"

#define PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))

PLUGIN_EXPORT int qemu_plugin_version;
int qemu_plugin_version = 4;

namespace neotier::hil {
namespace {

struct Options {
  Params params = default_params();
  std::vector<std::string> bar_paths;   // the first one has the mailbox
  std::vector<uint64_t> serials;        // as many as BARs: machine `cxl`, whose region the guest reports
  std::vector<int> irq_fds;             // as many as BARs, or none
  uint64_t cxl_base = 0, cxl_size = 0;  // machine `cxl`: size of all devices together
  uint32_t shift = 0;                   // an instruction takes 2^shift ns of the guest's time
  bool modelled_clock = false;          // or what it takes in the model; `shift` is then what QEMU believes
  bool ideal = false;
  bool model = false;                      // the golden model instead of the RTL
  uint32_t log2_width = 0, hash_seed = 0;  // straps of the profiler
  Fault fault = Fault::kNone;
  std::string source;  // of a HotPageSource in the profiler's place; empty: none
  uint64_t dram_bytes = 0;
  GuestMemory ram;  // empty unless page tables are read
  WatchOptions watch;
  Recorder::Header recording;  // what the command knows of the machine's settings
  PageCountsOptions pages;
  std::array<std::string, NR_NEOTIER_STREAM> outputs;  // files for what the guest writes; empty: nowhere
};

// The guest's memory at a kernel address. Only in a callback of the vCPU.
bool read_guest(uint64_t va, void* to, size_t bytes) {
  static GByteArray* const buffer = g_byte_array_new();
  if (!qemu_plugin_read_memory_vaddr(va, buffer, bytes)) return false;
  std::memcpy(to, buffer->data, bytes);
  return true;
}

class Machine final : public DeviceSink, public LineObserver {
 public:
  Machine(const Options& options, const std::vector<uint8_t*>& bars)
      : options_(options),
        bar_(bars.front()),
        mailbox_(reinterpret_cast<neotier_mailbox*>(bar_ + NEOTIER_MAILBOX_OFFSET)),
        true_cxl_(!options.serials.empty()),
        hierarchy_(options.params, options.cxl_base, true_cxl_ ? 0 : options.cxl_size, this, &options_.ram) {
    neoprof::Straps straps;
    straps.hpa_base = options.cxl_base;
    straps.hpa_size = options.cxl_size / bars.size();
    straps.peak_lines_per_tick = static_cast<uint32_t>(options.params.cxl_mb_s * kTickNs / 1000 / 64 / bars.size());
    straps.log2_width = options.log2_width;
    straps.hash_seed = options.hash_seed;
    for (size_t i = 0; i < bars.size(); ++i) {
      if (true_cxl_) straps.serial = options.serials[i];
      devices_.push_back(std::make_unique<BarDevice>(straps, options.model, options.fault, bars[i],
                                                     options.irq_fds.empty() ? -1 : options.irq_fds[i]));
    }
    by_position_.push_back(devices_.front().get());
    if (!options.watch.timeline_path.empty() || !options.watch.record.file.empty()) {
      watch_ = std::make_unique<Watch>(options.watch);
      for (const auto& device : devices_) device->keep_reports();
    }
    for (size_t i = 0; i < options.outputs.size(); ++i) {
      if (options.outputs[i].empty()) continue;
      outputs_[i] = open(options.outputs[i].c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      if (outputs_[i] < 0) throw std::runtime_error("cannot create " + options.outputs[i]);
    }
    mailbox_->version = NEOTIER_MAILBOX_VERSION;
    source_ = make_hot_page_source(options.source, options.params,
                                   {options.cxl_base, options.cxl_size, options.dram_bytes >> 12},
                                   [this](uint64_t pa) { devices_.front()->observe(pa - options_.cxl_base, false); });
    if (!options.pages.path.empty()) {
      PageCountsOptions pages = options.pages;
      pages.cxl_base = options.cxl_base;
      pages.end = options.cxl_base + options.cxl_size;
      pages_ = std::make_unique<PageCounts>(pages, read_guest);
    }
    if (source_ || watch_ || pages_) hierarchy_.set_observer(this);
  }

  void attach(InstructionCounts* counts) { counts_ = counts; }

  uint64_t instructions() const { return counts_->all(); }

  // The guest's time but for what it was idle, where it is not QEMU that counts it. An instruction of the boot, of
  // which nothing is modelled, takes what QEMU estimates by.
  uint64_t guest_ns() const {
    if (!counts_) return 0;
    return instrumented_ ? booted_ns_ + modelled_ns() - instrumented_at_ns_ : instructions() << options_.shift;
  }

  void instrumented() {
    booted_ns_ = guest_ns();
    instrumented_at_ns_ = modelled_ns();
    instrumented_ = true;
  }

  // `is_io`: QEMU emulates the access, as it does for CXL memory behind decoders, and for devices.
  // `is_streaming`: by an instruction that streams from write-combining memory. `pc`: the instruction's address.
  // True: loaded() wants the value, if it was a load.
  bool memory(uint64_t pa, uint64_t va, unsigned bytes, bool is_store, bool is_io, bool is_streaming, uint64_t pc) {
    if (is_io && !hierarchy_.in_slow_tier(pa)) return false;
    if (pa - bars_low_ < bars_span_) {
      for (const auto& device : devices_) {
        if (!device->contains(pa)) continue;
        if (device->offset(pa) < NEOPROF_SIZE) bar_access(*device, pa, bytes, is_store, is_streaming);
        return false;
      }
    }
    const uint64_t n = instructions();
    if (n >= look_at_) look(n);
    if (source_) source_->on_access(pa);
    accessed_va_ = va;
    if (watch_ && watch_->wants_accesses()) watch_->accessed(pa);
    const bool wanted = hierarchy_.access(pa, va, is_store, *counts_, pc);
    const uint64_t in_line = 64 - (pa & 63);
    if (bytes > in_line) hierarchy_.access(behind(pa, va, in_line), va + in_line, is_store, *counts_, pc);
    return wanted;
  }

  void loaded(uint64_t pc, uint64_t va, uint64_t value) { hierarchy_.loaded(pc, va, value); }

  // The guest's processor has been told of a new root of page tables (the value of CR3), or of the same one to flush.
  void set_root(uint64_t root) {
    constexpr uint64_t kKeep = uint64_t{1} << 63;
    const bool same = (root & ~kKeep) == root_;
    root_ = root & ~kKeep;
    hierarchy_.set_address_space(root_);
    if (!(root & kKeep)) hierarchy_.flush_tlb(false);
    if (same) count_flush();
  }
  void flush_all() {
    hierarchy_.flush_tlb(true);
    count_flush();
  }
  void invalidate_page(uint64_t va) {
    hierarchy_.invalidate_page(va);
    count_flush();
  }

  void mark(unsigned op) {
    switch (op) {
      case NEOTIER_OP_BAR:
        set_bar(mailbox_->arg[1], mailbox_->arg[0]);
        break;
      case NEOTIER_OP_REGION:
        set_region();
        break;
      case NEOTIER_OP_ROI_BEGIN:
        publish(mailbox_->begin);
        publish_devices(0);
        mailbox_->guest_ns[0] = mailbox_->arg[0];
        mailbox_->host_ns[0] = host_ns();
        mailbox_->roi_state = 1;
        if (watch_) {
          const FrameCensus census = watch_->wants_pages() ? this->census() : FrameCensus{};
          watch_->begin(mailbox_->begin, observe_devices(), recording_header(census), census);
        }
        if (pages_) {
          pages_->begin(mailbox_->begin.modelled_ps, {mailbox_->begin.stall_ps[0], mailbox_->begin.stall_ps[1]});
        }
        break;
      case NEOTIER_OP_ROI_END:
        publish(mailbox_->end);
        publish_devices(1);
        mailbox_->guest_ns[1] = mailbox_->arg[0];
        mailbox_->host_ns[1] = host_ns();
        if (watch_ && watch_->active()) watch_->end(mailbox_->end, observe_devices());
        if (pages_) pages_->end();
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
      case NEOTIER_OP_OUTPUT:
        output(mailbox_->arg[1], mailbox_->arg[2]);
        break;
      default:
        break;
    }
  }

  void finish() {
    if (!counts_) return;  // QEMU gave up before it made a vCPU
    publish(mailbox_->now);
    if (mailbox_->roi_state == 1) {
      publish(mailbox_->end);
      publish_devices(1);
    }
    if (mailbox_->roi_state == 2) return;
    if (watch_) watch_->abandon();
    if (pages_) pages_->abandon();
  }

  // DeviceSink
  void request(uint64_t offset, bool is_write) override {
    BarDevice& device = *by_position_[neotier_interleave_position(&interleave_, offset)];
    device.count(is_write);
    if (!source_) device.observe(neotier_interleave_dpa(&interleave_, offset), is_write);
  }

  // LineObserver, where somebody wants to know
  void line(uint64_t hpa, bool cxl, bool is_write) override {
    if (watch_ && watch_->active()) {
      watch_->line(hpa, cxl, is_write, accessed_va_ >> 63, Watch::now_of(hierarchy_.counters(*counts_)));
    }
    if (pages_ && pages_->active())
      pages_->line(hpa, cxl, is_write, accessed_va_, hierarchy_.stall_ps(cxl ? kCxl : kDram));
    if (source_ && !is_write) source_->on_fill(hpa);
  }

 private:
  FrameCensus census() const {
    return take_census(read_guest, hierarchy_.slow_base(), hierarchy_.slow_base() + hierarchy_.slow_size());
  }

  Recorder::Header recording_header(const FrameCensus& census) const {
    using trace::Field;
    const Params& p = options_.params;
    Recorder::Header header = {{Field::kVersion, trace::kRecordingVersion},
                               {Field::kShift, options_.shift},
                               {Field::kCxlBase, hierarchy_.slow_base()},
                               {Field::kCxlBytes, hierarchy_.slow_size()},
                               {Field::kDramLatencyPs, p.dram_ns * 1000},
                               {Field::kCxlLatencyPs, p.cxl_ns * 1000},
                               {Field::kDramServicePs, 64'000'000 / p.dram_mb_s},
                               {Field::kCxlServicePs, 64'000'000 / p.cxl_mb_s},
                               {Field::kMlp, p.mlp},
                               {Field::kDramFreePages, census.free_pages[0]},
                               {Field::kCxlFreePages, census.free_pages[1]},
                               {Field::kMmioReadPs, p.mmio_read_ns * 1000},
                               {Field::kBasePs, p.base_ps},
                               {Field::kLog2Width, options_.log2_width},
                               {Field::kLlcKib, p.llc_kib},
                               {Field::kModelledClock, options_.modelled_clock ? 1 : 0},
                               {Field::kManagedDma, census.managed_pages[0]},
                               {Field::kManagedDma32, census.managed_pages[1]},
                               {Field::kManagedNormal, census.managed_pages[2]},
                               {Field::kManagedCxl, census.managed_pages[3]}};
    header.insert(header.end(), options_.recording.begin(), options_.recording.end());
    return header;
  }

  static constexpr uint64_t kTickNs = NEOPROF_TICK_US * 1000;

  // The kernel flushes the pages of a range one after another, in a loop that is much shorter than this, and tells
  // other processors once. A new root is a change of process, of which no other processor is told.
  static constexpr uint64_t kFlushGap = 100;  // instructions
  void count_flush() {
    const uint64_t n = instructions();
    if (n - flushed_at_ > kFlushGap) hierarchy_.shoot_down();
    flushed_at_ = n;
  }

  // The physical address of `va + bytes`, the next line.
  uint64_t behind(uint64_t pa, uint64_t va, uint64_t bytes) const {
    if ((va + bytes) % 4096 == 0 && hierarchy_.has_tlb()) {
      if (const Translation t = hierarchy_.translate(va + bytes); t.present) return t.pa;
    }
    return pa + bytes;
  }

  static uint64_t host_ns() {
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }

  void publish(neotier_counters& to) {
    to = hierarchy_.counters(*counts_);
    uint64_t cycles = 0;
    for (const auto& device : devices_) {
      device->settle();
      cycles += device->cycles();
    }
    mailbox_->device_cycles = cycles;
  }

  void set_bar(uint64_t index, uint64_t address) {
    if (index >= devices_.size()) return;
    devices_[index]->set_address(address);
    const uint64_t high = std::max(bars_low_ + bars_span_, address + NEOTIER_BAR_BYTES);
    bars_low_ = std::min(bars_low_, address);
    bars_span_ = bars_span_ == 0 ? NEOTIER_BAR_BYTES : high - bars_low_;
  }

  void publish_devices(int end) {
    for (size_t i = 0; i < devices_.size(); ++i) mailbox_->device[end][i] = devices_[i]->counts();
  }

  // The guest says where its kernel put the region. Nothing of it is believed: what does not fit the machine is
  // ignored, and the guest's init, which checks by the mailbox, gives up.
  void set_region() {
    const neotier_region region = mailbox_->region;
    std::vector<BarDevice*> order;
    for (uint32_t position = 0; position < std::min<uint64_t>(region.ways, devices_.size()); ++position) {
      for (size_t i = 0; i < devices_.size(); ++i) {
        if (options_.serials.size() > i && options_.serials[i] == region.serial[position]) {
          order.push_back(devices_[i].get());
        }
      }
    }
    neotier_interleave interleave;
    if (!true_cxl_ || !neotier_interleave_valid(&interleave, region.ways, region.granularity) ||
        order.size() != devices_.size() || region.ways != devices_.size() || region.size > options_.cxl_size ||
        region.base > UINT64_MAX - region.size) {
      std::fprintf(stderr,
                   "neotier plugin: a region of %u ways, %u bytes each, at %#llx: not of this machine's devices\n",
                   region.ways, region.granularity, static_cast<unsigned long long>(region.base));
      return;
    }
    interleave_ = interleave;
    by_position_ = order;
    hierarchy_.set_slow_tier(region.base, region.size);
  }

  uint64_t modelled_ns() const { return hierarchy_.now_ps(*counts_) / 1000; }

  // The device's time follows the guest's, and stands still while that is idle.
  void look(uint64_t n) {
    // Instructions in which less than a tick passes, unless many of them wait.
    constexpr uint64_t kBetween = 256;
    const uint64_t now_ns = options_.modelled_clock ? guest_ns() : n << options_.shift;
    if (now_ns >= next_tick_ns_) {
      tick(now_ns);
      if (options_.modelled_clock) reconsider_timers();
    }
    look_at_ = options_.modelled_clock ? n + kBetween : (next_tick_ns_ + (1u << options_.shift) - 1) >> options_.shift;
  }

  void tick(uint64_t now_ns) {
    for (const auto& device : devices_) device->settle();
    while (now_ns >= next_tick_ns_) {
      for (const auto& device : devices_) device->tick();
      if (source_) {
        hierarchy_.spend(source_->tick(hierarchy_.now_ps(*counts_)));
        devices_.front()->settle();
      }
      next_tick_ns_ += kTickNs;
      ++ticks_;
    }
    for (const auto& device : devices_) device->mirror_live();
    if (watch_ && watch_->active()) {
      watch_->tick(hierarchy_.counters(*counts_), observe_devices(), [this] { return census(); });
    }
    if (pages_ && pages_->active()) pages_->tick(hierarchy_.now_ps(*counts_));
    if (ticks_ % 64 == 0) publish(mailbox_->now);
  }

  // What the profilers say of themselves, all together, and what they have reported since the last call. The snapshot
  // is not mirrored into the BARs: the guest sees its own.
  const DeviceCounters& observe_devices() {
    DeviceCounters sum;
    for (size_t i = devices_.size(); i-- > 0;) {
      BarDevice& device = *devices_[i];
      device.settle();
      if (device.enabled()) {
        observed_of_[i] = device.observe_counters();
        if (source_) observed_of_[i].threshold = UINT64_MAX;  // a source's threshold is its own
      }
      const DeviceCounters& one = observed_of_[i];
      sum.lost_tap += one.lost_tap;
      sum.lost_ring += one.lost_ring;
      sum.lost_candidates += one.lost_candidates;
      sum.saturated += one.saturated;
      sum.epochs = one.epochs;  // and the rest: of the first device, which comes last
      sum.threshold = one.threshold;
      sum.unit_shift = one.unit_shift;
      sum.counts_reads = one.counts_reads;
      sum.counts_writes = one.counts_writes;
    }
    observed_ = sum;
    for (uint32_t position = 0; position < by_position_.size(); ++position) {
      for (const uint64_t unit : by_position_[position]->take_reports()) {
        watch_->reported(hierarchy_.slow_base() +
                         neotier_interleave_offset(&interleave_, position, unit << observed_.unit_shift));
      }
    }
    return observed_;
  }

  void bar_access(BarDevice& device, uint64_t pa, unsigned bytes, bool is_store, bool is_streaming) {
    // Where a source stands in for the device, what it says lies in ordinary memory.
    if (!source_) hierarchy_.mmio(pa, is_store, is_streaming);
    const uint64_t n = instructions();
    if (n >= look_at_) look(n);
    if (is_store) device.store(device.offset(pa), bytes, hierarchy_.now_ps(*counts_) / 1000);
  }

  // A guest that never stops printing must not fill the host's disk.
  static constexpr uint64_t kOutputLimit = 1ull << 30;

  // While it is written no time passes in the guest: how fast the host's disk is changes no figure.
  void output(uint64_t stream, uint64_t bytes) {
    if (stream >= outputs_.size() || bytes > NEOTIER_OUTPUT_BYTES) return;
    const uint8_t* at = bar_ + NEOTIER_OUTPUT_OFFSET;
    while (bytes > 0) {
      const ssize_t n =
          outputs_[stream] < 0 || written_[stream] + bytes > kOutputLimit ? -1 : write(outputs_[stream], at, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        mailbox_->lost_output += bytes;
        return;
      }
      at += n;
      bytes -= static_cast<uint64_t>(n);
      written_[stream] += static_cast<uint64_t>(n);
    }
  }

  void record_mark() {
    if (mailbox_->nr_marks >= NEOTIER_MARKS) {
      ++mailbox_->lost_marks;
      return;
    }
    const neotier_counters c = hierarchy_.counters(*counts_);
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
  bool true_cxl_;
  Hierarchy hierarchy_;
  std::vector<std::unique_ptr<BarDevice>> devices_;  // in the order of their BARs
  std::vector<BarDevice*> by_position_;              // in the interleave
  neotier_interleave interleave_{0, 8};
  uint64_t bars_low_ = UINT64_MAX, bars_span_ = 0;  // from the lowest BAR to the end of the highest
  std::unique_ptr<HotPageSource> source_;
  InstructionCounts* counts_ = nullptr;
  uint64_t root_ = 0;        // of the guest's page tables
  uint64_t flushed_at_ = 0;  // instructions at the last flush of the TLB
  uint64_t look_at_ = 0;     // instructions
  uint64_t next_tick_ns_ = 0;
  uint64_t ticks_ = 0;
  bool instrumented_ = false;
  uint64_t booted_ns_ = 0, instrumented_at_ns_ = 0;  // of the guest's time and of the model's, when that began
  std::unique_ptr<Watch> watch_;                     // null unless asked for
  std::unique_ptr<PageCounts> pages_;                // likewise
  uint64_t accessed_va_ = 0;                         // by the guest, now
  std::array<int, NR_NEOTIER_STREAM> outputs_{-1, -1, -1};
  std::array<uint64_t, NR_NEOTIER_STREAM> written_{};
  std::array<DeviceCounters, NEOTIER_DEVICES> observed_of_;
  DeviceCounters observed_;  // all together
};

// Never freed: QEMU calls on_exit after this library's static objects are gone.
Machine* machine;
qemu_plugin_id_t plugin_id;
qemu_plugin_scoreboard* scoreboard;
bool instrument;

// What an instruction's memory callback has to know of it: its address, and in bit 0 whether it streams.
void* tag_of(uint64_t pc, bool streaming) { return reinterpret_cast<void*>(pc << 1 | (streaming ? 1 : 0)); }

void on_memory(unsigned, qemu_plugin_meminfo_t info, uint64_t va, void* tag) {
  const qemu_plugin_hwaddr* address = qemu_plugin_get_hwaddr(info, va);
  if (!address) return;
  const auto pc = reinterpret_cast<uintptr_t>(tag) >> 1;
  const unsigned shift = qemu_plugin_mem_size_shift(info);
  const bool is_store = qemu_plugin_mem_is_store(info);
  const bool wanted = machine->memory(qemu_plugin_hwaddr_phys_addr(address), va, 1u << shift, is_store,
                                      qemu_plugin_hwaddr_is_io(address), reinterpret_cast<uintptr_t>(tag) & 1, pc);
  if (!wanted || is_store || (shift != 2 && shift != 3)) return;
  const qemu_plugin_mem_value value = qemu_plugin_mem_get_value(info);
  machine->loaded(pc, va, shift == 2 ? value.data.u32 : value.data.u64);
}

// The registers of the only vCPU that say what the guest does to its TLB; read in callbacks that may read registers.
class Registers {
 public:
  Registers() : buffer_(g_byte_array_new()) {
    static constexpr std::array<std::string_view, 16> kNames = {"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
                                                                "r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};
    GArray* all = qemu_plugin_get_registers();
    const auto* registers = reinterpret_cast<const qemu_plugin_reg_descriptor*>(all->data);
    for (unsigned i = 0; i < all->len; ++i) {
      const std::string_view name = registers[i].name;
      if (name == "cr3") root_ = registers[i].handle;
      for (size_t general = 0; general < kNames.size(); ++general) {
        if (name == kNames[general]) general_[general] = registers[i].handle;
      }
    }
    g_array_free(all, 1);
  }
  bool complete() const { return root_ && std::find(general_.begin(), general_.end(), nullptr) == general_.end(); }
  uint64_t root() const { return read(root_); }
  uint64_t general(int number) const { return number < 0 ? 0 : read(general_[static_cast<size_t>(number)]); }

 private:
  uint64_t read(qemu_plugin_register* handle) const {
    g_byte_array_set_size(buffer_, 0);
    uint64_t value = 0;
    const int size = qemu_plugin_read_register(handle, buffer_);
    if (size > 0) std::memcpy(&value, buffer_->data, std::min<size_t>(sizeof value, static_cast<size_t>(size)));
    return value;
  }
  GByteArray* buffer_;
  qemu_plugin_register* root_ = nullptr;
  std::array<qemu_plugin_register*, 16> general_{};
};

Registers* registers;  // null where nobody asks for the guest's paging
// Of translated code: QEMU keeps pointers to them as long as it lives. One for each operand that there is.
std::vector<std::unique_ptr<PagingInstruction>>* paging_instructions;

void on_paging(unsigned, void* data) {
  const auto& instruction = *static_cast<const PagingInstruction*>(data);
  switch (instruction.kind) {
    case PagingInstruction::Kind::kRoot:
      machine->set_root(registers->general(instruction.base));
      break;
    case PagingInstruction::Kind::kControl:
      machine->flush_all();
      break;
    case PagingInstruction::Kind::kPage:
      machine->invalidate_page(registers->general(instruction.base) +
                               (registers->general(instruction.index) << instruction.scale) +
                               static_cast<uint64_t>(instruction.displacement));
      break;
  }
}

void watch_paging(qemu_plugin_insn* insn) {
  uint8_t code[16];
  const size_t size = qemu_plugin_insn_data(insn, code, sizeof code);
  const auto found = decode_paging(code, size, qemu_plugin_insn_vaddr(insn) + size);
  if (!found) return;
  auto at = std::find_if(paging_instructions->begin(), paging_instructions->end(),
                         [&](const auto& known) { return *known == *found; });
  if (at == paging_instructions->end()) {
    at = paging_instructions->insert(at, std::make_unique<PagingInstruction>(*found));
  }
  qemu_plugin_register_vcpu_insn_exec_cb(insn, on_paging, kPluginReadRegs, at->get());
}

void on_translate(qemu_plugin_id_t, qemu_plugin_tb* tb);
void on_exit(qemu_plugin_id_t, void*) { machine->finish(); }

bool watches_paging;
bool modelled_clock;
uint32_t icount_shift;

void on_vcpu(qemu_plugin_id_t, unsigned vcpu) {
  if (watches_paging) {
    registers = new Registers;
    paging_instructions = new std::vector<std::unique_ptr<PagingInstruction>>;
    if (!registers->complete()) {
      std::fprintf(stderr, "neotier plugin: this QEMU does not show the registers that model parameter tlb needs\n");
      std::_Exit(1);
    }
  }
  machine->attach(static_cast<InstructionCounts*>(qemu_plugin_scoreboard_find(scoreboard, vcpu)));
  if (!modelled_clock) return;
  if (const char* why = set_guest_clock([] { return machine->guest_ns(); }, icount_shift)) {
    std::fprintf(stderr, "neotier plugin: %s; with --shift N an instruction takes 2^N ns\n", why);
    std::_Exit(1);
  }
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
    if (registers) machine->set_root(registers->root());
    if (!instrument) {
      machine->instrumented();
      qemu_plugin_reset(plugin_id, on_reset);
    }
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

// MOVNTDQA, 66 [REX] 0F 38 2A: the one load that streams.
bool is_streaming_load(const qemu_plugin_insn* insn) {
  uint8_t code[6];
  const size_t got = qemu_plugin_insn_data(insn, code, sizeof code);
  if (got < 5 || code[0] != 0x66) return false;
  const size_t at = (code[1] & 0xf0) == 0x40 ? 2 : 1;
  return at + 3 <= got && code[at] == 0x0f && code[at + 1] == 0x38 && code[at + 2] == 0x2a;
}

void on_translate(qemu_plugin_id_t, qemu_plugin_tb* tb) {
  const size_t n = qemu_plugin_tb_n_insns(tb);
  const bool kernel = qemu_plugin_tb_vaddr(tb) >> 63;
  const size_t field = kernel ? offsetof(InstructionCounts, kernel) : offsetof(InstructionCounts, user);
  qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, kPluginInlineAddU64, {scoreboard, field}, n);
  for (size_t i = 0; i < n; ++i) {
    qemu_plugin_insn* insn = qemu_plugin_tb_get_insn(tb, i);
    if (const unsigned op = mark_of(insn); op != 0 && op < NR_NEOTIER_OP) {
      qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, kPluginReadRegs, reinterpret_cast<void*>(uintptr_t{op}));
    }
    if (instrument) {
      qemu_plugin_register_vcpu_mem_cb(insn, on_memory, kPluginNoRegs, kPluginMemReadWrite,
                                       tag_of(qemu_plugin_insn_vaddr(insn), is_streaming_load(insn)));
      if (kernel && registers) watch_paging(insn);
    }
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
    options.bar_paths.emplace_back(text);
  } else if (key == "serial" && is_number) {
    options.serials.push_back(number);
  } else if (key == "irq_fd" && is_number && number <= INT_MAX) {
    options.irq_fds.push_back(static_cast<int>(number));
  } else if (key == "cxl_base" && is_number) {
    options.cxl_base = number;
  } else if (key == "cxl_size" && is_number) {
    options.cxl_size = number;
  } else if (key == "shift" && is_number && number <= 10) {
    options.shift = static_cast<uint32_t>(number);
  } else if (key == "clock" && (text == "modelled" || text == "instructions")) {
    options.modelled_clock = text == "modelled";
  } else if (key == "ideal" && is_number) {
    options.ideal = number != 0;
  } else if (key == "timeline") {
    options.watch.timeline_path = text;
  } else if (key == "record") {
    options.watch.record.file = text;
  } else if (key == "pages") {
    options.pages.path = text;
  } else if (key == "pages_epoch_us" && is_number && number <= 1'000'000'000) {
    options.pages.epoch_ps = number * 1'000'000;
  } else if (key == "output") {
    options.outputs[NEOTIER_STREAM_OUTPUT] = text;
  } else if (key == "error") {
    options.outputs[NEOTIER_STREAM_ERROR] = text;
  } else if (key == "files") {
    options.outputs[NEOTIER_STREAM_FILES] = text;
  } else if (key == "record_all" && is_number) {
    options.watch.record.all_memory = number != 0;
  } else if (key == "record_timed" && is_number) {
    options.watch.record.timed = number != 0;
  } else if (key == "recording") {
    // FIELD:VALUE of trace::Field
    const size_t colon = text.find(':');
    uint64_t field = 0, value = 0;
    if (colon == std::string_view::npos || !parse_number(text.substr(0, colon), field) ||
        !parse_number(text.substr(colon + 1), value) || field >= static_cast<uint64_t>(trace::Field::kNrFields)) {
      return "recording='" + std::string(text) + "': expected a field's number and its value";
    }
    options.recording.emplace_back(static_cast<trace::Field>(field), value);
  } else if (key == "device" && (text == "rtl" || text == "model")) {
    options.model = text == "model";
  } else if (key == "log2_width" && is_number && number <= full_log2_width()) {
    options.log2_width = static_cast<uint32_t>(number);
  } else if (key == "hash_seed" && is_number && number < device_hash_seeds()) {
    options.hash_seed = static_cast<uint32_t>(number);
  } else if (key == "source" && (text == "pebs" || text == "ptescan")) {
    options.source = text;
  } else if (key == "dram_bytes" && is_number) {
    options.dram_bytes = number;
  } else if (key == "ram") {
    // FD:BASE:OFFSET:SIZE, where the guest's memory is
    std::array<uint64_t, 4> numbers{};
    std::string_view rest = text;
    for (uint64_t& one : numbers) {
      const size_t colon = rest.find(':');
      if (!parse_number(rest.substr(0, colon), one)) return "ram='" + std::string(text) + "': expected four numbers";
      rest = colon == std::string_view::npos ? "" : rest.substr(colon + 1);
    }
    options.ram.add(static_cast<int>(numbers[0]), numbers[1], numbers[2], numbers[3]);
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
    else if (text == "no-clock")
      options.fault = Fault::kNoClock;
    else
      return "fault='" + std::string(text) + "': expected none, magic, version, units, tail or no-clock";
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
  try {
    for (int i = 0; i < argc; ++i) {
      if (auto error = parse_option(options, argv[i])) return fail(*error);
    }
  } catch (const std::runtime_error& error) {
    return fail(error.what());
  }
  if (options.params.tlb != 0 && options.ram.empty()) return fail("model parameter tlb needs ram=");
  if (auto error = check_params(options.params)) return fail(*error);
  const size_t devices = options.bar_paths.size();
  if (devices == 0 || devices > NEOTIER_DEVICES || (!options.serials.empty() && options.serials.size() != devices) ||
      (!options.irq_fds.empty() && options.irq_fds.size() != devices)) {
    return fail("needs 1 to 4 of bar=, and of serial= and irq_fd= none or as many");
  }
  std::vector<uint8_t*> bars;
  for (const std::string& path : options.bar_paths) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return fail("cannot open the BAR's file '" + path + "'");
    void* bar = mmap(nullptr, NEOTIER_BAR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (bar == MAP_FAILED) return fail("cannot map the BAR's file '" + path + "'");
    bars.push_back(static_cast<uint8_t*>(bar));
  }
  try {
    machine = new Machine(options, bars);
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  modelled_clock = options.modelled_clock;
  icount_shift = options.shift;
  watches_paging = options.params.tlb != 0 || options.params.shootdown_cpus > 1;
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
