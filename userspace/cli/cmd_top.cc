// SPDX-License-Identifier: Apache-2.0
// neotier top: ncurses around top/render.h.
#include <fmt/format.h>
#include <langinfo.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/top/render.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"

// After all else: its macros are called like other people's functions.
#define NCURSES_NOMACROS 1
#include <curses.h>

namespace neotier::cli {

namespace {

using top::Figures;
using top::Style;

struct Arguments {
  std::string socket, json, sysfs = kernel::kSysfsRoot;
  double interval_s = 2;
  bool once = false;
};

constexpr double kShortest = 0.1, kLongest = 60;

// A terminal in ncurses' hands; the destructor gives it back, whatever happened.
class Screen {
 public:
  Screen() {
    // newterm() reports what initscr() would end the program for.
    screen_ = newterm(nullptr, stdout, stdin);
    if (!screen_)
      throw std::runtime_error(fmt::format("top: the terminal '{}' is not known; --once prints without one",
                                           std::getenv("TERM") ? std::getenv("TERM") : ""));
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    curs_set(0);
    set_escdelay(50);
    const char* no_color = std::getenv("NO_COLOR");
    if (has_colors() && !(no_color && *no_color)) {
      start_color();
      use_default_colors();
      for (const auto& [style, color] : {std::pair{Style::kHead, COLOR_CYAN},
                                         {Style::kGood, COLOR_GREEN},
                                         {Style::kWarn, COLOR_YELLOW},
                                         {Style::kBad, COLOR_RED}})
        init_pair(static_cast<short>(style), static_cast<short>(color), -1);
      colors_ = true;
    }
  }
  ~Screen() {
    endwin();
    delscreen(screen_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void show(const std::vector<top::Line>& lines) {
    erase();
    for (size_t y = 0; y < lines.size(); y++) {
      move(static_cast<int>(y), 0);
      for (const top::Span& span : lines[y]) {
        const attr_t look = attributes(span.style);
        attron(look);
        addstr(span.text.c_str());
        attroff(look);
      }
    }
    refresh();
  }

 private:
  attr_t attributes(Style style) const {
    switch (style) {
      case Style::kPlain:
        return A_NORMAL;
      case Style::kDim:
        return A_DIM;
      case Style::kSelected:
        return A_REVERSE;
      case Style::kHead:
      case Style::kBad:
        return A_BOLD | (colors_ ? COLOR_PAIR(static_cast<int>(style)) : 0);
      case Style::kGood:
      case Style::kWarn:
        return colors_ ? COLOR_PAIR(static_cast<int>(style)) : A_NORMAL;
    }
    return A_NORMAL;
  }

  SCREEN* screen_ = nullptr;
  bool colors_ = false;
};

class Top {
 public:
  explicit Top(const Arguments& arguments) : source_(arguments.socket, arguments.sysfs) {
    look_.interval_s = arguments.interval_s;
    look_.unicode = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  }

  // Two samples, an interval apart, so that there are rates.
  Figures once() {
    const top::Sample before = source_.take();
    if (before.daemon.is_object() || before.kernel)
      std::this_thread::sleep_for(std::chrono::duration<double>(look_.interval_s));
    throw_if_interrupted();
    Figures figures = make_figures(before, source_.take());
    history_.add(figures);
    return figures;
  }
  std::string text(const Figures& figures) {
    const char* columns = std::getenv("COLUMNS");
    look_.width = columns ? std::max(40ul, std::strtoul(columns, nullptr, 10)) : 100;
    look_.height = 0;
    return plain(render(figures, history_, source_.socket(), look_));
  }

  void interactive() {
    Screen screen;
    catch_interrupts();
    double next = 0;
    while (!interrupted() && !quit_) {
      const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
      if (!look_.paused && now >= next) {
        top::Sample sample = source_.take();
        figures_ = make_figures(before_, sample);
        history_.add(figures_);
        before_ = std::move(sample);
        next = now + look_.interval_s;
      }
      look_.width = static_cast<size_t>(std::max(COLS, 1));
      look_.height = static_cast<size_t>(std::max(LINES, 2));
      screen.show(render(figures_, history_, source_.socket(), look_));
      timeout(look_.paused ? 500 : static_cast<int>(std::clamp((next - now) * 1000, 10.0, 500.0)));
      const int pressed = getch();
      if (pressed == ERR) continue;
      if (look_.editing) {
        edit(pressed);
      } else {
        key(pressed, next);
      }
    }
  }

 private:
  void key(int pressed, double& next) {
    const size_t knobs = tunable(figures_).size();
    if (pressed != KEY_RESIZE) look_.note.clear();
    switch (pressed) {
      case 'q':
        quit_ = true;
        return;
      case 'p':
      case ' ':
        look_.paused = !look_.paused;
        return;
      case '+':
      case '=':
        look_.interval_s = std::max(kShortest, look_.interval_s / 2);
        next = 0;
        return;
      case '-':
        look_.interval_s = std::min(kLongest, look_.interval_s * 2);
        return;
      case '?':
      case 'h':
        look_.help = !look_.help;
        return;
      case 't':
        look_.tune = !look_.tune;
        look_.help = false;
        return;
      case KEY_UP:
        if (look_.selected > 0) look_.selected--;
        return;
      case KEY_DOWN:
        if (look_.selected + 1 < knobs) look_.selected++;
        return;
      case '\n':
      case KEY_ENTER:
        if (!look_.tune || look_.selected >= knobs) return;
        if (geteuid() != 0) {
          look_.note = "only root changes knobs: run `neotier top` as root";
          return;
        }
        look_.editing = true;
        look_.input.clear();
        look_.note = "type a value, enter puts it into force, escape leaves it";
        return;
      default:
        return;
    }
  }

  void edit(int pressed) {
    if (pressed == 27) {
      look_.editing = false;
      look_.note.clear();
    } else if (pressed == '\n' || pressed == KEY_ENTER) {
      look_.editing = false;
      put_into_force();
    } else if (pressed == KEY_BACKSPACE || pressed == 127 || pressed == 8) {
      if (!look_.input.empty()) look_.input.pop_back();
    } else if (pressed >= ' ' && pressed <= '~' && look_.input.size() < 64) {
      look_.input += static_cast<char>(pressed);
    }
  }

  void put_into_force() {
    const std::vector<kernel::Value> knobs = tunable(figures_);
    if (look_.selected >= knobs.size()) return;
    const std::string& path = knobs[look_.selected].path;
    try {
      source_.module().set(path, look_.input);
      look_.note = fmt::format("{} is {} now", path, source_.module().get(path));
    } catch (const std::runtime_error& error) {
      look_.note = error.what();
    }
    if (const auto now = source_.module().read()) figures_.kernel = *now;
  }

  top::Source source_;
  top::History history_;
  top::Look look_;
  top::Sample before_;
  Figures figures_;
  bool quit_ = false;
};

int top_command(const Arguments& a) {
  std::setlocale(LC_ALL, "");
  OutputFile out("--json", a.json);
  Top top(a);
  if (!a.once && !out) {
    if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
      throw std::runtime_error("top: this is no terminal; --once prints one frame, --json - one object");
    top.interactive();
    return 0;
  }
  catch_interrupts();
  const Figures figures = top.once();
  if (out) {
    out.finish(pretty(to_json(figures, a.socket)));
  } else {
    std::fputs(top.text(figures).c_str(), stdout);
  }
  return figures.has_daemon || figures.has_kernel ? 0 : 1;
}

}  // namespace

void add_top(CLI::App& app, int& status) {
  auto a = std::make_shared<Arguments>();
  const char* socket = std::getenv("NEOTIERD_SOCKET");
  a->socket = socket ? socket : client::kDefaultSocket;
  CLI::App* command = app.add_subcommand("top", "Show neotierd and neotier.ko live");
  command->group(kMachine);
  command->footer(
      "examples:\n  neotier top\n  neotier top --socket /tmp/neotierd.sock --interval 0.5\n  neotier top --once\n"
      "  neotier top --json - --interval 1 | jq .daemon.rates_per_s.hits\n"
      "Keys: q quits, p pauses, + and - change the interval, t tunes the kernel module (root), ? helps.\n\n"
      "The exit status of --once and --json is 1 where there is neither of the two.");
  command->add_option("--socket", a->socket, "The socket of neotierd; $NEOTIERD_SOCKET may name it")
      ->type_name("FILE")
      ->capture_default_str();
  command->add_option("--sysfs", a->sysfs, "The kernel module's folder")->capture_default_str()->type_name("FOLDER");
  command->add_option("--interval", a->interval_s, "Seconds between two looks")
      ->capture_default_str()
      ->check(CLI::Range(kShortest, kLongest));
  command->add_flag("--once", a->once, "Print one frame as plain text, of as many columns as $COLUMNS says");
  add_json(*command, a->json);
  command->callback([a, &status] { status = top_command(*a); });
}

}  // namespace neotier::cli
