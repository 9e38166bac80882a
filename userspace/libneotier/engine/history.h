// SPDX-License-Identifier: Apache-2.0
// Objects that are known and have no copy, in the order in which they left. The list is in their records, so
// remembering costs nothing but the record.
//
// Thread safety: none; the engine's lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/index.h"

namespace neotier::engine {

class ObjectHistory {
 public:
  explicit ObjectHistory(ObjectIndex& index) : index_(index) {}

  size_t size() const { return size_; }
  Handle oldest() const { return back_; }
  // Whether it is in the list; the record has no copy.
  bool has(Handle handle) const { return index_[handle].extent[1] != kNoExtent; }

  void push(Handle handle) {
    link(handle, kNoHandle, front_);
    if (front_ != kNoHandle) link(front_, handle, next(front_));
    front_ = handle;
    if (back_ == kNoHandle) back_ = handle;
    size_++;
  }
  void erase(Handle handle) {
    const Handle newer = previous(handle), older = next(handle);
    if (newer != kNoHandle) link(newer, previous(newer), older);
    if (older != kNoHandle) link(older, newer, next(older));
    if (front_ == handle) front_ = older;
    if (back_ == handle) back_ = newer;
    index_[handle].extent[1] = kNoExtent;
    size_--;
  }

 private:
  // kNoExtent, which marks those that are in no list, would be two handles that are none: the end of the list is told
  // by a handle that no index gives out.
  static constexpr Handle kEnd = kNoHandle - 1;
  static_assert(kNoExtent == UINT64_MAX);
  void link(Handle handle, Handle newer, Handle older) {
    const auto word = [](Handle h) { return uint64_t{h == kNoHandle ? kEnd : h}; };
    index_[handle].extent[1] = word(newer) << 32 | word(older);
  }
  static Handle handle_of(uint64_t word) {
    return static_cast<Handle>(word) == kEnd ? kNoHandle : static_cast<Handle>(word);
  }
  Handle previous(Handle handle) const { return handle_of(index_[handle].extent[1] >> 32); }
  Handle next(Handle handle) const { return handle_of(index_[handle].extent[1]); }

  ObjectIndex& index_;
  Handle front_ = kNoHandle, back_ = kNoHandle;
  size_t size_ = 0;
};

}  // namespace neotier::engine
