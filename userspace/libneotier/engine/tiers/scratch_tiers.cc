// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/scratch_tiers.h"

#include <sstream>
#include <system_error>

namespace fs = std::filesystem;

namespace neotier::engine {

namespace {

constexpr const char* kPrefix = "neotier-tier";

bool is_ssd(const std::string& tier) {
  const std::string name = tier.substr(0, tier.find('='));
  return name.substr(name.rfind('/') + 1) == "ssd";
}

}  // namespace

ScratchTiers::ScratchTiers(const std::string& tiers, const fs::path& folder) {
  std::stringstream list(tiers);
  for (std::string tier; std::getline(list, tier, ',');) {
    if (is_ssd(tier)) {
      const size_t option = tier.find(":file=");
      const size_t begin = option == std::string::npos ? tier.size() : option + 6;
      const size_t end = option == std::string::npos ? tier.size() : std::min(tier.find(':', begin), tier.size());
      const fs::path file = tier.substr(begin, end - begin);
      std::error_code error;
      if (file.empty() ? !folder.empty() : !fs::exists(file, error)) {
        const fs::path in = file.empty() ? folder : fs::absolute(file).parent_path();
        // Where there is no such folder, what makes the tier says so.
        if (fs::is_directory(in, error)) {
          folders_.push_back(std::make_unique<TemporaryFolder>(kPrefix, in));
          const std::string own = (folders_.back()->path() / (file.empty() ? "tier" : file.filename())).string();
          if (option == std::string::npos)
            tier.append(":file=").append(own);
          else
            tier.replace(begin, end - begin, own);
        } else if (file.empty()) {
          tier += ":file=" + (in / "tier").string();
        }
      }
    }
    text_ += (text_.empty() ? "" : ",") + tier;
  }
  if (tiers.ends_with(',')) text_ += ',';
}

}  // namespace neotier::engine
