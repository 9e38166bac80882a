// SPDX-License-Identifier: Apache-2.0
#include "bench/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

namespace neotier::experts {

Forward::Forward(const model::Model& model, const Layout& layout, uint32_t top_k)
    : kernels_(compute::kernels()),
      layers_(layout.layers()),
      experts_(layout.experts()),
      hidden_(layout.hidden()),
      top_k_(top_k),
      x_(hidden_),
      normed_(hidden_),
      y_(hidden_) {
  weights_text_ = "the model's routers, softmax over the trace's choices";
  for (uint32_t layer = 0; layer < layers_; layer++) {
    const model::Tensor* t = model.find(fmt::format("blk.{}.ffn_gate_inp.weight", layer));
    if (!t || std::string_view(t->dtype->name) != "F32" || t->bytes != uint64_t{experts_} * hidden_ * 4) {
      routers_.clear();
      weights_text_ = "by rank (1, 1/2, 1/3, ...): no f32 routers were found in the model";
      return;
    }
    auto file = model::open_file(model.files[t->file].path);
    std::vector<float>& router = routers_.emplace_back(size_t{experts_} * hidden_);
    model::Status status = file.status();
    if (file) status = (*file)->read(t->offset, std::as_writable_bytes(std::span(router)));
    if (!status) throw std::runtime_error(status.what());
  }
}

std::span<const float> Forward::token(uint64_t number, const std::function<std::span<const uint8_t>(uint32_t)>& routes,
                                      const Layer& layer_of) {
  std::mt19937_64 random(number);
  for (float& v : x_) v = static_cast<float>(static_cast<double>(random() >> 40) * 0x1p-23 - 1);
  std::vector<float> logits(experts_);
  for (uint32_t layer = 0; layer < layers_; layer++) {
    double square = 0;
    for (const float v : x_) square += double{v} * v;
    const auto scale = static_cast<float>(1 / std::sqrt(square / hidden_ + 1e-6));
    for (uint32_t i = 0; i < hidden_; i++) normed_[i] = x_[i] * scale;
    compute::Routing routing;
    routing.tokens = 1;
    routing.top_k = top_k_;
    const std::span<const uint8_t> chosen = routes(layer);
    routing.experts.assign(chosen.begin(), chosen.end());
    if (!routers_.empty()) {
      compute::Matrix m;
      m.rows = experts_;
      m.columns = hidden_;
      m.data = reinterpret_cast<const std::byte*>(routers_[layer].data());
      kernels_.dots(m.format, m.data, m.stride(), nullptr, 0, experts_, hidden_, normed_.data(), logits.data());
    }
    double sum = 0;
    std::vector<double> shares;
    for (uint32_t k = 0; k < top_k_; k++) {
      shares.push_back(routers_.empty() ? 1.0 / (k + 1) : std::exp(double{logits[chosen[k]]}));
      sum += shares.back();
    }
    for (const double s : shares) routing.weights.push_back(static_cast<float>(s / sum));
    compute::MoeStep step(kernels_, routing, normed_, hidden_);
    layer_of(layer, step);
    if (const auto status = step.finish(y_); !status) throw std::runtime_error(status.what());
    for (uint32_t i = 0; i < hidden_; i++) x_[i] += y_[i];
  }
  return x_;
}

}  // namespace neotier::experts
