// SPDX-License-Identifier: Apache-2.0
#include "util/json.h"

#include <algorithm>

namespace neotier {

namespace {

using Json = nlohmann::ordered_json;

void append(std::string& out, const Json& json, size_t indent) {
  const auto dump = [](const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); };
  const bool flat =
      !json.is_structured() || json.empty() ||
      (json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& v) { return v.is_number(); }));
  if (flat) {
    out += dump(json);
    return;
  }
  const std::string inner(indent + 2, ' ');
  out += json.is_object() ? "{" : "[";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    out += first ? "\n" : ",\n";
    first = false;
    out += inner;
    if (json.is_object()) out.append(dump(key)).append(": ");
    append(out, value, indent + 2);
  }
  out += '\n';
  out.append(indent, ' ');
  out += json.is_object() ? '}' : ']';
}

}  // namespace

std::string pretty(const Json& json) {
  std::string out;
  append(out, json, 0);
  out += '\n';
  return out;
}

}  // namespace neotier
