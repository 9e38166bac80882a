// SPDX-License-Identifier: Apache-2.0
#include "trace/reader.h"

#include <fmt/format.h>
#include <zstd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "trace/writer.h"

namespace fs = std::filesystem;

namespace neotier::trace {

namespace {
constexpr size_t kBlock = size_t{1} << 20;  // bytes read at once
constexpr int kWindowLog = 27;              // as the command `zstd --long=27`
constexpr std::string_view kHeader = "address,write";
}  // namespace

struct Reader::State {
  fs::path file;
  Format format{};
  std::ifstream in;
  uint64_t size = 0, consumed = 0;
  std::vector<char> input = std::vector<char>(kBlock), bytes;
  std::vector<uint64_t> records;
  ZSTD_DCtx* zstd = nullptr;
  ZSTD_inBuffer pending{};
  size_t expected = 0;       // zstd: 0 where a frame is complete
  bool more_output = false;  // zstd: the last output block was filled
  std::string partial;       // csv: a line without its end
  uint64_t line = 0;

  ~State() { ZSTD_freeDCtx(zstd); }

  [[noreturn]] void fail(const std::string& why) const {
    throw std::runtime_error(fmt::format("{}: {}", file.string(), why));
  }

  size_t read_block() {
    in.read(input.data(), static_cast<std::streamsize>(input.size()));
    if (in.bad()) fail("cannot be read");
    const auto n = static_cast<size_t>(in.gcount());
    consumed += n;
    return n;
  }

  // Whole records of `bytes`; the rest stays in it.
  void take_records() {
    const size_t n = bytes.size() / 8;
    records.resize(n);
    std::memcpy(records.data(), bytes.data(), n * 8);
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n * 8));
  }

  void next_raw() {
    const size_t n = read_block();
    bytes.insert(bytes.end(), input.begin(), input.begin() + static_cast<std::ptrdiff_t>(n));
    take_records();
  }

  void next_zstd() {
    while (records.empty()) {
      if (pending.pos == pending.size && !more_output) {
        pending = {input.data(), read_block(), 0};
        if (pending.size == 0) {
          if (expected != 0) fail("truncated: its last zstd frame is not complete");
          return;
        }
      }
      const size_t old = bytes.size();
      bytes.resize(old + kBlock);
      ZSTD_outBuffer out = {bytes.data() + old, kBlock, 0};
      expected = ZSTD_decompressStream(zstd, &out, &pending);
      if (ZSTD_isError(expected)) fail(fmt::format("damaged or not zstd: {}", ZSTD_getErrorName(expected)));
      more_output = out.pos == out.size;
      bytes.resize(old + out.pos);
      take_records();
    }
  }

  void parse_line(std::string_view text) {
    ++line;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (line == 1) {
      if (text != kHeader) fail(fmt::format("line 1: expected '{}'", kHeader));
      return;
    }
    const size_t comma = text.find(',');
    std::string_view number = text.substr(0, comma);
    const int base = number.starts_with("0x") ? 16 : 10;
    if (base == 16) number.remove_prefix(2);
    uint64_t address = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), address, base);
    const std::string_view write = comma == std::string_view::npos ? "" : text.substr(comma + 1);
    if (error != std::errc() || end != number.data() + number.size() || (address & kWriteBit) != 0 ||
        (write != "0" && write != "1")) {
      fail(fmt::format("line {}: expected an even address, a comma and 0 or 1, for example 0x1000,0", line));
    }
    records.push_back(address | (write == "1" ? kWriteBit : 0));
  }

  void next_csv() {
    while (records.empty()) {
      const size_t n = read_block();
      if (n == 0) {
        if (!partial.empty()) parse_line(std::exchange(partial, ""));
        if (line == 0) fail(fmt::format("line 1: expected '{}'", kHeader));
        return;
      }
      partial.append(input.data(), n);
      size_t at = 0;
      for (size_t end; (end = partial.find('\n', at)) != std::string::npos; at = end + 1) {
        parse_line(std::string_view(partial).substr(at, end - at));
      }
      partial.erase(0, at);
      if (partial.size() > 4096) fail(fmt::format("line {} is longer than any record", line + 1));
    }
  }
};

Reader::Reader(const fs::path& file) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.file = file;
  s.format = format_of(file);
  if (!fs::is_regular_file(file)) s.fail(fs::exists(file) ? "is no file" : "no such file");
  s.in.open(file, std::ios::binary);
  if (!s.in) s.fail(std::strerror(errno));
  s.size = fs::file_size(file);
  if (s.size == 0) s.fail("is empty");
  if (s.format == Format::kZstd) {
    s.zstd = ZSTD_createDCtx();
    if (!s.zstd || ZSTD_isError(ZSTD_DCtx_setParameter(s.zstd, ZSTD_d_windowLogMax, kWindowLog))) {
      s.fail("zstd could not be set up");
    }
  } else if (s.format == Format::kRaw) {
    uint32_t magic = 0;
    s.in.read(reinterpret_cast<char*>(&magic), sizeof magic);
    s.in.clear();
    s.in.seekg(0);
    if (magic == ZSTD_MAGICNUMBER) s.fail("begins like zstd; its name has to end in .zst");
    if (s.size % 8 != 0) {
      s.fail(fmt::format("{} bytes are no whole number of 8-byte records; is it truncated, or no trace?", s.size));
    }
  }
}

Reader::~Reader() = default;

std::span<const uint64_t> Reader::next() {
  State& s = *state_;
  s.records.clear();
  switch (s.format) {
    case Format::kRaw:
      s.next_raw();
      break;
    case Format::kZstd:
      s.next_zstd();
      break;
    case Format::kCsv:
      s.next_csv();
      break;
  }
  if (s.records.empty() && !s.bytes.empty()) {
    s.fail(fmt::format("ends within a record ({} bytes over); is it truncated, or no trace?", s.bytes.size()));
  }
  return s.records;
}

double Reader::progress() const { return static_cast<double>(state_->consumed) / static_cast<double>(state_->size); }

}  // namespace neotier::trace
