// SPDX-License-Identifier: Apache-2.0
// neotier: the command. One file per group of subcommands; this one only puts them together.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "cli/commands.h"
#include "cli/words.h"
#include "neotier/standard_output.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"NeoTier: CXL memory tiering by hardware page hotness"};
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("neotier: ") + error.what() + "; --help shows what is possible\n";
  });
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
  try {
    if (const std::string wrong = neotier::cli::wrong_word(app, {argv + 1, argv + argc}); !wrong.empty()) {
      fmt::print(stderr, "neotier: {}; --help shows what is possible\n", wrong);
      return 2;
    }
    app.parse(argc, argv);
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
