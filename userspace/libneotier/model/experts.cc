// SPDX-License-Identifier: Apache-2.0
#include "model/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <tuple>

namespace neotier::model {

namespace {

constexpr uint32_t kAll = UINT32_MAX;  // the tensor has every expert of its layer

struct Place {
  uint32_t layer = 0, expert = kAll;
  Role role{};
  Piece piece{};
};

std::vector<std::string_view> components(std::string_view name) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= name.size();) {
    const size_t dot = std::min(name.find('.', at), name.size());
    parts.push_back(name.substr(at, dot - at));
    at = dot + 1;
  }
  return parts;
}

std::optional<uint32_t> number(std::string_view text, uint32_t limit) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value >= limit) return std::nullopt;
  return value;
}

std::optional<Role> role_of(std::string_view text) {
  if (text == "gate" || text == "gate_proj" || text == "w1") return Role::kGate;
  if (text == "up" || text == "up_proj" || text == "w3") return Role::kUp;
  if (text == "down" || text == "down_proj" || text == "w2") return Role::kDown;
  if (text == "gate_up" || text == "gate_up_proj") return Role::kGateUp;
  return std::nullopt;
}

// "weight", "weight_scale_inv", "qzeros": all that is neither weights nor bias goes with the scales.
Piece piece_of(std::string_view parameter) {
  if (parameter == "weight" || parameter == "qweight" || parameter == "weight_packed" || parameter == "blocks")
    return Piece::kWeight;
  return parameter == "bias" ? Piece::kBias : Piece::kScale;
}

bool strip(std::string_view& text, std::string_view prefix, std::string_view suffix = {}) {
  if (text.size() < prefix.size() + suffix.size() || !text.starts_with(prefix) || !text.ends_with(suffix)) return false;
  text = text.substr(prefix.size(), text.size() - prefix.size() - suffix.size());
  return true;
}

std::optional<Place> gguf_place(const std::vector<std::string_view>& parts) {
  if (parts.size() < 4 || parts[0] != "blk") return std::nullopt;
  Place p;
  const auto layer = number(parts[1], kMaxLayer);
  std::string_view kind = parts[2];
  if (!layer || !strip(kind, "ffn_")) return std::nullopt;
  p.layer = *layer;
  if (parts.size() == 4 && !strip(kind, "", "_exps")) return std::nullopt;
  if (parts.size() == 5) {
    const auto expert = number(parts[3], kMaxExpert);
    if (!expert) return std::nullopt;
    p.expert = *expert;
  }
  const auto role = role_of(kind);
  if (!role || parts.size() > 5) return std::nullopt;
  p.role = *role;
  p.piece = piece_of(parts.back());
  return p;
}

std::optional<Place> safetensors_place(const std::vector<std::string_view>& parts) {
  Place p;
  size_t i = 0;
  while (i < parts.size() && parts[i] != "layers") i++;
  if (i + 1 >= parts.size()) return std::nullopt;
  const auto layer = number(parts[++i], kMaxLayer);
  while (i < parts.size() && parts[i] != "experts") i++;
  if (!layer || i + 1 >= parts.size()) return std::nullopt;
  p.layer = *layer;
  i++;
  if (const auto expert = number(parts[i], kMaxExpert)) {
    if (parts.size() != i + 3) return std::nullopt;
    const auto role = role_of(parts[i + 1]);
    if (!role) return std::nullopt;
    p.expert = *expert;
    p.role = *role;
    p.piece = piece_of(parts[i + 2]);
    return p;
  }
  std::string_view kind = parts[i], parameter = "weight";
  if (parts.size() == i + 2) {
    parameter = parts[i + 1];
  } else if (parts.size() != i + 1) {
    return std::nullopt;
  } else {
    for (const char* suffix : {"_blocks", "_scales", "_bias"})
      if (strip(kind, "", suffix)) {
        parameter = suffix + 1;
        break;
      }
  }
  const auto role = role_of(kind);
  if (!role) return std::nullopt;
  p.role = *role;
  p.piece = piece_of(parameter);
  return p;
}

struct Found {
  Place at;
  Extent extent;
  auto order() const { return std::tuple(at.layer, at.expert, extent.role, extent.piece, extent.tensor); }
  auto part() const { return std::pair(extent.role, extent.piece); }
};

class Finder {
 public:
  explicit Finder(const Model& model) : model_(model) {}

  Result<ExpertMap> find() {
    for (uint32_t i = 0; i < model_.tensors.size(); i++) {
      const auto parts = components(model_.tensors[i].name);
      const auto place = model_.format == Format::kGguf ? gguf_place(parts) : safetensors_place(parts);
      if (!place) continue;
      if (Status status = take(*place, i); !status) return status;
    }
    std::sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) { return a.order() < b.order(); });
    for (size_t begin = 0; begin < found_.size();) {
      size_t end = begin;
      while (end < found_.size() && found_[end].at.layer == found_[begin].at.layer) end++;
      if (Status status = layer({found_.data() + begin, end - begin}); !status) return status;
      begin = end;
    }
    return std::move(map_);
  }

 private:
  Status wrong(const Found& f, const std::string& what) const {
    const Tensor& t = model_.tensors[f.extent.tensor];
    return {Code::kCorrupt, fmt::format("{}: layer {}: {} (tensor {} at offset {}); is a part of the model missing?",
                                        model_.files[t.file].path, f.at.layer, what, shown(t.name), t.offset)};
  }

  Status take(const Place& place, uint32_t index) {
    const Tensor& t = model_.tensors[index];
    Found f{place, {t.offset, t.bytes, t.file, index, place.role, place.piece}};
    if (place.expert != kAll) return add(f);
    // The outermost dimension is the expert. A slice has to be whole rows, so whole blocks; and bytes, or a small file
    // could make any number of experts.
    const uint64_t experts = t.shape.empty() ? 0 : t.shape[0];
    if (experts == 0 || experts > kMaxExpert || t.bytes == 0 || t.bytes % experts != 0 ||
        (t.shape.size() < 2 && t.dtype->block_elements > 1))
      return wrong(f, fmt::format("cannot be cut into experts, {} of them in {} bytes", experts, t.bytes));
    f.extent.bytes = t.bytes / experts;
    for (uint64_t e = 0; e < experts; e++) {
      f.at.expert = static_cast<uint32_t>(e);
      f.extent.offset = t.offset + e * f.extent.bytes;
      if (Status status = add(f); !status) return status;
    }
    return {};
  }

  Status add(const Found& f) {
    if (found_.size() == kMaxExtents) return wrong(f, fmt::format("more than {} pieces of experts", kMaxExtents));
    found_.push_back(f);
    return {};
  }

  // `all`: one layer's pieces, ordered.
  Status layer(std::span<const Found> all) {
    ExpertLayer l;
    l.layer = all[0].at.layer;
    l.first = map_.all.size();
    while (l.extents < all.size() && all[l.extents].at.expert == all[0].at.expert) l.extents++;
    bool up = false, down = false;
    for (const Found& f : all.first(l.extents)) {
      up |= f.extent.piece == Piece::kWeight && (f.extent.role == Role::kUp || f.extent.role == Role::kGateUp);
      down |= f.extent.piece == Piece::kWeight && f.extent.role == Role::kDown;
    }
    if (!up || !down)
      return wrong(all[0], fmt::format("expert {} has no {} weights", all[0].at.expert, up ? "down" : "up"));
    uint64_t bytes = 0;
    for (size_t i = 0; i < all.size(); i++) {
      const Found& f = all[i];
      if (f.at.expert != i / l.extents || f.part() != all[i % l.extents].part())
        return wrong(f, fmt::format("expert {} has not the pieces that expert {} has, or a number is left out",
                                    f.at.expert, all[0].at.expert));
      bytes = (i % l.extents == 0 ? 0 : bytes) + f.extent.bytes;
      l.bytes = std::max(l.bytes, bytes);
      map_.all.push_back(f.extent);
    }
    if (all.size() % l.extents != 0)
      return wrong(all.back(), fmt::format("expert {} lacks pieces", all.back().at.expert));
    l.experts = static_cast<uint32_t>(all.size() / l.extents);
    map_.layers.push_back(l);
    return {};
  }

  const Model& model_;
  std::vector<Found> found_;
  ExpertMap map_;
};

}  // namespace

const char* to_string(Role role) {
  constexpr const char* kNames[] = {"gate", "up", "gate_up", "down"};
  return kNames[static_cast<int>(role)];
}

const char* to_string(Piece piece) {
  constexpr const char* kNames[] = {"weight", "scale", "bias"};
  return kNames[static_cast<int>(piece)];
}

Result<ExpertMap> find_experts(const Model& model) { return Finder(model).find(); }

}  // namespace neotier::model
