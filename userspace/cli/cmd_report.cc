// SPDX-License-Identifier: Apache-2.0
// neotier hil report
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "hil/html_report.h"
#include "util/files.h"
#include "util/output_file.h"

namespace fs = std::filesystem;

namespace neotier::cli {

void add_hil_report(CLI::App& hil, int& status) {
  struct Arguments {
    std::vector<fs::path> files;
    fs::path out;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* report = hil.add_subcommand("report", "Make one HTML page with plots from runs");
  report->footer(
      "example:\n  neotier hil compare --policies none,numab,neotier,ideal --timeline --json out/gups.json -- "
      "build/bin/gups --table 240 --hot 32 --updates 20000000\n  neotier hil report out/gups.json -o out/report.html");
  report
      ->add_option("RUNS", arguments->files,
                   "JSON files of `neotier hil run` and `neotier hil compare`; --timeline gives most plots")
      ->required();
  add_output(*report, arguments->out, "The HTML page to write")->required();
  report->callback([arguments, &status] {
    OutputFile page("--output", arguments->out);
    for (const fs::path& file : arguments->files) refuse_input_as_output("--output", file, arguments->out);
    const auto runs = hil::load_runs(arguments->files);
    page.finish(hil::html_report(runs).html());
    note(fmt::format("{} runs: {}", runs.size(), arguments->out.string()));
    status = 0;
  });
}

}  // namespace neotier::cli
