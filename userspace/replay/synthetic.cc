// SPDX-License-Identifier: Apache-2.0
#include "replay/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <queue>
#include <stdexcept>

namespace neotier::replay {

namespace {

constexpr uint32_t kBlock = 512;

// SplitMix64; the standard library's distributions differ between implementations.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }
  double lognormal(double median, double sigma) {
    const double normal = std::sqrt(-2 * std::log1p(-uniform())) * std::cos(2 * std::numbers::pi * uniform());
    return median * std::exp(sigma * normal);
  }
  uint32_t tokens(double median, double sigma, double most) {
    return static_cast<uint32_t>(std::clamp(lognormal(median, sigma), 16.0, most));
  }

 private:
  uint64_t state_;
};

// Zipf's law over ranks 0 .. n - 1 with exponent s.
class Zipf {
 public:
  Zipf(size_t n, double s) {
    double sum = 0;
    for (size_t i = 1; i <= n; i++) cumulative_.push_back(sum += std::pow(static_cast<double>(i), -s));
  }
  size_t draw(Random& random) const {
    const auto it = std::lower_bound(cumulative_.begin(), cumulative_.end(), random.uniform() * cumulative_.back());
    return static_cast<size_t>(it - cumulative_.begin());
  }

 private:
  std::vector<double> cumulative_;
};

// A text that grows; whole blocks keep their number, the last, partial one gets a new number whenever it has changed.
struct Text {
  std::vector<uint32_t> blocks;
  uint32_t tokens = 0;
};

enum class Source { kChat, kPrompts, kAgents, kScans, kDocuments, kDrift, kLoops, kFlat, kSources };

struct Session {
  double time = 0;
  Source source = Source::kChat;
  Text text;
  uint32_t steps = 0;
  uint64_t order = 0;
  bool operator>(const Session& other) const { return time != other.time ? time > other.time : order > other.order; }
};

class Generator {
 public:
  explicit Generator(const SyntheticOptions& options)
      : options_(options),
        random_(options.seed * 0x2545f4914f6cdd1du + 1),
        documents_(3000, 1.0),
        prompts_(200, 1.1),
        flat_(3000, 0.6) {
    trace_.block_tokens = kBlock;
    document_texts_.resize(3000);
    drift_texts_.resize(3000);
    prompt_texts_.resize(200);
    loop_texts_.resize(400);
    flat_texts_.resize(3000);
  }

  KvTrace run(const std::vector<double>& shares) {
    double time = 0;
    while (trace_.requests.size() < options_.requests) {
      const double until = time + 1;
      // New sessions come at a rate that makes all requests together `rate` a second, each source its share.
      for (size_t i = 0; i < shares.size(); i++) {
        while (shares[i] > 0 && next_start_[i] < until) {
          Session session;
          session.time = next_start_[i];
          session.source = static_cast<Source>(i);
          session.order = order_++;
          begin(session);
          waiting_.push(session);
          next_start_[i] += random_.exponential(kSteps[i] / (options_.rate * shares[i]));
        }
      }
      while (!waiting_.empty() && waiting_.top().time < until && trace_.requests.size() < options_.requests) {
        Session session = waiting_.top();
        waiting_.pop();
        serve(session);
      }
      time = until;
    }
    return std::move(trace_);
  }

 private:
  // Mean requests of a session, as begin() and serve() make them.
  static constexpr double kSteps[] = {3, 1, 14, 1, 1.5, 1.5, 1, 1};

  void append(Text& text, uint32_t tokens) {
    if (text.tokens % kBlock && !text.blocks.empty()) text.blocks.pop_back();
    text.tokens += tokens;
    while (text.blocks.size() < (text.tokens + kBlock - 1) / kBlock) text.blocks.push_back(trace_.objects++);
  }

  const Text& shared(Text& slot, double median, double sigma, double most) {
    if (slot.blocks.empty()) append(slot, (random_.tokens(median, sigma, most) / kBlock + 1) * kBlock);
    return slot;
  }

  void begin(Session& session) {
    switch (session.source) {
      case Source::kChat:
        session.text = shared(prompt_texts_[prompts_.draw(random_) % 4], 600, 0.3, 2048);
        append(session.text, random_.tokens(1500, 1.4, 60000));
        break;
      case Source::kPrompts:
        session.text = shared(prompt_texts_[prompts_.draw(random_)], 3000, 0.7, 16000);
        append(session.text, random_.tokens(300, 0.8, 4000));
        break;
      case Source::kAgents:
        session.text = shared(prompt_texts_[100 + prompts_.draw(random_) % 8], 6000, 0.4, 16000);
        append(session.text, random_.tokens(2000, 0.8, 20000));
        // Half of the tasks are over in a few calls.
        session.steps = 1 + static_cast<uint32_t>(random_.exponential(random_.uniform() < 0.5 ? 4 : 24));
        break;
      case Source::kScans:
        append(session.text, random_.tokens(12000, 0.6, 100000));
        break;
      case Source::kDocuments:
        session.text = shared(document_texts_[documents_.draw(random_)], 8000, 0.9, 64000);
        append(session.text, random_.tokens(150, 0.7, 1000));
        break;
      case Source::kLoops:
        session.text = shared(loop_texts_[looped_++ % loop_texts_.size()], 8000, 0.5, 32000);
        append(session.text, random_.tokens(150, 0.7, 1000));
        break;
      case Source::kFlat:
        session.text = shared(flat_texts_[flat_.draw(random_)], 8000, 0.9, 64000);
        append(session.text, random_.tokens(150, 0.7, 1000));
        break;
      default: {
        // The ranking turns over: every 300 s another tenth of the documents becomes the most popular.
        const auto shift = static_cast<size_t>(session.time / 300) * 300;
        session.text = shared(drift_texts_[(documents_.draw(random_) + shift) % drift_texts_.size()], 8000, 0.9, 64000);
        append(session.text, random_.tokens(150, 0.7, 1000));
      }
    }
  }

  void serve(Session& session) {
    KvRequest r;
    r.time_ns = static_cast<uint64_t>(session.time * 1e9);
    r.input_tokens = session.text.tokens;
    r.first = trace_.blocks.size();
    r.blocks = static_cast<uint32_t>(session.text.blocks.size());
    trace_.blocks.insert(trace_.blocks.end(), session.text.blocks.begin(), session.text.blocks.end());
    r.output_tokens = random_.tokens(300, 0.8, 4000);
    trace_.requests.push_back(r);
    session.steps -= session.source == Source::kAgents;
    append(session.text, r.output_tokens);
    double pause = 0;
    switch (session.source) {
      case Source::kChat:
        // Who has asked again before is likelier to ask once more.
        if (random_.uniform() > std::min(0.9, 0.4 + 0.15 * session.steps++)) return;
        pause = random_.lognormal(90, 0.9);
        append(session.text, random_.tokens(150, 1.2, 8000));
        break;
      case Source::kAgents:
        if (session.steps == 0) return;
        pause = random_.uniform() < 0.1 ? random_.lognormal(120, 1.0) : random_.lognormal(4, 0.7);
        append(session.text, random_.tokens(400, 1.0, 8000));
        break;
      case Source::kDocuments:
      case Source::kDrift:
        if (random_.uniform() > 1.0 / 3) return;
        pause = random_.lognormal(60, 0.8);
        append(session.text, random_.tokens(100, 0.7, 1000));
        break;
      default:
        return;
    }
    session.time += pause;
    session.order = order_++;
    waiting_.push(session);
  }

  SyntheticOptions options_;
  Random random_;
  Zipf documents_, prompts_, flat_;
  KvTrace trace_;
  std::vector<Text> document_texts_, drift_texts_, prompt_texts_, loop_texts_, flat_texts_;
  size_t looped_ = 0;
  std::priority_queue<Session, std::vector<Session>, std::greater<>> waiting_;
  double next_start_[static_cast<size_t>(Source::kSources)] = {};
  uint64_t order_ = 0;
};

struct Mix {
  SyntheticKind kind;
  std::vector<double> shares;  // of the requests: chat, prompts, agents, scans, documents, drift, loops, flat
};

const std::vector<Mix>& mixes() {
  static const std::vector<Mix> all = {
      {{"chat", "conversations of several turns with think times"}, {1}},
      {{"prompts", "single questions behind shared system prompts"}, {0, 1}},
      {{"agents", "tool loops: many quick steps on a growing context"}, {0, 0, 1}},
      {{"scans", "conversations while batches of documents are read once"}, {0.6, 0, 0, 0.4}},
      {{"documents", "questions about documents, some asked for often (Zipf)"}, {0, 0, 0, 0, 1}},
      {{"drift", "the same, with the favourites changing every five minutes"}, {0, 0, 0, 0, 0, 1}},
      {{"loops", "a set of documents gone through in order, over and over, beside conversations"},
       {0.5, 0, 0, 0, 0, 0, 0.5}},
      {{"flat", "documents of little skew (Zipf 0.6) that are asked for at random, for ever"},
       {0, 0, 0, 0, 0, 0, 0, 1}},
      {{"mixed", "all of these but the last two at once"}, {0.3, 0.2, 0.25, 0.05, 0.1, 0.1}},
  };
  return all;
}

}  // namespace

const std::vector<SyntheticKind>& synthetic_kinds() {
  static const std::vector<SyntheticKind> kinds = [] {
    std::vector<SyntheticKind> list;
    for (const Mix& mix : mixes()) list.push_back(mix.kind);
    return list;
  }();
  return kinds;
}

KvTrace make_synthetic(const SyntheticOptions& options) {
  if (options.requests == 0 || !(options.rate > 0)) throw std::runtime_error("requests and rate must be above 0");
  std::string known;
  for (const Mix& mix : mixes()) {
    if (options.kind == mix.kind.name) return Generator(options).run(mix.shares);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", mix.kind.name);
  }
  throw std::runtime_error(fmt::format("unknown workload '{}'; known: {}", options.kind, known));
}

}  // namespace neotier::replay
