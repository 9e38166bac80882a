// SPDX-License-Identifier: Apache-2.0
// neotier model info
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "cli/commands.h"
#include "cli/help.h"
#include "model/experts.h"
#include "model/model.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/size.h"

namespace neotier::cli {

namespace {

using Json = nlohmann::ordered_json;
using model::ExpertLayer;
using model::Extent;

constexpr uint64_t kDirectIo = 4096;

struct Arguments {
  std::string path, json;
  bool tensors = false, experts = false;
};

struct Usage {
  uint64_t tensors = 0, bytes = 0;
};

// What a reader with O_DIRECT has to know of an expert's extents.
struct Layout {
  uint64_t pieces = 0, bytes = 0, aligned = 0, rounded = 0;  // rounded: bytes read when rounded out to 4 KiB
};

Layout layout_of(const model::ExpertMap& map) {
  Layout l;
  for (const Extent& e : map.all) {
    l.pieces++;
    l.bytes += e.bytes;
    l.aligned += e.offset % kDirectIo == 0 && e.bytes % kDirectIo == 0;
    l.rounded += (e.offset + e.bytes + kDirectIo - 1) / kDirectIo * kDirectIo - e.offset / kDirectIo * kDirectIo;
  }
  return l;
}

std::string shape_text(const std::vector<uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Json extent_json(const model::Model& m, const Extent& e) {
  return {{"role", to_string(e.role)}, {"piece", to_string(e.piece)},       {"file", e.file}, {"offset", e.offset},
          {"bytes", e.bytes},          {"tensor", m.tensors[e.tensor].name}};
}

Json to_json(const model::Model& m, const model::ExpertMap& map, const std::map<std::string, Usage>& types,
             const Arguments& a) {
  Json j = {{"format", to_string(m.format)}, {"architecture", m.architecture}, {"name", m.name}};
  if (m.format == model::Format::kGguf) j["version"] = m.version;
  j["files"] = Json::array();
  for (const auto& f : m.files) j["files"].push_back({{"path", f.path}, {"bytes", f.bytes}});
  uint64_t bytes = 0;
  j["dtypes"] = Json::object();
  for (const auto& [name, use] : types) {
    j["dtypes"][name] = {{"tensors", use.tensors}, {"bytes", use.bytes}};
    bytes += use.bytes;
  }
  j["tensors"] = m.tensors.size();
  j["tensor_bytes"] = bytes;
  const Layout l = layout_of(map);
  j["expert_bytes"] = l.bytes;
  j["expert_extents"] = {{"pieces", l.pieces}, {"aligned_4096", l.aligned}, {"bytes_rounded_4096", l.rounded}};
  j["experts_per_token"] = m.experts_used ? Json(m.experts_used) : Json(nullptr);
  j["layers"] = Json::array();
  for (size_t i = 0; i < map.layers.size(); i++) {
    const ExpertLayer& layer = map.layers[i];
    Json one = {{"layer", layer.layer},
                {"experts", layer.experts},
                {"bytes_per_expert", layer.bytes},
                {"extents_per_expert", layer.extents}};
    if (a.experts)
      for (uint32_t e = 0; e < layer.experts; e++) {
        Json list = Json::array();
        for (const Extent& x : map.extents(i, e)) list.push_back(extent_json(m, x));
        one["extents"].push_back(std::move(list));
      }
    j["layers"].push_back(std::move(one));
  }
  if (a.tensors)
    for (const auto& t : m.tensors)
      j["tensor_list"].push_back({{"name", t.name},
                                  {"dtype", t.dtype->name},
                                  {"shape", t.shape},
                                  {"file", t.file},
                                  {"offset", t.offset},
                                  {"bytes", t.bytes}});
  return j;
}

void print_extents(const model::Model& m, std::span<const Extent> extents) {
  for (const Extent& e : extents)
    fmt::print("  {:<8}{:<7} {:>12} bytes at {:>14} of file {}  {}\n", to_string(e.role), to_string(e.piece), e.bytes,
               e.offset, e.file, model::shown(m.tensors[e.tensor].name));
}

void print_text(const model::Model& m, const model::ExpertMap& map, const std::map<std::string, Usage>& types,
                const Arguments& a) {
  fmt::print("{}{}, {}{}\n", to_string(m.format),
             m.format == model::Format::kGguf ? fmt::format(" version {}", m.version) : "",
             m.architecture.empty() ? "architecture not said" : model::shown(m.architecture),
             m.name.empty() ? "" : ", " + model::shown(m.name));
  for (size_t i = 0; i < m.files.size(); i++)
    fmt::print("file {}  {}  {}\n", i, m.files[i].path, format_size(m.files[i].bytes));
  uint64_t bytes = 0;
  for (const auto& [name, use] : types) bytes += use.bytes;
  fmt::print("{} tensors, {}\n", m.tensors.size(), format_size(bytes));
  for (const auto& [name, use] : types)
    fmt::print("  {:<12} {:>7} tensors  {:>12}\n", name, use.tensors, format_size(use.bytes));
  if (a.tensors)
    for (const auto& t : m.tensors)
      fmt::print("  {:<10} {:>12} bytes at {:>14} of file {}  {} {}\n", t.dtype->name, t.bytes, t.offset, t.file,
                 model::shown(t.name), shape_text(t.shape));
  if (map.layers.empty()) {
    fmt::print("no experts\n");
    return;
  }
  const Layout l = layout_of(map);
  fmt::print("experts: {} layers, {} of {} ({:.1f} %){}\n", map.layers.size(), format_size(l.bytes), format_size(bytes),
             bytes ? 100.0 * static_cast<double>(l.bytes) / static_cast<double>(bytes) : 0,
             m.experts_used ? fmt::format(", {} a token", m.experts_used) : "");
  for (size_t i = 0; i < map.layers.size();) {  // equal layers in one line
    size_t end = i + 1;
    const ExpertLayer& f = map.layers[i];
    const auto same = [&](const ExpertLayer& x) {
      return x.experts == f.experts && x.bytes == f.bytes && x.extents == f.extents;
    };
    while (end < map.layers.size() && same(map.layers[end])) end++;
    fmt::print("  layer{} {}: {} experts of {} ({} bytes) in {} pieces\n", end > i + 1 ? "s" : "",
               end > i + 1 ? fmt::format("{} to {}", f.layer, map.layers[end - 1].layer) : fmt::to_string(f.layer),
               f.experts, format_size(f.bytes), f.bytes, f.extents);
    i = end;
  }
  fmt::print("{} of {} pieces lie on 4 KiB boundaries; O_DIRECT reads {:.2f} % more than the pieces have\n", l.aligned,
             l.pieces, l.bytes ? 100.0 * (static_cast<double>(l.rounded) / static_cast<double>(l.bytes) - 1) : 0);
  for (size_t i = 0; i < map.layers.size() && (a.experts || i == 0); i++)
    for (uint32_t e = 0; e < map.layers[i].experts && (a.experts || e == 0); e++) {
      fmt::print("layer {}, expert {}{}\n", map.layers[i].layer, e, a.experts ? "" : " (--experts lists all)");
      print_extents(m, map.extents(i, e));
    }
}

int info_command(const Arguments& a) {
  OutputFile out("--json", a.json);
  const auto m = model::open_model(a.path);
  if (!m) throw std::runtime_error(m.status().what());
  const auto map = model::find_experts(*m);
  if (!map) throw std::runtime_error(map.status().what());
  std::map<std::string, Usage> types;
  for (const auto& t : m->tensors) {
    types[t.dtype->name].tensors++;
    types[t.dtype->name].bytes += t.bytes;
  }
  if (out)
    out.finish(pretty(to_json(*m, *map, types, a)));
  else
    print_text(*m, *map, types, a);
  return 0;
}

}  // namespace

void add_model(CLI::App& app, int& status) {
  CLI::App* top = app.add_subcommand("model", "Read or make model files: GGUF, safetensors");
  top->group(kModels);
  top->footer("example:\n  neotier model make -o m.gguf --hidden 512 --ff 512\n  neotier model info m.gguf");
  auto a = std::make_shared<Arguments>();
  CLI::App* info =
      top->add_subcommand("info", "Print tensors, types, and the byte ranges of each expert; reads headers only");
  info->footer(
      "examples:\n  neotier model info gpt-oss-20b-mxfp4.gguf\n  neotier model info Qwen3-30B-A3B/ --json -\n"
      "  neotier model info Mixtral-8x7B-Instruct-v0.1/model.safetensors.index.json --experts");
  info->add_option("MODEL", a->path,
                   "A file (.gguf, any part of a split one; .safetensors; .index.json) or a folder of safetensors")
      ->required();
  add_json(*info, a->json);
  info->add_flag("--tensors", a->tensors, "List every tensor");
  info->add_flag("--experts", a->experts, "List the pieces of every expert");
  info->callback([a, &status] { status = info_command(*a); });
  add_model_make(*top, status);
}

}  // namespace neotier::cli
