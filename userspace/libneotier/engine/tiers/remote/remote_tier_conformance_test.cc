// SPDX-License-Identifier: Apache-2.0
// Against a real server, with a proxy between that makes the faults.
#include <gtest/gtest.h>

#include "engine/testing/redis_proxy.h"
#include "engine/testing/redis_server.h"
#include "engine/testing/tier_conformance.h"
#include "engine/tiers/remote/remote_tier.h"

namespace neotier::engine {
namespace {

class RemoteHarness : public TierHarness {
 public:
  RemoteHarness() : server_(options_of_server()), proxy_(server_.file("proxy"), server_.socket()) {
    RemoteOptions options;
    options.client.addresses = {{server_.file("proxy"), 0}};
    options.client.timeout_ms = 60000;  // the faults here are not time's
    options.client.come_back_ms = 60000;
    options.capacity_bytes = 16 << 20;
    tier_ = std::make_unique<RemoteTier>(options);
  }
  Tier& tier() override { return *tier_; }
  std::string cannot(Fault fault) const override {
    if (fault == Fault::kCrash) return "what a remote tier holds does not outlive the process that knows it";
    return "";
  }
  void hold() override { proxy_.hold(); }
  void release() override { proxy_.release(); }
  void fail(Op op, unsigned count) override { proxy_.fail(op == Op::kWrite, count); }
  void corrupt(Extent extent, uint64_t offset) override {
    const auto [name, at] = tier_->place(extent, offset);
    const std::string where = std::to_string(at);
    const std::string byte = server_.ask({"GETRANGE", name, where, where}).text;
    const char other = static_cast<char>(byte.at(0) ^ 0x10);
    server_.ask({"SETRANGE", name, where, {&other, 1}});
  }
  void lose() override { proxy_.lose(); }
  void mend() override { proxy_.mend(); }

 private:
  static std::vector<std::string> options_of_server() { return {"--maxmemory", "256mb"}; }
  RedisServer server_;
  RedisProxy proxy_;
  std::unique_ptr<RemoteTier> tier_;
};

INSTANTIATE_TYPED_TEST_SUITE_P(Remote, TierConformance, RemoteHarness);

}  // namespace
}  // namespace neotier::engine

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (neotier::engine::find_redis_program().empty()) {
    std::printf("skipped: no redis-server: install redis-tools or valkey-server\n");
    return ::testing::GTEST_FLAG(list_tests) ? RUN_ALL_TESTS() : 0;
  }
  return RUN_ALL_TESTS();
}
