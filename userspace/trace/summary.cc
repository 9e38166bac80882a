// SPDX-License-Identifier: Apache-2.0
#include "trace/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "trace/writer.h"

namespace neotier::trace {

void Summary::add(std::span<const uint64_t> records) {
  for (const uint64_t record : records) {
    const uint64_t address = record & ~kWriteBit;
    ++(record & kWriteBit ? writes_ : reads_);
    unaligned_ += (address & 63) != 0;
    lowest_ = std::min(lowest_, address);
    highest_ = std::max(highest_, address);
    ++pages_[address >> 12];
  }
}

nlohmann::ordered_json Summary::json() const {
  nlohmann::ordered_json json = {
      {"records", reads_ + writes_}, {"reads", reads_}, {"writes", writes_}, {"pages", pages_.size()}};
  if (!pages_.empty()) {
    json["first_address"] = lowest_;
    json["last_address"] = highest_;
  }
  json["unaligned"] = unaligned_;
  std::vector<uint64_t> counts;
  counts.reserve(pages_.size());
  for (const auto& [page, count] : pages_) counts.push_back(count);
  const auto shares = concentration(std::move(counts));
  for (size_t i = 0; i < shares.size(); ++i) {
    json["concentration"][std::to_string(kConcentrationPercent[i])] = shares[i];
  }
  return json;
}

std::string to_text(const nlohmann::ordered_json& summary) {
  std::string text;
  for (const char* key : {"records", "reads", "writes", "pages"}) {
    text += fmt::format("{:<10} {}\n", key, summary.at(key).get<uint64_t>());
  }
  if (summary.contains("first_address")) {
    text += fmt::format("{:<10} {:#x} to {:#x}\n", "addresses", summary["first_address"].get<uint64_t>(),
                        summary["last_address"].get<uint64_t>());
  }
  if (const auto n = summary.at("unaligned").get<uint64_t>(); n != 0) {
    text += fmt::format("{:<10} {} records are no 64-byte line: not what a memory device sees\n", "unaligned", n);
  }
  text += "accesses in the hottest pages:\n";
  for (const auto& [percent, share] : summary.at("concentration").items()) {
    text += fmt::format("{:>7} %  {:5.1f} %\n", percent, 100 * share.get<double>());
  }
  return text;
}

}  // namespace neotier::trace
