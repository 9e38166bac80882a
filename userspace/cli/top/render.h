// SPDX-License-Identifier: Apache-2.0
// Figures as lines of text: pure, so that a terminal, --once and tests see the same.
#pragma once

#include <string>
#include <vector>

#include "cli/top/figures.h"

namespace neotier::top {

enum class Style : uint8_t { kPlain, kHead, kDim, kGood, kWarn, kBad, kSelected };

struct Span {
  std::string text;
  Style style = Style::kPlain;
};
using Line = std::vector<Span>;

struct Look {
  size_t width = 80, height = 24;  // height 0: as many lines as it takes
  bool unicode = true;
  bool paused = false;
  bool help = false;
  bool tune = false;        // the module's knobs instead of the clients
  size_t selected = 0;      // knob
  bool editing = false;     // `input` is being typed
  std::string input, note;  // note: what the last change came to
  double interval_s = 2;
};

// The module's knobs, devices' included, in the order in which they are shown.
std::vector<kernel::Value> tunable(const Figures& figures);

// At most look.height lines of at most look.width columns.
std::vector<Line> render(const Figures& figures, const History& history, const std::string& socket, const Look& look);

std::string plain(const std::vector<Line>& lines);

// Exposed for tests. `value` in 0..1, `width` columns.
std::string bar(double value, size_t width, bool unicode);
// The last `width` values, the largest as high as it gets; `top` above 0: that is as high as it gets.
std::string sparkline(const std::deque<double>& values, size_t width, bool unicode, double top = 0);
// 1234567 as "1.23M", four to six columns.
std::string short_number(double value);
// Columns that UTF-8 text takes; all characters used here take one.
size_t columns(const std::string& text);

}  // namespace neotier::top
