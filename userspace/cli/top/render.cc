// SPDX-License-Identifier: Apache-2.0
#include "cli/top/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernel/module.h"
#include "util/size.h"

namespace neotier::top {

namespace {

size_t span_columns(const Line& line) {
  size_t sum = 0;
  for (const Span& span : line) sum += columns(span.text);
  return sum;
}

// The first `width` columns.
std::string cut(const std::string& text, size_t width) {
  size_t seen = 0, at = 0;
  while (at < text.size()) {
    size_t next = at + 1;
    while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xc0) == 0x80) next++;
    if (++seen > width) break;
    at = next;
  }
  return text.substr(0, at);
}

Line fit(Line line, size_t width) {
  size_t left = width;
  for (Span& span : line) {
    span.text = cut(span.text, left);
    left -= columns(span.text);
  }
  return line;
}

std::string padded(const std::string& text, size_t width) {
  const size_t has = columns(text);
  return has >= width ? cut(text, width) : text + std::string(width - has, ' ');
}

std::string size_text(double bytes) { return format_size(static_cast<uint64_t>(std::max(bytes, 0.0))); }
std::string speed(double bytes_per_s) { return short_number(bytes_per_s) + "B/s"; }

std::string duration(double seconds) {
  const auto s = static_cast<uint64_t>(std::max(seconds, 0.0));
  if (s >= 86400) return fmt::format("{}d{:02}h", s / 86400, s % 86400 / 3600);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
  return fmt::format("{}m{:02}s", s / 60, s % 60);
}

std::string latency(double ns) {
  return ns < 1e4   ? fmt::format("{:.1f} us", ns * 1e-3)
         : ns < 1e6 ? fmt::format("{:.0f} us", ns * 1e-3)
                    : fmt::format("{:.1f} ms", ns * 1e-6);
}

double of(const std::map<std::string, double>& rates, const char* name) {
  const auto it = rates.find(name);
  return it == rates.end() ? 0 : it->second;
}

Style full_style(double share) { return share > 0.98 ? Style::kBad : share > 0.9 ? Style::kWarn : Style::kGood; }

using Lines = std::vector<Line>;

Line section(const std::string& name, const std::string& rest) {
  return {{padded(name, 9), Style::kHead}, {rest, Style::kDim}};
}

void title(Lines& lines, const Figures& f, const std::string& socket, const Look& look) {
  const std::string interval = look.paused ? "PAUSED" : fmt::format("every {:g} s", look.interval_s);
  lines.push_back(
      {{"neotier top  ", Style::kHead},
       {padded(interval, 12), look.paused ? Style::kWarn : Style::kDim},
       {f.has_daemon ? fmt::format("neotierd {}, up {}, {}", f.pid, duration(f.uptime_s), socket) : "no neotierd",
        Style::kPlain}});
}

// What says what to do is not cut: it goes on in the next line, a word longer than a line too.
void wrapped(Lines& lines, const std::string& text, size_t width, Style style) {
  std::string rest = text;
  while (columns(rest) > width) {
    size_t end = rest.rfind(' ', width);
    if (end == std::string::npos || end < width / 3) end = width;
    lines.push_back({{rest.substr(0, end), style}});
    rest.erase(0, rest.find_first_not_of(' ', end));
    if (rest.empty()) return;
    rest.insert(0, 4, ' ');
  }
  lines.push_back({{rest, style}});
}

void nothing_there(Lines& lines, const Figures& f, const std::string& socket, size_t width) {
  lines.push_back({});
  wrapped(lines, "Nothing to show: there is neither a neotierd nor the kernel module.", width, Style::kWarn);
  lines.push_back({});
  wrapped(lines, f.problem, width, Style::kPlain);
  wrapped(lines,
          fmt::format("  a daemon:  neotierd --config docs/neotierd.toml   (this looked at {}; --socket PATH)", socket),
          width, Style::kPlain);
  wrapped(lines, fmt::format("  a module:  {}; it makes {}", kernel::kHowToLoad, kernel::kSysfsRoot), width,
          Style::kPlain);
}

void tiers(Lines& lines, const Figures& f, const Look& look) {
  lines.push_back(
      section("TIERS", fmt::format("used, objects ({} of {}, {} pins)", short_number(static_cast<double>(f.objects)),
                                   short_number(static_cast<double>(f.max_objects)), f.pins)));
  const size_t width = look.width > 100 ? 36 : look.width > 70 ? 18 : 10;
  for (const TierRow& t : f.tiers) {
    const double share = t.capacity > 0 ? t.used / t.capacity : 0;
    Line line = {{fmt::format(" {} ", padded(t.name, 8)), Style::kPlain}};
    if (t.in_service) {
      line.push_back({bar(share, width, look.unicode), full_style(share)});
    } else {
      line.push_back({padded("OUT OF SERVICE", columns(bar(0, width, look.unicode))), Style::kBad});
    }
    line.push_back({fmt::format(" {:5.1f} % {:>9} of {:>9} {:>7} ", share * 100, size_text(t.used),
                                size_text(t.capacity), short_number(static_cast<double>(t.objects))),
                    Style::kPlain});
    if (t.stand_in) line.push_back({"stand-in ", Style::kWarn});
    line.push_back({t.policy, Style::kDim});
    if (t.loads > 0 && look.width > 110)
      line.push_back(
          {fmt::format("  loads {}, p99 {}", latency(t.load_p50_ns), latency(t.load_p99_ns)), Style::kPlain});
    lines.push_back(std::move(line));
    if (t.nodes.empty()) continue;
    std::string where = " of it";
    for (const auto& [node, bytes] : t.nodes) where += fmt::format("  node {}: {}", node, size_text(bytes));
    lines.push_back({{fmt::format("{:10}", ""), Style::kPlain}, {where + "  (a sample)", Style::kDim}});
  }
}

void use(Lines& lines, const Figures& f, const History& history, const Look& look) {
  const size_t width = look.width > 100 ? 24 : 12;
  const auto spark = [&](const char* name, double top) {
    return sparkline(history.series(name), width, look.unicode, top);
  };
  lines.push_back({{padded("USE", 9), Style::kHead},
                   {f.hit_rate < 0 ? "       no use" : fmt::format("{:>8.1f} % hit", f.hit_rate * 100),
                    f.hit_rate < 0 ? Style::kDim : Style::kGood},
                   {fmt::format(" {} ", spark("hit_rate", 1)), Style::kGood},
                   {fmt::format("{}/s uses   put {}/s", short_number(of(f.rates, "hits") + of(f.rates, "misses")),
                                short_number(of(f.rates, "puts"))),
                    Style::kPlain}});
  lines.push_back({{padded("", 9), Style::kPlain},
                   {fmt::format("{:>8}/s req", short_number(of(f.rates, "requests"))), Style::kPlain},
                   {fmt::format(" {} ", spark("requests", 0)), Style::kGood},
                   {fmt::format("in {}  out {}  refused {}/s", speed(of(f.rates, "received_bytes")),
                                speed(of(f.rates, "sent_bytes")),
                                short_number(of(f.rates, "full_refusals") + of(f.rates, "limited_requests"))),
                    Style::kPlain}});
  lines.push_back(
      {{padded("MOVES", 9), Style::kHead},
       {fmt::format("{:>9}B/s ", short_number(of(f.rates, "moved_bytes"))), Style::kPlain},
       {fmt::format(" {} ", spark("moved_bytes", 0)), Style::kGood},
       {fmt::format("up {}/s  down {}/s  dropped {}/s  {} jobs",
                    short_number(of(f.rates, "promotions") + of(f.rates, "demand_loads") + of(f.rates, "prefetches")),
                    short_number(of(f.rates, "demotions")),
                    short_number(of(f.rates, "clean_drops") + of(f.rates, "discards")), f.jobs),
        Style::kPlain}});
}

void links(Lines& lines, const Figures& f, size_t most) {
  if (f.links.empty() || most == 0) return;
  lines.push_back(section("LINKS", fmt::format("{:<8}   {:<8} {:>10} {:>11} {:>9} {:>9}", "from", "to", "now",
                                               "measured", "latency", "queued")));
  for (size_t i = 0; i < std::min(most, f.links.size()); i++) {
    const LinkRow& l = f.links[i];
    lines.push_back({{fmt::format("         {} > {} {:>10} {:>11} {:>9} {:>9}", padded(l.from, 8), padded(l.to, 8),
                                  speed(l.flow), speed(l.bandwidth), latency(l.latency_ns), size_text(l.queued)),
                      l.flow > 0 || l.queued > 0 ? Style::kPlain : Style::kDim}});
  }
}

void clients(Lines& lines, const Figures& f, size_t most) {
  if (most < 2) return;
  lines.push_back(section("CLIENTS", fmt::format("{} of {}", f.clients.size(), f.max_clients)));
  lines.push_back({{fmt::format("  {:>5} {:<14} {:>7} {:>6} {:>8} {:>8} {:>8} {:>5} {:>9}", "id", "name", "pid", "uid",
                                "req/s", "in", "out", "pins", "pinned"),
                    Style::kDim}});
  const size_t room = most - 2;
  for (size_t i = 0; i < std::min(room, f.clients.size()); i++) {
    const ClientRow& c = f.clients[i];
    if (i + 1 == room && f.clients.size() > room) {
      lines.push_back({{fmt::format("  and {} more", f.clients.size() - i), Style::kDim}});
      break;
    }
    lines.push_back(
        {{fmt::format("  {:>5} {} {:>7} {:>6} {:>8} {:>8} {:>8} {:>5} {:>9}", c.id, padded(c.name, 14), c.pid, c.uid,
                      short_number(c.requests), speed(c.received), speed(c.sent), c.pins, size_text(c.pinned)),
          Style::kPlain}});
  }
}

constexpr size_t kWhyIndent = 9;

void kernel_part(Lines& lines, const Figures& f, const History& history, const Look& look) {
  if (!f.has_kernel) {
    lines.push_back(section("KERNEL", "neotier.ko is not loaded"));
    return;
  }
  const auto knob = [&](const char* name) -> std::string {
    for (const kernel::Value& value : f.kernel.knobs) {
      if (value.path == name) return value.text;
    }
    return "?";
  };
  const size_t width = look.width > 100 ? 24 : 12;
  const bool on = knob("enabled") != "0";
  lines.push_back({{padded("KERNEL", 9), Style::kHead},
                   {fmt::format("{:>5} pages/s", short_number(of(f.kernel_rates, "promoted"))), Style::kPlain},
                   {fmt::format(" {} ", sparkline(history.series("promoted"), width, look.unicode)), Style::kGood},
                   {on ? knob("dry_run") == "1" ? "dry run, " : "" : "OFF, ", Style::kWarn},
                   {fmt::format("{}, quota {} MiB/s ({:.0f} % used)", knob("policy"), knob("quota_mb_per_s"),
                                100 * of(f.kernel_rates, "tried") * 4096 / 1048576 /
                                    std::max(1.0, std::strtod(knob("quota_mb_per_s").c_str(), nullptr))),
                    Style::kPlain}});
  lines.push_back(
      {{fmt::format("         failed {}/s  ping-pong {}/s  waits for room {}/s  no quota {}/s  lost {}/s",
                    short_number(of(f.kernel_rates, "promote_failed")), short_number(of(f.kernel_rates, "ping_pong")),
                    short_number(of(f.kernel_rates, "room_waits")), short_number(of(f.kernel_rates, "skipped_quota")),
                    short_number(of(f.kernel_rates, "lost_tap") + of(f.kernel_rates, "lost_ring") +
                                 of(f.kernel_rates, "lost_candidates"))),
        Style::kPlain}});
  if (!f.why.summary.empty() && look.width > kWhyIndent)
    wrapped(lines, std::string(kWhyIndent, ' ') + f.why.summary, look.width,
            f.why.promoted > 0 ? Style::kPlain : Style::kWarn);
  for (const kernel::Device& device : f.kernel.devices) {
    const auto info = [&](const char* name) {
      const auto it = device.info.find(name);
      return it == device.info.end() ? std::string("?") : it->second;
    };
    std::string threshold = "?";
    for (const kernel::Value& value : device.knobs) {
      if (value.path.ends_with("/threshold")) threshold = value.text;
    }
    std::deque<double> bins;
    for (const auto& [low, pages] : device.histogram) bins.push_back(std::log2(1 + static_cast<double>(pages)));
    while (!bins.empty() && bins.back() == 0) bins.pop_back();
    lines.push_back({{fmt::format("         {} node {} > {}  threshold {}  {} of {} pages hot  ", device.name,
                                  info("node"), info("target_node"), threshold, info("hot_units"), info("occupancy")),
                      Style::kPlain},
                     {info("state") + " ", info("state") == "running" ? Style::kGood : Style::kBad},
                     {sparkline(bins, 16, look.unicode), Style::kDim}});
  }
}

void knobs_part(Lines& lines, const Figures& f, const Look& look, size_t most) {
  const std::vector<kernel::Value> all = tunable(f);
  lines.push_back(
      section("TUNE", all.empty() ? "neotier.ko is not loaded" : "up, down: choose   enter: edit   t: back"));
  if (all.empty() || most < 3) return;
  const size_t room = most - 2, first = look.selected < room ? 0 : look.selected - room + 1;
  for (size_t i = first; i < std::min(all.size(), first + room); i++) {
    const bool chosen = i == look.selected;
    const kernel::Value& v = all[i];
    const std::string value = chosen && look.editing ? look.input + "_" : v.text;
    const std::string more = v.choices.empty() ? v.knob->help : fmt::format("{}", fmt::join(v.choices, ", "));
    lines.push_back({{fmt::format(" {} {} {} {}", chosen ? ">" : " ", padded(v.path, 26), padded(value, 14),
                                  padded(v.knob->unit, 12)),
                      chosen ? Style::kSelected : Style::kPlain},
                     {fmt::format(" {}", more), Style::kDim}});
  }
}

void help(Lines& lines) {
  for (const char* text : {
           "q         quit",
           "p, space  pause: figures stand still, so that they can be read",
           "+ -       shorter, longer interval",
           "t         tune the kernel module: up, down choose; enter edits; escape leaves",
           "?         this help",
           "",
           "TIERS     how full; above its high watermark a tier gives objects to the next",
           "USE       hits: uses of objects that were there; refused: no room, or a limit",
           "MOVES     up: on demand, prefetch, heat; dropped: kept elsewhere, or made anew",
           "LINKS     what goes over each now, and what it can do as measured",
           "KERNEL    pages promoted; the graph at the right: pages by hotness, hot last",
       })
    lines.push_back({{text, Style::kPlain}});
}

}  // namespace

size_t columns(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string bar(double value, size_t width, bool unicode) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  value = std::clamp(value, 0.0, 1.0);
  std::string text;
  if (!unicode) {
    const auto full = static_cast<size_t>(std::lround(value * static_cast<double>(width)));
    return fmt::format("[{:#<{}}{:.<{}}]", "", full, "", width - full);
  }
  const auto eighths = static_cast<size_t>(std::lround(value * static_cast<double>(width) * 8));
  for (size_t i = 0; i < eighths / 8; i++) text += "█";
  text += kEighths[eighths % 8];
  for (size_t i = (eighths + 7) / 8; i < width; i++) text += "·";
  return text;
}

std::string sparkline(const std::deque<double>& values, size_t width, bool unicode, double top) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr char kLetters[] = "_.,-=+*#";
  const size_t shown = std::min(width, values.size());
  std::string text(width - shown, ' ');
  if (top <= 0) {
    for (size_t i = values.size() - shown; i < values.size(); i++) top = std::max(top, values[i]);
  }
  for (size_t i = values.size() - shown; i < values.size(); i++) {
    const double share = top > 0 ? std::clamp(values[i] / top, 0.0, 1.0) : 0;
    const auto level = static_cast<size_t>(std::lround(share * 7));
    if (unicode) {
      text += kBlocks[level];
    } else {
      text += kLetters[level];
    }
  }
  return text;
}

std::string short_number(double value) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  int unit = 0;
  while (std::abs(value) >= 999.5 && unit < 5) {
    value /= 1000;
    unit++;
  }
  if (unit == 0)
    return value == std::floor(value) || value >= 10 ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}", value);
  return fmt::format("{:.{}f}{}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kUnits[unit]);
}

std::vector<kernel::Value> tunable(const Figures& figures) {
  std::vector<kernel::Value> all;
  if (!figures.has_kernel) return all;
  all = figures.kernel.knobs;
  for (const kernel::Device& device : figures.kernel.devices)
    all.insert(all.end(), device.knobs.begin(), device.knobs.end());
  return all;
}

std::vector<Line> render(const Figures& f, const History& history, const std::string& socket, const Look& look) {
  Lines lines;
  title(lines, f, socket, look);
  const size_t height = look.height ? look.height : SIZE_MAX;
  const auto left = [&](size_t keep) { return height > lines.size() + keep ? height - lines.size() - keep : 0; };
  if (look.help) {
    lines.push_back({});
    help(lines);
  } else if (!f.has_daemon && !f.has_kernel) {
    nothing_there(lines, f, socket, look.width);
  } else {
    if (f.has_daemon) {
      tiers(lines, f, look);
      use(lines, f, history, look);
    } else {
      lines.push_back({{f.problem, Style::kDim}});
    }
    kernel_part(lines, f, history, look);
    if (look.tune) {
      knobs_part(lines, f, look, left(1));
    } else if (f.has_daemon) {
      // Clients get half of what is left, links the rest, the last line is the keys'.
      const size_t rest = left(1), wanted = f.clients.size() + 2;
      const size_t for_clients =
          std::min(wanted, std::max(rest / 2, rest > f.links.size() + 1 ? rest - f.links.size() - 1 : 0));
      links(lines, f, rest > for_clients + 1 ? rest - for_clients - 1 : 0);
      clients(lines, f, left(1));
    }
  }
  if (look.height) {
    if (lines.size() > look.height - 1) lines.resize(look.height - 1);
    while (lines.size() < look.height - 1) lines.push_back({});
    lines.push_back(look.note.empty() ? Line{{"q quit  p pause  +/- interval  t tune  ? help", Style::kDim}}
                                      : Line{{look.note, Style::kWarn}});
  }
  for (Line& line : lines) {
    if (span_columns(line) > look.width) line = fit(std::move(line), look.width);
  }
  return lines;
}

std::string plain(const std::vector<Line>& lines) {
  std::string text;
  for (const Line& line : lines) {
    std::string row;
    for (const Span& span : line) row += span.text;
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

}  // namespace neotier::top
