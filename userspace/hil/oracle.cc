// SPDX-License-Identifier: Apache-2.0
#include "hil/oracle.h"

#include <fmt/format.h>
#include <lemon/network_simplex.h>
#include <lemon/smart_graph.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace neotier::hil {

namespace {

using lemon::SmartDigraph;

constexpr int64_t kNever = std::numeric_limits<int64_t>::min() / 4;
// More epochs than this are merged: bounds of long runs are coarser, not slower.
constexpr uint64_t kMostEpochs = 128;
constexpr uint64_t kLines = 64;  // of a page
constexpr double kWorthSharing = 1.01;

int64_t sum_of_gains(const OraclePage& page) {
  return std::accumulate(page.gains.begin(), page.gains.end(), int64_t{0},
                         [](int64_t sum, const Gain& gain) { return sum + gain.ps; });
}

int64_t first_touch_ps(const OracleCase& c) {
  int64_t sum = 0;
  for (const OraclePage& page : c.pages) sum += page.in_dram ? sum_of_gains(page) : 0;
  return sum;
}

// DRAM's places flow through time: one unit each, from the first epoch's hub to the hub behind the last. A place waits
// on the way between hubs, or holds a page on the way through its nodes.
class PlaceFlow {
 public:
  explicit PlaceFlow(const OracleCase& c) : capacity_(static_cast<int64_t>(c.capacity)) {
    for (uint32_t e = 0; e <= c.epochs; ++e) hubs_.push_back(graph_.addNode());
    for (uint32_t e = 0; e < c.epochs; ++e) arc(hubs_[e], hubs_[e + 1], capacity_, 0);
  }
  SmartDigraph::Node hub(uint32_t epoch) const { return hubs_[epoch]; }
  SmartDigraph::Node node() { return graph_.addNode(); }
  SmartDigraph::Arc arc(SmartDigraph::Node from, SmartDigraph::Node to, int64_t most, int64_t cost) {
    most_.push_back(most);
    cost_.push_back(cost);
    return graph_.addArc(from, to);
  }
  // Returns the cost of the cheapest flow of all places.
  int64_t solve() {
    SmartDigraph::ArcMap<int64_t> most(graph_), cost(graph_);
    for (SmartDigraph::ArcIt a(graph_); a != lemon::INVALID; ++a) {
      most[a] = most_[static_cast<size_t>(graph_.id(a))];
      cost[a] = cost_[static_cast<size_t>(graph_.id(a))];
    }
    lemon::NetworkSimplex<SmartDigraph, int64_t, int64_t> simplex(graph_);
    simplex.upperMap(most).costMap(cost).stSupply(hubs_.front(), hubs_.back(), capacity_);
    if (simplex.run() != simplex.OPTIMAL) throw std::logic_error("the oracle's flow has no optimum");
    flow_.resize(cost_.size());
    int64_t total = 0;
    for (SmartDigraph::ArcIt a(graph_); a != lemon::INVALID; ++a) {
      const auto i = static_cast<size_t>(graph_.id(a));
      flow_[i] = simplex.flow(a);
      total += flow_[i] * cost_[i];
    }
    return total;
  }
  bool used(SmartDigraph::Arc a) const { return flow_[static_cast<size_t>(graph_.id(a))] != 0; }

 private:
  SmartDigraph graph_;
  std::vector<SmartDigraph::Node> hubs_;
  std::vector<int64_t> most_, cost_, flow_;
  int64_t capacity_;
};

// A page that is born in DRAM and that no place holds from there on is demoted at once: that is the base, and a place
// that takes the page at its birth gives the cost of it back.
Placement costed_by_flow(const OracleCase& c, MoveCost cost) {
  PlaceFlow flow(c);
  std::vector<SmartDigraph::Arc> promotions, demotions, kept;
  int64_t base = 0;
  uint64_t born = 0;
  for (const OraclePage& page : c.pages) {
    std::vector<Gain> gains = page.gains;
    if (page.in_dram) {
      base += cost.demote_ps;
      ++born;
      if (gains.empty() || gains.front().epoch != page.birth) gains.insert(gains.begin(), {page.birth, 0});
    }
    SmartDigraph::Node before = lemon::INVALID;
    for (size_t i = 0; i < gains.size(); ++i) {
      const SmartDigraph::Node in = flow.node(), out = flow.node();
      flow.arc(in, out, 1, -gains[i].ps);
      const SmartDigraph::Node hub = flow.hub(gains[i].epoch);
      if (page.in_dram && i == 0)
        kept.push_back(flow.arc(hub, in, 1, -cost.demote_ps));
      else
        promotions.push_back(flow.arc(hub, in, 1, cost.promote_ps));
      if (i != 0) flow.arc(before, in, 1, 0);
      const bool last = i + 1 == gains.size();
      if (!last || gains[i].epoch != page.last)
        demotions.push_back(flow.arc(out, flow.hub(gains[i].epoch + 1), 1, cost.demote_ps));
      if (last) flow.arc(out, flow.hub(page.last + 1), 1, 0);
      before = out;
    }
  }
  Placement placement;
  placement.saved_ps = placement.at_most_ps = -(base + flow.solve()) - first_touch_ps(c);
  const auto used = [&](SmartDigraph::Arc a) { return flow.used(a); };
  placement.promoted = static_cast<uint64_t>(std::count_if(promotions.begin(), promotions.end(), used));
  placement.demoted = static_cast<uint64_t>(std::count_if(demotions.begin(), demotions.end(), used)) + born -
                      static_cast<uint64_t>(std::count_if(kept.begin(), kept.end(), used));
  return placement;
}

// Prices of a place in DRAM for an epoch, with their sums: those of [from, to) in one look.
class Prices {
 public:
  explicit Prices(const std::vector<int64_t>& each) : sums_(each.size() + 1, 0) {
    std::partial_sum(each.begin(), each.end(), sums_.begin() + 1);
  }
  int64_t of(uint32_t from, uint32_t to) const { return sums_[to] - sums_[from]; }

 private:
  std::vector<int64_t> sums_;
};

// Epochs [from, to) that a page spends in DRAM.
struct Stay {
  uint32_t from, to;
};

// The best way of one page through its life, where places have prices. `stays` (may be null) is filled in order.
int64_t best_way(const OraclePage& page, MoveCost cost, const Prices& prices, std::vector<Stay>* stays) {
  struct Step {
    uint32_t epoch;
    bool stayed;  // in this epoch it is in DRAM as it was before, not promoted
    bool left;    // out of DRAM since it left behind the step before
  };
  static thread_local std::vector<Step> steps;
  steps.clear();
  int64_t in = page.in_dram ? 0 : kNever, out = page.in_dram ? -cost.demote_ps : 0;
  uint32_t at = page.birth;  // what `in` has paid for ends here
  for (const Gain& gain : page.gains) {
    const int64_t stay = in - prices.of(at, gain.epoch), come = out - cost.promote_ps;
    const int64_t leave = at == page.birth ? kNever : in - cost.demote_ps;
    // Leaving a place at its birth is in `out` already.
    const bool left = leave > out;
    const int64_t come_after = std::max(come, leave - cost.promote_ps);
    const bool stayed = stay >= come_after;
    if (stays) steps.push_back({gain.epoch, stayed, left});
    out = std::max(out, leave);
    in = std::max(stay, come_after) + gain.ps - prices.of(gain.epoch, gain.epoch + 1);
    at = gain.epoch + 1;
  }
  const int64_t to_the_end = in - prices.of(at, page.last + 1);
  const int64_t leave = at == page.birth ? kNever : in - cost.demote_ps;
  const int64_t best = std::max({out, to_the_end, leave});
  if (!stays) return best;
  stays->clear();
  // Backwards: which of the two states was it in behind each step?
  bool is_in = best == to_the_end || (best == leave && best != out);
  uint32_t to = best == to_the_end ? page.last + 1 : at;
  for (size_t i = steps.size(); i-- > 0;) {
    const Step& step = steps[i];
    const uint32_t before_end = i == 0 ? page.birth : steps[i - 1].epoch + 1;
    if (is_in) {
      if (step.stayed) continue;
      stays->push_back({step.epoch, to});
      is_in = false;
    }
    // Out in this step: since when?
    if (step.left) {
      is_in = true;
      to = before_end;
    }
  }
  if (is_in) {
    stays->push_back({page.birth, to});
  }
  std::reverse(stays->begin(), stays->end());
  return best;
}

class Relaxation {
 public:
  Relaxation(const OracleCase& c, MoveCost cost)
      : case_(c), cost_(cost), prices_(c.epochs, 0), best_prices_(prices_), first_touch_(first_touch_ps(c)) {}

  // The sum of all pages' best ways and of what all places cost is an upper bound at any prices. Subgradient steps
  // lower it, by the length that would reach `target` (Polyak).
  void lower(int64_t target, int rounds) {
    double length = 1;
    int since = 0;
    for (int round = 0; round < rounds; ++round) {
      std::vector<int64_t> spare(case_.epochs);
      const int64_t bound = evaluate(spare);
      if (bound < bound_) {
        bound_ = bound;
        best_prices_ = prices_;
        since = 0;
      } else if (++since == 8) {
        since = 0;
        length /= 2;
        prices_ = best_prices_;
        if (length < 1e-3) return;
        continue;
      }
      double norm = 0;
      for (const int64_t s : spare) norm += static_cast<double>(s) * static_cast<double>(s);
      if (norm == 0 || bound <= target) return;
      const double step = length * static_cast<double>(bound - target) / norm;
      for (uint32_t e = 0; e < case_.epochs; ++e) {
        const double price = static_cast<double>(prices_[e]) - step * static_cast<double>(spare[e]);
        prices_[e] = std::max<int64_t>(0, std::llround(price));
      }
    }
  }

  int64_t at_most() const { return bound_ - first_touch_; }

  // A plan: pages take places by what they are worth at the prices; then each looks for a better way in what is free.
  Placement plan() const {
    std::vector<int64_t> free(case_.epochs, static_cast<int64_t>(case_.capacity));
    std::vector<std::vector<Stay>> stays(case_.pages.size());
    std::vector<size_t> order(case_.pages.size());
    std::vector<int64_t> worth(case_.pages.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const Prices prices(best_prices_);
    const auto out_ps = [&](const OraclePage& page) { return page.in_dram ? -cost_.demote_ps : int64_t{0}; };
    for (size_t i = 0; i < order.size(); ++i)
      worth[i] = best_way(case_.pages[i], cost_, prices, nullptr) - out_ps(case_.pages[i]);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return worth[a] > worth[b]; });
    int64_t before = kNever, value = 0;
    for (int round = 0; round < kRounds && value != before; ++round) {
      before = round == 0 ? kNever : value;
      value = 0;
      for (const size_t i : order) {
        for (const Stay& stay : stays[i]) take(free, stay, 1);
        // A full epoch costs more than any page gains.
        std::vector<int64_t> each(case_.epochs, 0);
        for (uint32_t e = 0; e < case_.epochs; ++e) each[e] = free[e] <= 0 ? kFull : round == 0 ? best_prices_[e] : 0;
        best_way(case_.pages[i], cost_, Prices(each), &stays[i]);
        for (const Stay& stay : stays[i]) take(free, stay, -1);
        value += value_of(case_.pages[i], stays[i]);
      }
    }
    Placement placement;
    placement.saved_ps = value - first_touch_;
    for (size_t i = 0; i < stays.size(); ++i) {
      const OraclePage& page = case_.pages[i];
      bool in = page.in_dram;
      if (in && (stays[i].empty() || stays[i].front().from != page.birth)) {
        ++placement.demoted;
        in = false;
      }
      for (const Stay& stay : stays[i]) {
        placement.promoted += !in;
        in = false;
        placement.demoted += stay.to != page.last + 1;
      }
    }
    return placement;
  }

 private:
  static constexpr int kRounds = 6;
  static constexpr int64_t kFull = int64_t{1} << 50;

  static void take(std::vector<int64_t>& free, const Stay& stay, int64_t by) {
    for (uint32_t e = stay.from; e < stay.to; ++e) free[e] += by;
  }

  int64_t evaluate(std::vector<int64_t>& spare) const {
    const Prices prices(prices_);
    std::fill(spare.begin(), spare.end(), static_cast<int64_t>(case_.capacity));
    int64_t bound = prices.of(0, case_.epochs) * static_cast<int64_t>(case_.capacity);
    std::vector<Stay> stays;
    std::vector<int64_t> change(case_.epochs + 1, 0);
    for (const OraclePage& page : case_.pages) {
      bound += best_way(page, cost_, prices, &stays);
      for (const Stay& stay : stays) {
        --change[stay.from];
        ++change[stay.to];
      }
    }
    int64_t sum = 0;
    for (uint32_t e = 0; e < case_.epochs; ++e) spare[e] += sum += change[e];
    return bound;
  }

  int64_t value_of(const OraclePage& page, const std::vector<Stay>& stays) const {
    int64_t value = 0;
    bool in = page.in_dram;
    auto gain = page.gains.begin();
    if (in && (stays.empty() || stays.front().from != page.birth)) {
      value -= cost_.demote_ps;
      in = false;
    }
    for (const Stay& stay : stays) {
      if (!in) value -= cost_.promote_ps;
      in = false;
      while (gain != page.gains.end() && gain->epoch < stay.from) ++gain;
      for (; gain != page.gains.end() && gain->epoch < stay.to; ++gain) value += gain->ps;
      if (stay.to != page.last + 1) value -= cost_.demote_ps;
    }
    return value;
  }

  const OracleCase& case_;
  MoveCost cost_;
  std::vector<int64_t> prices_, best_prices_;
  int64_t first_touch_;
  int64_t bound_ = std::numeric_limits<int64_t>::max();
};

}  // namespace

Placement best_static(const OracleCase& c) {
  if (c.epochs == 0) return {};
  PlaceFlow flow(c);
  for (const OraclePage& page : c.pages) {
    const int64_t gain = sum_of_gains(page);
    if (gain > 0) flow.arc(flow.hub(page.birth), flow.hub(page.last + 1), 1, -gain);
  }
  Placement placement;
  placement.saved_ps = placement.at_most_ps = -flow.solve() - first_touch_ps(c);
  return placement;
}

Placement best_dynamic(const OracleCase& c) {
  std::vector<std::vector<int64_t>> gains(c.epochs);
  for (const OraclePage& page : c.pages) {
    for (const Gain& gain : page.gains) gains[gain.epoch].push_back(gain.ps);
  }
  int64_t sum = 0;
  for (std::vector<int64_t>& epoch : gains) {
    const auto most = static_cast<std::ptrdiff_t>(std::min<uint64_t>(epoch.size(), c.capacity));
    std::nth_element(epoch.begin(), epoch.begin() + most, epoch.end(), std::greater<>());
    sum = std::accumulate(epoch.begin(), epoch.begin() + most, sum);
  }
  Placement placement;
  placement.saved_ps = placement.at_most_ps = sum - first_touch_ps(c);
  return placement;
}

Placement best_costed(const OracleCase& c, MoveCost cost, size_t exact_gains) {
  if (c.epochs == 0) return {};
  const size_t gains = std::accumulate(c.pages.begin(), c.pages.end(), size_t{0}, [](size_t sum, const OraclePage& p) {
    return sum + p.gains.size() + p.in_dram;
  });
  if (gains <= exact_gains) return costed_by_flow(c, cost);
  Relaxation relaxation(c, cost);
  Placement best;  // nothing is moved
  const int64_t base = first_touch_ps(c);
  // A plan raises the target of the next steps.
  for (const int rounds : {25, 35, 40}) {
    relaxation.lower(base + best.saved_ps, rounds);
    const Placement plan = relaxation.plan();
    if (plan.saved_ps > best.saved_ps) best = plan;
  }
  best.at_most_ps = std::max(best.saved_ps, relaxation.at_most());
  return best;
}

namespace {

neotier_page_counts_header read_header(std::ifstream& in, const std::filesystem::path& file) {
  neotier_page_counts_header header;
  if (!in.read(reinterpret_cast<char*>(&header), sizeof header) || header.magic != NEOTIER_PAGE_COUNTS_MAGIC) {
    throw std::runtime_error(fmt::format("{}: no whole file of counts of pages", file.string()));
  }
  return header;
}

}  // namespace

neotier_page_counts_header read_page_sums(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return read_header(in, file);
}

PageCounts read_page_counts(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  PageCounts counts;
  counts.header = read_header(in, file);
  const auto& header = counts.header;
  const uint64_t bytes = std::filesystem::file_size(file) - sizeof header;
  const auto whole = [&] {
    if (header.nr_counts > bytes / sizeof(neotier_page_count) || header.nr_pages > bytes / sizeof(neotier_page) ||
        header.nr_counts * sizeof(neotier_page_count) + header.nr_pages * sizeof(neotier_page) != bytes) {
      return false;
    }
    counts.counts.resize(header.nr_counts);
    counts.pages.resize(header.nr_pages);
    in.read(reinterpret_cast<char*>(counts.counts.data()),
            static_cast<std::streamsize>(header.nr_counts * sizeof(neotier_page_count)));
    in.read(reinterpret_cast<char*>(counts.pages.data()),
            static_cast<std::streamsize>(header.nr_pages * sizeof(neotier_page)));
    return in.good() &&
           std::all_of(
               counts.counts.begin(), counts.counts.end(),
               [&](const auto& count) { return count.page < header.nr_pages && count.epoch < header.nr_epochs; }) &&
           std::all_of(counts.pages.begin(), counts.pages.end(), [&](const auto& page) {
             return page.kind < NR_NEOTIER_PAGE_KIND && page.birth <= page.last && page.last < header.nr_epochs;
           });
  };
  if (!whole()) throw std::runtime_error(fmt::format("{}: no whole file of counts of pages", file.string()));
  return counts;
}

int64_t move_ps(const Params& params, uint64_t kernel_ns) {
  // Each line is read from one tier and, as stores allocate, filled from the other.
  return static_cast<int64_t>(kLines * (params.dram_ns + params.cxl_ns) * 1000 / params.mlp + kernel_ns * 1000);
}

OracleCase oracle_case(const PageCounts& counts, const Params& params, bool reach_only) {
  OracleCase c;
  const uint64_t merged = (counts.header.nr_epochs + kMostEpochs - 1) / kMostEpochs;
  if (merged == 0 || params.cxl_ns <= params.dram_ns) return c;
  c.epochs = static_cast<uint32_t>((counts.header.nr_epochs + merged - 1) / merged);
  const auto epoch_of = [merged](uint32_t epoch) { return static_cast<uint32_t>(epoch / merged); };
  std::vector<uint32_t> place(counts.pages.size(), UINT32_MAX);
  std::vector<int64_t> change(c.epochs + 1, 0);
  for (size_t i = 0; i < counts.pages.size(); ++i) {
    const neotier_page& page = counts.pages[i];
    if (page.locked || !page.seen || (reach_only && !in_reach(page.kind))) continue;
    place[i] = static_cast<uint32_t>(c.pages.size());
    c.pages.push_back({epoch_of(page.birth), epoch_of(page.last), page.cxl == 0, {}});
    if (page.cxl) continue;
    ++change[c.pages.back().birth];
    --change[c.pages.back().last + 1];
  }
  int64_t held = 0;
  for (const int64_t by : change) c.capacity = std::max(c.capacity, static_cast<uint64_t>(held += by));
  // What a fill cost here says what it would have cost there: both are the latency of the tier, overlapped alike.
  const auto apart = static_cast<double>(params.cxl_ns - params.dram_ns);
  const double in_dram = apart / static_cast<double>(params.dram_ns),
               in_cxl = apart / static_cast<double>(params.cxl_ns);
  for (const neotier_page_count& count : counts.counts) {
    if (place[count.page] == UINT32_MAX) continue;
    OraclePage& page = c.pages[place[count.page]];
    const auto ps = std::llround(static_cast<double>(count.stall_ps) * (page.in_dram ? in_dram : in_cxl));
    // A page that goes within an epoch was last seen at the end of the one before.
    const uint32_t epoch = std::min(epoch_of(count.epoch), page.last);
    if (ps <= 0) continue;
    if (!page.gains.empty() && page.gains.back().epoch == epoch)
      page.gains.back().ps += ps;
    else
      page.gains.push_back({epoch, ps});
  }
  return c;
}

double Oracle::speedup(int64_t saved_ps) const {
  const double whole = static_cast<double>(modelled_ns);
  return whole / std::max(whole - static_cast<double>(saved_ps) * 1e-3, 1.0);
}

double Oracle::beyond_reach() const {
  if (costed.saved_ps <= 0) return 0;
  return std::max(0.0, 1 - std::log(speedup(reached.saved_ps)) / std::log(speedup(costed.saved_ps)));
}

std::optional<double> Oracle::share_won(uint64_t ns) const {
  const double won = speedup(costed.saved_ps);
  if (won < kWorthSharing || ns == 0) return std::nullopt;
  return std::log(static_cast<double>(modelled_ns) / static_cast<double>(ns)) / std::log(won);
}

Oracle solve_oracle(const PageCounts& counts, const OracleOptions& options) {
  Oracle oracle;
  oracle.epoch_ns = counts.header.epoch_ps / 1000;
  oracle.epochs = counts.header.nr_epochs;
  oracle.modelled_ns = options.modelled_ns;
  const MoveCost cost = {move_ps(options.params, options.promote_ns), move_ps(options.params, options.demote_ns)};
  oracle.move_ns = static_cast<uint64_t>(cost.promote_ps) / 1000;
  const OracleCase all = oracle_case(counts, options.params, false);
  oracle.pages = all.pages.size();
  oracle.capacity = all.capacity;
  oracle.fixed = best_static(all);
  oracle.dynamic = best_dynamic(all);
  oracle.costed = best_costed(all, cost);
  const OracleCase reached = oracle_case(counts, options.params, true);
  if (reached.pages.size() == all.pages.size()) {
    oracle.reached = oracle.costed;
    return oracle;
  }
  oracle.reached = best_costed(reached, cost);
  // What may move less wins no more: a plan of the smaller case is one of the larger too.
  if (oracle.reached.saved_ps > oracle.costed.saved_ps) {
    const int64_t at_most = oracle.costed.at_most_ps;
    oracle.costed = oracle.reached;
    oracle.costed.at_most_ps = at_most;
  }
  return oracle;
}

}  // namespace neotier::hil
