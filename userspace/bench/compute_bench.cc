// SPDX-License-Identifier: Apache-2.0
#include "bench/compute_bench.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>

#include "compute/attention.h"
#include "compute/moe.h"
#include "util/median.h"

namespace neotier::compute {

namespace {

// The part of CBLAS used here; constants of its enumerations.
constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
struct OpenBlas {
  void (*sgemv)(int, int, int, int, float, const float*, int, const float*, int, float, float*, int) = nullptr;
  void (*sgemm)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*,
                int) = nullptr;
  std::string text;

  OpenBlas() {
    void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      text = "not installed: no baseline (apt-get install libopenblas0-pthread)";
      return;
    }
    const auto find = [&](const char* name) { return dlsym(library, name); };
    sgemv = reinterpret_cast<decltype(sgemv)>(find("cblas_sgemv"));
    sgemm = reinterpret_cast<decltype(sgemm)>(find("cblas_sgemm"));
    const auto set_threads = reinterpret_cast<void (*)(int)>(find("openblas_set_num_threads"));
    const auto config = reinterpret_cast<char* (*)()>(find("openblas_get_config"));
    const auto core = reinterpret_cast<char* (*)()>(find("openblas_get_corename"));
    if (!sgemv || !sgemm || !set_threads) {
      sgemv = nullptr;
      text = "libopenblas.so.0 lacks the functions used: no baseline";
      return;
    }
    set_threads(1);
    text = fmt::format("{}{}", config ? config() : "OpenBLAS", core ? fmt::format(" on {}", core()) : "");
  }
};

std::vector<float> normal(std::mt19937& random, size_t n, float scale = 1) {
  std::normal_distribution<float> d(0, scale);
  std::vector<float> out(n);
  for (float& v : out) v = d(random);
  return out;
}

// Weights out of a pool: drawing each would take longer than measuring.
class Pool {
 public:
  Pool(std::mt19937& random, float scale) : random_(random), values_(normal(random, 1 << 18, scale)) {}
  std::vector<float> take(size_t n) {
    std::vector<float> out(n);
    for (size_t at = 0; at < n;) {
      const size_t from = random_() % (values_.size() - kRun), run = std::min<size_t>(kRun, n - at);
      std::copy_n(values_.begin() + static_cast<ptrdiff_t>(from), run, out.begin() + static_cast<ptrdiff_t>(at));
      at += run;
    }
    return out;
  }

 private:
  static constexpr size_t kRun = 997;
  std::mt19937& random_;
  std::vector<float> values_;
};

class Bench {
 public:
  explicit Bench(const BenchOptions& o) : o_(o) {}

  BenchResult run() {
    result_.openblas = blas_.text;
    for (const Format f : kFormats) feed_forward(f);
    for (const bool structured : {false, true}) attention(structured);
    return std::move(result_);
  }

 private:
  void step(const std::string& text) {
    if (o_.cancelled && o_.cancelled()) throw std::runtime_error("interrupted");
    if (o_.progress) o_.progress(text);
  }

  // Median, in microseconds, of calls for o_.seconds and at least five.
  template <typename F>
  double time(F&& call) {
    using Clock = std::chrono::steady_clock;
    call(0);
    std::vector<double> us;
    const auto begin = Clock::now();
    do {
      if (o_.cancelled && o_.cancelled()) throw std::runtime_error("interrupted");
      const auto start = Clock::now();
      call(us.size());
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    } while (us.size() < 5 || std::chrono::duration<double>(Clock::now() - begin).count() < o_.seconds);
    return median(std::move(us));
  }

  void feed_forward(Format f) {
    if (o_.hidden % granularity(f) != 0 || o_.ff % granularity(f) != 0) return;
    std::mt19937 random(o_.seed);
    struct Weights {
      Packed gate, up, down;
    };
    std::vector<Weights> experts;
    Pool pool(random, 1 / std::sqrt(static_cast<float>(o_.hidden)));
    for (uint32_t e = 0; e < o_.experts; e++) {
      step(fmt::format("{} weights, expert {} of {}", to_string(f), e + 1, o_.experts));
      const auto one = [&](uint32_t rows, uint32_t columns) {
        return quantise(f, pool.take(size_t{rows} * columns), rows, columns);
      };
      experts.push_back({one(o_.ff, o_.hidden), one(o_.ff, o_.hidden), one(o_.hidden, o_.ff)});
    }
    const std::vector<float> x = normal(random, o_.hidden);
    std::vector<float> y(o_.hidden), scratch(size_t{2} * o_.ff);
    const auto view = [&](size_t e) { return Expert{experts[e].gate.view, experts[e].up.view, experts[e].down.view}; };
    const std::vector<double> exact = plain(view(0), x);
    const double bytes = static_cast<double>(experts[0].gate.view.bytes() * 2 + experts[0].down.view.bytes());
    const double operations = 6.0 * o_.hidden * o_.ff;
    const auto add = [&](const char* path, double us) {
      result_.feed_forward.push_back(
          {to_string(f), path, us, bytes / us * 1e-3, operations / us * 1e-3, error(y, exact)});
    };
    for (const Path path : kPaths) {
      const Kernels* k = kernels(path);
      if (!k) continue;
      step(fmt::format("feed-forward {} {}", to_string(f), to_string(path)));
      const double us = time([&](size_t i) {
        compute::feed_forward(*k, view(i % o_.experts), Activation::kSwiGlu, x.data(), y.data(), scratch.data());
      });
      compute::feed_forward(*k, view(0), Activation::kSwiGlu, x.data(), y.data(), scratch.data());
      add(to_string(path), us);
    }
    if (f != Format::kF32 || !blas_.sgemv) return;
    const auto by_blas = [&](size_t i) {
      const Expert e = view(i % o_.experts);
      const int hidden = static_cast<int>(o_.hidden), ff = static_cast<int>(o_.ff);
      const auto multiply = [&](const Matrix& m, int rows, int columns, const float* in, float* out) {
        blas_.sgemv(kRowMajor, kNoTranspose, rows, columns, 1, reinterpret_cast<const float*>(m.data), columns, in, 1,
                    0, out, 1);
      };
      multiply(e.gate, ff, hidden, x.data(), scratch.data());
      multiply(e.up, ff, hidden, x.data(), scratch.data() + ff);
      for (int j = 0; j < ff; j++) scratch[j] = scratch[j] / (1 + std::exp(-scratch[j])) * scratch[ff + j];
      multiply(e.down, hidden, ff, scratch.data(), y.data());
    };
    step("feed-forward f32 OpenBLAS");
    const double us = time(by_blas);
    by_blas(0);
    add("openblas", us);
  }

  static std::vector<double> plain(const Expert& e, const std::vector<float>& x) {
    const auto multiply = [](const Matrix& m, const auto& in) {
      std::vector<double> out(m.rows);
      std::vector<float> row(m.columns);
      for (size_t r = 0; r < m.rows; r++) {
        dequantise(m, r, row);
        for (size_t i = 0; i < m.columns; i++) out[r] += double{row[i]} * in[i];
      }
      return out;
    };
    std::vector<double> g = multiply(e.gate, x);
    const std::vector<double> u = multiply(e.up, x);
    for (size_t i = 0; i < g.size(); i++) g[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
    return multiply(e.down, g);
  }

  static double error(const std::vector<float>& y, const std::vector<double>& exact) {
    double worst = 0, size = 0;
    for (size_t i = 0; i < y.size(); i++) {
      worst = std::max(worst, std::abs(y[i] - exact[i]));
      size = std::max(size, std::abs(exact[i]));
    }
    return worst / size;
  }

  struct Cache {
    std::vector<Packed> keys, values;  // of blocks
    std::vector<KvBlock> blocks;
    std::vector<Digest> digests;
    std::vector<float> flat_keys, flat_values;  // kv head, token, dim: as a baseline would have them
    std::vector<float> queries;                 // the one measured, then samples for calibration
  };

  // random: independent normal keys, nothing to be gained. structured: what is reported of trained models: tokens in
  // runs about a topic each, queries of a head about a few topics, an attention sink at the start; heads differ in how
  // sharply.
  Cache make(bool structured) {
    std::mt19937 random(o_.seed + (structured ? 1 : 0));
    Cache c;
    const size_t d = o_.dim, t = o_.tokens;
    constexpr uint32_t kTopics = 64, kRun = 96, kSamples = 5;
    const std::vector<float> topics = normal(random, size_t{o_.kv_heads} * kTopics * d);
    c.flat_values = normal(random, o_.kv_heads * t * d);
    c.flat_keys = normal(random, o_.kv_heads * t * d, structured ? 0.3F : 1.0F);
    std::vector<uint32_t> topic_of(t / kRun + 1);
    for (uint32_t& topic : topic_of) topic = random() % kTopics;
    if (structured)
      for (uint32_t h = 0; h < o_.kv_heads; h++)
        for (size_t i = 0; i < t; i++)
          for (size_t j = 0; j < d; j++)
            c.flat_keys[(h * t + i) * d + j] +=
                (i < 4 ? 1.5F : 1.0F) * topics[(h * kTopics + (i < 4 ? 0 : topic_of[i / kRun])) * d + j];
    for (uint32_t n = 0; n < kSamples; n++) {
      std::vector<float> q = normal(random, size_t{o_.heads} * d, structured ? 0.3F : 1.0F);
      if (structured)
        for (uint32_t h = 0; h < o_.heads; h++) {
          const uint32_t kv = h / (o_.heads / o_.kv_heads);
          const float sharpness = 0.5F + 1.5F * static_cast<float>(h % 8) / 7;
          const uint32_t topic = random() % kTopics;
          for (size_t j = 0; j < d; j++)
            q[h * d + j] += sharpness * (topics[(kv * kTopics + topic) * d + j] + 0.3F * topics[kv * kTopics * d + j]);
        }
      c.queries.insert(c.queries.end(), q.begin(), q.end());
    }
    const AttentionShape s = shape(Format::kBf16);
    for (size_t at = 0; at < t; at += o_.block) {
      const size_t n = std::min<size_t>(o_.block, t - at);
      std::vector<float> k(o_.kv_heads * o_.block * d), v(k.size());
      for (uint32_t h = 0; h < o_.kv_heads; h++) {
        std::copy_n(c.flat_keys.begin() + static_cast<ptrdiff_t>((h * t + at) * d), n * d,
                    k.begin() + static_cast<ptrdiff_t>(h * o_.block * d));
        std::copy_n(c.flat_values.begin() + static_cast<ptrdiff_t>((h * t + at) * d), n * d,
                    v.begin() + static_cast<ptrdiff_t>(h * o_.block * d));
      }
      const uint32_t rows = o_.kv_heads * o_.block;
      c.keys.push_back(quantise(Format::kBf16, k, rows, o_.dim));
      c.values.push_back(quantise(Format::kBf16, v, rows, o_.dim));
      c.blocks.push_back({c.keys.back().data.data(), c.values.back().data.data(), static_cast<uint32_t>(n), o_.block});
      c.digests.push_back(digest(s, c.blocks.back()));
    }
    // The same numbers for all, those that bf16 holds.
    for (auto* flat : {&c.flat_keys, &c.flat_values})
      for (float& f : *flat) f = from_bf16(to_bf16(f));
    return c;
  }

  AttentionShape shape(Format f) const { return {o_.heads, o_.kv_heads, o_.dim, f, 0}; }

  // In double; and each block's share of each head's softmax.
  void exact_attention(const Cache& c, std::vector<double>& out, std::vector<std::vector<double>>& shares) const {
    const size_t d = o_.dim, t = o_.tokens;
    out.assign(size_t{o_.heads} * d, 0);
    shares.assign(o_.heads, std::vector<double>(c.blocks.size(), 0));
    std::vector<double> scores(t);
    for (uint32_t h = 0; h < o_.heads; h++) {
      const size_t kv = h / (o_.heads / o_.kv_heads);
      double max = -INFINITY, sum = 0;
      for (size_t i = 0; i < t; i++) {
        scores[i] = 0;
        for (size_t j = 0; j < d; j++) scores[i] += double{c.queries[h * d + j]} * c.flat_keys[(kv * t + i) * d + j];
        scores[i] /= std::sqrt(static_cast<double>(d));
        max = std::max(max, scores[i]);
      }
      for (size_t i = 0; i < t; i++) sum += scores[i] = std::exp(scores[i] - max);
      for (size_t i = 0; i < t; i++) {
        shares[h][i / o_.block] += scores[i] / sum;
        for (size_t j = 0; j < d; j++) out[h * d + j] += scores[i] / sum * c.flat_values[(kv * t + i) * d + j];
      }
    }
  }

  void attention(bool structured) {
    const char* name = structured ? "structured" : "random";
    step(fmt::format("attention, {} keys", name));
    const Cache c = make(structured);
    const AttentionShape s = shape(Format::kBf16);
    const size_t per = size_t{o_.heads} * o_.dim;
    const std::span<const float> query(c.queries.data(), per);
    std::vector<double> exact;
    std::vector<std::vector<double>> shares;
    exact_attention(c, exact, shares);
    std::vector<float> out(per);

    const auto add = [&](const char* method, const char* path, double us, const Choice* choice,
                         const AttentionResult& r) {
      AttentionFigure f{name, method, path, us, 0, 0, 0, 0};
      double off = 0, size = 0;
      for (size_t i = 0; i < per; i++) {
        off += (out[i] - exact[i]) * (out[i] - exact[i]);
        size += exact[i] * exact[i];
      }
      f.error = std::sqrt(off / size);
      for (uint32_t h = 0; h < o_.heads; h++) {
        double kept = choice ? 0 : 1;
        if (choice)
          for (const uint32_t b : choice->blocks[h]) kept += shares[h][b];
        f.missed += std::max(0.0, 1 - kept) / o_.heads;
        f.blocks += static_cast<double>(choice ? choice->blocks[h].size() : c.blocks.size()) / o_.heads;
        f.bound += (r.missed.empty() ? 0 : r.missed[h]) / static_cast<double>(o_.heads);
      }
      result_.attention.push_back(f);
    };
    AttentionResult last;
    for (const Path path : kPaths)
      if (const Kernels* k = kernels(path)) {
        step(fmt::format("attention, {} keys, full, {}", name, to_string(path)));
        const double us = time([&](size_t) { last = attend(*k, s, c.blocks, query, out); });
        add("full", to_string(path), us, nullptr, last);
      }
    if (blas_.sgemm) {
      step(fmt::format("attention, {} keys, OpenBLAS", name));
      const double us = time([&](size_t) { by_blas(c, query, out); });
      add("full f32", "openblas", us, nullptr, {});
    }
    // Equal budgets, and the same number of blocks dealt out by what each head's sample queries needed.
    const Kernels& k = kernels();
    const uint32_t n = static_cast<uint32_t>(c.blocks.size());
    const std::vector<uint32_t> equal(o_.heads, std::min(o_.budget, n));
    for (const bool per_head : {false, true}) {
      step(fmt::format("attention, {} keys, sparse", name));
      const std::vector<uint32_t> budgets = per_head ? dealt_out(k, s, c) : equal;
      Choice choice;
      const double us = time([&](size_t) {
        auto chosen = choose_blocks(s, c.digests, query, budgets);
        choice = std::move(*chosen);
        last = attend(k, s, c.blocks, query, out, &choice);
      });
      add(per_head ? "sparse per head" : "sparse equal", to_string(k.path), us, &choice, last);
    }
  }

  // The largest common share of the softmax that fits the same number of blocks in all.
  std::vector<uint32_t> dealt_out(const Kernels& k, const AttentionShape& s, const Cache& c) {
    const std::span<const float> samples = std::span(c.queries).subspan(size_t{o_.heads} * o_.dim);
    const uint64_t room = uint64_t{o_.heads} * std::min<uint64_t>(o_.budget, c.blocks.size());
    std::vector<uint32_t> best(o_.heads, 1);
    double low = 0, high = 1;
    for (int i = 0; i < 8; i++) {
      const double share = (low + high) / 2;
      step("attention, budgets");
      auto budgets = calibrate_budgets(k, s, c.blocks, c.digests, samples, static_cast<float>(share));
      if (std::accumulate(budgets->begin(), budgets->end(), uint64_t{0}) <= room) {
        best = std::move(*budgets);
        low = share;
      } else {
        high = share;
      }
    }
    return best;
  }

  void by_blas(const Cache& c, std::span<const float> query, std::vector<float>& out) {
    const int group = static_cast<int>(o_.heads / o_.kv_heads), d = static_cast<int>(o_.dim),
              t = static_cast<int>(o_.tokens);
    scores_.resize(static_cast<size_t>(group) * o_.tokens);
    const float scale = 1 / std::sqrt(static_cast<float>(o_.dim));
    for (uint32_t kv = 0; kv < o_.kv_heads; kv++) {
      const float* q = query.data() + static_cast<size_t>(kv) * group * d;
      float* y = out.data() + static_cast<size_t>(kv) * group * d;
      blas_.sgemm(kRowMajor, kNoTranspose, kTranspose, group, t, d, scale, q, d,
                  c.flat_keys.data() + static_cast<size_t>(kv) * t * d, d, 0, scores_.data(), t);
      for (int g = 0; g < group; g++) {  // our own vector exp: the baseline is of the products
        float* row = scores_.data() + static_cast<size_t>(g) * t;
        const Kernels& k = kernels();
        const float sum = k.exp_sum(row, o_.tokens, k.max(row, o_.tokens));
        for (int i = 0; i < t; i++) row[i] /= sum;
      }
      blas_.sgemm(kRowMajor, kNoTranspose, kNoTranspose, group, d, t, 1, scores_.data(), t,
                  c.flat_values.data() + static_cast<size_t>(kv) * t * d, d, 0, y, d);
    }
  }

  const BenchOptions& o_;
  OpenBlas blas_;
  BenchResult result_;
  std::vector<float> scores_;
};

}  // namespace

BenchResult run_bench(const BenchOptions& options) { return Bench(options).run(); }

}  // namespace neotier::compute
