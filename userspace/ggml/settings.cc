// SPDX-License-Identifier: Apache-2.0
#include "ggml/settings.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "util/size.h"

namespace neotier::ggml {

namespace {

// "": not set. Set and empty is a slip of a script's, and not what was meant.
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value && !*value) throw std::runtime_error(std::string(name) + " is set and empty; give it a value, or unset it");
  return value ? value : "";
}

}  // namespace

Settings settings_of_environment() {
  Settings s;
  if (const std::string memory = variable("NEOTIER_EXPERTS_MEMORY"); !memory.empty() && memory != "all") {
    try {
      s.memory_bytes = parse_size(memory);
    } catch (const std::invalid_argument& error) {
      throw std::runtime_error(std::string("NEOTIER_EXPERTS_MEMORY: ") + error.what() + ", or all");
    }
    if (s.memory_bytes == 0) throw std::runtime_error("NEOTIER_EXPERTS_MEMORY: 0 is no room for experts");
  } else if (memory == "all") {
    s.memory_bytes = UINT64_MAX;
  }
  s.policy = variable("NEOTIER_EXPERTS_POLICY");
  s.predictor = variable("NEOTIER_EXPERTS_PREDICTOR");
  s.stats = variable("NEOTIER_EXPERTS_STATS");
  if (const std::string repack = variable("NEOTIER_EXPERTS_REPACK"); !repack.empty()) {
    if (repack != "0" && repack != "1")
      throw std::runtime_error("NEOTIER_EXPERTS_REPACK: '" + repack + "' is neither 0 nor 1");
    s.repack = repack == "1";
  }
  s.quiet = variable("NEOTIER_QUIET") == "1";
  if (const std::string node = variable("NEOTIER_EXPERTS_NODE"); !node.empty()) {
    const auto [end, error] = std::from_chars(node.data(), node.data() + node.size(), s.node);
    if (error != std::errc() || end != node.data() + node.size() || s.node < 0)
      throw std::runtime_error("NEOTIER_EXPERTS_NODE: '" + node + "' is no NUMA node; write its number, as 1");
  }
  return s;
}

}  // namespace neotier::ggml
