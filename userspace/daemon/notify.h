// SPDX-License-Identifier: Apache-2.0
// What systemd is told, by its datagram protocol (sd_notify(3)): libsystemd would be one more library for three lines.
#pragma once

#include <cstdint>
#include <string>

namespace neotier::daemon {

// "READY=1\nSTATUS=..."; nothing where nobody asked ($NOTIFY_SOCKET).
void notify_manager(const std::string& state);
// How often WATCHDOG=1 is expected, of this process; 0: never.
uint64_t watchdog_us();

}  // namespace neotier::daemon
