// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "page_css.h"
#include "page_js.h"
#include "util/files.h"

namespace fs = std::filesystem;

namespace neotier::report {

namespace {

constexpr std::array<std::string_view, 3> kKinds = {"bars", "lines", "heatmap"};

// A script element ends at the first "</script", and "<!--" starts a comment in it, wherever they stand.
std::string script_safe(std::string text, std::string_view replacement) {
  for (std::string_view end : {"</script", "<!--"}) {
    for (size_t at = 0; (at = text.find(end, at)) != std::string::npos; at += replacement.size()) {
      text.replace(at, 1, replacement);
    }
  }
  return text;
}

std::string read_library(const std::string& name) {
  fs::path file = build_directory() / "report" / name;
  const fs::path installed = fs::read_symlink("/proc/self/exe").parent_path() / NEOTIER_CHARTS_FROM_BIN / name;
  if (!fs::exists(file) && fs::exists(installed)) file = installed;
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  if (!(text << in.rdbuf())) {
    throw std::runtime_error(fmt::format("the chart library is missing ({}); run 'scripts/bootstrap'", file.string()));
  }
  return text.str();
}

bool numeric(const std::string& cell) {
  const size_t at = cell.starts_with('-') || cell.starts_with('+') ? 1 : 0;
  return (cell.size() > at && std::isdigit(static_cast<unsigned char>(cell[at]))) || cell == "-";
}

// How a cell is set: a sentence wants room, a number stands at the right.
const char* kind(const std::string& cell) {
  if (cell.size() > 60) return " class=\"long\"";
  return numeric(cell) ? " class=\"n\"" : "";
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        // Control characters are no HTML; a page shows that something was there.
        out += static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return out;
}

Page::Page(std::string title, std::string lead) : title_(std::move(title)), lead_(std::move(lead)) {}

void Page::colour_order(const std::vector<std::string>& names) { colours_ = names; }

void Page::begin_block(bool of_charts) {
  if (of_charts && !in_charts_) body_ += "<div class=\"charts\">\n";
  if (!of_charts && in_charts_) body_ += "</div>\n";
  in_charts_ = of_charts;
}

void Page::section(const std::string& title) {
  begin_block(false);
  if (!sections_.empty()) body_ += "</section>\n";
  body_ += fmt::format("<section id=\"s{}\">\n<h2>{}</h2>\n", sections_.size(), escape_html(title));
  sections_.push_back(title);
}

void Page::heading(const std::string& title) {
  begin_block(false);
  body_ += fmt::format("<h3>{}</h3>\n", escape_html(title));
}

void Page::prose(const std::string& text) {
  begin_block(false);
  body_ += fmt::format("<p>{}</p>\n", escape_html(text));
}

void Page::table(const std::string& caption, const std::vector<std::string>& columns,
                 const std::vector<std::vector<std::string>>& rows) {
  begin_block(false);
  // Focusable, so that a keyboard can scroll a table that is wider than the window.
  body_ += fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
      "aria-label=\"{0}\"><table><caption>{0}</caption>\n<thead><tr>",
      escape_html(caption));
  for (size_t i = 0; i < columns.size(); ++i) {
    const bool right = i > 0 && !rows.empty() && i < rows[0].size() && numeric(rows[0][i]);
    body_ += fmt::format("<th scope=\"col\"{}>{}</th>", right ? " class=\"n\"" : "", escape_html(columns[i]));
  }
  body_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows) {
    if (row.size() != columns.size()) {
      throw std::invalid_argument(
          fmt::format("table '{}': a row of {} cells under {} columns", caption, row.size(), columns.size()));
    }
    body_ += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      if (i == 0) {
        body_ += fmt::format("<th scope=\"row\">{}</th>", escape_html(row[i]));
      } else {
        body_ += fmt::format("<td{}>{}</td>", kind(row[i]), escape_html(row[i]));
      }
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
}

void Page::definitions(const std::vector<Definition>& list) {
  begin_block(false);
  body_ += "<dl>\n";
  for (const Definition& entry : list) {
    body_ += fmt::format("<dt>{}</dt><dd>{}", escape_html(entry.term), escape_html(entry.text));
    if (!entry.see.empty()) body_ += fmt::format(" <span class=\"see\">{}</span>", escape_html(entry.see));
    body_ += "</dd>\n";
  }
  body_ += "</dl>\n";
}

size_t Page::add_chart(Json chart) {
  const std::string kind = chart.value("kind", "");
  if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end()) {
    throw std::invalid_argument(fmt::format("unknown kind of chart '{}'", kind));
  }
  charts_.push_back(std::move(chart));
  return charts_.size() - 1;
}

void Page::chart(Json chart) {
  begin_block(true);
  const std::string title = escape_html(chart.value("title", "")), note = escape_html(chart.value("note", ""));
  body_ += fmt::format(
      "<figure><figcaption><b>{}</b> <span>{}</span></figcaption>"
      "<div class=\"chart\" role=\"img\" aria-label=\"{}\" data-charts=\"{}\"></div></figure>\n",
      title, note, title, add_chart(std::move(chart)));
}

void Page::absent(const std::string& title, const std::string& why) {
  begin_block(true);
  body_ += fmt::format("<figure class=\"absent\"><figcaption><b>{}</b> <span>{}</span></figcaption></figure>\n",
                       escape_html(title), escape_html(why));
}

void Page::choice(const std::string& label, std::vector<std::pair<std::string, Json>> charts, size_t chosen) {
  if (charts.empty()) return;
  begin_block(true);
  chosen = std::min(chosen, charts.size() - 1);
  const std::string title = escape_html(charts[0].second.value("title", ""));
  const std::string note = escape_html(charts[chosen].second.value("note", ""));
  std::string buttons, indexes;
  for (size_t i = 0; i < charts.size(); ++i) {
    buttons += fmt::format("<button type=\"button\" aria-pressed=\"{}\">{}</button>", i == chosen,
                           escape_html(charts[i].first));
    indexes += fmt::format("{}{}", i == 0 ? "" : " ", add_chart(std::move(charts[i].second)));
  }
  body_ += fmt::format(
      "<figure class=\"wide\"><figcaption><b>{}</b> <span>{}</span></figcaption>"
      "<div class=\"choice\" role=\"group\" aria-label=\"{}\">{}</div>"
      "<div class=\"chart\" role=\"img\" aria-label=\"{}\" data-charts=\"{}\" data-chosen=\"{}\">"
      "</div></figure>\n",
      title, note, escape_html(label), buttons, title, indexes, chosen);
}

std::string Page::html() const {
  const std::string library = script_safe(read_library("echarts.min.js"), "\\x3c");
  const std::string licence = script_safe(read_library("LICENSE") + "\n" + read_library("NOTICE"), "<\\");
  // Strings with bytes that are no UTF-8 must not make a page impossible.
  std::string data =
      Json{{"charts", charts_}, {"colours", colours_}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (size_t at = 0; (at = data.find('<', at)) != std::string::npos;) data.replace(at, 1, "\\u003c");

  std::string contents;
  if (sections_.size() > 2) {
    contents = "<nav aria-label=\"Contents\"><ul>\n";
    for (size_t i = 0; i < sections_.size(); ++i) {
      contents += fmt::format("<li><a href=\"#s{}\">{}</a></li>\n", i, escape_html(sections_[i]));
    }
    contents += "</ul></nav>\n";
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
      "style-src 'unsafe-inline'; img-src data:\">\n"
      "<title>{0}</title>\n<style>\n{1}</style>\n</head>\n<body>\n<header>\n<h1>{0}</h1>\n<p>{2}</p>\n</header>\n{3}"
      "<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>\n<main>\n{4}{5}{6}</main>\n"
      "<footer><p>Charts: Apache ECharts, Apache-2.0; its licence is part of this file.</p></footer>\n"
      "<script type=\"text/plain\" id=\"echarts-licence\">\n{7}</script>\n"
      "<script type=\"application/json\" id=\"data\">{8}</script>\n<script>{9}</script>\n<script>\n{10}</script>\n"
      "</body>\n</html>\n",
      escape_html(title_), kPageCss, escape_html(lead_), contents, body_, in_charts_ ? "</div>\n" : "",
      sections_.empty() ? "" : "</section>\n", licence, data, library, kPageJs);
}

}  // namespace neotier::report
