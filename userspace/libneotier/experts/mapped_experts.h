// SPDX-License-Identifier: Apache-2.0
// Experts at addresses that a host computes with as they are: an inference engine's weight tensors. A budget's worth of
// them is in memory, by the placement policies of policies/; the others lie in the model's own files, which are only
// read. What an operation is about to use is brought before it begins, what a predictor expects is fetched ahead, and
// what is touched unannounced comes by a page fault (experts/empty_range.h): slowly, and never as anything else.
//
// An expert is in parts, in the order in which a layer uses them (gate, up, down), each in a tensor of its own; reads
// are ordered so that a later part arrives while the host computes with an earlier one.
//
// Use: one layer of one batch is a step.
//     auto step = experts->begin(layer, uses);
//     for each part: step->wait(part); compute; step->done(part);
//
// Invariant: memory in use, what is being read included, is never more than the budget as long as one step is open at a
// time and no page is touched unannounced. Several steps that wait for one another's room go on without; the peak says
// by how much.
//
// Thread safety: all calls from any thread; a step is used by one at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/io/file.h"
#include "experts/empty_range.h"
#include "experts/loader.h"
#include "model/model.h"
#include "placement/expert_slots.h"

namespace neotier::experts {

// All experts of a layer in one tensor: expert e has `bytes` at `at` + e x bytes of the range, and they lie at `offset`
// + e x bytes of the file.
struct MappedPart {
  uint64_t at = 0;  // a multiple of kPage; of the experts' tensors no two share a page
  uint64_t bytes = 0;
  uint32_t file = 0;
  uint64_t offset = 0;
};
using MappedLayer = std::vector<MappedPart>;

struct MappedOptions {
  placement::PolicyRef policy, predictor;  // predictor: nullptr for none
  uint32_t experts = 0;                    // of each layer
  uint32_t top_k = 0;                      // that a token uses, 1 .. experts
  uint32_t rows = 512;                 // of a step; with more, and with more uses than rows x top_k, a policy is told
                                       // which experts are used, and not by which rows
  uint32_t lookahead = 6;              // layers; as many as there are, less one, if that is fewer
  uint64_t budget_bytes = UINT64_MAX;  // of experts in memory, and of what reads go through
  placement::PlannerOptions planner;
  uint64_t seed = 1;
  LoaderOptions loader;
  std::shared_ptr<engine::FileSystem> file_system;  // NULL: the machine's own
  // Where all experts have room: called with each part that has been read, before anybody can see it, by one thread at
  // a time; to lay it out in another way. Parts of whole pages only.
  std::function<void(uint32_t layer, uint32_t part, std::byte* bytes)> convert;
};

struct MappedCounters {
  uint64_t events = 0, uses = 0;        // uses: of an expert by a row
  uint64_t hits = 0;                    // uses whose expert held a slot when its step began, arrived or on its way
  uint64_t stall_free = 0;              // of those, arrived
  uint64_t loads = 0;                   // experts of a step that had no slot
  uint64_t streamed = 0, bypassed = 0;  // of those, not kept: no slot; the policy's wish
  uint64_t prefetches = 0, prefetches_used = 0;
  uint64_t borrowed = 0;  // experts that lost their slot to a step that needed more memory than was left
  uint64_t faults = 0;    // pages that were touched before they were there
  uint64_t bytes = 0;     // read, whole blocks
  uint64_t retries = 0, failures = 0;
  uint64_t wait_ns = 0;           // in wait()
  uint64_t memory = 0, peak = 0;  // bytes: of experts, and of what reads go through; now, and the most that it was
};

class MappedExperts;

class MappedStep {
 public:
  ~MappedStep();
  MappedStep(const MappedStep&) = delete;
  MappedStep& operator=(const MappedStep&) = delete;
  // Until this part of all the step's experts is there. kIo: one line with file and offset; kInvalid: no such part.
  Status wait(uint32_t part);
  // The host has computed with it. Harmless twice.
  void done(uint32_t part);

 private:
  friend class MappedExperts;
  explicit MappedStep(MappedExperts& owner) : owner_(owner) {}
  MappedExperts& owner_;
  bool open_ = false;  // it counts as a user of its objects
  std::vector<uint32_t> objects_;
  std::vector<bool> done_;
};

class MappedExperts {
 public:
  struct Use {
    uint32_t expert = 0, row = 0, rank = 0;
  };

  // range, which must outlive it: touches are served from now on. layers: of equally many parts each. kInvalid: a part
  // outside of its file or the range, an option out of range; kFull: the budget is below what one operation needs (how
  // much that is); kIo, kNotFound: a file. Throws std::runtime_error where a policy refuses.
  static Result<std::unique_ptr<MappedExperts>> open(EmptyRange& range, const std::vector<model::ModelFile>& files,
                                                     std::vector<MappedLayer> layers, const MappedOptions& options);
  ~MappedExperts();
  // The least budget that open() takes for these layers; of their parts only `bytes` matter.
  static uint64_t least_bytes(const std::vector<MappedLayer>& layers, uint32_t experts);

  // Until what was asked for has come, or failed: after open(), all experts where they all have room.
  void settle();

  // kInvalid: no such layer or expert. Throws std::runtime_error, and begins no step, where the policy or the
  // predictor has broken the rules of its ABI since the last begin(); it is told once.
  Result<std::unique_ptr<MappedStep>> begin(uint32_t layer, std::span<const Use> uses);

  MappedCounters counters() const;
  // The budget that it keeps, the room of one expert per layer, and slots of a layer: the first wider_layers() have one
  // more.
  uint64_t budget_bytes() const { return limit_ + staging_bytes_; }
  uint32_t slots() const { return slots_count_; }
  uint32_t wider_layers() const { return wider_layers_; }
  uint32_t layers() const { return static_cast<uint32_t>(layers_.size()); }

 private:
  friend class MappedStep;
  enum class State : uint8_t { kAbsent, kQueued, kLoading, kHere };
  // A part of an expert.
  struct Piece {
    State state{};
    bool demand = false;
    bool loose = false;  // came by a fault; nobody keeps it
    Loader::Load* load = nullptr;
  };
  struct Place {  // whole pages, and where their bytes are
    std::byte* at = nullptr;
    uint64_t bytes = 0, offset = 0;
  };
  MappedExperts(EmptyRange& range, std::vector<MappedLayer> layers, const MappedOptions& options);
  Status check(const std::vector<model::ModelFile>& files) const;
  Status plan();
  Status set_up(const std::vector<model::ModelFile>& files);

  uint32_t piece_of(uint32_t object, uint32_t part) const { return object * parts_ + part; }
  const MappedPart& part_of(uint32_t piece) const { return layers_[piece / parts_ / options_.experts][piece % parts_]; }
  Place place_of(uint32_t piece) const;
  uint64_t room_of(uint32_t piece) const { return place_of(piece).bytes; }

  void want(uint32_t piece, bool demand);
  void forget(uint32_t piece);
  void not_loading(uint32_t piece, bool loose);
  void drop(uint32_t object);
  void empty(uint32_t piece);
  void pump();
  void start(uint32_t piece);
  bool make_room(uint64_t bytes, bool demand);
  bool borrow();
  void done(Loader::Load& load, const Status& status);
  bool fetch_ahead();
  bool fetch_one();
  void fault(std::byte* page);
  bool whole(uint32_t object) const;
  void note_peak();
  void end_part(MappedStep& step, uint32_t part);
  void end(MappedStep& step);

  EmptyRange& range_;
  const MappedOptions options_;
  const std::vector<MappedLayer> layers_;
  const uint32_t parts_;
  std::vector<std::pair<uint64_t, uint32_t>> by_address_;  // a part's `at`, and layer x parts + part; in order
  uint64_t all_bytes_ = 0, limit_ = 0, staging_bytes_ = 0, stage_bytes_ = 0;
  uint32_t slots_count_ = 0, wider_layers_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<placement::ExpertSlots> slots_;
  std::vector<Piece> pieces_;
  std::vector<uint32_t> users_;  // steps, by object
  std::map<uint32_t, Status> errors_;
  std::deque<uint32_t> demand_, background_;
  std::list<uint32_t> loose_;  // those that are there, the oldest first
  std::unique_ptr<std::byte, void (*)(void*)> staging_{nullptr, nullptr};
  std::vector<int> free_stages_;
  std::vector<neotier_access> accesses_;
  uint64_t tick_ = 0, arrived_ns_ = 0;
  double layer_ns_ = 0;
  uint64_t in_memory_ = 0, loading_ = 0, loading_loose_ = 0;  // loose ones are part of the former
  uint32_t layer_ = 0;                                        // of the last step
  uint32_t open_steps_ = 0;
  bool serving_ = false, fetching_ = false, pumping_ = false, closing_ = false;
  MappedCounters counters_;
  std::unique_ptr<Loader> loader_;
};

}  // namespace neotier::experts
