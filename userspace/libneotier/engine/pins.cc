// SPDX-License-Identifier: Apache-2.0
#include "engine/pins.h"

#include <utility>

namespace neotier::engine {

SessionId Pins::open_session() {
  sessions_.emplace(next_id_, std::unordered_set<PinId>());
  return next_id_++;
}

bool Pins::close_session(SessionId session, size_t most) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return true;
  for (; most > 0 && !it->second.empty(); most--) {
    release(pins_.find(*it->second.begin()));
    counters_.session_releases++;
  }
  if (!it->second.empty()) return false;
  sessions_.erase(it);
  return true;
}

Result<PinId> Pins::pin(SessionId session, Handle handle, TierId tier, uint64_t lease_ns, uint64_t now_ns) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return Status(Code::kInvalid, "no such session; it was closed");
  Record& record = catalogue_[handle];
  if (record.pins == UINT16_MAX) return Status(Code::kBusy, "the object has 65535 pins; unpin some");
  const PinId id = next_id_++;
  const Pin pin{session, handle, lease_ns && lease_ns < UINT64_MAX - now_ns ? now_ns + lease_ns : UINT64_MAX, tier};
  const auto made = pins_.emplace(id, pin).first;
  try {
    it->second.insert(id);
    if (pin.expires_ns != UINT64_MAX) leases_.emplace(pin.expires_ns, id);
  } catch (const std::bad_alloc&) {
    it->second.erase(id);
    pins_.erase(made);
    throw;
  }
  record.pins++;
  at_tier_[tier]++;
  catalogue_.pinned_changed(handle);
  return id;
}

Status Pins::unpin(SessionId session, PinId pin) {
  const auto it = pins_.find(pin);
  if (it == pins_.end() || it->second.session != session)
    return Status(Code::kNotFound, "no such pin of this session; its lease may have ended");
  release(it);
  return Status::ok();
}

size_t Pins::expire(uint64_t now_ns) {
  size_t ended = 0;
  while (!leases_.empty() && leases_.begin()->first <= now_ns) {
    release(pins_.find(leases_.begin()->second));
    ended++;
  }
  counters_.lease_expiries += ended;
  return ended;
}

void Pins::release(std::unordered_map<PinId, Pin>::iterator it) {
  const Pin pin = it->second;
  if (pin.expires_ns != UINT64_MAX) {
    auto [lease, end] = leases_.equal_range(pin.expires_ns);
    while (lease->second != it->first) ++lease;
    leases_.erase(lease);
  }
  sessions_[pin.session].erase(it->first);
  pins_.erase(it);
  catalogue_[pin.handle].pins--;
  at_tier_[pin.tier]--;
  catalogue_.pinned_changed(pin.handle);
}

}  // namespace neotier::engine
