// SPDX-License-Identifier: GPL-2.0-or-later
#include "hil/plugin/guest_clock.h"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <vector>

// QEMU's, exported by its program. Weak: a QEMU without them is told so, and not refused by the loader.
extern "C" {
[[gnu::weak]] int64_t icount_get();
[[gnu::weak]] int64_t icount_get_raw();
[[gnu::weak]] void* cpus_get_accel();
[[gnu::weak]] bool all_cpu_threads_idle();
[[gnu::weak]] bool qemu_in_vcpu_thread();
[[gnu::weak]] const void* qemu_plugin_request_time_control();
[[gnu::weak]] void qemu_plugin_update_ns(const void* handle, int64_t time);
}

namespace neotier::hil {
namespace {

using Clock = int64_t (*)();

constexpr size_t kPlaces = 2;  // the virtual clock and the counter of cycles

uint64_t (*told_ns)();
unsigned icount_shift;
const void* time_control;
std::atomic<int64_t> seen_idle;  // by the main loop

int64_t guest_ns() {
  if (!qemu_in_vcpu_thread() && !all_cpu_threads_idle()) return seen_idle.load();
  const int64_t skipped = icount_get() - (icount_get_raw() << icount_shift);
  const int64_t now = skipped + static_cast<int64_t>(told_ns());
  if (!qemu_in_vcpu_thread()) seen_idle.store(now);
  return now;
}

}  // namespace

const char* set_guest_clock(uint64_t (*now_ns)(), unsigned shift) {
  if (!icount_get || !icount_get_raw || !cpus_get_accel || !all_cpu_threads_idle || !qemu_in_vcpu_thread ||
      !qemu_plugin_request_time_control || !qemu_plugin_update_ns) {
    return "this QEMU does not show its clock";
  }
  auto* const accelerator = static_cast<Clock*>(cpus_get_accel());
  std::vector<Clock*> places;
  for (size_t i = 0; accelerator && i < malloc_usable_size(accelerator) / sizeof(Clock); ++i) {
    if (accelerator[i] == icount_get) places.push_back(&accelerator[i]);
  }
  if (places.size() != kPlaces) return "this QEMU asks elsewhere for the time";
  time_control = qemu_plugin_request_time_control();
  if (!time_control) return "another plugin has this QEMU's clock";
  told_ns = now_ns;
  icount_shift = shift;
  for (Clock* place : places) *place = guest_ns;
  return nullptr;
}

// Time does not go back: to set it to 0 changes nothing, but the vCPU stops for it between two blocks of code.
void reconsider_timers() {
  if (time_control) qemu_plugin_update_ns(time_control, 0);
}

}  // namespace neotier::hil
