// nibble: the command line. Verbs that run here, without a cluster, are in client/local.
#include <CLI/CLI.hpp>

#include "client/local/quantize_command.h"

namespace {

// Exit codes: 0 done, 1 error, 2 usage.
constexpr int kUsage = 2;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Nibble: pretrain language models in 4-bit floating point", "nibble");
  app.set_version_flag("--version", "nibble 0.1.0");
  app.require_subcommand(1);
  int exit_code = 0;
  nibble::AddQuantizeCommand(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return exit_code;
}
