// SPDX-License-Identifier: Apache-2.0
// What the best placement of a program's pages would have won, had it known the future: bounds computed from the fills
// that a run without migration had (neotier/page_counts.h). Exact where it says so; else a plan and an upper bound of
// all plans. No state; thread safe. Times are modelled picoseconds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "hil/model/params.h"
#include "neotier/page_counts.h"

namespace neotier::hil {

// What a page gains in one epoch by being in DRAM rather than in CXL memory.
struct Gain {
  uint32_t epoch;
  int64_t ps;  // > 0
};

struct OraclePage {
  uint32_t birth = 0, last = 0;  // epochs, inclusive
  bool in_dram = false;          // where first touch put it
  std::vector<Gain> gains;       // by epoch, of [birth, last]
};

struct OracleCase {
  uint32_t epochs = 0;
  uint64_t capacity = 0;  // pages that DRAM holds at a time; at least as many as first touch put there in any epoch
  std::vector<OraclePage> pages;
};

struct MoveCost {
  int64_t promote_ps, demote_ps;  // >= 0
};

// All over first touch, in whose placement every page stays where it was born.
struct Placement {
  int64_t saved_ps = 0;    // by a plan that can be carried out; costs taken off
  int64_t at_most_ps = 0;  // by any plan; saved_ps where that is proved to be the best
  uint64_t promoted = 0, demoted = 0;
};

// Each page in one tier for its life, chosen when it is born, free of cost. Exact.
Placement best_static(const OracleCase& oracle_case);
// The best pages of each epoch, moved for nothing. Exact.
Placement best_dynamic(const OracleCase& oracle_case);
// Pages are born where first touch put them and moved at a cost. Exact for cases of up to `exact_gains` gains.
constexpr size_t kExactGains = 20'000;
Placement best_costed(const OracleCase& oracle_case, MoveCost cost, size_t exact_gains = kExactGains);

struct OracleOptions {
  Params params;
  uint64_t promote_ns, demote_ns;  // what the kernel's part of moving one page takes
  uint64_t modelled_ns;            // of the run
};

struct PageCounts {
  neotier_page_counts_header header{};
  std::vector<neotier_page_count> counts;
  std::vector<neotier_page> pages;
};

// Throws std::runtime_error in one line where the file is not whole.
PageCounts read_page_counts(const std::filesystem::path& file);
// The sums alone.
neotier_page_counts_header read_page_sums(const std::filesystem::path& file);

struct Oracle {
  uint64_t epoch_ns = 0, epochs = 0;
  uint64_t pages = 0;     // that could be placed
  uint64_t capacity = 0;  // of them, that DRAM held
  uint64_t move_ns = 0;   // cost of one promotion
  uint64_t modelled_ns = 0;
  Placement fixed, dynamic, costed;
  Placement reached;  // costed, by what the module moves

  double speedup(int64_t saved_ps) const;
  // Share of the costed oracle's gain, on a logarithmic scale, that lies in pages that the module cannot move.
  double beyond_reach() const;
  // Of a run that took `modelled_ns`; nothing where the costed oracle wins less than 1 %.
  std::optional<double> share_won(uint64_t modelled_ns) const;
};

// Whether the module moves pages of this kind, huge ones split. Not asked: a file's state, and its owner's rules.
constexpr bool in_reach(uint8_t kind) { return kind != NEOTIER_PAGE_KERNEL; }

// A case of the pages that live for an epoch at least, and are not locked. `reach_only`: of those that the module
// moves.
OracleCase oracle_case(const PageCounts& counts, const Params& params, bool reach_only);
int64_t move_ps(const Params& params, uint64_t kernel_ns);
Oracle solve_oracle(const PageCounts& counts, const OracleOptions& options);

}  // namespace neotier::hil
