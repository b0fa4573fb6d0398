#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/shell/command_line.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"

namespace nibble {
namespace {

// A name with a slash, or of an existing directory, with or without "@STEP".
bool IsDirectoryName(const std::string& name) {
  std::error_code ignored;
  return absl::StrContains(name, '/') || name.empty() ||
         std::filesystem::is_directory(name, ignored) ||
         std::filesystem::is_directory(name.substr(0, name.rfind('@')), ignored);
}

// A verb of either source.
using CheckpointVerb = CheckpointSource::Run CheckpointSource::*;

class CheckpointCommand {
 public:
  CheckpointCommand(Command app, int& exit_code, CheckpointSource directories,
                    CheckpointSource jobs)
      : noun_(NounOf(app, "checkpoint", "Checkpoints of runs and jobs; export, import, orphans")),
        exit_code_(exit_code),
        directories_(std::move(directories)),
        jobs_(std::move(jobs)) {}

  // `argument` and `about` are the name and the help of the positional.
  Command Add(const char* name, const char* help, const char* argument, const char* about,
              CheckpointVerb run) {
    Command verb = noun_.AddSubcommand(name, help);
    verb.Add(argument, flags_->name, about).Required();
    AddRemoteOptions(verb, flags_->remote);
    verb.OnParsed([this_command = *this, verb, run] { this_command.RunVerb(verb, run); });
    return verb;
  }

  CheckpointFlags& flags() { return *flags_; }
  Command noun() const { return noun_; }

 private:
  void RunVerb(Command verb, CheckpointVerb run) const {
    const std::string command = absl::StrCat("checkpoint ", verb.Name());
    const bool of_job = !flags_->remote.server.empty() || !IsDirectoryName(flags_->name);
    for (const char* name : of_job ? kOfDirectories : kOfJobs) {
      const std::optional<Option> option = verb.FindOption(name);
      if (!option || !option->Given()) continue;
      Tell(command, absl::StrCat(name, " applies to ",
                                 of_job ? "run directories only; '" : "jobs of a cluster only; '",
                                 flags_->name, "' is a ", of_job ? "job" : "directory"));
      exit_code_ = kExitUsage;
      return;
    }
    const CheckpointSource& source = of_job ? jobs_ : directories_;
    exit_code_ = Finish(command, flags_->remote.print, (source.*run)(*flags_));
  }

  static inline const std::vector<const char*> kOfDirectories = {"--dtype", "--quantised",
                                                                 "--recipe", "--overwrite"};
  static inline const std::vector<const char*> kOfJobs = {"--attempt", "--uncommitted", "--no-wait",
                                                          "--reason"};

  Command noun_;
  int& exit_code_;
  std::shared_ptr<CheckpointFlags> flags_ = std::make_shared<CheckpointFlags>();
  CheckpointSource directories_, jobs_;
};

void AddAttempt(Command verb, CheckpointFlags& flags) {
  verb.Add("--attempt", flags.attempt, "of a job: the attempt that took the checkpoint; 0: any")
      .AtLeast(0);
}

void AddWait(Command verb, CheckpointFlags& flags) {
  AddAttempt(verb, flags);
  verb.AddFlag("--no-wait", flags.no_wait, "of a job: request it and return at once");
  TimeoutEndsWait(verb);
}

}  // namespace

absl::Status StepMissing(const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat("checkpoint: '", name, "' has no step; name it ",
                                                 name, "@STEP, and run 'nibble checkpoint list ",
                                                 name, "' to see the steps"));
}

Command AddCheckpointCommand(Command app, int& exit_code, CheckpointSource directories,
                             CheckpointSource jobs) {
  CheckpointCommand command(app, exit_code, std::move(directories), std::move(jobs));
  CheckpointFlags& flags = command.flags();
  constexpr char kOne[] = "DIRECTORY@STEP or JOB@STEP; without a step: the newest";
  constexpr char kStep[] = "DIRECTORY@STEP or JOB@STEP";

  command
      .Add("list", "List checkpoints, oldest first", "RUN",
           "a run's output directory, its checkpoint store, or a job of a cluster",
           &CheckpointSource::list)
      .AddFlag("--uncommitted", flags.uncommitted,
               "of a job: include checkpoints that are still being written");

  const Command describe =
      command.Add("describe", "Describe a checkpoint: recipe timeline, tensors, shards",
                  "CHECKPOINT", kOne, &CheckpointSource::describe);
  AddAttempt(describe, flags);

  const Command verify = command.Add(
      "verify", "Read a checkpoint and check its checksums", "CHECKPOINT",
      "DIRECTORY@STEP or JOB@STEP; without a step: every checkpoint of a directory, a job's newest",
      &CheckpointSource::verify);
  AddWait(verify, flags);

  for (const auto& [name, help, run] :
       {std::tuple{"pin", "Exempt a checkpoint from retention", &CheckpointSource::pin},
        std::tuple{"unpin", "Subject a pinned checkpoint to retention again",
                   &CheckpointSource::unpin},
        std::tuple{"delete", "Delete a checkpoint", &CheckpointSource::remove}}) {
    AddAttempt(command.Add(name, help, "CHECKPOINT", kStep, run), flags);
  }
  command.noun().Subcommand("delete").Add("--reason", flags.reason,
                                          "of a job: the reason, for its events");

  const Command out = command.Add(
      "export", "Write the weights as a directory that Hugging Face's transformers loads",
      "CHECKPOINT", kOne, &CheckpointSource::write);
  out.Add("TARGET", flags.target,
          "directory to create; for a job, on the machine of the worker that writes it")
      .Required();
  out.Add("--format", flags.format, "file format").OneOf({"safetensors"}).ShowDefault();
  out.Add("--dtype", flags.dtype, "of a directory: element type, bf16 or fp32")
      .OneOf({"bf16", "fp32"})
      .ShowDefault();
  out.AddFlag("--quantised,--quantized", flags.quantised,
              "of a directory: pack the layers that the recipe in effect stores in NVFP4 "
              "(compressed-tensors)");
  out.Add("--recipe", flags.recipe, "of a directory: pack by this preset instead, such as nvfp4");
  out.AddFlag("--overwrite", flags.overwrite, "of a directory: replace a model in TARGET");
  AddWait(out, flags);
  out.Footer(
      "Examples: nibble checkpoint export runs/quickstart@300 exported\n"
      "          nibble checkpoint export train-1@100 exported");
  return command.noun();
}

}  // namespace nibble
