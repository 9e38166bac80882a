// SPDX-License-Identifier: Apache-2.0
// redis://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/DATABASE], rediss:// with TLS, unix:/PATH of a socket.
#pragma once

#include <string>

#include "engine/tiers/remote/client.h"

namespace neotier::engine::remote {

// Sets addresses, tls, user, password, database; and cluster where there are several addresses. Throws
// std::invalid_argument whose words never repeat what was given: it may hold a password.
void read_url(const std::string& url, ClientOptions& options);

// `text` with what stands between "://" and "@" made unreadable.
std::string without_passwords(const std::string& text);

}  // namespace neotier::engine::remote
