// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/ssd/ssd_tier.h"

#include "engine/tiers/ssd/store.h"

namespace neotier::engine {

SsdTier::SsdTier(std::unique_ptr<Store> store) : store_(std::move(store)) {}
SsdTier::~SsdTier() = default;

Result<std::unique_ptr<SsdTier>> SsdTier::open(SsdOptions options) {
  Result<std::unique_ptr<Store>> store = Store::open(std::move(options));
  if (!store) return store.status();
  return std::unique_ptr<SsdTier>(new SsdTier(std::move(*store)));
}

const TierInfo& SsdTier::info() const { return store_->info(); }
TierUsage SsdTier::usage() const { return store_->usage(); }
Result<Extent> SsdTier::allocate(const Key& key, uint64_t bytes) { return store_->allocate(key, bytes); }
void SsdTier::free(Extent extent) { store_->free(extent); }
void SsdTier::describe(Extent extent, Note note) { store_->describe(extent, note); }
size_t SsdTier::submit(std::span<Transfer* const> transfers) { return store_->submit(transfers); }
void SsdTier::cancel(Transfer& transfer) { store_->cancel(transfer); }
bool SsdTier::in_service() const { return store_->in_service(); }
Status SsdTier::come_back() { return store_->come_back(); }
Result<std::vector<Recovered>> SsdTier::recover() { return store_->recover(); }
SsdStats SsdTier::stats() const { return store_->stats(); }
uint64_t SsdTier::window_bytes() const { return store_->window_bytes(); }
std::optional<uint64_t> SsdTier::place_of(Extent extent, uint64_t offset) const {
  return store_->place_of(extent, offset);
}

}  // namespace neotier::engine
