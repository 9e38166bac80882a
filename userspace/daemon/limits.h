// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace neotier::daemon {

// What clients may use. All but the numbers of clients hold for a client from its connecting on, whatever is reloaded
// later. What is a user's holds for all his connections together, so that none of them can be had by connecting again.
struct Limits {
  uint32_t max_clients = 64;
  uint32_t user_clients = 0;            // of one user; 0: three quarters of max_clients
  uint64_t max_message = 64u << 20;     // bytes of an object, or of a list of keys, in one frame
  uint64_t in_flight_bytes = 1u << 30;  // of all requests and replies above 64 KiB together; at least max_message. Of
                                        // one user's at most three quarters, or one
  uint32_t message_timeout_s = 30;      // for a frame to arrive once it has begun, and for a reply to be taken
  uint32_t idle_timeout_s = 0;          // without a request; 0: none
  uint64_t pinned_bytes = UINT64_MAX;   // by one client
  uint64_t user_pinned_bytes = UINT64_MAX;
  uint32_t pins = 65536;               // by one client
  uint32_t objects_in_flight = 65536;  // that one client has asked to be moved and that have not arrived
  uint64_t max_lease_ms = 600000;      // of a pin, and that of pins without one; 0: a pin may have no lease

  uint32_t most_of_a_user() const { return user_clients ? user_clients : max_clients - max_clients / 4; }
};

}  // namespace neotier::daemon
