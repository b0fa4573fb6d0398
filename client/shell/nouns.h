// The nouns that work without a cluster and in one: `nibble job`, `recipe` and `checkpoint`. Each
// noun is defined once: verbs, options, help and the choice between its two sources, which run the
// verbs and render their replies. Rooms below add verbs that only one of them has.
//
// Ownership: the app keeps the verbs, their flags and their sources; `exit_code` outlives it.
// Thread-safety: none; one command runs in a process.
#ifndef NIBBLE_CLIENT_SHELL_NOUNS_H_
#define NIBBLE_CLIENT_SHELL_NOUNS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"

namespace nibble {

struct JobSpec;

// Runs a verb with its flags.
template <class Flags>
using VerbRun = std::function<absl::StatusOr<Reply>(const Flags&)>;

// ---- job ---------------------------------------------------------------------------------------

// Looks at the files of a valid spec's data; describes them. Errors: what is wrong with them.
using DataCheck = std::function<absl::StatusOr<std::string>(const JobSpec&)>;

// `nibble job show-defaults | validate`. An invalid spec is an error. Without a check, there is no
// option --data.
void AddJobCommand(Command app, int& exit_code, DataCheck check_data = nullptr);

// ---- recipe ------------------------------------------------------------------------------------

struct RecipeFlags {
  RemoteFlags remote;
  std::string recipe;                   // PRESET, or A of diff: a preset or a job
  std::string other;                    // B of diff: a preset or a revision
  std::string to;                       // of diff: a revision
  std::string model;                    // empty: the recipe is a job's
  std::vector<std::string> set, layer;  // changes of the recipe
  int64_t tokens = 0;
  int64_t sequence = 0;  // 0: the model's default
  int64_t revision = 0;  // 0: the whole timeline
  bool each = false;
};

// Recipes that verbs can compare and price: those of presets, or those of jobs.
struct RecipeSource {
  VerbRun<RecipeFlags> presets, diff, cost;
};

// `nibble recipe presets | fields | show | diff | cost`. `diff` and `cost` with --model, and
// `presets` without --server, need no cluster; otherwise `jobs` runs them. Returns the noun.
Command AddRecipeCommand(Command app, int& exit_code, RecipeSource jobs);

// ---- checkpoint --------------------------------------------------------------------------------

struct CheckpointFlags {
  RemoteFlags remote;
  std::string name;    // DIRECTORY[@STEP] or JOB[@STEP]
  std::string target;  // of export: the directory to create
  // For exports of directories.
  std::string format = "safetensors";
  std::string dtype = "bf16";  // or fp32
  bool quantised = false;      // by the recipe in effect at the checkpoint
  std::string recipe;          // quantise by this preset instead
  bool overwrite = false;
  // For jobs.
  int64_t attempt = 0;  // 0: any
  bool uncommitted = false;
  bool no_wait = false;
  std::string reason;
};

// Where checkpoints are stored: in the directories of runs on this machine, or by the workers of a
// cluster.
struct CheckpointSource {
  using Run = VerbRun<CheckpointFlags>;

  Run list, describe;
  Run verify;              // a damaged checkpoint is a reply with kExitError
  Run write;               // export
  Run pin, unpin, remove;  // StepMissing() if the name has no step
};

// InvalidArgument: the checkpoint's name needs a step.
absl::Status StepMissing(const std::string& name);

// `nibble checkpoint list | describe | verify | export | pin | unpin | delete`. A name with a
// slash, or of an existing directory, is looked up in `directories`; any other name, or any with
// --server, in `jobs`. Options of the other source are usage errors. Returns the noun.
Command AddCheckpointCommand(Command app, int& exit_code, CheckpointSource directories,
                             CheckpointSource jobs);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SHELL_NOUNS_H_
