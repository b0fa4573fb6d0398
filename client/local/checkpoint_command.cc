#include "client/local/checkpoint_command.h"

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
#include "client/local/checkpoint_report.h"
#include "client/local/checkpoint_transfer.h"
#include "client/local/exit_code.h"
#include "client/local/finish.h"
#include "client/local/json_text.h"
#include "client/local/noun.h"
#include "client/local/output_format.h"

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

// Not while a run writes there: its process owns the store.
absl::StatusOr<std::string> Apply(Change change, const Flags& flags) {
  const absl::StatusOr<CheckpointName> name = ParseCheckpointName(flags.name);
  if (!name.ok()) return name.status();
  if (!name->step.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("say which: ", flags.name, "@STEP"));
  }
  const absl::StatusOr<std::unique_ptr<CheckpointStore>> store =
      OpenStore(name->directory, /*read_only=*/false);
  if (!store.ok()) return store.status();
  const int64_t step = *name->step;
  nlohmann::ordered_json json = {{"directory", name->directory}, {"step", step}};
  absl::Status status;
  const char* done = "";
  switch (change) {
    case Change::kPin:
      status = (*store)->Pin(step);
      done = "is pinned";
      json["pinned"] = true;
      break;
    case Change::kUnpin:
      status = (*store)->Unpin(step);
      done = "is no longer pinned";
      json["pinned"] = false;
      break;
    case Change::kDelete:
      status = (*store)->Delete(step);
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

void AddCheckpointCommand(CLI::App& app, int& exit_code) {
  AddCheckpointCommandWith(app, exit_code, nullptr);
}

void AddCheckpointCommandWith(CLI::App& app, int& exit_code, const TakeOver& take_over) {
  auto flags = std::make_shared<Flags>();
  CLI::App* checkpoint =
      NounOf(app, "checkpoint", "Checkpoints of runs and jobs, and weights in and out");
  constexpr char kRun[] = "a run's output directory, or its checkpoint store";
  constexpr char kOne[] = "DIRECTORY@STEP; DIRECTORY alone: the newest";
  // `name` is one of the flags.
  const auto run = [flags, take_over, &exit_code](CLI::App* verb, const std::string& name,
                                                  std::function<int()> here) {
    verb->callback([flags, take_over, &exit_code, verb, &name, here = std::move(here)] {
      const auto taken = TakenOver(take_over, {verb, name, flags->print});
      exit_code = taken ? *taken : here();
    });
  };

  CLI::App* list = checkpoint->add_subcommand("list", "A line for each, oldest first");
  list->add_option("DIRECTORY", flags->name, kRun)->required();
  AddOutputOption(list, flags->print);
  run(list, flags->name, [flags] {
    return Finish("checkpoint list",
                  InFormat(flags->print, ListCheckpoints(flags->name, ForPrograms(flags->print))));
  });

  CLI::App* describe =
      checkpoint->add_subcommand("describe", "One at length: recipe timeline, tensors, slices");
  describe->add_option("CHECKPOINT", flags->name, kOne)->required();
  AddOutputOption(describe, flags->print);
  run(describe, flags->name, [flags] { return Finish("checkpoint describe", Describe(*flags)); });

  CLI::App* verify = checkpoint->add_subcommand("verify", "Read every byte and check it");
  verify->add_option("CHECKPOINT", flags->name, "DIRECTORY@STEP; DIRECTORY alone: all of them")
      ->required();
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
    CLI::App* command = checkpoint->add_subcommand(verb, help);
    command->add_option("CHECKPOINT", flags->name, "DIRECTORY@STEP")->required();
    AddOutputOption(command, flags->print);
    run(command, flags->name, [flags, verb = verb, change = change] {
      return Finish(absl::StrCat("checkpoint ", verb), Apply(change, *flags));
    });
  }

  CLI::App* out = checkpoint->add_subcommand(
      "export", "Weights as a directory that Hugging Face's transformers loads");
  out->add_option("CHECKPOINT", flags->out.source, kOne)->required();
  out->add_option("TARGET", flags->out.directory, "directory to make")->required();
  out->add_option("--format", flags->out.format, "of the files")
      ->check(CLI::IsMember({"safetensors"}))
      ->capture_default_str();
  out->add_option("--dtype", flags->out.dtype, "bf16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  out->add_flag("--quantised,--quantized", flags->out.quantised,
                "pack what the recipe in force keeps in NVFP4 (compressed-tensors)");
  out->add_option("--recipe", flags->out.recipe, "pack by this preset instead, such as nvfp4");
  out->add_flag("--overwrite", flags->out.overwrite, "replace a model that is there");
  AddOutputOption(out, flags->print);
  out->footer("Example: nibble checkpoint export runs/quickstart@300 exported");
  run(out, flags->out.source, [flags] {
    return Transfer("checkpoint export", flags->print, flags->out, ExportCheckpoint);
  });

  CLI::App* in = checkpoint->add_subcommand(
      "import", "Begin a job from weights: they become its checkpoint of step 0");
  in->add_option("SOURCE", flags->in.source,
                 "a Hugging Face directory, or a run's checkpoint: DIRECTORY@STEP")
      ->required();
  in->add_option("--spec", flags->in.spec, "the job, as YAML")->required();
  AddOutputOption(in, flags->print);
  in->callback([flags, &exit_code] {
    exit_code = Transfer("checkpoint import", flags->print, flags->in, ImportWeights);
  });
}

}  // namespace nibble
