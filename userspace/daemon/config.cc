// SPDX-License-Identifier: Apache-2.0
#include "daemon/config.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>

#include "kernel/module.h"
#include "util/input_file.h"
#include "util/size.h"

namespace neotier::daemon {

namespace {

std::string found(const toml::node& node) {
  if (const auto* text = node.as_string()) {
    // A URL may hold a password.
    return text->get().find("://") != std::string::npos ? "a URL" : fmt::format("\"{}\"", text->get());
  }
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  return node.is_table() ? "a table" : node.is_array() ? "an array" : "a date or time";
}

// What is wrong, in the order of the file's tables.
class Errors {
 public:
  explicit Errors(std::string file) : file_(std::move(file)) {}
  void add(const toml::source_region& where, const std::string& key, const std::string& what) {
    lines_.push_back(fmt::format("{}:{}: {}: {}", file_, std::max(where.begin.line, 1u), key, what));
  }
  void throw_if_any() const {
    if (!lines_.empty()) throw ConfigError(lines_);
  }

 private:
  std::string file_;
  std::vector<std::string> lines_;
};

// One table of the file. Each key is asked for once; what nobody asked for is unknown.
class Table {
 public:
  Table(const toml::table& table, std::string name, Errors& errors)
      : table_(table), name_(std::move(name)), errors_(errors) {}

  template <typename T>
  void integer(const char* key, T& into, uint64_t min, uint64_t max) {
    const toml::node* node = take(key);
    if (!node) return;
    const auto* number = node->as_integer();
    if (!number || number->get() < 0 || static_cast<uint64_t>(number->get()) < min ||
        static_cast<uint64_t>(number->get()) > max)
      return wrong(key, *node, fmt::format("an integer from {} to {}", min, max));
    into = static_cast<T>(number->get());
  }
  void size(const char* key, uint64_t& into, uint64_t min, uint64_t max) {
    const toml::node* node = take(key);
    if (!node) return;
    const std::string expected =
        max > uint64_t{1} << 50
            ? fmt::format("a size of at least {}, as \"64M\" or in bytes", format_size(min))
            : fmt::format("a size from {} to {}, as \"64M\" or in bytes", format_size(min), format_size(max));
    uint64_t bytes = 0;
    try {
      if (const auto* text = node->as_string()) {
        bytes = parse_size(text->get());
      } else if (const auto* number = node->as_integer(); number && number->get() >= 0) {
        bytes = static_cast<uint64_t>(number->get());
      } else {
        return wrong(key, *node, expected);
      }
    } catch (const std::invalid_argument&) {
      return wrong(key, *node, expected);
    }
    if (bytes < min || bytes > max) return wrong(key, *node, expected);
    into = bytes;
  }
  // above < value <= max
  void share(const char* key, double& into, double max) {
    const toml::node* node = take(key);
    if (!node) return;
    const auto number = node->value<double>();
    if (!node->is_number() || !(*number > 0 && *number <= max))
      return wrong(key, *node, fmt::format("a number above 0 and up to {}", max));
    into = *number;
  }
  void boolean(const char* key, bool& into) {
    const toml::node* node = take(key);
    if (!node) return;
    if (!node->is_boolean()) return wrong(key, *node, "true or false");
    into = node->as_boolean()->get();
  }
  // Whether it is there, as a string that `right` accepts.
  template <typename Right>
  bool text(const char* key, std::string& into, const std::string& expected, Right right) {
    const toml::node* node = take(key);
    if (!node) return false;
    if (!node->is_string() || !right(node->as_string()->get())) {
      wrong(key, *node, expected);
      return false;
    }
    into = node->as_string()->get();
    return true;
  }
  void absolute_path(const char* key, std::string& into) {
    text(key, into, "an absolute path without ':' or ','", [](const std::string& path) {
      return path.starts_with('/') && path.find_first_of(":,\n") == std::string::npos;
    });
  }
  void word(const char* key, std::string& into, const std::vector<std::string>& words) {
    text(key, into, fmt::format("one of {}", fmt::join(words, ", ")),
         [&](const std::string& given) { return std::find(words.begin(), words.end(), given) != words.end(); });
  }
  const toml::node* take(const char* key) {
    known_.emplace_back(key);
    return table_.get(key);
  }
  void wrong(const std::string& key, const toml::node& node, const std::string& expected) {
    errors_.add(node.source(), key_name(key), fmt::format("expected {}, found {}", expected, found(node)));
  }
  void missing(const char* key, const std::string& expected) {
    errors_.add(table_.source(), key_name(key), fmt::format("expected {}, found nothing", expected));
  }
  void finish() {
    for (const auto& [key, node] : table_) {
      if (std::find(known_.begin(), known_.end(), key.str()) != known_.end()) continue;
      errors_.add(key.source(), key_name(std::string(key.str())),
                  fmt::format("expected one of {}, found an unknown key", fmt::join(known_, ", ")));
    }
  }
  std::string key_name(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }
  const toml::table& table() const { return table_; }

 private:
  const toml::table& table_;
  std::string name_;
  Errors& errors_;
  std::vector<std::string> known_;
};

bool plain_name(const std::string& text) {
  return !text.empty() && text.size() <= 31 && text != "host" && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  });
}

// Words of a model and a layout, as "llama-3.1-70b/bf16/16".
bool plain_words(const std::string& text) {
  return !text.empty() && text.size() <= 255 && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_-./+").find(c) != std::string_view::npos;
  });
}

// Stays one word in brackets.
bool balanced(const std::string& url) {
  int depth = 0;
  for (const char c : url) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (depth < 0 || std::iscntrl(static_cast<unsigned char>(c))) return false;
  }
  return depth == 0 && !url.empty();
}

// One [[tier]] as make_tiers() takes it.
std::string tier_words(Table tier, uint64_t& bytes) {
  std::string name, kind;
  tier.word("kind", kind, {"dram", "cxl", "gpu", "ssd", "remote"});
  const toml::node* has_kind = tier.table().get("kind");
  if (!has_kind) tier.missing("kind", "dram, cxl, gpu, ssd or remote");
  tier.text("name", name, "1 to 31 letters, digits, '-' or '_', not 'host'", plain_name);
  tier.size("size", bytes, 1 << 20, uint64_t{1} << 43);
  if (!tier.table().get("size")) tier.missing("size", "a size, as \"8G\"");
  std::string words = fmt::format("{}/{}={}", name.empty() ? kind : name, kind, bytes);
  const auto option = [&](const char* key, const std::string& value) {
    if (!value.empty()) words += fmt::format(":{}={}", key, value);
  };
  std::string policy;
  tier.text("policy", policy, "the name of a placement policy (neotier kv policies)", plain_name);
  option("policy", policy);
  const auto size_option = [&](const char* key) {
    uint64_t value = 0;
    tier.size(key, value, 1, uint64_t{1} << 43);
    if (value) option(key, fmt::format("{}", value));
  };
  size_option("object");
  size_option("background");
  bool promote = kind != "gpu";
  tier.boolean("promote", promote);
  option("promote", promote ? "yes" : "no");
  if (kind == "dram" || kind == "cxl") {
    uint32_t node = UINT32_MAX;
    tier.integer("node", node, 0, 1023);
    if (node != UINT32_MAX) option("node", fmt::format("{}", node));
    std::string huge;
    tier.word("huge", huge, {"no", "transparent", "explicit"});
    option("huge", huge);
    if (kind == "cxl") {
      std::string mode;
      tier.word("mode", mode, {"bind", "kernel"});
      option("mode", mode);
      if (mode == "kernel" && huge == "explicit")
        tier.wrong("huge", *tier.table().get("huge"), "no or transparent with mode = \"kernel\"");
    }
  } else if (kind == "ssd") {
    std::string file;
    tier.absolute_path("file", file);
    if (!tier.table().get("file")) tier.missing("file", "an absolute path");
    option("file", file);
    uint64_t extents = 0;
    tier.integer("extents", extents, 1, UINT32_MAX);
    if (extents) option("extents", fmt::format("{}", extents));
  } else if (kind == "gpu") {
    uint32_t device = 0;
    tier.integer("device", device, 0, 255);
    option("device", fmt::format("{}", device));
    const toml::node* stand_in = tier.take("stand_in");
    if (stand_in && !stand_in->is_boolean()) {
      tier.wrong("stand_in", *stand_in, "true or false");
    } else if (stand_in) {
      option("stand-in", stand_in->as_boolean()->get() ? "yes" : "no");
    }
  }
  if (kind == "remote") {
    std::string url, space;
    tier.text("url", url, "redis://HOST:PORT, rediss:// or unix:/PATH, without brackets around it", balanced);
    if (!tier.table().get("url")) tier.missing("url", "redis://HOST:PORT, rediss:// or unix:/PATH");
    option("url", "[" + url + "]");
    for (const char* key : {"password_file", "ca", "cert", "key"}) {
      std::string file;
      tier.absolute_path(key, file);
      option(key, file);
    }
    if (tier.table().get("cluster")) {
      bool cluster = false;
      tier.boolean("cluster", cluster);
      option("cluster", cluster ? "yes" : "no");
    }
    tier.text("namespace", space, "1 to 255 letters, digits or '_-./+'", plain_words);
    option("namespace", space);
    const auto number_option = [&](const char* key, uint32_t least, uint32_t most) {
      uint32_t value = UINT32_MAX;
      tier.integer(key, value, least, most);
      if (value != UINT32_MAX) option(key, fmt::format("{}", value));
    };
    number_option("timeout_ms", 1, 600000);
    number_option("connections", 1, 16);
    number_option("ttl_s", 0, INT32_MAX);
  }
  // Without a kind, which keys are right is not known either.
  if (!kind.empty()) tier.finish();
  return words;
}

void read_tiers(const toml::table& file, Config& config, Errors& errors) {
  const toml::node* node = file.get("tier");
  const toml::array* tiers = node ? node->as_array() : nullptr;
  if (!tiers || tiers->empty()) {
    errors.add(
        node ? node->source() : file.source(), "[[tier]]",
        fmt::format("expected one table for each tier, fastest first, found {}", node ? found(*node) : "nothing"));
    return;
  }
  uint64_t all = 0;
  for (size_t i = 0; i < tiers->size(); i++) {
    const toml::node& one = *tiers->get(i);
    if (!one.is_table()) {
      errors.add(one.source(), "[[tier]]", fmt::format("expected a table, found {}", found(one)));
      continue;
    }
    uint64_t bytes = 0;
    config.tiers += (i ? "," : "") + tier_words(Table(*one.as_table(), "[[tier]]", errors), bytes);
    all += bytes;
  }
  // Of what there is: a client, or all of a user's, cannot hold it against the others.
  config.limits.pinned_bytes = all / 8;
  config.limits.user_pinned_bytes = all / 2;
}

void read_engine(Table engine, Config& config, Errors& errors) {
  engine.integer("max_objects", config.engine.max_objects, 1, UINT32_MAX - 1);
  engine.integer("seed", config.engine.seed, 0, INT64_MAX);
  engine.boolean("probe_links", config.engine.measure);
  engine::Knobs& knobs = config.engine.knobs;
  engine.integer("hysteresis_ms", knobs.hysteresis_ms, 0, 3600000);
  engine.integer("promote_heat", knobs.promote_heat, 0, UINT32_MAX);
  engine.share("high_watermark", knobs.high_watermark, 1);
  engine.share("low_watermark", knobs.low_watermark, 1);
  engine.share("background_share", knobs.background_share, 1);
  engine.boolean("write_back", knobs.write_back);
  // Clients that share a budget must not be able to fill it for good.
  config.engine.discard = true;
  engine.boolean("discard", config.engine.discard);
  if (knobs.low_watermark > knobs.high_watermark) {
    const toml::node* low = engine.table().get("low_watermark");
    errors.add(
        (low ? *low : *engine.table().get("high_watermark")).source(), "[engine].low_watermark",
        fmt::format("expected at most high_watermark ({}), found {}", knobs.high_watermark, knobs.low_watermark));
  }
  engine.finish();
}

void read_socket(Table socket, Config& config, Errors& errors) {
  socket.absolute_path("path", config.socket_path);
  // sun_path, with room for what is written beside it until it is complete.
  if (config.socket_path.size() > 90)
    errors.add(socket.table().get("path")->source(), "[socket].path",
               fmt::format("expected at most 90 characters, found {}", config.socket_path.size()));
  std::string mode;
  if (socket.text("mode", mode, "an octal mode as \"0660\"", [](const std::string& text) {
        return text.size() >= 3 && text.size() <= 4 && text.find_first_not_of("01234567") == std::string::npos &&
               (text.size() == 3 || text[0] == '0');
      })) {
    config.socket_mode = static_cast<mode_t>(std::stoul(mode, nullptr, 8));
  }
  socket.text("group", config.socket_group, "the name of a group",
              [](const std::string& text) { return !text.empty(); });
  Limits& limits = config.limits;
  socket.integer("max_clients", limits.max_clients, 1, 4096);
  socket.integer("user_clients", limits.user_clients, 0, 4096);
  socket.size("max_message", limits.max_message, 64 << 10, uint64_t{2} << 30);
  socket.size("in_flight_bytes", limits.in_flight_bytes, 64 << 10, uint64_t{1} << 40);
  socket.integer("message_timeout_s", limits.message_timeout_s, 1, 3600);
  socket.integer("idle_timeout_s", limits.idle_timeout_s, 0, 1000000);
  socket.integer("drain_timeout_s", config.drain_timeout_s, 0, 3600);
  socket.integer("workers", config.workers, 1, 64);
  if (limits.in_flight_bytes < limits.max_message) {
    const toml::node* node = socket.table().get("in_flight_bytes");
    errors.add((node ? *node : *socket.table().get("max_message")).source(), "[socket].in_flight_bytes",
               fmt::format("expected at least max_message ({}), found {}", limits.max_message, limits.in_flight_bytes));
  }
  socket.finish();
}

void read_client(Table client, Config& config) {
  Limits& limits = config.limits;
  client.size("pinned_bytes", limits.pinned_bytes, 0, INT64_MAX);
  client.size("user_pinned_bytes", limits.user_pinned_bytes, 0, INT64_MAX);
  client.integer("pins", limits.pins, 0, UINT32_MAX);
  client.integer("objects_in_flight", limits.objects_in_flight, 1, UINT32_MAX);
  client.integer("max_lease_ms", limits.max_lease_ms, 0, INT64_MAX / 1000000);
  client.finish();
}

void read_metrics(Table metrics, Config& config) {
  std::string listen;
  metrics.text("listen", listen, "a loopback address and a port, as \"127.0.0.1:9464\" or \"[::1]:9464\"",
               [&](const std::string& text) {
                 const size_t colon = text.rfind(':');
                 if (colon == std::string::npos) return false;
                 const std::string host = text.substr(0, colon);
                 uint16_t port = 0;
                 const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
                 if (error != std::errc() || end != text.data() + text.size()) return false;
                 if (host != "127.0.0.1" && host != "[::1]") return false;
                 config.metrics_host = host == "[::1]" ? "::1" : host;
                 config.metrics_port = port;
                 return true;
               });
  metrics.finish();
}

void read_log(Table log, Config& config) {
  std::string level;
  log.word("level", level, log_levels());
  if (!level.empty()) config.log = log_level(level);
  log.finish();
}

void read_kernel(const toml::table& table, const std::string& folder, Config& config, Errors& errors) {
  const std::string name = folder.empty() ? "[kernel]" : fmt::format("[kernel.{}]", folder);
  for (const auto& [key, node] : table) {
    const std::string path = folder.empty() ? std::string(key.str()) : fmt::format("{}/{}", folder, key.str());
    const std::string full = fmt::format("{}.{}", name, key.str());
    if (folder.empty() && key.str() == "sysfs") {
      Table only(table, name, errors);
      only.absolute_path("sysfs", config.kernel_sysfs);
      continue;
    }
    if (folder.empty() && node.is_table() && kernel::find_knob(path + "/threshold")) {
      read_kernel(*node.as_table(), path, config, errors);
      continue;
    }
    const kernel::Knob* knob = kernel::find_knob(path);
    if (!knob) {
      std::vector<std::string> names;
      for (const kernel::Knob& known : kernel::knobs()) {
        if (known.of_device == !folder.empty()) names.emplace_back(known.name);
      }
      errors.add(key.source(), full, fmt::format("expected one of {}, found an unknown key", fmt::join(names, ", ")));
      continue;
    }
    std::string value;
    if (const auto* text = node.as_string()) {
      value = text->get();
    } else if (const auto* truth = node.as_boolean()) {
      value = truth->get() ? "1" : "0";
    } else if (const auto* number = node.as_integer()) {
      value = fmt::format("{}", number->get());
    } else {
      errors.add(node.source(), full, fmt::format("expected a number or a string, found {}", found(node)));
      continue;
    }
    if (const std::string expected = kernel::expected_value(*knob, value); !expected.empty()) {
      errors.add(node.source(), full, fmt::format("expected {}, found {}", expected, found(node)));
      continue;
    }
    config.kernel.emplace_back(path, value);
  }
}

Config read(const toml::table& file, Errors& errors) {
  Config config;
  config.kernel_sysfs = kernel::kSysfsRoot;
  const toml::table none;
  const auto table = [&](const char* key) -> const toml::table& {
    const toml::node* node = file.get(key);
    if (!node) return none;
    if (node->is_table()) return *node->as_table();
    errors.add(node->source(), key, fmt::format("expected a table [{}], found {}", key, found(*node)));
    return none;
  };
  read_tiers(file, config, errors);
  read_engine(Table(table("engine"), "[engine]", errors), config, errors);
  read_socket(Table(table("socket"), "[socket]", errors), config, errors);
  read_client(Table(table("client"), "[client]", errors), config);
  read_metrics(Table(table("metrics"), "[metrics]", errors), config);
  read_log(Table(table("log"), "[log]", errors), config);
  read_kernel(table("kernel"), "", config, errors);
  Table top(file, "", errors);
  for (const char* key : {"tier", "engine", "socket", "client", "metrics", "log", "kernel"}) (void)top.take(key);
  top.finish();
  return config;
}

}  // namespace

ConfigError::ConfigError(std::vector<std::string> lines)
    : std::runtime_error(fmt::format("{}", fmt::join(lines, "\n"))), lines_(std::move(lines)) {}

Config parse_config(const std::string& text, const std::string& name) {
  Errors errors(name);
  try {
    Config config = read(toml::parse(text, name), errors);
    errors.throw_if_any();
    return config;
  } catch (const toml::parse_error& error) {
    throw ConfigError({fmt::format("{}:{}: expected TOML: {}", name, error.source().begin.line, error.description())});
  }
}

Config load_config(const std::string& file) {
  std::string text;
  try {
    text = read_input_file(file);
  } catch (const std::runtime_error& error) {
    throw ConfigError({fmt::format("{}; docs/neotierd.toml is an example of a configuration", error.what())});
  }
  return parse_config(text, file);
}

std::vector<std::string> keep_fixed(const Config& before, Config& after) {
  std::vector<std::string> lines;
  const auto keep = [&](const char* key, const auto& was, auto& is) {
    if (was == is) return;
    lines.push_back(fmt::format("{} cannot change while neotierd runs; kept as it was, restart to change it", key));
    is = was;
  };
  keep("[[tier]]", before.tiers, after.tiers);
  engine::EngineConfig& e = after.engine;
  keep("[engine].max_objects", before.engine.max_objects, e.max_objects);
  keep("[engine].seed", before.engine.seed, e.seed);
  keep("[engine].probe_links", before.engine.measure, e.measure);
  keep("[engine].hysteresis_ms", before.engine.knobs.hysteresis_ms, e.knobs.hysteresis_ms);
  keep("[engine].promote_heat", before.engine.knobs.promote_heat, e.knobs.promote_heat);
  keep("[engine].high_watermark", before.engine.knobs.high_watermark, e.knobs.high_watermark);
  keep("[engine].low_watermark", before.engine.knobs.low_watermark, e.knobs.low_watermark);
  keep("[engine].background_share", before.engine.knobs.background_share, e.knobs.background_share);
  keep("[engine].write_back", before.engine.knobs.write_back, e.knobs.write_back);
  keep("[engine].discard", before.engine.discard, e.discard);
  keep("[socket].path", before.socket_path, after.socket_path);
  keep("[socket].workers", before.workers, after.workers);
  keep("[metrics].listen", before.metrics_host, after.metrics_host);
  keep("[metrics].listen", before.metrics_port, after.metrics_port);
  keep("[kernel].sysfs", before.kernel_sysfs, after.kernel_sysfs);
  return lines;
}

}  // namespace neotier::daemon
