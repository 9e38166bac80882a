// SPDX-License-Identifier: Apache-2.0
#include "cli/top/sample.h"

#include <chrono>

namespace neotier::top {

Sample Source::take() {
  Sample sample;
  try {
    if (!connection_) connection_ = std::make_unique<client::Connection>(socket_, "neotier top", 2000);
    const std::vector<std::byte> reply = connection_->call(daemon::Operation::kStatus, {});
    sample.daemon = nlohmann::json::parse(reinterpret_cast<const char*>(reply.data()),
                                          reinterpret_cast<const char*>(reply.data()) + reply.size());
  } catch (const client::Failure& failure) {
    sample.problem = failure.text;
    connection_.reset();
  } catch (const nlohmann::json::exception&) {
    sample.problem = socket_ + ": its status is not understood";
    connection_.reset();
  }
  sample.kernel = module_.read();
  sample.time_s =
      std::chrono::duration_cast<std::chrono::duration<double>>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
  return sample;
}

}  // namespace neotier::top
