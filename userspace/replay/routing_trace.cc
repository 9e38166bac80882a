// SPDX-License-Identifier: Apache-2.0
#include "replay/routing_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string_view>

namespace neotier::replay {

namespace {

namespace fs = std::filesystem;

// Fields of a CSV line (RFC 4180, without line breaks in quotes).
std::vector<std::string> split_csv(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); i++) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::optional<uint64_t> whole_number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::ifstream open(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in || fs::is_directory(file)) {
    throw std::runtime_error(
        fmt::format("cannot read {}; a routing trace is a folder with index.csv and routes.u8", file.string()));
  }
  return in;
}

void check_shape(const RoutingShape& shape) {
  if (shape.layers < 1 || shape.layers > 256 || shape.experts < 2 || shape.experts > 256 || shape.top_k < 1 ||
      shape.top_k > shape.experts) {
    throw std::runtime_error(fmt::format(
        "a model of {} layers x {} experts, {} a token: expected 1-256 layers, 2-256 experts, 1 to all of them a token",
        shape.layers, shape.experts, shape.top_k));
  }
}

std::vector<RoutingSequence> read_index(const fs::path& file) {
  std::ifstream in = open(file);
  std::string line;
  std::getline(in, line);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  const std::vector<std::string> header = split_csv(line);
  const auto column = [&](std::string_view name) {
    for (size_t i = 0; i < header.size(); i++) {
      if (header[i] == name) return i;
    }
    throw std::runtime_error(
        fmt::format("{}:1: no column '{}'; it needs offset_tokens and n_tokens", file.string(), name));
  };
  const size_t offset = column("offset_tokens"), tokens = column("n_tokens");

  std::vector<RoutingSequence> sequences;
  for (size_t number = 2; std::getline(in, line); number++) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    const std::vector<std::string> fields = split_csv(line);
    const auto value = [&](size_t at, const char* name) {
      const auto parsed = at < fields.size() ? whole_number(fields[at]) : std::nullopt;
      if (!parsed) {
        throw std::runtime_error(fmt::format("{}:{}: {} is '{}', expected a whole number", file.string(), number, name,
                                             at < fields.size() ? fields[at] : ""));
      }
      return *parsed;
    };
    sequences.push_back({value(offset, "offset_tokens"), value(tokens, "n_tokens")});
    if (sequences.back().tokens == 0) {
      throw std::runtime_error(fmt::format("{}:{}: a sequence of 0 tokens; remove the row", file.string(), number));
    }
  }
  if (sequences.empty()) throw std::runtime_error(fmt::format("{}: no sequence; expected a row each", file.string()));
  return sequences;
}

}  // namespace

uint64_t RoutingTrace::tokens() const {
  return std::accumulate(sequences_.begin(), sequences_.end(), uint64_t{0},
                         [](uint64_t sum, const RoutingSequence& sequence) { return sum + sequence.tokens; });
}

RoutingTrace RoutingTrace::half(unsigned remainder) const {
  RoutingTrace result;
  result.shape_ = shape_;
  result.routes_ = routes_;
  for (size_t i = remainder; i < sequences_.size(); i += 2) result.sequences_.push_back(sequences_[i]);
  if (result.sequences_.empty()) {
    throw std::runtime_error(fmt::format("no sequence in that half of the trace; it has {}", sequences_.size()));
  }
  return result;
}

void RoutingTrace::check(const std::string& name) const {
  const uint64_t token_bytes = uint64_t{shape_.layers} * shape_.top_k;
  if (routes_.size() % token_bytes != 0) {
    throw std::runtime_error(fmt::format(
        "{}: {} bytes are no whole number of tokens of {} layers x {} experts; truncated, or another model's "
        "shape (--layers, --experts, --top-k)",
        name, routes_.size(), shape_.layers, shape_.top_k));
  }
  const uint64_t total = routes_.size() / token_bytes;
  for (size_t i = 0; i < sequences_.size(); i++) {
    const RoutingSequence& sequence = sequences_[i];
    if (sequence.first_token > total || sequence.tokens > total - sequence.first_token) {
      throw std::runtime_error(fmt::format(
          "{}: sequence {} of the index, {} tokens from token {}, goes past the end ({} tokens); truncated?", name, i,
          sequence.tokens, sequence.first_token, total));
    }
  }
  for (uint64_t event = 0; event < total * shape_.layers; event++) {
    std::bitset<256> seen;
    for (uint32_t k = 0; k < shape_.top_k; k++) {
      const uint8_t id = routes_[event * shape_.top_k + k];
      if (id >= shape_.experts) {
        throw std::runtime_error(fmt::format("{}: expert {} at token {}, layer {}; the model has 0 to {} (--experts)",
                                             name, id, event / shape_.layers, event % shape_.layers,
                                             shape_.experts - 1));
      }
      if (seen[id]) {
        throw std::runtime_error(
            fmt::format("{}: expert {} twice at token {}, layer {}; a router chooses different ones", name, id,
                        event / shape_.layers, event % shape_.layers));
      }
      seen[id] = true;
    }
  }
}

RoutingTrace RoutingTrace::load(const fs::path& directory, const RoutingShape& shape) {
  check_shape(shape);
  RoutingTrace trace;
  trace.shape_ = shape;
  trace.sequences_ = read_index(directory / "index.csv");
  const fs::path file = directory / "routes.u8";
  std::ifstream in = open(file);
  trace.routes_.assign(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) throw std::runtime_error(fmt::format("cannot read {} to its end", file.string()));
  trace.check(file.string());
  return trace;
}

RoutingTrace RoutingTrace::from(const RoutingShape& shape, std::vector<uint8_t> routes,
                                const std::vector<uint64_t>& tokens) {
  check_shape(shape);
  RoutingTrace trace;
  trace.shape_ = shape;
  trace.routes_ = std::move(routes);
  uint64_t first = 0;
  for (uint64_t n : tokens) {
    trace.sequences_.push_back({first, n});
    first += n;
  }
  trace.check("routes");
  return trace;
}

RoutingTrace RoutingTrace::first(uint64_t tokens) const {
  RoutingTrace cut;
  cut.shape_ = shape_;
  const size_t width = size_t{shape_.layers} * shape_.top_k;
  for (const RoutingSequence& s : sequences_) {
    if (tokens == 0) break;
    const uint64_t take = std::min(tokens, s.tokens);
    cut.sequences_.push_back({cut.routes_.size() / width, take});
    const auto begin = routes_.begin() + static_cast<ptrdiff_t>(s.first_token * width);
    cut.routes_.insert(cut.routes_.end(), begin, begin + static_cast<ptrdiff_t>(take * width));
    tokens -= take;
  }
  return cut;
}

RoutingTrace synthetic_routing(const RoutingShape& shape, uint64_t tokens, uint64_t seed) {
  constexpr double kExponent = 0.6, kRepeat = 0.4;
  constexpr uint64_t kSequence = 300;
  std::mt19937_64 random(seed);
  const auto unit = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  std::vector<std::vector<double>> weights(shape.layers, std::vector<double>(shape.experts));
  for (auto& layer : weights) {
    for (uint32_t e = 0; e < shape.experts; e++) layer[e] = std::pow(e + 1.0, -kExponent);
    for (size_t i = layer.size(); i > 1; i--) std::swap(layer[i - 1], layer[random() % i]);
  }
  std::vector<uint8_t> routes;
  std::vector<uint64_t> lengths;
  for (uint64_t left = tokens; left > 0; left -= lengths.back()) lengths.push_back(std::min(left, kSequence));
  const size_t width = size_t{shape.layers} * shape.top_k;
  for (uint64_t t = 0; t < tokens; t++) {
    for (uint32_t layer = 0; layer < shape.layers; layer++) {
      std::vector<double> left = weights[layer];
      std::vector<uint8_t> chosen;
      const auto choose = [&](uint32_t expert) {
        if (left[expert] == 0) return;
        left[expert] = 0;
        chosen.push_back(static_cast<uint8_t>(expert));
      };
      for (uint32_t k = 0; t % kSequence != 0 && k < shape.top_k; k++)
        if (unit() < kRepeat) choose(routes[routes.size() - width + k]);
      while (chosen.size() < shape.top_k) {
        double at = unit() * std::accumulate(left.begin(), left.end(), 0.0);
        uint32_t expert = 0;
        while (expert + 1 < shape.experts && (at -= left[expert]) >= 0) expert++;
        choose(expert);
      }
      routes.insert(routes.end(), chosen.begin(), chosen.end());
    }
  }
  return RoutingTrace::from(shape, std::move(routes), lengths);
}

}  // namespace neotier::replay
