// SPDX-License-Identifier: Apache-2.0
// Metrics in Prometheus' text format 0.0.4, all called neotier_...
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>

namespace neotier {

class PrometheusText {
 public:
  void head(const std::string& name, const char* type, const std::string& help) {
    fmt::format_to(std::back_inserter(text_), "# HELP neotier_{} {}\n# TYPE neotier_{} {}\n", name, help, name, type);
  }
  // labels: as key="value",..., or empty.
  template <typename T>
  void value(const std::string& name, const std::string& labels, T value) {
    fmt::format_to(std::back_inserter(text_), "neotier_{}{}{}{} {}\n", name, labels.empty() ? "" : "{", labels,
                   labels.empty() ? "" : "}", value);
  }
  template <typename T>
  void one(const std::string& name, const char* type, const std::string& help, T number) {
    head(name, type, help);
    value(name, "", number);
  }
  // A histogram's lines for one set of labels, after head(): counts up to each bucket's end in seconds, then all of it.
  // H: as engine/histogram.h has it.
  template <typename H>
  void histogram(const std::string& name, const std::string& labels, const H& h) {
    const std::string first = labels.empty() ? "" : labels + ",";
    uint64_t below = 0;
    for (size_t i = 0; i + 1 < H::kBuckets; i++) {
      below += h.in(i);
      value(name + "_bucket", fmt::format("{}le=\"{}\"", first, static_cast<double>(H::end_ns(i)) * 1e-9), below);
    }
    value(name + "_bucket", first + "le=\"+Inf\"", h.count());
    value(name + "_sum", labels, static_cast<double>(h.sum_ns()) * 1e-9);
    value(name + "_count", labels, h.count());
  }
  // A label's value: the format's three escapes.
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
      if (c == '\n') {
        out += "\\n";
      } else {
        if (c == '\\' || c == '"') out += '\\';
        out += c;
      }
    }
    return out;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace neotier
