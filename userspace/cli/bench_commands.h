// SPDX-License-Identifier: Apache-2.0
// Commands that measure with real bytes, and what they measure with: each is added below the command of its part.
#pragma once

namespace CLI {
class App;
}

namespace neotier::cli {

// `neotier kv bench`, `neotier moe bench`, `neotier model make`; `status` as in commands.h.
void add_kv_bench(CLI::App& kv, int& status);
void add_moe_bench(CLI::App& moe, int& status);
void add_model_make(CLI::App& model, int& status);

}  // namespace neotier::cli
