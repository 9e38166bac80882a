// SPDX-License-Identifier: Apache-2.0
// A tier on Valkey or Redis, one server or a cluster. What lies there is a cache: the server may throw it away, and a
// read then finds nothing (kNotFound). Values are checked, byte for byte, before they are handed out.
//
// Under a namespace hosts share what they write: find() tells of objects that others have stored. Who wrote a value
// deletes it with its extent; who found it only forgets it. Without a namespace what is written is this tier's alone,
// and goes with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>

#include "engine/tier.h"
#include "engine/tiers/remote/client.h"
#include "engine/tiers/remote/value.h"

namespace neotier::engine {

struct RemoteOptions {
  remote::ClientOptions client;
  uint64_t capacity_bytes = 0;  // of what this host puts there
  std::string space;            // the words of a model and a layout; empty: private
  uint32_t ttl_s = 86400;       // until the server forgets what was written; 0: never
};

class RemoteTier : public Tier {
 public:
  // Throws std::runtime_error with one line. A server that does not answer is no error: the tier is out of service.
  explicit RemoteTier(RemoteOptions options);
  ~RemoteTier() override;

  const TierInfo& info() const override { return info_; }
  TierUsage usage() const override;
  Result<Extent> allocate(const Key& key, uint64_t bytes) override;
  void free(Extent extent) override;
  std::byte* map(Extent) override { return nullptr; }
  size_t submit(std::span<Transfer* const> transfers) override;
  void cancel(Transfer& transfer) override;
  size_t poll() override { return 0; }
  bool in_service() const override { return client_->in_service(); }
  Status come_back() override { return client_->come_back(); }
  Result<std::vector<Recovered>> recover() override { return std::vector<Recovered>(); }
  std::vector<Found> find(std::span<const Key> keys, uint32_t timeout_ms) override;

  // Why it is out of service; one line, without a secret.
  std::string trouble() const { return client_->trouble(); }
  // For tests: the name of the part of an extent that has this byte, and where it lies in the value.
  std::pair<std::string, uint64_t> place(Extent extent, uint64_t offset) const;
  const remote::Client& client() const { return *client_; }

 private:
  struct Object;
  struct Job;
  struct Question;
  class Ask;
  class PartOp;
  class ReadPart;
  class WritePart;
  class Error;

  std::shared_ptr<Object> object_of(Extent extent) const;
  bool start(Transfer& transfer);
  void finish(Job& job, const Status& status);
  void enqueue_write(Object& object, WritePart* write);
  void next_write(Object& object, uint32_t part);
  void written(Object& object, uint32_t part, const remote::Sums& sums, const Status& status);
  void publish(Object& object) noexcept;
  void keep_late(const std::string& name, const remote::Identity& identity) noexcept;
  void unlink(const Object& object) noexcept;

  const RemoteOptions options_;
  TierInfo info_;
  remote::Namespace space_;
  bool shared_ = false;
  std::atomic<size_t> jobs_{0};
  std::atomic<size_t> words_{0};  // under way, that nobody waits for
  mutable std::mutex mutex_;      // of all below, and of what objects and jobs hold
  std::mt19937_64 random_;
  std::unordered_map<Extent, std::shared_ptr<Object>> objects_;
  Extent next_ = 1;
  uint64_t used_ = 0;
  // What came too late for who asked; the newest.
  std::unordered_map<std::string, remote::Identity> late_;
  std::unique_ptr<remote::Client> client_;  // last: its threads use all of it
};

// Throws std::runtime_error, as its constructor, and where the client library was not there when this was built.
std::unique_ptr<Tier> make_remote_tier(const RemoteOptions& options);

}  // namespace neotier::engine
