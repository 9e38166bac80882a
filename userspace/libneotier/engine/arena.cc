// SPDX-License-Identifier: Apache-2.0
#include "engine/arena.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

namespace neotier::engine {

namespace {

constexpr uint64_t kSlabPages = Arena::kSlab / Arena::kPage;
// Slots of whole host pages, so that direct I/O and page moves can use them.
constexpr uint64_t kHostPage = 4096;

// Four a doubling from 512 bytes: 512 640 768 896 1024 ...; multiples of 4 KiB from there on.
std::vector<uint64_t> make_classes() {
  std::vector<uint64_t> sizes;
  for (uint64_t power = Arena::kSlotUnit; power < Arena::kLargestSlot; power *= 2) {
    for (uint64_t quarter = 4; quarter < 8; quarter++) {
      uint64_t size = power / 4 * quarter;
      const uint64_t unit = size > kHostPage ? kHostPage : Arena::kSlotUnit;
      size = (size + unit - 1) / unit * unit;
      if (sizes.empty() || size > sizes.back()) sizes.push_back(size);
    }
  }
  sizes.push_back(Arena::kLargestSlot);
  return sizes;
}

const std::vector<uint64_t>& classes() {
  static const std::vector<uint64_t> sizes = make_classes();
  return sizes;
}

size_t class_of(uint64_t bytes) {
  return static_cast<size_t>(std::lower_bound(classes().begin(), classes().end(), bytes) - classes().begin());
}

uint64_t pages_of(uint64_t bytes) { return (bytes + Arena::kPage - 1) / Arena::kPage; }

Extent make_extent(uint64_t offset, uint64_t bytes) { return offset / Arena::kSlotUnit << 32 | bytes; }

}  // namespace

Arena::Nodes Arena::make_nodes() {
  Runs run;
  Sizes size;
  run.emplace();
  size.emplace();
  return {run.extract(run.begin()), size.extract(size.begin())};
}

Arena::Arena(uint64_t capacity_bytes)
    : capacity_(std::min<uint64_t>(capacity_bytes, kSlotUnit << 32) / kPage * kPage), open_(classes().size()) {
  // Pages never make an extent of all ones: that is kNoExtent, and lies past the last slot unit.
  if (capacity_ == kSlotUnit << 32) capacity_ -= kPage;
  slab_of_page_.resize(capacity_ / kPage);
  if (capacity_ > 0) insert_run(make_nodes(), 0, capacity_ / kPage);
}

uint64_t Arena::room_of(uint64_t bytes) {
  return bytes <= kLargestSlot ? classes()[class_of(bytes)] : pages_of(bytes) * kPage;
}

TierUsage Arena::usage() const {
  std::lock_guard lock(mutex_);
  return {used_, extents_};
}

void Arena::insert_run(Nodes nodes, uint64_t page, uint64_t pages) {
  nodes.run.key() = page;
  nodes.run.mapped() = pages;
  runs_.insert(std::move(nodes.run));
  nodes.size.value() = {pages, page};
  by_size_.insert(std::move(nodes.size));
}

uint64_t Arena::take_run(uint64_t pages) {
  const auto fit = by_size_.lower_bound({pages, 0});
  if (fit == by_size_.end()) return UINT64_MAX;
  const auto [size, first] = *fit;
  if (spares_.size() == spares_.capacity()) spares_.reserve(2 * spares_.size() + 16);
  Nodes fresh = size > pages ? make_nodes() : Nodes{};
  Nodes taken{runs_.extract(first), by_size_.extract(fit)};
  if (size > pages) {
    insert_run(std::move(taken), first + pages, size - pages);
    taken = std::move(fresh);
  }
  spares_.push_back(std::move(taken));
  return first;
}

void Arena::give_run(uint64_t page, uint64_t pages) {
  Nodes nodes = std::move(spares_.back());
  spares_.pop_back();
  auto after = runs_.lower_bound(page);
  if (after != runs_.end() && after->first == page + pages) {
    pages += after->second;
    by_size_.erase({after->second, after->first});
    after = runs_.erase(after);
  }
  if (after != runs_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == page) {
      page = before->first;
      pages += before->second;
      by_size_.erase({before->second, before->first});
      runs_.erase(before);
    }
  }
  insert_run(std::move(nodes), page, pages);
}

Extent Arena::allocate_slot(uint64_t bytes) {
  const size_t cls = class_of(bytes);
  const uint64_t size = classes()[cls];
  Open& open = open_[cls];
  if (open.empty()) {
    const uint64_t page = take_run(kSlabPages);
    if (page == UINT64_MAX) return kNoExtent;
    try {
      if (unused_slabs_.empty()) {
        // As many as there are may be unused at once.
        if (unused_slabs_.capacity() <= slabs_.size()) unused_slabs_.reserve(2 * slabs_.size() + 16);
        slabs_.emplace_back();
        unused_slabs_.push_back(static_cast<uint32_t>(slabs_.size() - 1));
      }
      const uint32_t fresh = unused_slabs_.back();
      Slab& slab = slabs_[fresh];
      slab.page = page;
      slab.size_class = static_cast<uint8_t>(cls);
      slab.slots = static_cast<uint32_t>(kSlab / size);
      slab.used = slab.hint = 0;
      slab.free.assign((slab.slots + 63) / 64, UINT64_MAX);
      if (slab.slots % 64) slab.free.back() = (uint64_t{1} << slab.slots % 64) - 1;
      open.emplace(slab.slots, fresh);
      unused_slabs_.pop_back();
      std::fill_n(slab_of_page_.begin() + static_cast<std::ptrdiff_t>(page), kSlabPages, fresh + 1);
    } catch (const std::bad_alloc&) {
      give_run(page, kSlabPages);
      throw;
    }
  }
  Open::node_type node = open.extract(open.begin());
  const auto [available, number] = node.value();
  Slab& slab = slabs_[number];
  uint32_t word = slab.hint;
  while (slab.free[word] == 0) word++;
  slab.hint = word;
  const uint32_t slot = word * 64 + static_cast<uint32_t>(std::countr_zero(slab.free[word]));
  slab.free[word] &= slab.free[word] - 1;
  slab.used++;
  if (available > 1) {
    node.value() = {available - 1, number};
    open.insert(std::move(node));
  } else {
    slab.node = std::move(node);
  }
  used_ += size;
  return make_extent(slab.page * kPage + slot * size, bytes);
}

Extent Arena::allocate(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Extent extent = kNoExtent;
  if (bytes <= kLargestSlot) {
    extent = allocate_slot(bytes);
  }
  if (extent == kNoExtent) {
    // Also the small ones, where what is left is less than a slab: a page or a few for one object.
    const uint64_t page = take_run(pages_of(bytes));
    if (page == UINT64_MAX) return kNoExtent;
    try {
      large_[page] = bytes;
    } catch (const std::bad_alloc&) {
      give_run(page, pages_of(bytes));
      throw;
    }
    used_ += pages_of(bytes) * kPage;
    extent = make_extent(page * kPage, bytes);
  }
  extents_++;
  return extent;
}

Arena::Location Arena::locate(Extent extent) const {
  const uint64_t offset = offset_of(extent), bytes = bytes_of(extent), page = offset / kPage;
  const uint32_t number = page < slab_of_page_.size() ? slab_of_page_[page] : 0;
  if (number == 0 || bytes == 0) return {};
  const Slab& slab = slabs_[number - 1];
  const uint64_t size = classes()[slab.size_class], within = offset - slab.page * kPage;
  const auto slot = static_cast<uint32_t>(within / size);
  if (within % size || slot >= slab.slots || class_of(bytes) != slab.size_class || slab_is_free(slab, slot)) return {};
  return {number, slot};
}

bool Arena::holds(Extent extent) const {
  std::lock_guard lock(mutex_);
  if (locate(extent).slab != 0) return true;
  const auto it = large_.find(offset_of(extent) / kPage);
  return it != large_.end() && it->second == bytes_of(extent) && offset_of(extent) % kPage == 0;
}

bool Arena::free(Extent extent) {
  std::lock_guard lock(mutex_);
  const uint64_t first = offset_of(extent) / kPage;
  if (const auto it = large_.find(first);
      it != large_.end() && offset_of(extent) % kPage == 0 && it->second == bytes_of(extent)) {
    const uint64_t pages = pages_of(it->second);
    large_.erase(it);
    give_run(first, pages);
    used_ -= pages * kPage;
    extents_--;
    return true;
  }
  const Location at = locate(extent);
  if (!at.slab) return false;
  const uint32_t number = at.slab - 1;
  Slab& slab = slabs_[number];
  Open& open = open_[slab.size_class];
  used_ -= classes()[slab.size_class];
  extents_--;
  Open::node_type node = slab.used < slab.slots ? open.extract({slab.slots - slab.used, number}) : std::move(slab.node);
  slab.free[at.slot / 64] |= uint64_t{1} << at.slot % 64;
  slab.hint = std::min(slab.hint, at.slot / 64);
  if (--slab.used == 0) {
    std::fill_n(slab_of_page_.begin() + static_cast<std::ptrdiff_t>(slab.page), kSlabPages, 0);
    give_run(slab.page, kSlabPages);
    unused_slabs_.push_back(number);
  } else {
    node.value() = {slab.slots - slab.used, number};
    open.insert(std::move(node));
  }
  return true;
}

}  // namespace neotier::engine
