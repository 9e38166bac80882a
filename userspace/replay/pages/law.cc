// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/law.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>

namespace neotier::pages {

namespace {

const neotier_policy* load(const std::string& path) {
  // dlopen looks in the system's folders for a name without '/'.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(fmt::format("cannot load law: {}", dlerror()));
  const auto* entry = static_cast<const neotier_policy_entry*>(dlsym(library, NEOTIER_POLICY_ENTRY));
  const auto refuse = [&](const std::string& why) {
    dlclose(library);
    return std::runtime_error(fmt::format("law {}: {}; see policies/README.md", path, why));
  };
  if (!entry) throw refuse(fmt::format("it exports no symbol {}", NEOTIER_POLICY_ENTRY));
  const neotier_policy_entry ours = NEOTIER_POLICY_ENTRY_OF(neotier_policy_payback);
  if (entry->params_bytes != ours.params_bytes || entry->snapshot_bytes != ours.snapshot_bytes ||
      entry->plan_bytes != ours.plan_bytes || entry->state_bytes != ours.state_bytes) {
    throw refuse("it was built with another neotier_policy.h; build it again");
  }
  if (!entry->policy || !entry->policy->name || !entry->policy->init || !entry->policy->decide)
    throw refuse("its name, init or decide is NULL");
  return entry->policy;
}

}  // namespace

const neotier_policy* find_law(const std::string& name) {
  if (name.find('/') != std::string::npos || name.ends_with(".so")) return load(name);
  if (const neotier_policy* law = neotier_policy_find(name.c_str())) return law;
  std::string known;
  for (const neotier_policy* const* p = neotier_policies; *p; ++p)
    known += (known.empty() ? "" : ", ") + std::string((*p)->name);
  throw std::runtime_error(fmt::format("--law '{}': expected {}, or a shared library", name, known));
}

}  // namespace neotier::pages
