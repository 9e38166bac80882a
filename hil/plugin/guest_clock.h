// SPDX-License-Identifier: GPL-2.0-or-later
// The guest's clock, told by us. QEMU's own counts instructions, 2^N ns each, whatever they wait for: a program that
// waits for memory then outruns its kernel's timers, and one that does not is overtaken by them, six times over.
//
// QEMU's plugin API cannot set the clock of a machine that counts instructions. But the accelerator asks for the time
// through two pointers to one exported function, and we take their place. QEMU then adds to what we say only the time
// that it skips while the guest is idle, as before.
//
// Everything stays repeatable: a timer expires in the vCPU's thread, when an instruction's time has come. QEMU's main
// loop may see the time only while the guest is idle, or how fast the host is would decide when a timer expires.
#ifndef NEOTIER_HIL_PLUGIN_GUEST_CLOCK_H
#define NEOTIER_HIL_PLUGIN_GUEST_CLOCK_H

#include <cstdint>

namespace neotier::hil {

// From now on the guest's time is `now_ns` and what it has been idle. Call once, in the vCPU's thread before it has
// run. `now_ns` never goes back; it is called in that thread, or in QEMU's main loop while the vCPU stands still.
// `shift` is that of -icount. Null, or why it cannot be.
const char* set_guest_clock(uint64_t (*now_ns)(), unsigned shift);

// QEMU runs the guest until the next timer, and estimates that time by `shift`. This makes it estimate anew. Call it in
// the vCPU's thread, in the guest's code.
void reconsider_timers();

}  // namespace neotier::hil

#endif
