// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/remote/tls.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <valkey/tls.h>
#include <valkey/valkey.h>

#include <stdexcept>

#include "engine/tiers/remote/client.h"

namespace neotier::engine::remote {

namespace {

std::string last_error() {
  const unsigned long error = ERR_get_error();
  const char* const reason = error != 0 ? ERR_reason_error_string(error) : nullptr;
  ERR_clear_error();
  return reason ? reason : "no reason given";
}

std::string why_failed(const SSL* session) {
  const long verified = SSL_get_verify_result(session);
  if (verified != X509_V_OK) return fmt::format("its certificate: {}", X509_verify_cert_error_string(verified));
  return last_error();
}

}  // namespace

Tls::Tls(const ClientOptions& options) : context_(SSL_CTX_new(TLS_client_method())) {
  const auto refuse = [&](const std::string& what) {
    const std::string why = last_error();
    SSL_CTX_free(context_);
    throw std::runtime_error(fmt::format("tier {}: {}: {}", options.name, what, why));
  };
  if (!context_) refuse("TLS");
  SSL_CTX_set_min_proto_version(context_, TLS1_2_VERSION);
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
  if (options.ca_file.empty()) {
    if (SSL_CTX_set_default_verify_paths(context_) != 1) refuse("the system's authorities");
  } else if (SSL_CTX_load_verify_locations(context_, options.ca_file.c_str(), nullptr) != 1) {
    refuse(fmt::format("ca={}", options.ca_file));
  }
  if (!options.cert_file.empty()) {
    if (SSL_CTX_use_certificate_chain_file(context_, options.cert_file.c_str()) != 1)
      refuse(fmt::format("cert={}", options.cert_file));
    if (SSL_CTX_use_PrivateKey_file(context_, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1)
      refuse(fmt::format("key={}", options.key_file));
  }
}

Tls::~Tls() { SSL_CTX_free(context_); }

ssl_st* Tls::begin(valkeyContext* context, const std::string& host, std::string& why) const {
  SSL* const session = SSL_new(context_);
  if (!session) {
    why = last_error();
    return nullptr;
  }
  in6_addr number;
  const bool is_number =
      inet_pton(AF_INET, host.c_str(), &number) == 1 || inet_pton(AF_INET6, host.c_str(), &number) == 1;
  const bool named =
      is_number ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host.c_str()) == 1
                : SSL_set1_host(session, host.c_str()) == 1 && SSL_set_tlsext_host_name(session, host.c_str()) == 1;
  if (named && valkeyInitiateTLS(context, session) == VALKEY_OK) return session;
  why = why_failed(session);
  SSL_free(session);
  return nullptr;
}

Tls::Step Tls::handshake(ssl_st* session, std::string& why) {
  ERR_clear_error();
  const int result = SSL_do_handshake(session);
  if (result == 1) return Step::kDone;
  switch (SSL_get_error(session, result)) {
    case SSL_ERROR_WANT_READ:
      return Step::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Step::kWantsWrite;
    default:
      why = why_failed(session);
      return Step::kFailed;
  }
}

}  // namespace neotier::engine::remote
