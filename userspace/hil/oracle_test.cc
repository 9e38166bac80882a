// SPDX-License-Identifier: Apache-2.0
#include "hil/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

namespace neotier::hil {
namespace {

// A case of so few pages that every placement can be tried. First touch never puts more into DRAM than it holds.
OracleCase random_case(std::mt19937& random, uint32_t most_pages, uint32_t most_epochs) {
  const auto number = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  OracleCase c;
  c.epochs = number(1, most_epochs);
  c.capacity = number(1, 2);
  std::vector<uint64_t> held(c.epochs, 0);
  const uint32_t pages = number(1, most_pages);
  for (uint32_t i = 0; i < pages; ++i) {
    OraclePage page;
    page.birth = number(0, c.epochs - 1);
    page.last = number(page.birth, c.epochs - 1);
    page.in_dram = number(0, 1) == 1;
    for (uint32_t e = page.birth; e <= page.last; ++e) page.in_dram &= held[e] < c.capacity;
    for (uint32_t e = page.birth; e <= page.last; ++e) {
      held[e] += page.in_dram;
      if (number(0, 2) != 0) page.gains.push_back({e, number(1, 30)});
    }
    c.pages.push_back(page);
  }
  return c;
}

bool alive(const OraclePage& page, uint32_t epoch) { return page.birth <= epoch && epoch <= page.last; }
int64_t gain_in(const OraclePage& page, uint32_t epoch) {
  for (const Gain& gain : page.gains) {
    if (gain.epoch == epoch) return gain.ps;
  }
  return 0;
}
int64_t first_touch(const OracleCase& c) {
  int64_t sum = 0;
  for (const OraclePage& page : c.pages) {
    for (const Gain& gain : page.gains) sum += page.in_dram ? gain.ps : 0;
  }
  return sum;
}

// The best over all sets of pages in DRAM in each epoch.
int64_t try_all(const OracleCase& c, MoveCost cost) {
  constexpr int64_t kNone = INT64_MIN / 2;
  const uint32_t sets = 1u << c.pages.size();
  std::vector<int64_t> best(sets, kNone), next;
  best[0] = 0;
  for (uint32_t e = 0; e < c.epochs; ++e) {
    next.assign(sets, kNone);
    for (uint32_t from = 0; from < sets; ++from) {
      if (best[from] == kNone) continue;
      for (uint32_t to = 0; to < sets; ++to) {
        if (std::popcount(to) > static_cast<int>(c.capacity)) continue;
        int64_t value = best[from];
        bool possible = true;
        for (size_t i = 0; i < c.pages.size(); ++i) {
          const OraclePage& page = c.pages[i];
          const bool now = to >> i & 1;
          if (!alive(page, e)) {
            possible &= !now;
            continue;
          }
          const bool before = page.birth == e ? page.in_dram : from >> i & 1;
          value += now ? gain_in(page, e) : 0;
          value -= now && !before ? cost.promote_ps : 0;
          value -= before && !now ? cost.demote_ps : 0;
        }
        if (possible) next[to] = std::max(next[to], value);
      }
    }
    best = next;
  }
  return *std::max_element(best.begin(), best.end()) - first_touch(c);
}

int64_t try_all_static(const OracleCase& c) {
  int64_t best = INT64_MIN;
  for (uint32_t set = 0; set < 1u << c.pages.size(); ++set) {
    int64_t value = 0;
    bool fits = true;
    for (uint32_t e = 0; e < c.epochs; ++e) {
      uint64_t held = 0;
      for (size_t i = 0; i < c.pages.size(); ++i) {
        if (!(set >> i & 1) || !alive(c.pages[i], e)) continue;
        ++held;
        value += gain_in(c.pages[i], e);
      }
      fits &= held <= c.capacity;
    }
    if (fits) best = std::max(best, value);
  }
  return best - first_touch(c);
}

TEST(Oracle, EqualsTryingEveryPlacement) {
  std::mt19937 random(16);
  for (int i = 0; i < 600; ++i) {
    const OracleCase c = random_case(random, 5, 5);
    const MoveCost cost{std::uniform_int_distribution<int64_t>(0, 12)(random),
                        std::uniform_int_distribution<int64_t>(0, 12)(random)};
    const Placement costed = best_costed(c, cost);
    EXPECT_EQ(costed.saved_ps, try_all(c, cost)) << "case " << i;
    EXPECT_EQ(costed.at_most_ps, costed.saved_ps);
    EXPECT_EQ(best_dynamic(c).saved_ps, try_all(c, {0, 0})) << "case " << i;
    EXPECT_EQ(best_static(c).saved_ps, try_all_static(c)) << "case " << i;
  }
}

TEST(Oracle, ItsRelaxationEnclosesTheBest) {
  std::mt19937 random(17);
  int64_t plans = 0, bests = 0, bounds = 0;
  for (int i = 0; i < 600; ++i) {
    const OracleCase c = random_case(random, 6, 5);
    const MoveCost cost{std::uniform_int_distribution<int64_t>(0, 12)(random),
                        std::uniform_int_distribution<int64_t>(0, 12)(random)};
    const int64_t best = try_all(c, cost);
    const Placement found = best_costed(c, cost, 0);
    EXPECT_LE(found.saved_ps, best) << "case " << i;
    EXPECT_GE(found.at_most_ps, best) << "case " << i;
    plans += found.saved_ps;
    bests += best;
    bounds += found.at_most_ps;
  }
  EXPECT_GE(plans, bests * 95 / 100);
  EXPECT_LE(bounds, bests * 105 / 100);
}

// Many pages: the plan of the relaxation is close to the flow's optimum, and the bound to it.
TEST(Oracle, ItsRelaxationIsCloseWhereThereAreManyPages) {
  std::mt19937 random(18);
  OracleCase c;
  c.epochs = 12;
  c.capacity = 100;
  for (uint32_t i = 0; i < 400; ++i) {
    OraclePage page{0, 11, i < 100, {}};
    const auto heat = static_cast<double>(random() % 1000);
    for (uint32_t e = 0; e < 12; ++e) {
      page.gains.push_back(
          {e, 1 + static_cast<int64_t>(heat) + static_cast<int64_t>((e + i) % 12 < 4 ? random() % 3000 : 0)});
    }
    c.pages.push_back(page);
  }
  const MoveCost cost{800, 700};
  const int64_t best = best_costed(c, cost).saved_ps;
  const Placement found = best_costed(c, cost, 0);
  EXPECT_LE(found.saved_ps, best);
  EXPECT_GE(found.at_most_ps, best);
  EXPECT_GE(found.saved_ps, best * 98 / 100);
  EXPECT_LE(found.at_most_ps, best * 101 / 100);
  EXPECT_GT(found.promoted, 0u);
  EXPECT_LE(found.promoted, found.demoted + 100);
}

TEST(Oracle, MovesNothingWhereMovesCostMoreThanTheyBring) {
  OracleCase c{2, 1, {{0, 1, true, {{0, 10}, {1, 10}}}, {0, 1, false, {{0, 15}, {1, 15}}}}};
  EXPECT_EQ(best_static(c).saved_ps, 10);
  EXPECT_EQ(best_costed(c, {6, 5}).saved_ps, 0);
  EXPECT_EQ(best_costed(c, {6, 5}).promoted, 0u);
  EXPECT_EQ(best_costed(c, {4, 5}).saved_ps, 1);
  EXPECT_EQ(best_costed(c, {4, 5}).promoted, 1u);
  EXPECT_EQ(best_costed(c, {4, 5}).demoted, 1u);
}

// A page makes room for a hotter one, and comes back where it is hot itself.
TEST(Oracle, APageThatMadeRoomComesBack) {
  OracleCase c{2, 1, {{0, 1, true, {{1, 10}}}, {0, 1, false, {{0, 30}}}}};
  EXPECT_EQ(best_costed(c, {6, 5}).saved_ps, 30 - 6 - 5 - 10);
  EXPECT_EQ(best_costed(c, {6, 5}, 0).saved_ps, 30 - 6 - 5 - 10);
  c.pages[0].gains[0].ps = 40;
  EXPECT_EQ(best_costed(c, {6, 5}).saved_ps, 30 - 2 * 6 - 2 * 5);
}

TEST(Oracle, SaysNothingOfSharesWhereThereIsNothingToWin) {
  Oracle oracle;
  oracle.modelled_ns = 1'000'000;
  oracle.costed.saved_ps = 5'000'000;  // .5 %
  EXPECT_FALSE(oracle.share_won(900'000));
  oracle.costed.saved_ps = 200'000'000;
  EXPECT_NEAR(*oracle.share_won(800'000), 1, 1e-9);
  EXPECT_NEAR(*oracle.share_won(1'000'000), 0, 1e-9);
  EXPECT_NEAR(*oracle.share_won(900'000), std::log(1 / .9) / std::log(1.25), 1e-9);
  EXPECT_LT(*oracle.share_won(1'100'000), 0);
}

// Two DRAM pages and two CXL pages, of which one of each is the kernel's; and a file's in each.
TEST(Oracle, MakesACaseOfCounts) {
  PageCounts counts;
  counts.header.nr_epochs = 2;
  const auto page = [&](bool cxl, neotier_page_kind kind, bool seen = true) {
    neotier_page p{};
    p.last = 1;
    p.cxl = cxl;
    p.kind = static_cast<uint8_t>(kind);
    p.seen = seen;
    counts.pages.push_back(p);
  };
  page(false, NEOTIER_PAGE_ANONYMOUS);
  page(false, NEOTIER_PAGE_KERNEL);
  page(true, NEOTIER_PAGE_ANONYMOUS);
  page(true, NEOTIER_PAGE_KERNEL);
  page(true, NEOTIER_PAGE_ANONYMOUS, false);
  page(false, NEOTIER_PAGE_FILE);
  page(true, NEOTIER_PAGE_FILE);
  Params params = default_params();
  params.dram_ns = 100;
  params.cxl_ns = 300;
  counts.counts = {{0, 0, 2, 0, 100'000}, {2, 0, 1, 0, 150'000}, {2, 1, 1, 0, 150'000}, {4, 0, 1, 0, 150'000}};
  const OracleCase all = oracle_case(counts, params, false);
  EXPECT_EQ(all.pages.size(), 6u);
  EXPECT_EQ(all.capacity, 3u);
  EXPECT_EQ(all.pages[0].gains.at(0).ps, 200'000);
  EXPECT_EQ(all.pages[2].gains.at(1).ps, 100'000);
  const OracleCase reach = oracle_case(counts, params, true);
  ASSERT_EQ(reach.pages.size(), 4u);  // without the kernel's
  EXPECT_EQ(reach.capacity, 2u);
  EXPECT_EQ(reach.pages[0].gains.at(0).ps, 200'000);
}

TEST(Oracle, RefusesAFileThatIsNotWhole) {
  const auto file = std::filesystem::temp_directory_path() / ("oracle_test." + std::to_string(std::random_device()()));
  EXPECT_THROW(read_page_counts(file), std::runtime_error);
  neotier_page_counts_header header{};
  header.magic = NEOTIER_PAGE_COUNTS_MAGIC;
  header.nr_epochs = 1;
  header.nr_pages = 1;
  neotier_page page{};
  const auto write = [&](size_t bytes_of_page) {
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&header), sizeof header);
    out.write(reinterpret_cast<const char*>(&page), static_cast<std::streamsize>(bytes_of_page));
  };
  write(sizeof page);
  EXPECT_EQ(read_page_counts(file).pages.size(), 1u);
  write(sizeof page - 1);
  EXPECT_THROW(read_page_counts(file), std::runtime_error);
  page.last = 7;
  write(sizeof page);
  EXPECT_THROW(read_page_counts(file), std::runtime_error);
  header.nr_pages = UINT64_MAX / 8;
  write(sizeof page);
  EXPECT_THROW(read_page_counts(file), std::runtime_error);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace neotier::hil
