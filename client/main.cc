// nibble: the command line. The nouns are in client/shell; verbs that run on this machine are in
// client/local, those that call a coordinator in client/remote.
#include "client/cluster/cluster_command.h"
#include "client/local/local_commands.h"
#include "client/remote/remote_commands.h"
#include "client/sensitivity/sensitivity_command.h"
#include "client/shell/command_line.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/files/truncated_files.h"
#include "common/process/standard_descriptors.h"
#include "worker/corpus/data_sources.h"
#include "worker/interop/hf_import.h"

int main(int argc, char** argv) {
  nibble::ReserveStandardDescriptors();
  nibble::ReportTruncatedFiles("nibble: ", nibble::kExitError);
  nibble::CommandLine app("Nibble: pretrain language models in 4-bit floating point", "nibble");
  app.SetVersion(nibble::VersionText());
  app.RequireSubcommand();
  int exit_code = nibble::kExitDone;
  const nibble::Command checkpoint = nibble::AddCheckpointCommand(
      app, exit_code, nibble::DirectoryCheckpoints(), nibble::JobCheckpoints());
  nibble::AddImportVerb(checkpoint, exit_code);
  nibble::AddObjectStoreVerbs(checkpoint, exit_code);
  nibble::AddClusterCommand(app, exit_code);
  nibble::AddDataCommand(app, exit_code);
  nibble::AddEvalCommand(app, exit_code, nibble::OpenWeights);
  nibble::AddGenerateCommand(app, exit_code, nibble::OpenWeights);
  nibble::AddJobCommand(app, exit_code, nibble::CheckDataSources);
  nibble::AddModelCommand(app, exit_code);
  nibble::AddQuantizeCommand(app, exit_code);
  nibble::AddRemoteCommands(app, exit_code);
  nibble::AddSensitivityVerb(app, exit_code);
  nibble::AddCompletionCommand(app, exit_code);
  nibble::AddHelpCommands(app, exit_code);
  // Last: commands that are added later would inherit it.
  app.Footer(
      "'nibble help NOUN VERB' describes every option. To begin:\n"
      "  nibble cluster up\n"
      "  nibble job submit examples/quickstart.yaml --watch");
  return nibble::RunCommandLine(app, argc, argv, exit_code);
}
