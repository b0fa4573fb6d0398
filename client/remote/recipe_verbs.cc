#include "client/remote/recipe_verbs.h"

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
#include "client/local/exit_code.h"
#include "client/local/noun.h"
#include "client/local/number_check.h"
#include "client/local/recipe_command.h"
#include "client/local/recipe_flags.h"
#include "client/remote/find_job.h"
#include "client/remote/job_text.h"
#include "client/remote/recipe_message.h"
#include "client/remote/recipe_text.h"
#include "client/remote/verb.h"

namespace nibble {
namespace {

using Stub = CoordinatorClient::Stub;

struct Flags {
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

// Of the verbs that are shared.
struct SharedFlags {
  RemoteFlags remote;
  std::string to;  // revision of diff
  int64_t revision = 0;
};

// A revision as a word of the command line; 0 for none.
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

absl::StatusOr<int> Get(Session& session, const Flags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  v1::GetRecipeRequest request;
  request.set_job(job->id());
  request.set_revision(flags.revision);
  request.set_resolved(flags.table);
  const absl::StatusOr<v1::GetRecipeResponse> response = session.Call(&Stub::GetRecipe, request);
  if (!response.ok()) return response.status();
  return session.Finish(*response, RevisionText(*response));
}

// Whether ranks run under the revision, so that its step is exact.
bool IsInEffect(Session& session, const std::string& job, int64_t revision) {
  v1::GetRecipeRequest request;
  request.set_job(job);
  request.set_revision(revision);
  const absl::StatusOr<v1::GetRecipeResponse> response = session.Call(&Stub::GetRecipe, request);
  return response.ok() && response->revision().confirmed();
}

template <class Response>
std::string RevisionLine(Session& session, const Flags& flags, const v1::Job& job,
                         const Response& response, const std::string& whose) {
  const bool in_effect = !flags.dry_run && IsInEffect(session, job.id(), response.revision());
  return absl::StrCat("revision ", response.revision(), " of ", job.id(),
                      in_effect ? " in effect" : "", " from step ", response.first_step(), whose,
                      "\n", DifferencesText(response.differences()));
}

// What a change has come to, and where the job was by then.
absl::StatusOr<int> Told(Session& session, const Flags& flags, const v1::Job& job,
                         const google::protobuf::Message& response, const std::string& text) {
  const absl::Status status = session.Print(response, absl::StrCat(text, JobLine(job)));
  if (!status.ok()) return status;
  if (flags.dry_run) session.Say("a dry run: nothing is changed");
  return kExitDone;
}

absl::StatusOr<int> Set(Session& session, const Flags& flags) {
  const absl::StatusOr<Recipe> change = ParseRecipeChange(flags.set, flags.layer);
  if (!change.ok()) return change.status();
  if (change->set.empty() && change->layers.empty()) {
    return absl::InvalidArgumentError(
        "set: nothing to change; FIELD=VALUE or --layer says what, such as fprop=bf16");
  }
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  v1::SetRecipeRequest request;
  request.set_job(job->id());
  request.set_expected_revision(flags.expected_revision);
  *request.mutable_change() = ChangeMessage(*change);
  request.set_at(flags.at);
  request.set_reason(flags.reason);
  request.set_dry_run(flags.dry_run);
  const absl::StatusOr<v1::SetRecipeResponse> response = session.Call(&Stub::SetRecipe, request);
  if (!response.ok()) return response.status();
  std::string text = RevisionLine(session, flags, *job, *response, "");
  if (response->latest_revision() > response->revision()) {
    absl::StrAppend(&text, "what was pending later is made anew over it: the latest revision is ",
                    response->latest_revision(), "\n");
  }
  return Told(session, flags, *job, *response, text);
}

absl::StatusOr<int> Rollback(Session& session, const Flags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  v1::RollbackRecipeRequest request;
  request.set_job(job->id());
  request.set_expected_revision(flags.expected_revision);
  request.set_revision(flags.revision);
  request.set_at(flags.at);
  request.set_reason(flags.reason);
  request.set_dry_run(flags.dry_run);
  const absl::StatusOr<v1::RollbackRecipeResponse> response =
      session.Call(&Stub::RollbackRecipe, request);
  if (!response.ok()) return response.status();
  return Told(session, flags, *job, *response,
              RevisionLine(session, flags, *job, *response,
                           absl::StrCat(", the recipe of revision ", flags.revision)));
}

absl::StatusOr<int> History(Session& session, const Flags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  v1::ListRecipeRevisionsRequest request;
  request.set_job(job->id());
  request.set_all(flags.all);
  v1::ListRecipeRevisionsResponse history;
  do {
    const absl::StatusOr<v1::ListRecipeRevisionsResponse> page =
        session.Call(&Stub::ListRecipeRevisions, request);
    if (!page.ok()) return page.status();
    history.mutable_revisions()->MergeFrom(page->revisions());
    history.set_archived(page->archived());
    if (!page->more() || page->revisions().empty()) break;
    request.set_after_number(page->revisions().rbegin()->number());
  } while (true);
  std::string table = HistoryTable(history.revisions());
  if (!flags.all && history.archived() > 0) {
    absl::StrAppend(&table, "and ", history.archived(), " in the archive: --all shows them, too\n");
  }
  return session.Finish(history, table);
}

absl::StatusOr<int> Presets(Session& session) {
  const absl::StatusOr<v1::ListRecipePresetsResponse> response =
      session.Call(&Stub::ListRecipePresets, v1::ListRecipePresetsRequest());
  if (!response.ok()) return response.status();
  std::string table;
  for (const v1::RecipePreset& preset : response->presets()) {
    absl::StrAppendFormat(&table, "%-16s  %s\n", preset.name(), preset.summary());
  }
  return session.Finish(*response, table);
}

absl::StatusOr<int> Differences(Session& session, const std::string& given, const std::string& from,
                                const std::string& to) {
  const absl::StatusOr<int64_t> first = RevisionOf("from_revision", from);
  if (!first.ok()) return first.status();
  const absl::StatusOr<int64_t> last = RevisionOf("to_revision", to);
  if (!last.ok()) return last.status();
  const absl::StatusOr<v1::Job> job = FindJob(session, given);
  if (!job.ok()) return job.status();
  v1::DiffRecipeRequest request;
  request.set_job(job->id());
  request.set_from_revision(*first);
  request.set_to_revision(*last);
  const absl::StatusOr<v1::DiffRecipeResponse> response = session.Call(&Stub::DiffRecipe, request);
  if (!response.ok()) return response.status();
  return session.Finish(*response, response->text());
}

absl::StatusOr<int> Cost(Session& session, const std::string& given, int64_t revision,
                         const std::vector<std::string>& set,
                         const std::vector<std::string>& layer) {
  const absl::StatusOr<Recipe> change = ParseRecipeChange(set, layer);
  if (!change.ok()) return change.status();
  const absl::StatusOr<v1::Job> job = FindJob(session, given);
  if (!job.ok()) return job.status();
  v1::GetRecipeCostRequest request;
  request.set_job(job->id());
  request.set_revision(revision);
  *request.mutable_change() = ChangeMessage(*change);
  const absl::StatusOr<v1::GetRecipeCostResponse> response =
      session.Call(&Stub::GetRecipeCost, request);
  if (!response.ok()) return response.status();
  return session.Finish(*response, CostTable(response->cost()));
}

std::vector<std::string> Words(const CLI::App* verb, const char* option) {
  return verb->get_option(option)->results();
}

std::string WordOrNone(const CLI::App* verb, const char* option) {
  const std::vector<std::string> words = Words(verb, option);
  return words.empty() ? "" : words.back();
}

std::optional<int> RunShared(const GivenVerb& given, SharedFlags flags) {
  const std::string name = given.verb->get_name();
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

void AddChange(RemoteVerb<Flags>& verb) {
  verb.app()->add_option(
      "--at", verb->at,
      "when: now, lr-decay, step:N, tokens:N, or fraction:F of the steps; now where not given");
  verb.app()->add_option("--reason", verb->reason, "why, for the history");
  verb.app()
      ->add_option("--expected-revision", verb->expected_revision,
                   "only if this is still the latest, as `nibble recipe get` tells it")
      ->check(WholeFor(verb->expected_revision, 1));
  verb.app()->add_flag("--dry-run", verb->dry_run, "Check and tell; change nothing");
}

RemoteVerb<Flags> AddVerb(CLI::App* recipe, const char* name, const char* help) {
  RemoteVerb<Flags> verb(recipe, name, help);
  AddJobOption(verb.app(), verb->job);
  return verb;
}

}  // namespace

void AddRecipeNoun(CLI::App& app, int& exit_code) {
  auto shared = std::make_shared<SharedFlags>();
  AddRecipeCommandWith(app, exit_code,
                       [shared](const GivenVerb& given) { return RunShared(given, *shared); });
  CLI::App* const recipe = NounOf(app, "recipe", "");
  for (const char* name : {"presets", "diff", "cost"}) {
    AddRemoteOptions(recipe->get_subcommand(name), shared->remote, Output::kNone);
  }
  CLI::App* const diff = recipe->get_subcommand("diff");
  diff->description("What differs between two revisions of a job, or two recipes for one --model");
  diff->get_option("A")->description("a job; with --model the preset to start from");
  diff->get_option("B")->required(false)->description(
      "its revision to start from, else the first; with --model the other preset");
  diff->get_option("--model")->required(false);
  diff->add_option("TO", shared->to, "of a job: the other revision, else the latest")
      ->excludes("--model");
  for (const char* option : {"--set", "--layer"}) diff->get_option(option)->needs("--model");
  CLI::App* const cost = recipe->get_subcommand("cost");
  cost->description("Theoretical time of the matrix products against 16 bit, of a job or a preset");
  cost->get_option("PRESET")->description("a job; with --model a preset");
  cost->get_option("--model")->required(false);
  cost->get_option("--sequence")->needs("--model");
  cost->add_option("--revision", shared->revision,
                   "of a job: this one alone; else the whole timeline")
      ->check(WholeFor(shared->revision, 1))
      ->excludes("--model");

  RemoteVerb<Flags> get = AddVerb(recipe, "get", "The recipe in force, or another revision");
  get.app()
      ->add_option("--revision", get->revision, "this one; else the one in force")
      ->check(WholeFor(get->revision, 1));
  get.app()->add_flag("--table", get->table, "Also the format of every operand of every layer");
  get.Runs(exit_code, Get);

  RemoteVerb<Flags> set = AddVerb(recipe, "set", "Change the recipe of a job from a step on");
  set.app()->add_option("SETTING", set->set, "FIELD=VALUE; see `nibble recipe fields`");
  set.app()
      ->add_option("--layer", set->layer,
                   "SELECTOR:FIELD=VALUE[,FIELD=VALUE]..., such as 'last 4 blocks:fprop=bf16'")
      ->allow_extra_args(false);
  AddChange(set);
  set.Runs(exit_code, Set);
  set.app()->footer(
      "Example: nibble recipe set train-1 fprop=bf16 --at step:300 --reason 'to recover'");

  RemoteVerb<Flags> history = AddVerb(recipe, "history", "Every revision, with author and reason");
  history.app()->add_flag("--all", history->all, "Also those in the archive");
  history.Runs(exit_code, History);

  RemoteVerb<Flags> rollback =
      AddVerb(recipe, "rollback", "The recipe of an earlier revision again, as a new one");
  rollback.app()
      ->add_option("REVISION", rollback->revision, "whose recipe is to hold again")
      ->required()
      ->check(WholeFor(rollback->revision, 1));
  AddChange(rollback);
  rollback.Runs(exit_code, Rollback);
}

}  // namespace nibble
