// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/remote/remote_url.h"

#include <sys/un.h>

#include <charconv>
#include <stdexcept>

namespace neotier::engine::remote {

namespace {

constexpr uint16_t kUsualPort = 6379;

[[noreturn]] void refuse(const char* why) { throw std::invalid_argument(why); }

// "%40" is "@".
std::string decoded(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); i++) {
    unsigned code = 0;
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    const char* const begin = text.data() + i + 1;
    if (i + 2 >= text.size() || std::from_chars(begin, begin + 2, code, 16).ptr != begin + 2)
      refuse("a '%' in a user's name or password stands before two hexadecimal digits");
    plain += static_cast<char>(code);
    i += 2;
  }
  return plain;
}

unsigned number(const std::string& text, unsigned most, const char* why) {
  unsigned value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value > most) refuse(why);
  return value;
}

Address read_address(const std::string& text) {
  Address address{text, kUsualPort};
  std::string port;
  if (text.starts_with('[')) {  // of IPv6
    const size_t end = text.find(']');
    if (end == std::string::npos) refuse("a '[' has no ']'");
    address.host = text.substr(1, end - 1);
    if (end + 1 < text.size() && text[end + 1] != ':') refuse("expected ':PORT' after ']'");
    if (end + 1 < text.size()) port = text.substr(end + 2);
  } else if (const size_t colon = text.find(':'); colon != std::string::npos) {
    address.host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (address.host.empty()) refuse("a host has no name");
  if (!port.empty()) address.port = static_cast<uint16_t>(number(port, UINT16_MAX, "a port is 1 to 65535"));
  if (address.port == 0) refuse("a port is 1 to 65535");
  return address;
}

}  // namespace

void read_url(const std::string& url, ClientOptions& options) {
  const size_t colon = url.find(':');
  const std::string scheme = url.substr(0, colon);
  if (scheme == "unix" && colon != std::string::npos) {
    std::string path = url.substr(colon + 1);
    if (path.starts_with("//")) path.erase(0, 2);
    if (!path.starts_with('/')) refuse("expected unix:/PATH");
    if (path.size() >= sizeof(sockaddr_un{}.sun_path)) refuse("the path of a socket has at most 107 characters");
    options.addresses = {{path, 0}};
    return;
  }
  const bool plain = scheme == "redis" || scheme == "valkey", tls = scheme == "rediss" || scheme == "valkeys";
  if (colon == std::string::npos || (!plain && !tls) || url.compare(colon, 3, "://") != 0)
    refuse("expected redis://HOST[:PORT], rediss:// or unix:/PATH");
  options.tls = tls;
  std::string rest = url.substr(colon + 3);
  if (const size_t at = rest.rfind('@'); at != std::string::npos) {
    const std::string who = rest.substr(0, at);
    const size_t separator = who.find(':');
    options.user = decoded(who.substr(0, separator));
    if (separator != std::string::npos) options.password = decoded(who.substr(separator + 1));
    rest.erase(0, at + 1);
  }
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    if (slash + 1 < rest.size())
      options.database = number(rest.substr(slash + 1), 1 << 20, "expected a database's number after '/'");
    rest.erase(slash);
  }
  options.addresses.clear();
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = rest.find(',', begin);
    options.addresses.push_back(read_address(rest.substr(begin, end - begin)));
  }
  options.cluster |= options.addresses.size() > 1;
}

std::string without_passwords(const std::string& text) {
  std::string shown = text;
  for (size_t begin = shown.find("://"); begin != std::string::npos; begin = shown.find("://", begin + 3)) {
    const size_t end = std::min(shown.find("://", begin + 3), shown.size());
    const size_t at = shown.rfind('@', end);
    if (at != std::string::npos && at > begin) shown.replace(begin + 3, at - begin - 3, "***");
  }
  return shown;
}

}  // namespace neotier::engine::remote
