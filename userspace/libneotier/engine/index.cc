// SPDX-License-Identifier: Apache-2.0
#include "engine/index.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace neotier::engine {

namespace {

constexpr int kMantissaBits = 11;
constexpr uint64_t kImplicit = 1u << kMantissaBits;
constexpr int kKindShift = 16;
constexpr Note kDiscardBit = 1u << 18;

}  // namespace

uint16_t encode_cost(uint64_t ns) {
  if (ns == 0) return 0;
  const uint64_t units = std::max<uint64_t>(1, std::min(ns, UINT64_MAX / 4) * 2 / 125);
  if (units < kImplicit) return static_cast<uint16_t>(units);
  const int exponent = static_cast<int>(std::bit_width(units)) - kMantissaBits - 1;
  if (exponent > 30) return UINT16_MAX;
  return static_cast<uint16_t>((exponent + 1) << kMantissaBits | ((units >> exponent) & (kImplicit - 1)));
}

uint64_t decode_cost(uint16_t code) {
  const int exponent = code >> kMantissaBits;
  const uint64_t mantissa = code & (kImplicit - 1);
  const uint64_t units = exponent == 0 ? mantissa : (mantissa | kImplicit) << (exponent - 1);
  return units * 125 / 2;
}

Note encode_note(ObjectKind kind, uint16_t recompute, bool discard) {
  return static_cast<Note>(kind) << kKindShift | (discard ? kDiscardBit : 0) | recompute;
}

Note Record::note() const {
  const bool unknown = recovered && kind == static_cast<uint8_t>(ObjectKind::kPlain) && !may_go();
  return unknown ? 0 : encode_note(static_cast<ObjectKind>(kind), recompute, discard);
}

void Record::take_note(Note note) {
  const Note known = note >> kKindShift & 3;
  if (known == 0 || note >= kDiscardBit << 1) return;
  kind = static_cast<uint8_t>(known) & 3;
  recompute = static_cast<uint16_t>(note);
  discard = (note & kDiscardBit) != 0;
}

ObjectIndex::ObjectIndex(size_t max_objects, uint64_t seed)
    : seed_(seed), records_(max_objects), slots_(max_objects + max_objects / 4 + 16) {}

uint32_t ObjectIndex::hash(const Key& key) const {
  return static_cast<uint32_t>(XXH3_64bits_withSeed(key.bytes, sizeof(key.bytes), seed_) >> 32);
}

size_t ObjectIndex::probe(const Key& key, uint32_t hash) const {
  size_t at = home(hash);
  for (; slots_[at].handle_plus_1; at = next(at)) {
    if (slots_[at].hash == hash && records_[slots_[at].handle_plus_1 - 1].key == key) break;
  }
  return at;
}

Handle ObjectIndex::find(const Key& key) const { return slots_[probe(key, hash(key))].handle_plus_1 - 1; }

Result<Handle> ObjectIndex::add(const Key& key) {
  const uint32_t h = hash(key);
  const size_t at = probe(key, h);
  if (slots_[at].handle_plus_1) return Status(Code::kExists, "an object of this key is there already");
  Handle handle = free_;
  if (handle != kNoHandle) {
    free_ = records_[handle].bytes;
  } else if (fresh_ < records_.size()) {
    handle = fresh_++;
  } else {
    return Status(Code::kFull,
                  fmt::format("the index holds its {} objects; open the engine with more max_objects", size_));
  }
  slots_[at] = {h, handle + 1};
  Record& record = records_[handle];
  std::memset(static_cast<void*>(&record), 0, sizeof(record));
  record.key = key;
  record.extent[0] = record.extent[1] = kNoExtent;
  record.tiers = kNoTier << 4 | kNoTier;
  record.place = kNoTier;
  record.kind = static_cast<uint8_t>(ObjectKind::kPlain);
  size_++;
  return handle;
}

void ObjectIndex::erase(Handle handle) {
  Record& record = records_[handle];
  size_t hole = probe(record.key, hash(record.key));
  // Backward shift: no tombstones, so lookups stay short however many keys come and go.
  for (size_t at = next(hole); slots_[at].handle_plus_1; at = next(at)) {
    const size_t wanted = home(slots_[at].hash);
    const bool stays = hole <= at ? wanted > hole && wanted <= at : wanted > hole || wanted <= at;
    if (stays) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = {};
  record.kind = 0;
  record.bytes = free_;
  free_ = handle;
  size_--;
}

double ObjectIndex::bytes_per_object() const {
  return static_cast<double>(records_.size() * sizeof(Record) + slots_.size() * sizeof(Slot)) /
         static_cast<double>(records_.size());
}

}  // namespace neotier::engine
