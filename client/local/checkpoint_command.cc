#include "client/local/local_commands.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/local/checkpoint_files.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

struct Flags {
  std::string name;
  std::string print = "table";
  ExportRequest out;
  ImportRequest in;
};

int Verify(const Flags& flags) {
  const absl::StatusOr<CheckpointName> name = ParseCheckpointName(flags.name);
  if (!name.ok()) return Finish("checkpoint verify", name.status());
  const absl::StatusOr<VerifyReport> report = VerifyCheckpoints(*name, ForPrograms(flags.print));
  if (!report.ok()) return Finish("checkpoint verify", report.status());
  const int code = Finish("checkpoint verify", InFormat(flags.print, report->text));
  return code == kExitDone ? ExitCodeOf(report->status) : code;
}

absl::StatusOr<std::string> Describe(const Flags& flags) {
  const absl::StatusOr<CheckpointName> name = ParseCheckpointName(flags.name);
  if (!name.ok()) return name.status();
  return InFormat(flags.print, DescribeCheckpoint(*name, ForPrograms(flags.print)));
}

enum class Change { kPin, kUnpin, kDelete };

// Fails while a run writes to the store: its process owns it.
absl::StatusOr<std::string> Apply(Change change, const Flags& flags) {
  const absl::StatusOr<CheckpointName> name = ParseCheckpointName(flags.name);
  if (!name.ok()) return name.status();
  if (!name->step.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("say which: ", flags.name, "@STEP"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store,
                          OpenStore(name->directory, /*read_only=*/false));
  const int64_t step = *name->step;
  nlohmann::ordered_json json = {{"directory", name->directory}, {"step", step}};
  absl::Status status;
  const char* done = "";
  switch (change) {
    case Change::kPin:
      status = store->Pin(step);
      done = "is pinned";
      json["pinned"] = true;
      break;
    case Change::kUnpin:
      status = store->Unpin(step);
      done = "is no longer pinned";
      json["pinned"] = false;
      break;
    case Change::kDelete:
      status = store->Delete(step);
      done = "is deleted";
      json["deleted"] = true;
      break;
  }
  if (!status.ok()) return status;
  if (ForPrograms(flags.print)) return InFormat(flags.print, JsonText(json));
  return absl::StrCat("the checkpoint of step ", step, " ", done, "\n");
}

// `transfer` is ExportCheckpoint or ImportWeights.
template <class Request>
int Transfer(const char* command, const std::string& print, Request request,
             absl::StatusOr<std::string> (*transfer)(const Request&, std::vector<std::string>&)) {
  request.json = ForPrograms(print);
  std::vector<std::string> notices;
  const absl::StatusOr<std::string> text = transfer(request, notices);
  for (const std::string& notice : notices) Tell(command, notice);
  return Finish(command, InFormat(print, text));
}

}  // namespace

void AddCheckpointCommandWith(Command app, int& exit_code, const TakeOver& take_over) {
  auto flags = std::make_shared<Flags>();
  Command checkpoint =
      NounOf(app, "checkpoint", "Checkpoints of runs and jobs, and weights in and out");
  constexpr char kRun[] = "a run's output directory, or its checkpoint store";
  constexpr char kOne[] = "DIRECTORY@STEP; DIRECTORY alone: the newest";
  // `name` is one of the flags.
  const auto run = [flags, take_over, &exit_code](Command verb, const std::string& name,
                                                  std::function<int()> here) {
    verb.OnParsed([flags, take_over, &exit_code, verb, &name, here = std::move(here)] {
      const auto taken = TakenOver(take_over, {verb, name, flags->print});
      exit_code = taken ? *taken : here();
    });
  };

  Command list = checkpoint.AddSubcommand("list", "A line for each, oldest first");
  list.Add("DIRECTORY", flags->name, kRun).Required();
  AddOutputOption(list, flags->print);
  run(list, flags->name, [flags] {
    return Finish("checkpoint list",
                  InFormat(flags->print, ListCheckpoints(flags->name, ForPrograms(flags->print))));
  });

  Command describe =
      checkpoint.AddSubcommand("describe", "One at length: recipe timeline, tensors, slices");
  describe.Add("CHECKPOINT", flags->name, kOne).Required();
  AddOutputOption(describe, flags->print);
  run(describe, flags->name, [flags] { return Finish("checkpoint describe", Describe(*flags)); });

  Command verify = checkpoint.AddSubcommand("verify", "Read every byte and check it");
  verify.Add("CHECKPOINT", flags->name, "DIRECTORY@STEP; DIRECTORY alone: all of them").Required();
  AddOutputOption(verify, flags->print);
  run(verify, flags->name, [flags] { return Verify(*flags); });

  const struct {
    const char* verb;
    const char* help;
    Change change;
  } changes[] = {
      {"pin", "Keep it whatever the run's retention says", Change::kPin},
      {"unpin", "Leave it to the run's retention again", Change::kUnpin},
      {"delete", "Remove it; its space is free at once", Change::kDelete},
  };
  for (const auto& [verb, help, change] : changes) {
    Command command = checkpoint.AddSubcommand(verb, help);
    command.Add("CHECKPOINT", flags->name, "DIRECTORY@STEP").Required();
    AddOutputOption(command, flags->print);
    run(command, flags->name, [flags, verb = verb, change = change] {
      return Finish(absl::StrCat("checkpoint ", verb), Apply(change, *flags));
    });
  }

  Command out = checkpoint.AddSubcommand(
      "export", "Weights as a directory that Hugging Face's transformers loads");
  out.Add("CHECKPOINT", flags->out.source, kOne).Required();
  out.Add("TARGET", flags->out.directory, "directory to make").Required();
  out.Add("--format", flags->out.format, "of the files").OneOf({"safetensors"}).ShowDefault();
  out.Add("--dtype", flags->out.dtype, "bf16 or fp32").OneOf({"bf16", "fp32"}).ShowDefault();
  out.AddFlag("--quantised,--quantized", flags->out.quantised,
              "pack what the recipe in force keeps in NVFP4 (compressed-tensors)");
  out.Add("--recipe", flags->out.recipe, "pack by this preset instead, such as nvfp4");
  out.AddFlag("--overwrite", flags->out.overwrite, "replace a model that is there");
  AddOutputOption(out, flags->print);
  out.Footer("Example: nibble checkpoint export runs/quickstart@300 exported");
  run(out, flags->out.source, [flags] {
    return Transfer("checkpoint export", flags->print, flags->out, ExportCheckpoint);
  });

  Command in = checkpoint.AddSubcommand(
      "import", "Begin a job from weights: they become its checkpoint of step 0");
  in.Add("SOURCE", flags->in.source,
         "a Hugging Face directory, or a run's checkpoint: DIRECTORY@STEP")
      .Required();
  in.Add("--spec", flags->in.spec, "the job, as YAML").Required();
  AddOutputOption(in, flags->print);
  in.OnParsed([flags, &exit_code] {
    exit_code = Transfer("checkpoint import", flags->print, flags->in, ImportWeights);
  });
}

}  // namespace nibble
