// SPDX-License-Identifier: Apache-2.0
// Self-contained HTML pages: prose, tables and charts in one file that needs no network. The file carries its style,
// its script (userspace/report/), the chart library (Apache ECharts) and its data. Light and dark, narrow and wide.
//
// Every string is untrusted and is escaped; a page loads nothing and cannot be made to (its content security policy
// forbids it). Not thread-safe.
//
// A chart is JSON:
//   {"kind": "bars", "title", "note", "unit", "categories": [name…],
//    "series": [{"name", "values": [number or null…], "low": […], "high": […]}…], "stacked": false,
//    "bounds": [{"name", "value"}…]}
//       horizontal bars, one group a category; low and high draw the spread; bounds are dashed lines.
//   {"kind": "lines", "title", "note", "x": {"name", "unit", "log": false}, "y": {"name", "unit", "log": false, "max"},
//    "series": [{"name", "points": [[x, y]…], "bound": false, "step": false, "dots": false}…], "marks": [{"x",
//    "name"}…]}
//       bound: dashed and grey; step: holds each value until the next; marks are vertical lines.
//   {"kind": "heatmap", "title", "note", "unit", "x": {"name", "unit", "start", "step"}, "y": {"name"},
//    "rows": [{"name", "values": [number…]}…], "breaks": [{"row", "name"}…]}
//       rows from the bottom up, colour by the logarithm of the value, 0 is empty; breaks are horizontal lines before a
//       row.
// Series and categories of the same name have the same colour all over a page.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace neotier::report {

using Json = nlohmann::ordered_json;

struct Definition {
  std::string term, text;
  std::string see;  // where there is more, as a path or address shown as text; may be empty
};

class Page {
 public:
  Page(std::string title, std::string lead);

  // Names that take the palette's first colours, in this order; all others follow as they appear.
  void colour_order(const std::vector<std::string>& names);
  // A heading, with an entry in the table of contents. Everything until the next one belongs to it.
  void section(const std::string& title);
  void heading(const std::string& title);  // below a section
  void prose(const std::string& text);
  // Cells that begin with a digit or sign are aligned to the right. Throws std::invalid_argument if a row has not as
  // many cells as there are columns.
  void table(const std::string& caption, const std::vector<std::string>& columns,
             const std::vector<std::vector<std::string>>& rows);
  void definitions(const std::vector<Definition>& list);
  // In the place of a chart that there is nothing for: why.
  void absent(const std::string& title, const std::string& why);
  // Neighbouring charts share a line where the window is wide enough. Throws std::invalid_argument on an unknown kind.
  void chart(Json chart);
  // One of several charts is shown, the reader chooses by its name; `chosen` is shown first.
  void choice(const std::string& label, std::vector<std::pair<std::string, Json>> charts, size_t chosen = 0);

  // The page as text. Throws std::runtime_error with one line if the chart library is missing.
  std::string html() const;

 private:
  void begin_block(bool of_charts);
  size_t add_chart(Json chart);

  std::string title_, lead_, body_;
  std::vector<std::string> sections_;
  bool in_charts_ = false;
  Json charts_ = Json::array(), colours_ = Json::array();
};

std::string escape_html(const std::string& text);

}  // namespace neotier::report
