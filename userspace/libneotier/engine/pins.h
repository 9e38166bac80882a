// SPDX-License-Identifier: Apache-2.0
// Who holds which object in place. Every pin belongs to a session and, where asked, has an end in time: closing the
// session, or a lease that runs out, releases it, so that a client that forgets or dies leaks none.
//
// Thread safety: none; the engine's lock. A pin is a count in the object's record, which this class alone changes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/catalogue.h"
#include "engine/counters.h"
#include "engine/tier.h"

namespace neotier::engine {

using SessionId = uint64_t;
using PinId = uint64_t;

class Pins {
 public:
  Pins(Catalogue& catalogue, Counters& counters) : catalogue_(catalogue), counters_(counters) {}

  SessionId open_session();
  bool has_session(SessionId session) const { return sessions_.count(session) != 0; }
  // Releases up to so many of its pins, and ends it with the last: false while there are more.
  bool close_session(SessionId session, size_t most);

  struct Pin {
    SessionId session = 0;
    Handle handle = kNoHandle;
    uint64_t expires_ns = UINT64_MAX;
    TierId tier = kNoTier;  // whose copy the owner may read in place
  };
  // lease_ns: 0: until unpinned or the session ends. A pinned object is not moved, replaced or removed, so a pointer to
  // it stays good for as long. Throws std::bad_alloc, and has changed nothing then.
  Result<PinId> pin(SessionId session, Handle handle, TierId tier, uint64_t lease_ns, uint64_t now_ns);
  // kNotFound: no such pin of this session; it may have run out.
  Status unpin(SessionId session, PinId pin);
  // Those whose time is over by now.
  size_t expire(uint64_t now_ns);
  uint64_t next_expiry_ns() const { return leases_.empty() ? UINT64_MAX : leases_.begin()->first; }
  size_t sessions() const { return sessions_.size(); }
  size_t pins() const { return pins_.size(); }
  size_t pins_at(TierId tier) const { return at_tier_[tier]; }

 private:
  void release(std::unordered_map<PinId, Pin>::iterator pin);

  Catalogue& catalogue_;
  Counters& counters_;
  std::unordered_map<SessionId, std::unordered_set<PinId>> sessions_;
  std::unordered_map<PinId, Pin> pins_;
  std::multimap<uint64_t, PinId> leases_;
  std::array<size_t, kMaxTiers> at_tier_{};
  uint64_t next_id_ = 1;
};

}  // namespace neotier::engine
