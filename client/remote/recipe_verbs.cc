#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/remote/job_text.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/text.h"
#include "client/remote/verb.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "client/shell/spec_commands.h"
#include "client/shell/spec_input.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// One revision in full.
std::string RevisionText(const v1::GetRecipeResponse& response) {
  const v1::RecipeRevision& revision = response.revision();
  TextList list;
  list.Add("revision",
           absl::StrCat(revision.number(), "; the latest is ", response.latest_revision()));
  list.Add("from step", absl::StrCat(revision.first_step(),
                                     revision.confirmed() ? ", exactly: ranks have run it" : ""));
  list.Add("recipe", RecipeText(revision.recipe()));
  if (!revision.author().empty()) {
    list.Add("by",
             absl::StrCat(revision.author(), ", ", TimeText(revision.time_unix_ms()), " UTC"));
  }
  if (!revision.reason().empty()) list.Add("reason", revision.reason());
  if (!revision.refused().empty()) list.Add("refused", revision.refused());
  return response.table().empty() ? list.Text() : absl::StrCat(list.Text(), "\n", response.table());
}

std::string HistoryTable(const google::protobuf::RepeatedPtrField<v1::RecipeRevision>& revisions) {
  TextTable table({"REVISION", "FROM STEP", "RUN", "BY", "WHEN (UTC)", "RECIPE", "REASON"});
  for (const v1::RecipeRevision& revision : revisions) {
    const bool refused = !revision.refused().empty();
    table.Add({absl::StrCat(revision.number()), absl::StrCat(revision.first_step()),
               revision.confirmed() ? "yes"
               : refused            ? "refused"
                                    : "no",
               revision.author(), TimeText(revision.time_unix_ms()),
               Fit(RecipeText(revision.recipe()), 80),
               refused ? absl::StrCat("refused: ", revision.refused()) : revision.reason()});
  }
  return table.Text();
}

// "  fprop: nvfp4 → bf16 in 12 layers: blocks.0.mlp.up, …" lines; "  no difference" for none.
std::string DifferencesText(
    const google::protobuf::RepeatedPtrField<v1::RecipeDifference>& differences) {
  constexpr int kNamed = 3;
  if (differences.empty()) return "  no difference\n";
  std::string text;
  for (const v1::RecipeDifference& difference : differences) {
    absl::StrAppend(&text, "  ", difference.field(), ": ", difference.from(), " → ",
                    difference.to(), " in ", difference.layers_size(),
                    difference.layers_size() == 1 ? " layer: " : " layers: ");
    for (int i = 0; i < std::min(difference.layers_size(), kNamed); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : ", ", difference.layers(i));
    }
    absl::StrAppend(&text, difference.layers_size() > kNamed ? ", …\n" : "\n");
  }
  return text;
}

std::string CostTable(const v1::RecipeCost& cost) {
  const struct {
    const char* name;
    double ratio;
  } rows[] = {{"fprop", cost.fprop_ratio()},
              {"dgrad", cost.dgrad_ratio()},
              {"wgrad", cost.wgrad_ratio()},
              {"attention", cost.attention_ratio()},
              {"total", cost.total_ratio()}};
  TextTable table({"PRODUCT", "SHARE OF ALL TIME IN 16 BIT"});
  for (const auto& [name, ratio] : rows) {
    table.Add({name, absl::StrFormat("%.1f%%", 100 * ratio)});
  }
  return table.Text();
}

struct RecipeFlags {
  RemoteFlags remote;
  std::string job;
  int64_t revision = 0;
  bool table = false;
  std::vector<std::string> set, layer;
  std::string at, reason;
  int64_t expected_revision = -1;
  bool dry_run = false;
  bool all = false;
};

// Options of verbs that are local or about a job.
struct SharedFlags {
  RemoteFlags remote;
  std::string to;  // revision of diff
  int64_t revision = 0;
};

// Parses a revision, such as "3" or "r3"; 0 for an empty text.
absl::StatusOr<int64_t> RevisionOf(const char* name, std::string text) {
  if (text.empty()) return 0;
  if (text[0] == 'r') text.erase(0, 1);
  int64_t revision = 0;
  if (!absl::SimpleAtoi(text, &revision) || revision < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": '", text, "' is no revision of a job; two presets are compared for a --model"));
  }
  return revision;
}

absl::StatusOr<int> Get(Session& session, const RecipeFlags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  v1::GetRecipeRequest request;
  request.set_job(job->id());
  request.set_revision(flags.revision);
  request.set_resolved(flags.table);
  NIBBLE_ASSIGN_OR_RETURN(const v1::GetRecipeResponse response, session.Call(kGetRecipe, request));
  return session.Finish(response, RevisionText(response));
}

// Whether ranks have run the revision, so that its first step is exact.
bool IsInEffect(Session& session, const std::string& job, int64_t revision) {
  v1::GetRecipeRequest request;
  request.set_job(job);
  request.set_revision(revision);
  const absl::StatusOr<v1::GetRecipeResponse> response = session.Call(kGetRecipe, request);
  return response.ok() && response->revision().confirmed();
}

template <class Response>
std::string RevisionLine(Session& session, const RecipeFlags& flags, const v1::Job& job,
                         const Response& response, const std::string& whose) {
  const bool in_effect = !flags.dry_run && IsInEffect(session, job.id(), response.revision());
  return absl::StrCat("revision ", response.revision(), " of ", job.id(),
                      in_effect ? " in effect" : "", " from step ", response.first_step(), whose,
                      "\n", DifferencesText(response.differences()));
}

// Prints the result of a change, and where the job was at that time.
absl::StatusOr<int> Told(Session& session, const RecipeFlags& flags, const v1::Job& job,
                         const google::protobuf::Message& response, const std::string& text) {
  NIBBLE_RETURN_IF_ERROR(session.Print(response, absl::StrCat(text, JobLine(job))));
  if (flags.dry_run) session.Say("a dry run: nothing is changed");
  return kExitDone;
}

absl::StatusOr<int> Set(Session& session, const RecipeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe change, ParseRecipeChange(flags.set, flags.layer));
  if (change.set.empty() && change.layers.empty()) {
    return absl::InvalidArgumentError(
        "set: nothing to change; FIELD=VALUE or --layer says what, such as fprop=bf16");
  }
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  v1::SetRecipeRequest request;
  request.set_job(job->id());
  request.set_expected_revision(flags.expected_revision);
  *request.mutable_change() = ChangeMessage(change);
  request.set_at(flags.at);
  request.set_reason(flags.reason);
  request.set_dry_run(flags.dry_run);
  NIBBLE_ASSIGN_OR_RETURN(const v1::SetRecipeResponse response, session.Call(kSetRecipe, request));
  std::string text = RevisionLine(session, flags, *job, response, "");
  if (response.latest_revision() > response.revision()) {
    absl::StrAppend(&text, "what was pending later is made anew over it: the latest revision is ",
                    response.latest_revision(), "\n");
  }
  return Told(session, flags, *job, response, text);
}

absl::StatusOr<int> Rollback(Session& session, const RecipeFlags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  v1::RollbackRecipeRequest request;
  request.set_job(job->id());
  request.set_expected_revision(flags.expected_revision);
  request.set_revision(flags.revision);
  request.set_at(flags.at);
  request.set_reason(flags.reason);
  request.set_dry_run(flags.dry_run);
  NIBBLE_ASSIGN_OR_RETURN(const v1::RollbackRecipeResponse response,
                          session.Call(kRollbackRecipe, request));
  return Told(session, flags, *job, response,
              RevisionLine(session, flags, *job, response,
                           absl::StrCat(", the recipe of revision ", flags.revision)));
}

absl::StatusOr<int> History(Session& session, const RecipeFlags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  v1::ListRecipeRevisionsRequest request;
  request.set_job(job->id());
  request.set_all(flags.all);
  v1::ListRecipeRevisionsResponse history;
  do {
    NIBBLE_ASSIGN_OR_RETURN(const v1::ListRecipeRevisionsResponse page,
                            session.Call(kListRecipeRevisions, request));
    history.mutable_revisions()->MergeFrom(page.revisions());
    history.set_archived(page.archived());
    if (!page.more() || page.revisions().empty()) break;
    request.set_after_number(page.revisions().rbegin()->number());
  } while (true);
  std::string table = HistoryTable(history.revisions());
  if (!flags.all && history.archived() > 0) {
    absl::StrAppend(&table, "and ", history.archived(), " in the archive: --all shows them, too\n");
  }
  return session.Finish(history, table);
}

absl::StatusOr<int> Presets(Session& session) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListRecipePresetsResponse response,
                          session.Call(kListRecipePresets, v1::ListRecipePresetsRequest()));
  std::string table;
  for (const v1::RecipePreset& preset : response.presets()) {
    absl::StrAppendFormat(&table, "%-16s  %s\n", preset.name(), preset.summary());
  }
  return session.Finish(response, table);
}

absl::StatusOr<int> Differences(Session& session, const std::string& given, const std::string& from,
                                const std::string& to) {
  NIBBLE_ASSIGN_OR_RETURN(const int64_t first, RevisionOf("from_revision", from));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t last, RevisionOf("to_revision", to));
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, given));
  v1::DiffRecipeRequest request;
  request.set_job(job.id());
  request.set_from_revision(first);
  request.set_to_revision(last);
  NIBBLE_ASSIGN_OR_RETURN(const v1::DiffRecipeResponse response,
                          session.Call(kDiffRecipe, request));
  return session.Finish(response, response.text());
}

absl::StatusOr<int> Cost(Session& session, const std::string& given, int64_t revision,
                         const std::vector<std::string>& set,
                         const std::vector<std::string>& layer) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe change, ParseRecipeChange(set, layer));
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, given));
  v1::GetRecipeCostRequest request;
  request.set_job(job.id());
  request.set_revision(revision);
  *request.mutable_change() = ChangeMessage(change);
  NIBBLE_ASSIGN_OR_RETURN(const v1::GetRecipeCostResponse response,
                          session.Call(kGetRecipeCost, request));
  return session.Finish(response, CostTable(response.cost()));
}

std::vector<std::string> Words(Command verb, const char* option) {
  return verb.GetOption(option).Words();
}

std::string WordOrNone(Command verb, const char* option) {
  const std::vector<std::string> words = Words(verb, option);
  return words.empty() ? "" : words.back();
}

std::optional<int> RunShared(const GivenVerb& given, SharedFlags flags) {
  const std::string name = given.verb.Name();
  flags.remote.print = given.print;
  if (name == "presets") {
    if (flags.remote.server.empty()) return std::nullopt;
    return RunRemote("recipe presets", flags.remote, Presets);
  }
  if (name != "diff" && name != "cost") return std::nullopt;
  if (!Words(given.verb, "--model").empty()) {
    if (name == "cost" || !Words(given.verb, "B").empty()) return std::nullopt;
    absl::FPrintF(stderr, "nibble recipe diff: B is required: the other preset for --model\n");
    return kExitUsage;
  }
  if (name == "diff") {
    return RunRemote("recipe diff", flags.remote, [&](Session& session) {
      return Differences(session, given.name, WordOrNone(given.verb, "B"), flags.to);
    });
  }
  return RunRemote("recipe cost", flags.remote, [&](Session& session) {
    return Cost(session, given.name, flags.revision, Words(given.verb, "--set"),
                Words(given.verb, "--layer"));
  });
}

void AddChange(RemoteVerb<RecipeFlags>& verb) {
  verb.app().Add(
      "--at", verb->at,
      "when: now, lr-decay, step:N, tokens:N, or fraction:F of the steps; now where not given");
  verb.app().Add("--reason", verb->reason, "why, for the history");
  verb.app()
      .Add("--expected-revision", verb->expected_revision,
           "only if this is still the latest, as `nibble recipe get` tells it")
      .AtLeast(1);
  verb.app().AddFlag("--dry-run", verb->dry_run, "Check and tell; change nothing");
}

RemoteVerb<RecipeFlags> AddVerb(Command recipe, const char* name, const char* help) {
  RemoteVerb<RecipeFlags> verb(recipe, name, help);
  AddJobOption(verb.app(), verb->job);
  return verb;
}

}  // namespace

void AddRecipeNoun(Command app, int& exit_code) {
  auto shared = std::make_shared<SharedFlags>();
  AddRecipeCommandWith(app, exit_code,
                       [shared](const GivenVerb& given) { return RunShared(given, *shared); });
  const Command recipe = NounOf(app, "recipe", "");
  for (const char* name : {"presets", "diff", "cost"}) {
    AddRemoteOptions(recipe.Subcommand(name), shared->remote, Output::kNone);
  }
  const Command diff = recipe.Subcommand("diff");
  diff.Describe("What differs between two revisions of a job, or two recipes for one --model");
  diff.GetOption("A").Describe("a job; with --model the preset to start from");
  diff.GetOption("B").Required(false).Describe(
      "its revision to start from, else the first; with --model the other preset");
  diff.GetOption("--model").Required(false);
  diff.Add("TO", shared->to, "of a job: the other revision, else the latest").Excludes("--model");
  for (const char* option : {"--set", "--layer"}) diff.GetOption(option).Needs("--model");
  const Command cost = recipe.Subcommand("cost");
  cost.Describe("Theoretical time of the matrix products against 16 bit, of a job or a preset");
  cost.GetOption("PRESET").Describe("a job; with --model a preset");
  cost.GetOption("--model").Required(false);
  cost.GetOption("--sequence").Needs("--model");
  cost.Add("--revision", shared->revision, "of a job: this one alone; else the whole timeline")
      .AtLeast(1)
      .Excludes("--model");

  RemoteVerb<RecipeFlags> get = AddVerb(recipe, "get", "The recipe in force, or another revision");
  get.app().Add("--revision", get->revision, "this one; else the one in force").AtLeast(1);
  get.app().AddFlag("--table", get->table, "Also the format of every operand of every layer");
  get.Runs(exit_code, Get);

  RemoteVerb<RecipeFlags> set = AddVerb(recipe, "set", "Change the recipe of a job from a step on");
  set.app().Add("SETTING", set->set, "FIELD=VALUE; see `nibble recipe fields`");
  set.app()
      .Add("--layer", set->layer,
           "SELECTOR:FIELD=VALUE[,FIELD=VALUE]..., such as 'last 4 blocks:fprop=bf16'")
      .OneValueEach();
  AddChange(set);
  set.Runs(exit_code, Set);
  set.app().Footer(
      "Example: nibble recipe set train-1 fprop=bf16 --at step:300 --reason 'to recover'");

  RemoteVerb<RecipeFlags> history =
      AddVerb(recipe, "history", "Every revision, with author and reason");
  history.app().AddFlag("--all", history->all, "Also those in the archive");
  history.Runs(exit_code, History);

  RemoteVerb<RecipeFlags> rollback =
      AddVerb(recipe, "rollback", "The recipe of an earlier revision again, as a new one");
  rollback.app()
      .Add("REVISION", rollback->revision, "whose recipe is to hold again")
      .Required()
      .AtLeast(1);
  AddChange(rollback);
  rollback.Runs(exit_code, Rollback);
}

}  // namespace nibble
