// SPDX-License-Identifier: Apache-2.0
// Built without the client library.
#include <stdexcept>

#include "engine/tiers/remote/remote_tier.h"

namespace neotier::engine {

std::unique_ptr<Tier> make_remote_tier(const RemoteOptions& options) {
  throw std::runtime_error("tier " + options.client.name +
                           ": built without the remote tier's client library: scripts/bootstrap fetches it, then build "
                           "again");
}

}  // namespace neotier::engine
