// SPDX-License-Identifier: Apache-2.0
// Recorded expert choices of a mixture-of-experts model: a folder with routes.u8 (tokens x layers x top_k expert ids,
// one byte each, in the order of the router's choice) and index.csv (a row a sequence: offset_tokens, n_tokens, other
// columns).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace neotier::replay {

// Of the model; gpt-oss-20b by default.
struct RoutingShape {
  uint32_t layers = 24;   // 1 .. 256
  uint32_t experts = 32;  // of a layer, 2 .. 256
  uint32_t top_k = 4;     // experts a token uses in a layer, 1 .. experts
};

struct RoutingSequence {
  uint64_t first_token;  // in routes.u8
  uint64_t tokens;       // >= 1
};

// Immutable once loaded: any number of threads may read it.
class RoutingTrace {
 public:
  // Throws std::runtime_error with one line (file, line or offset, what to do) unless every sequence lies within
  // routes.u8 and every event names top_k different experts below shape.experts.
  static RoutingTrace load(const std::filesystem::path& directory, const RoutingShape& shape = {});
  // From memory, for tests and generators; `routes` is sequences back to back. Throws as load().
  static RoutingTrace from(const RoutingShape& shape, std::vector<uint8_t> routes, const std::vector<uint64_t>& tokens);

  // Only the sequences at the even (remainder 0) or odd (1) places of the index.
  RoutingTrace half(unsigned remainder) const;

  const RoutingShape& shape() const { return shape_; }
  const std::vector<RoutingSequence>& sequences() const { return sequences_; }
  // The first `tokens` tokens; the last sequence may be cut.
  RoutingTrace first(uint64_t tokens) const;

  uint64_t tokens() const;
  // The top_k experts of a layer-step; `token` counts as RoutingSequence::first_token does.
  std::span<const uint8_t> experts(uint64_t token, uint32_t layer) const {
    return {routes_.data() + (token * shape_.layers + layer) * shape_.top_k, shape_.top_k};
  }

 private:
  void check(const std::string& routes_name) const;

  RoutingShape shape_;
  std::vector<uint8_t> routes_;
  std::vector<RoutingSequence> sequences_;
};

// Made up here, for models whose routing nobody recorded: each layer's experts have popularities by Zipf's law
// (exponent 0.6), and a token repeats each choice of the one before with chance 0.4, near what gpt-oss-20b's routing
// shows
// (`neotier moe analyse`). The same arguments give the same routing. Sequences of 300 tokens.
RoutingTrace synthetic_routing(const RoutingShape& shape, uint64_t tokens, uint64_t seed);

}  // namespace neotier::replay
