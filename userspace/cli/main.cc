// SPDX-License-Identifier: Apache-2.0
// neotier: the command. One file per group of subcommands; this one only puts them together.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/words.h"
#include "neotier/standard_output.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"NeoTier: CXL memory tiering by hardware page hotness, and tiers of memory for LLM serving", "neotier"};
  neotier::cli::set_manner(app);
  app.footer(
      "examples:\n"
      "  neotier hil compare --policies none,neotier -- sort -n numbers.txt\n"
      "  neotier kv bench --synthetic chat --count 40\n"
      "  neotier tiers --tiers dram=1G");
  int status = 0;
  neotier::cli::add_hil(app, status);
  neotier::cli::add_kv(app, status);
  neotier::cli::add_trace(app, status);
  neotier::cli::add_replay(app, status);
  neotier::cli::add_score(app, status);
  neotier::cli::add_moe(app, status);
  neotier::cli::add_bench(app, status);
  neotier::cli::add_engine(app, status);
  neotier::cli::add_model(app, status);
  neotier::cli::add_top(app, status);
  neotier::cli::add_kernel(app, status);
  neotier::cli::check_whole_numbers(app);
  std::string share;
  app.add_option("--write-share", share, "Write man pages and shell completion below FOLDER")->group("");
  neotier::cli::finish_manner(app);
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (const std::string wrong = neotier::cli::wrong_word(app, words); !wrong.empty()) {
      fmt::print(stderr, "neotier: {}\n", wrong);
      return 2;
    }
    const CLI::App* unfinished = neotier::cli::unfinished(app, words);
    app.parse(argc, argv);
    if (!share.empty()) {
      neotier::cli::write_share(app, share);
    } else if (unfinished) {
      // Whoever types a command without its second word wants to know which there are.
      std::fputs(unfinished->help().c_str(), stderr);
      return 2;
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    // A full disk behind standard output is told of once, by neotier_finish_output().
    if (!std::ferror(stdout)) std::fprintf(stderr, "neotier: %s\n", error.what());
    return std::ferror(stdout) ? 0 : 1;
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  neotier_open_standard_streams();
  return neotier_finish_output("neotier", run(argc, argv));
}
