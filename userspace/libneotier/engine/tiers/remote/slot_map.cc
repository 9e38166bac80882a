// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/remote/slot_map.h"

#include <fmt/format.h>
#include <valkey/cluster.h>

#include <chrono>

#include "engine/tiers/remote/client.h"
#include "engine/tiers/remote/tls.h"

namespace neotier::engine::remote {

namespace {

constexpr std::chrono::milliseconds kFirstPause{100}, kLongestPause{3200};

int begin_tls(valkeyContext* context, valkeyTLSContext* tls) {
  std::string why;
  return reinterpret_cast<const Tls*>(tls)->begin(context, context->tcp.host, why) ? VALKEY_OK : VALKEY_ERR;
}

}  // namespace

SlotMap::SlotMap(Client& client) : client_(client), thread_([this] { run(); }) {}

SlotMap::~SlotMap() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (cluster_) valkeyClusterFree(cluster_);
}

void SlotMap::refresh() noexcept {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = true;
  }
  changed_.notify_all();
}

std::string SlotMap::refresh_and_wait(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  wanted_ = true;
  // An attempt that is under way began too early.
  const uint64_t mine = begun_ + 1;
  changed_.notify_all();
  if (!changed_.wait_until(lock, until, [&] { return ended_ >= mine || stop_; })) return "no answer yet";
  return stop_ ? "it is closed" : why_;
}

void SlotMap::run() {
  std::chrono::milliseconds pause = kFirstPause;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return wanted_ || stop_; });
    if (stop_) return;
    wanted_ = false;
    begun_++;
    lock.unlock();
    std::string why;
    try {
      why = fetch();
    } catch (const std::bad_alloc&) {
      why = "out of memory";
    }
    lock.lock();
    ended_ = begun_;
    why_ = why;
    changed_.notify_all();
    if (why.empty()) {
      pause = kFirstPause;
      continue;
    }
    // Whoever waits asks at once; otherwise it is tried again in a while.
    changed_.wait_for(lock, pause, [this] { return wanted_ || stop_; });
    pause = std::min(pause * 2, kLongestPause);
    wanted_ = true;
  }
}

std::string SlotMap::fetch() {
  const ClientOptions& options = client_.options_;
  bool fresh = false;
  if (cluster_ && valkeyClusterUpdateSlotmap(cluster_) != VALKEY_OK) {
    valkeyClusterFree(cluster_);
    cluster_ = nullptr;
  }
  if (!cluster_) {
    std::string addresses;
    for (const Address& address : options.addresses)
      addresses += fmt::format("{}{}:{}", addresses.empty() ? "" : ",", address.host, address.port);
    const timeval timeout{options.timeout_ms / 1000, options.timeout_ms % 1000 * 1000};
    valkeyClusterOptions wanted{};
    wanted.initial_nodes = addresses.c_str();
    wanted.connect_timeout = &timeout;
    wanted.command_timeout = &timeout;
    wanted.username = options.user.empty() ? nullptr : options.user.c_str();
    wanted.password = options.password.empty() ? nullptr : options.password.c_str();
    wanted.max_retry = 1;
    if (client_.tls_) {
      wanted.tls = client_.tls_.get();
      wanted.tls_init_fn = begin_tls;
    }
    cluster_ = valkeyClusterConnectWithOptions(&wanted);
    if (!cluster_) return "out of memory";
    fresh = true;
  }
  if (cluster_->err != 0 || !cluster_->table) {
    std::string why = cluster_->err != 0 ? cluster_->errstr : "it has no slots";
    if (fresh) {
      valkeyClusterFree(cluster_);
      cluster_ = nullptr;
    }
    return why;
  }
  const valkeyClusterNode* last = nullptr;
  Node* node = nullptr;
  for (unsigned slot = 0; slot < kSlots; slot++) {
    const valkeyClusterNode* const owner = cluster_->table[slot];
    if (owner != last) {
      last = owner;
      node = owner && owner->host ? client_.find_node({owner->host, owner->port}) : nullptr;
    }
    client_.set_slot(slot, node);
  }
  return "";
}

}  // namespace neotier::engine::remote
