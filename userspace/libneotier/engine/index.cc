// SPDX-License-Identifier: Apache-2.0
#include "engine/index.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <thread>

namespace neotier::engine {

namespace {

constexpr int kMantissaBits = 11;
constexpr uint64_t kImplicit = 1u << kMantissaBits;
constexpr int kKindShift = 16;
constexpr Note kDiscardBit = 1u << 18;

// A value that the engine's lock guards for its writers, and nothing for those who read it here.
template <typename T>
T read_shared(const T& value) {
  return std::atomic_ref(const_cast<T&>(value)).load(std::memory_order_acquire);
}
template <typename T>
void write_shared(T& to, T value) {
  std::atomic_ref(to).store(value, std::memory_order_release);
}

// The two words of a key in a record, whose bytes lie on a boundary of eight.
static_assert(offsetof(Record, key) == 0 && alignof(Record) == 8 && sizeof(Key) == 16);
uint64_t* words_of(Record& record) { return reinterpret_cast<uint64_t*>(record.key.bytes); }
const uint64_t* words_of(const Record& record) { return reinterpret_cast<const uint64_t*>(record.key.bytes); }

std::array<uint64_t, 2> words_of(const Key& key) { return std::bit_cast<std::array<uint64_t, 2>>(key); }

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

ObjectIndex::Change::Change(ObjectIndex& index) : index_(index) {
  if (index_.depth_++ == 0)
    index_.changes_.store(index_.changes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

ObjectIndex::Change::~Change() {
  if (--index_.depth_ == 0)
    index_.changes_.store(index_.changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

bool ObjectIndex::has_key(Handle handle, const Key& key) const {
  const uint64_t* const has = words_of(records_[handle]);
  const std::array<uint64_t, 2> wanted = words_of(key);
  return read_shared(has[0]) == wanted[0] && read_shared(has[1]) == wanted[1];
}

void ObjectIndex::set(size_t slot, Slot value) { write_shared(slots_[slot], value); }

std::array<TierId, 2> ObjectIndex::look(const Key& key, uint32_t hash) const {
  size_t at = home(hash);
  // In the middle of a change no slot may look empty.
  for (size_t looked = 0; looked < slots_.size(); looked++, at = next(at)) {
    const Slot slot = read_shared(slots_[at]);
    if (slot.handle_plus_1 == 0) break;
    if (slot.hash != hash || !has_key(slot.handle_plus_1 - 1, key)) continue;
    const uint8_t tiers = read_shared(records_[slot.handle_plus_1 - 1].tiers);
    return {static_cast<TierId>(tiers & 15), static_cast<TierId>(tiers >> 4)};
  }
  return {kNoTier, kNoTier};
}

std::array<TierId, 2> ObjectIndex::copies(const Key& key) const {
  const uint32_t h = hash(key);
  // Who makes a change may have lost its processor.
  constexpr int kPatience = 64;
  for (int tried = 0;; tried++) {
    const uint64_t before = changes_.load(std::memory_order_acquire);
    if (before % 2 == 0) {
      const std::array<TierId, 2> found = look(key, h);
      if (changes_.load(std::memory_order_relaxed) == before) return found;
    }
    if (tried >= kPatience) std::this_thread::yield();
  }
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
  const Change change(*this);
  set(at, {h, handle + 1});
  Record& record = records_[handle];
  for (int word = 0; word < 2; word++) write_shared(words_of(record)[word], words_of(key)[word]);
  record.set_tiers(kNoTier, kNoTier);
  record.extent[0] = record.extent[1] = kNoExtent;
  record.bytes = record.moved_ms = 0;
  record.pins = record.recompute = 0;
  record.place = kNoTier;
  record.heat = 0;
  record.kind = static_cast<uint8_t>(ObjectKind::kPlain);
  record.in_flight = record.recovered = record.discard = 0;
  size_++;
  return handle;
}

void ObjectIndex::erase(Handle handle) {
  const Change change(*this);
  Record& record = records_[handle];
  size_t hole = probe(record.key, hash(record.key));
  // Backward shift: no tombstones, so lookups stay short however many keys come and go.
  for (size_t at = next(hole); slots_[at].handle_plus_1; at = next(at)) {
    const size_t wanted = home(slots_[at].hash);
    const bool stays = hole <= at ? wanted > hole && wanted <= at : wanted > hole || wanted <= at;
    if (stays) continue;
    set(hole, slots_[at]);
    hole = at;
  }
  set(hole, {});
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
