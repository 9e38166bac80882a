// SPDX-License-Identifier: Apache-2.0
// Request traces of LLM serving, as the replay sees them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "util/output_file.h"

namespace neotier::replay {

enum class KvFormat { kMooncake, kBailian, kAzure, kBurstGpt };

// "mooncake", "bailian", "azure", "burstgpt"; throws std::runtime_error elsewhere.
KvFormat parse_format(const std::string& name);
const char* format_name(KvFormat format);

struct KvRequest {
  uint64_t time_ns = 0;  // since the trace's first request; never decreases
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  uint32_t category = 0;  // index in KvTrace::categories plus 1; 0 where the trace has none
  uint32_t blocks = 0;    // of the prompt, from `first` on in KvTrace::blocks
  uint64_t first = 0;
};

struct KvTrace {
  KvFormat format = KvFormat::kMooncake;
  // Whether blocks have an identity. Formats that give lengths only get a fresh block for every block_tokens of a
  // prompt: nothing can hit, so what remains is demand: blocks a second, how long one survives at a capacity, recompute
  // time.
  bool identity = true;
  uint32_t block_tokens = 0;  // tokens a block, the last one of a prompt may hold fewer
  uint32_t objects = 0;       // distinct blocks; their numbers in `blocks` are 0 .. objects - 1, in order of appearance
  std::vector<KvRequest> requests;
  std::vector<uint32_t> blocks;
  std::vector<std::string> categories;
};

struct LoadOptions {
  std::string format;         // empty: by the first line
  uint32_t block_tokens = 0;  // 0: the format's own (512 Mooncake, 16 Bailian; 512 for lengths)
};

// Reads a whole trace. Throws std::runtime_error with one line: file, line, what is wrong.
// Requests out of order in time are put in order (stable): BurstGPT and Azure files are not always sorted.
KvTrace load_trace(const std::filesystem::path& file, const LoadOptions& options = {});

// Requests first .. first + count - 1 of a trace as one of its own.
KvTrace slice(const KvTrace& trace, size_t first, size_t count);

// Writes in Mooncake's format (JSON Lines), and commits. Throws std::runtime_error.
void write_mooncake(const KvTrace& trace, OutputFile& out);

// For every block reference, the position of the next reference to the same block, or UINT64_MAX.
std::vector<uint64_t> next_uses(const KvTrace& trace);

}  // namespace neotier::replay
