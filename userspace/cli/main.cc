// SPDX-License-Identifier: Apache-2.0
// neotier: the command. One file per group of subcommands; this one only puts them together.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app{"NeoTier: CXL memory tiering by hardware page hotness"};
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("neotier: ") + error.what() + "; --help shows what is possible\n";
  });
  int status = 0;
  neotier::cli::add_hil(app, status);
  neotier::cli::add_kv(app, status);
  neotier::cli::add_trace(app, status);
  neotier::cli::add_moe(app, status);
  neotier::cli::add_bench(app, status);
  neotier::cli::add_engine(app, status);
  neotier::cli::add_model(app, status);
  neotier::cli::add_top(app, status);
  neotier::cli::add_kernel(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "neotier: %s\n", error.what());
    return 1;
  }
  return status;
}
