// nibble: the command line. Verbs that run here, without a cluster, are in client/local, those that
// speak to a coordinator in client/remote.
#include <CLI/CLI.hpp>

#include "client/cluster/cluster_command.h"
#include "client/local/checkpoint_command.h"
#include "client/local/command_line.h"
#include "client/local/data_command.h"
#include "client/local/eval_command.h"
#include "client/local/exit_code.h"
#include "client/local/generate_command.h"
#include "client/local/job_command.h"
#include "client/local/model_command.h"
#include "client/local/quantize_command.h"
#include "client/remote/checkpoint_verbs.h"
#include "client/remote/completion.h"
#include "client/remote/remote_commands.h"
#include "worker/weights/open_weights.h"

int main(int argc, char** argv) {
  CLI::App app("Nibble: pretrain language models in 4-bit floating point", "nibble");
  app.set_version_flag("--version", nibble::kVersionText);
  app.require_subcommand(1);
  app.footer(
      "'nibble help NOUN VERB' tells every option. To begin:\n"
      "  nibble cluster up\n"
      "  nibble job submit examples/quickstart.yaml --watch");
  int exit_code = nibble::kExitDone;
  const nibble::CheckpointVerbs checkpoints;
  nibble::AddCheckpointCommandWith(app, exit_code, checkpoints.take_over());
  checkpoints.AddOptions(app);
  nibble::AddClusterCommand(app, exit_code);
  nibble::AddDataCommand(app, exit_code);
  nibble::AddEvalCommand(app, exit_code, nibble::OpenWeights);
  nibble::AddGenerateCommand(app, exit_code, nibble::OpenWeights);
  nibble::AddJobCommand(app, exit_code);
  nibble::AddModelCommand(app, exit_code);
  nibble::AddQuantizeCommand(app, exit_code);
  nibble::AddRemoteCommands(app, exit_code);
  nibble::AddCompletionCommand(app, exit_code);
  nibble::AddHelpCommands(app, exit_code);
  return nibble::RunCommandLine(app, argc, argv, exit_code);
}
