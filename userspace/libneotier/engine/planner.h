// SPDX-License-Identifier: Apache-2.0
// Decides which moves are worth making, and makes none: it reads the catalogue, the links and the health of the tiers,
// and answers with plans that the mover carries out. What is merged here: the policies' victims, capacity (watermarks
// and the room that an arriving object needs), bandwidth (predicted times), hysteresis, and pins.
//
// Thread safety: none; the engine's lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/catalogue.h"
#include "engine/counters.h"
#include "engine/link.h"

namespace neotier::engine {

// In the order in which they are served.
enum class MoveClass : uint8_t { kDemand, kPrefetch, kWriteBack };
inline constexpr size_t kMoveClasses = 3;

enum class Reason : uint8_t { kAsked, kPrefetch, kPromotion, kDemotion, kWriteBack };

struct Knobs {
  uint32_t hysteresis_ms = 1000;   // an object that moved is not moved again for this long, but for demand's sake
  double high_watermark = 0.95;    // of a tier's capacity: above it, objects leave in the background ...
  double low_watermark = 0.90;     // ... until it is down to this
  uint32_t promote_heat = 3;       // uses lately (Catalogue::heat) that make an object worth a faster tier; 0: never
  double background_share = 0.5;   // of a link's bandwidth that prefetch and write-back may take beside demand
  bool write_back = false;         // copy every new object to the first durable tier in the background
  uint64_t chunk_bytes = 1 << 20;  // a transfer is cut into these; demand waits for at most one of another class
  uint32_t retry_ms = 1000;        // between attempts to bring a failed tier back, doubled up to 64 times that
  uint32_t find_ms = 50;           // that a look-up waits at most for what other hosts have stored (Tier::find)
  uint32_t failures = 8;           // transfers in a row that a tier may fail before it is taken out of service
};

// Which tiers may be used now. Written under the engine's lock.
using Usable = std::array<std::atomic<bool>, kMaxTiers>;

struct Planned {
  Handle object = kNoHandle;
  TierId from = kNoTier;
  TierId to = kNoTier;  // kNoTier: the copy is dropped, without any transfer
  Reason reason{};
  bool keep_source = false;
};

enum class Choice : uint8_t { kLoad, kRecompute, kComputeOnCpu };

struct Decision {
  Choice choice{};
  // Predicted finish from now, queues included; UINT64_MAX where it is not possible.
  uint64_t load_ns = UINT64_MAX, recompute_ns = UINT64_MAX, cpu_ns = UINT64_MAX;
};

class Planner {
 public:
  Planner(Catalogue& catalogue, const Links& links, const Usable& usable, Counters& counters, const Knobs& knobs)
      : catalogue_(catalogue), links_(links), usable_(usable), counters_(counters), knobs_(knobs) {}

  // What may leave `tier` for `bytes` of `handle` to fit: at least that many bytes where there are enough, but a
  // bounded number of objects, so that the caller carries them out and asks again. Empty: no room can be made.
  void make_room(TierId tier, Handle handle, uint64_t bytes, MoveClass cls, uint64_t now_ns,
                 std::vector<Planned>& plan);
  // What should leave `tier` in the background, `leaving` bytes being under way already.
  void relieve(TierId tier, uint64_t leaving, uint64_t now_ns, std::vector<Planned>& plan);
  // The faster tier that the object, just used, is worth; `plan` stays as it is where there is none.
  void promote(Handle handle, uint64_t now_ns, std::vector<Planned>& plan);
  // Where a new object goes first: the fastest usable tier of `takers` (a bit each, as Catalogue::use() gives them),
  // else the fastest one that is large enough.
  TierId first_tier(uint64_t bytes, uint32_t takers) const;
  TierId first_durable() const;

  // Load to `to` (kHost: the caller's memory), make anew, or compute on the CPU where the object lies: what is done
  // first. compute_queue_ns: work that is before it where it would be made anew; cpu_ns: computing on the CPU out of
  // the fastest host tier, 0: not possible; scaled by read bandwidth where the object is in a slower one that the CPU
  // can address.
  Decision decide(Handle handle, TierId to, uint64_t compute_queue_ns, uint64_t cpu_ns);

  bool just_moved(Handle handle, uint64_t now_ns) const;

 private:
  static constexpr uint32_t kBatch = 64;

  // How the object would leave `from`; false: it must stay.
  bool leave(Handle handle, TierId from, uint64_t now_ns, Planned& planned);
  bool worth_keeping_on(TierId tier, const Record& record);

  Catalogue& catalogue_;
  const Links& links_;
  const Usable& usable_;
  Counters& counters_;
  const Knobs& knobs_;
};

}  // namespace neotier::engine
