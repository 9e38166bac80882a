// SPDX-License-Identifier: Apache-2.0
// neotier trace info | convert | cut
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "cli/commands.h"
#include "cli/help.h"
#include "trace/reader.h"
#include "trace/recording.h"
#include "trace/summary.h"
#include "trace/writer.h"
#include "util/files.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/progress.h"

namespace fs = std::filesystem;

namespace neotier::cli {

namespace {

struct Arguments {
  std::string in, out;
  std::string json;
  std::string records, addresses;
};

using Range = std::pair<uint64_t, uint64_t>;  // [first, second)

// "A:B", each decimal, 0x… or empty.
Range parse_range(const std::string& option, const std::string& text) {
  if (text.empty()) return {0, UINT64_MAX};
  const auto number = [&](std::string_view part, uint64_t otherwise) {
    if (part.empty()) return otherwise;
    const int base = part.starts_with("0x") ? 16 : 10;
    if (base == 16) part.remove_prefix(2);
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value, base);
    if (error != std::errc() || end != part.data() + part.size()) {
      throw std::runtime_error(
          fmt::format("{} '{}': expected FROM:TO, for example 0:1000000 or 0x1000:", option, text));
    }
    return value;
  };
  const size_t colon = text.find(':');
  if (colon == std::string::npos) {
    throw std::runtime_error(fmt::format("{} '{}': expected FROM:TO, for example 0:1000000 or 0x1000:", option, text));
  }
  const Range range = {number(std::string_view(text).substr(0, colon), 0),
                       number(std::string_view(text).substr(colon + 1), UINT64_MAX)};
  if (range.first >= range.second) throw std::runtime_error(fmt::format("{} '{}' is empty", option, text));
  return range;
}

// Calls act(records) for each block, until it returns false.
template <class Act>
void each_block(const fs::path& file, Act act) {
  catch_interrupts();
  trace::Reader reader(file);
  Progress progress;
  uint64_t blocks = 0;
  for (auto records = reader.next(); !records.empty(); records = reader.next()) {
    if (interrupted()) progress.clear();
    throw_if_interrupted();
    if (blocks == 0 && trace::kind_of(records.front()) == trace::Record::kHeader) {
      throw std::runtime_error(fmt::format("{}: is a recording with time; `neotier replay` reads it", file.string()));
    }
    if (++blocks % 64 == 0) progress.show(fmt::format("{}: {:.0f} %", file.string(), 100 * reader.progress()));
    if (!act(records)) break;
  }
  progress.clear();
}

int info(const Arguments& a) {
  OutputFile out("--json", a.json);
  trace::Summary summary;
  each_block(a.in, [&](auto records) {
    summary.add(records);
    return true;
  });
  const auto json = summary.json();
  if (out) {
    out.finish(pretty(json));
  } else {
    fmt::print("{}", trace::to_text(json));
  }
  return 0;
}

int copy(const Arguments& a) {
  const Range records = parse_range("--records", a.records), addresses = parse_range("--addresses", a.addresses);
  refuse_input_as_output("--output", a.in, a.out);
  trace::Writer writer(a.out, "--output");
  uint64_t at = 0;
  each_block(a.in, [&](auto block) {
    for (const uint64_t record : block) {
      const uint64_t number = at++;
      const uint64_t address = record & ~trace::kWriteBit;
      if (number >= records.first && number < records.second && address >= addresses.first &&
          address < addresses.second) {
        writer.put(record);
      }
    }
    return at < records.second;
  });
  const uint64_t n = writer.records();
  writer.finish();
  note(fmt::format("{} records written to {}", n, a.out));
  return 0;
}

}  // namespace

void add_trace(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* trace = app.add_subcommand("trace", "Describe, convert and cut memory traces");
  trace->group(kServer);
  trace->footer("example:\n  neotier trace info gups.u64.zst");
  const char* const forms = ".zst is zstd, .csv is text, any other name holds bare little-endian 8-byte records";

  CLI::App* info_command =
      trace->add_subcommand("info", "Print a trace's records and pages, and how concentrated its accesses are");
  info_command->footer(
      "examples:\n  neotier trace info gups.u64.zst\n  neotier trace info gups.u64.zst --json - | jq .pages");
  info_command->add_option("FILE", arguments->in, fmt::format("The trace: {}", forms))->required();
  add_json(*info_command, arguments->json);
  info_command->callback([arguments, &status] { status = info(*arguments); });

  CLI::App* convert = trace->add_subcommand("convert", "Change a trace's form, as the names of both files say");
  convert->footer("example:\n  neotier trace convert gups.u64.zst -o gups.csv");
  convert->add_option("IN", arguments->in, fmt::format("The trace: {}", forms))->required();
  add_output(*convert, arguments->out, "The trace to write; its name says its form")->required();
  convert->callback([arguments, &status] { status = copy(*arguments); });

  CLI::App* cut = trace->add_subcommand("cut", "Keep a part of a trace");
  cut->footer(
      "examples:\n  neotier trace cut gups.u64.zst --records 0:1000000 -o first.u64.zst\n"
      "  neotier trace cut all.u64.zst --addresses 0x100000000:0x10c000000 -o cxl.u64.zst");
  cut->add_option("IN", arguments->in, fmt::format("The trace: {}", forms))->required();
  add_output(*cut, arguments->out, "The trace to write; its name says its form")->required();
  cut->add_option("--records", arguments->records, "Which records to keep, numbered from 0; TO is left out")
      ->type_name("FROM:TO");
  cut->add_option("--addresses", arguments->addresses, "Which byte addresses to keep; TO is left out")
      ->type_name("FROM:TO");
  cut->callback([arguments, &status] {
    if (arguments->records.empty() && arguments->addresses.empty()) {
      throw std::runtime_error("trace cut: name what to keep with --records, --addresses or both");
    }
    status = copy(*arguments);
  });
}

}  // namespace neotier::cli
