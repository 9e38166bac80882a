// SPDX-License-Identifier: Apache-2.0
// The experts of a model that does not fit into fast memory: they lie in the model's own files, unmodified, and some of
// each layer's in slots of memory, by the placement policies of policies/. What is missing is loaded as a layer begins;
// what a predictor expects is fetched ahead meanwhile.
//
// Why not objects of the engine: those are written to a tier before they are read from it, and a durable tier keeps
// them in a log of its own. The files here are the medium, are read-only, and are never copied to another. Shared with
// the engine: its file access (engine/io), its memory tiers (slots are extents of one), its link model.
//
// Use: one layer of one step is a Step; its experts come one by one, those first that are there, and stay in place
// until it ends:
//     auto step = store->begin(layer, uses);
//     while (auto ready = step->next()) compute(ready->expert, ready->weights);
//
// Slots may lie where the CPU cannot address them, as on a GPU (Tier::address()): reads go through host memory and the
// tier, and what next() hands out are the device's addresses, for compute/cuda/gpu.h.
//
// Fallbacks, where the next expert is not there yet. in_place: files in memory that the CPU can address are computed
// with where they lie, if that is over before the load would be. stand_in: a Q4_0 copy of each expert, always resident,
// is used if the exact one is further away than stand_in_late_us; that changes results, by what stand_in_error() says.
//
// Thread safety: one Step at a time; its next() from any number of threads, all else from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compute/moe.h"
#include "engine/io/file.h"
#include "engine/tier.h"
#include "experts/layout.h"
#include "experts/loader.h"
#include "placement/expert_slots.h"

namespace neotier::experts {

enum class Source : uint8_t { kSlot, kInPlace, kStandIn };

struct StoreOptions {
  placement::PolicyRef policy, predictor;  // predictor: nullptr for none
  uint32_t top_k = 0;                      // experts that a token uses, 1 .. the layer's
  uint32_t slots = 8;                      // of each layer, 1 .. the layer's experts
  uint32_t batch = 1;                      // rows of a step, at most
  uint32_t lookahead = 6;                  // layers fetched ahead for; fewer than there are
  placement::PlannerOptions planner;
  uint64_t seed = 1;
  std::map<std::string, double> policy_params, predictor_params;
  LoaderOptions loader;
  bool resident_files = false;  // the files are read into memory first, and loads are copies of it
  bool in_place = false;        // see above; only with resident_files
  bool stand_in = false;
  uint64_t stand_in_late_us = 0;
  std::shared_ptr<engine::Tier> memory;             // of the slots; NULL: dram of its own
  std::shared_ptr<engine::FileSystem> file_system;  // loads read by it; NULL: the machine's own
};

struct StoreCounters {
  uint64_t events = 0, uses = 0;        // uses: of an expert by a row
  uint64_t hits = 0;                    // uses whose expert held a slot when its layer began, arrived or on its way
  uint64_t stall_free = 0;              // of those, arrived
  uint64_t loads = 0;                   // experts loaded on demand
  uint64_t streamed = 0, bypassed = 0;  // of those, not kept: no slot; the policy's wish
  uint64_t prefetches = 0, prefetches_used = 0, cancelled = 0;
  uint64_t in_place = 0, stand_ins = 0;  // experts of a step
  uint64_t bytes = 0;                    // read, whole blocks
  uint64_t retries = 0, failures = 0;    // reads tried twice; loads that failed
  uint64_t wait_ns = 0;                  // in next(), for experts that were not there
};

// One row's use of one expert. weight: the router's, 0 .. 1; 0: not known.
struct Use {
  uint32_t expert = 0, row = 0, rank = 0;
  bool begins = false;  // the row's sequence begins with this layer's token
  float weight = 0;
};

struct Ready {
  uint32_t expert = 0;
  Status status;            // kIo: one line with file and offset; the others of the step go on
  compute::Expert weights;  // valid until the step ends
  Source source{};
};

class ExpertStore;

class Step {
 public:
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  // Waits for the next expert; nothing once each has been handed out. kIo: a later step asks for it anew.
  std::optional<Ready> next();

 private:
  friend class ExpertStore;
  struct Item {
    uint32_t object = 0;
    int buffer = -1;  // its own; slots that hold it otherwise
    Loader::Load* load = nullptr;
    bool there = false, taken = false;
    Status error;
  };
  explicit Step(ExpertStore& store) : store_(store) {}
  Ready hand_out(Item& item, Source source);
  std::optional<Ready> fall_back();

  ExpertStore& store_;
  bool open_ = false;  // begin() has handed it out
  std::vector<Item> items_;
  std::deque<std::vector<float>> biases_;
  uint64_t handed_ns_ = 0;
  Source handed_{};
};

class ExpertStore {
 public:
  // As Layout::of(); kInvalid: an option out of range, a tier that nothing computes on; kFull: no room for the slots;
  // kUnsupported: slots on a GPU with a fallback, or for a model whose biases have to be converted; kIo. Throws
  // std::runtime_error where a policy refuses.
  static Result<std::unique_ptr<ExpertStore>> open(const model::Model& model, const StoreOptions& options);
  ~ExpertStore();

  const Layout& layout() const { return layout_; }
  // `layer`: index, in the order of the model's. At most batch x top_k uses, by rows. kInvalid; kBusy: a step is open.
  // Throws std::runtime_error, and begins no step, where the policy or the predictor has broken the rules of its ABI
  // since the last begin(); it is told once.
  Result<std::unique_ptr<Step>> begin(uint32_t layer, std::span<const Use> uses);
  // Tells the policy and the predictor of a layer's choices as if its experts had been there; no bytes move. For what
  // was seen before; warm() follows. As begin().
  Status rehearse(uint32_t layer, std::span<const Use> uses);
  // Loads what the policy holds, and into free slots by number: for a start that is warm, and for all resident. kIo.
  Status warm();
  // Gives up what is being fetched ahead.
  void cancel_prefetches();

  StoreCounters counters() const;
  // Relative L2 norm of all stand-ins' weights against the exact ones; 0 without.
  double stand_in_error() const { return stand_in_error_; }
  uint64_t memory_bytes() const { return buffers_.size() * layout_.slot_bytes(); }
  std::string method() const;
  // What loads take now: of one expert, ns.
  uint64_t load_ns() const;

 private:
  friend class Step;
  struct Object {
    int buffer = -1;
    Loader::Load* load = nullptr;
    bool there = false;
  };
  struct StandIn {
    compute::Packed gate, up, down;
    std::deque<std::vector<float>> biases;
    compute::Expert view;
  };
  ExpertStore(Layout layout, const StoreOptions& options);
  Status set_up(const model::Model& model);
  Result<neotier_event> make_event(uint32_t layer, std::span<const Use> uses);
  Status make_stand_ins();
  Status read_resident(const model::Model& model);
  int take_buffer(std::unique_lock<std::mutex>& lock);
  Loader::Load* start(uint32_t object, int buffer, bool demand);
  void drop(uint32_t object);
  void done(Loader::Load& load, const Status& status);
  bool fetch_ahead();
  void end(Step& step);
  uint64_t one_load_ns() const { return loader_->link().predict_ns(layout_.slot_bytes()); }

  const StoreOptions options_;
  const Layout layout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<engine::Tier> memory_;
  std::vector<engine::Extent> extents_;
  std::vector<std::byte*> buffers_;
  bool registered_ = false;
  std::vector<int> free_buffers_;
  placement::ExpertSlots slots_;
  std::vector<Object> objects_;
  std::vector<neotier_access> accesses_;
  uint64_t tick_ = 0;
  uint64_t arrived_ns_ = 0;  // the step's last expert, or the step's begin
  Step* step_ = nullptr;
  bool serving_ = false, fetching_ = false;
  bool closing_ = false;
  double layer_ns_ = 0;               // from a layer's last expert to the next one's begin, lately
  double compute_ns_[2] = {};         // of an expert: from a slot, in place
  std::vector<std::byte*> resident_;  // whole files
  std::vector<uint64_t> resident_bytes_;
  std::deque<StandIn> stand_ins_;  // their views refer to themselves
  double stand_in_error_ = 0;
  StoreCounters counters_;
  std::unique_ptr<Loader> loader_;
};

}  // namespace neotier::experts
