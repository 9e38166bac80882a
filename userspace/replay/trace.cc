// SPDX-License-Identifier: Apache-2.0
#include "replay/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

namespace neotier::replay {

namespace {

using nlohmann::json;

constexpr uint32_t kMostTokens = 1u << 28;  // a request; more is a broken line
constexpr uint32_t kMostObjects = UINT32_MAX - 1;

struct Named {
  const char* name;
  KvFormat format;
};
constexpr Named kFormats[] = {{"mooncake", KvFormat::kMooncake},
                              {"bailian", KvFormat::kBailian},
                              {"azure", KvFormat::kAzure},
                              {"burstgpt", KvFormat::kBurstGpt}};

class Reader {
 public:
  Reader(const std::filesystem::path& file, const LoadOptions& options) : path_(file), options_(options), in_(file) {
    if (std::filesystem::is_directory(file) || !in_)
      throw std::runtime_error(fmt::format("cannot read trace {}", file.string()));
  }

  KvTrace read() {
    std::string first;
    if (!next(first)) throw std::runtime_error(fmt::format("trace {} is empty", path_.string()));
    trace_.format = options_.format.empty() ? guess(first) : parse_format(options_.format);
    const bool lines = trace_.format == KvFormat::kMooncake || trace_.format == KvFormat::kBailian;
    trace_.identity = lines;
    trace_.block_tokens = options_.block_tokens                 ? options_.block_tokens
                          : trace_.format == KvFormat::kBailian ? 16
                                                                : 512;
    if (lines) {
      do request_of_json(first);
      while (next(first));
    } else {
      read_csv(first);
    }
    if (trace_.requests.empty()) throw std::runtime_error(fmt::format("trace {} has no request", path_.string()));
    in_order();
    return std::move(trace_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(fmt::format("{}:{}: {}", path_.string(), line_, what));
  }

  // The next line that is not blank.
  bool next(std::string& line) {
    while (std::getline(in_, line)) {
      line_++;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.find_first_not_of(" \t") != std::string::npos) return true;
    }
    if (in_.bad()) throw std::runtime_error(fmt::format("{}: read error after line {}", path_.string(), line_));
    return false;
  }

  KvFormat guess(const std::string& line) const {
    if (line[0] == '{') return line.find("\"chat_id\"") != std::string::npos ? KvFormat::kBailian : KvFormat::kMooncake;
    if (line.starts_with("TIMESTAMP,")) return KvFormat::kAzure;
    if (line.starts_with("Timestamp,")) return KvFormat::kBurstGpt;
    fail("not a trace that is known here: expected JSON Lines with hash_ids, or Azure's or BurstGPT's header line");
  }

  // A request's blocks are numbered by the caller.
  KvRequest& add(double seconds, uint64_t input, uint64_t output) {
    if (!(seconds >= -1e11 && seconds <= 1e11)) fail("the timestamp is out of range");
    if (input > kMostTokens || output > kMostTokens) fail(fmt::format("more than {} tokens in a request", kMostTokens));
    KvRequest& r = trace_.requests.emplace_back();
    seconds_.push_back(seconds);
    r.input_tokens = static_cast<uint32_t>(input);
    r.output_tokens = static_cast<uint32_t>(output);
    r.first = trace_.blocks.size();
    return r;
  }

  uint64_t count_of(const json& object, const char* key) const {
    const auto it = object.find(key);
    if (it == object.end()) fail(fmt::format("no \"{}\"", key));
    if (!it->is_number_unsigned()) fail(fmt::format("\"{}\" is not a number >= 0", key));
    return it->get<uint64_t>();
  }

  uint32_t object_of(const json& id) {
    uint64_t key = 0;
    if (id.is_number_integer()) {
      key = id.get<uint64_t>();
    } else if (id.is_string()) {  // hashes written as text
      const auto [it, fresh] = text_ids_.try_emplace(id.get<std::string>(), trace_.objects);
      if (fresh) count_object();
      return it->second;
    } else {
      fail("\"hash_ids\" holds something that is neither a whole number nor text");
    }
    const auto [it, fresh] = ids_.try_emplace(key, trace_.objects);
    if (fresh) count_object();
    return it->second;
  }

  void count_object() {
    if (trace_.objects >= kMostObjects) fail("more distinct blocks than 2^32 - 2");
    trace_.objects++;
  }

  void request_of_json(const std::string& line) {
    const json object = json::parse(line, nullptr, false);
    if (!object.is_object()) fail("not a JSON object");
    const auto time = object.find("timestamp");
    if (time == object.end() || !time->is_number()) fail("no number \"timestamp\"");
    const auto ids = object.find("hash_ids");
    if (ids == object.end() || !ids->is_array()) fail("no list \"hash_ids\"");
    const double unit = trace_.format == KvFormat::kMooncake ? 1e-3 : 1;  // Mooncake counts ms, Bailian seconds
    KvRequest& r = add(time->get<double>() * unit, count_of(object, "input_length"), count_of(object, "output_length"));
    r.blocks = static_cast<uint32_t>(ids->size());
    const auto type = object.find("type");
    if (type != object.end() && type->is_string()) r.category = category_of(type->get<std::string>());
    for (const json& id : *ids) trace_.blocks.push_back(object_of(id));
  }

  uint32_t category_of(const std::string& name) {
    const auto [it, fresh] = category_ids_.try_emplace(name, static_cast<uint32_t>(category_ids_.size() + 1));
    if (fresh) trace_.categories.push_back(name);
    return it->second;
  }

  static std::vector<std::string_view> fields(std::string_view line) {
    std::vector<std::string_view> found;
    for (size_t begin = 0; begin <= line.size();) {
      const size_t comma = std::min(line.find(',', begin), line.size());
      std::string_view field = line.substr(begin, comma - begin);
      if (field.size() >= 2 && field.front() == '"' && field.back() == '"') field = field.substr(1, field.size() - 2);
      found.push_back(field);
      begin = comma + 1;
    }
    return found;
  }

  void read_csv(const std::string& header) {
    const bool azure = trace_.format == KvFormat::kAzure;
    const auto columns = fields(header);
    const auto column = [&](const char* name) {
      const auto it = std::find(columns.begin(), columns.end(), name);
      if (it == columns.end()) fail(fmt::format("no column '{}' in the header line", name));
      return static_cast<size_t>(it - columns.begin());
    };
    const size_t time = column(azure ? "TIMESTAMP" : "Timestamp");
    const size_t input = column(azure ? "ContextTokens" : "Request tokens");
    const size_t output = column(azure ? "GeneratedTokens" : "Response tokens");
    const size_t width = std::max({time, input, output});
    for (std::string line; next(line);) {
      const auto f = fields(line);
      if (f.size() <= width) fail(fmt::format("{} fields, expected at least {}", f.size(), width + 1));
      KvRequest& r = add(azure ? date_of(f[time]) : number_of(f[time]), whole_of(f[input]), whole_of(f[output]));
      r.blocks = (r.input_tokens + trace_.block_tokens - 1) / trace_.block_tokens;
      for (uint32_t i = 0; i < r.blocks; i++) {
        trace_.blocks.push_back(trace_.objects);
        count_object();
      }
    }
  }

  double number_of(std::string_view text) const {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail(fmt::format("'{}' is no number", text));
    return value;
  }

  uint64_t whole_of(std::string_view text) const {
    const double value = number_of(text);  // BurstGPT writes some counts as 12.0
    if (!(value >= 0 && value <= kMostTokens && value == std::floor(value)))
      fail(fmt::format("'{}' is no number of tokens", text));
    return static_cast<uint64_t>(value);
  }

  // "2023-11-16 18:17:03.9799600" or with 'T', a zone is ignored; seconds since 1970 as if UTC.
  double date_of(std::string_view text) const {
    std::tm tm = {};
    double seconds = 0;
    const std::string copy(text);
    char separator = 0;
    if (std::sscanf(copy.c_str(), "%4d-%2d-%2d%c%2d:%2d:%lf", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &separator,
                    &tm.tm_hour, &tm.tm_min, &seconds) != 7 ||
        (separator != ' ' && separator != 'T'))
      fail(fmt::format("'{}' is no date and time like 2023-11-16 18:17:03.97", text));
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return static_cast<double>(timegm(&tm)) + seconds;
  }

  void in_order() {
    std::vector<size_t> order(seconds_.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    if (!std::is_sorted(seconds_.begin(), seconds_.end())) {
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return seconds_[a] < seconds_[b]; });
      std::vector<KvRequest> sorted;
      sorted.reserve(order.size());
      for (size_t i : order) sorted.push_back(trace_.requests[i]);
      trace_.requests = std::move(sorted);
    }
    const double start = seconds_[order[0]];
    for (size_t i = 0; i < order.size(); i++)
      trace_.requests[i].time_ns = static_cast<uint64_t>(std::llround((seconds_[order[i]] - start) * 1e9));
  }

  std::filesystem::path path_;
  LoadOptions options_;
  std::ifstream in_;
  uint64_t line_ = 0;
  KvTrace trace_;
  std::vector<double> seconds_;
  std::unordered_map<uint64_t, uint32_t> ids_;
  std::unordered_map<std::string, uint32_t> text_ids_;
  std::map<std::string, uint32_t> category_ids_;
};

}  // namespace

KvFormat parse_format(const std::string& name) {
  for (const Named& f : kFormats)
    if (name == f.name) return f.format;
  throw std::runtime_error(fmt::format("unknown trace format '{}'; known: mooncake, bailian, azure, burstgpt", name));
}

const char* format_name(KvFormat format) {
  for (const Named& f : kFormats)
    if (f.format == format) return f.name;
  return "?";
}

KvTrace load_trace(const std::filesystem::path& file, const LoadOptions& options) {
  return Reader(file, options).read();
}

KvTrace slice(const KvTrace& trace, size_t first, size_t count) {
  KvTrace part = trace;
  part.requests.clear();
  part.blocks.clear();
  part.objects = 0;
  std::vector<uint32_t> renamed(trace.objects, UINT32_MAX);
  for (size_t i = first; i < std::min(first + count, trace.requests.size()); i++) {
    KvRequest r = trace.requests[i];
    const uint64_t from = r.first;
    r.first = part.blocks.size();
    r.time_ns -= trace.requests[first].time_ns;
    for (uint32_t k = 0; k < r.blocks; k++) {
      uint32_t& name = renamed[trace.blocks[from + k]];
      if (name == UINT32_MAX) name = part.objects++;
      part.blocks.push_back(name);
    }
    part.requests.push_back(r);
  }
  return part;
}

void write_mooncake(const KvTrace& trace, OutputFile& out) {
  std::string lines;
  for (const KvRequest& r : trace.requests) {
    fmt::format_to(std::back_inserter(lines),
                   R"({{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": [)",
                   r.time_ns / 1'000'000, r.input_tokens, r.output_tokens);
    for (uint32_t k = 0; k < r.blocks; k++)
      fmt::format_to(std::back_inserter(lines), "{}{}", k ? ", " : "", trace.blocks[r.first + k]);
    lines += "]}\n";
    if (lines.size() < size_t{1} << 20) continue;
    out.write(lines);
    lines.clear();
  }
  out.finish(lines);
}

std::vector<uint64_t> next_uses(const KvTrace& trace) {
  std::vector<uint64_t> next(trace.blocks.size());
  std::vector<uint64_t> seen(trace.objects, UINT64_MAX);
  // Requests may have been put in order, so `blocks` itself is not the order of references.
  uint64_t position = trace.blocks.size();
  for (size_t i = trace.requests.size(); i-- > 0;) {
    const KvRequest& r = trace.requests[i];
    for (uint32_t k = r.blocks; k-- > 0;) {
      const uint32_t object = trace.blocks[r.first + k];
      next[--position] = seen[object];
      seen[object] = position;
    }
  }
  return next;
}

}  // namespace neotier::replay
