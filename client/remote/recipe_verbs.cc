#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/remote/job_text.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/verb.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "client/shell/spec_input.h"
#include "common/command_line/command_line.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "common/text/text.h"

namespace nibble {
namespace {

// One revision in full.
std::string RevisionText(const v1::GetRecipeResponse& response) {
  const v1::RecipeRevision& revision = response.revision();
  TextList list;
  list.Add("revision",
           absl::StrCat(revision.number(), "; the latest is ", response.latest_revision()));
  list.Add("from step",
           absl::StrCat(revision.first_step(),
                        revision.confirmed() ? ", confirmed by its ranks" : ", planned"));
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
                    difference.to(), " in ", Counted(difference.layers_size(), "layer"), ": ");
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
  TextTable table({"PART", "SHARE OF THE TIME IN 16 BIT"});
  for (const auto& [name, ratio] : rows) {
    table.Add({name, absl::StrFormat("%.1f%%", 100 * ratio)});
  }
  return table.Text();
}

struct JobRecipeFlags {
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

// Parses a revision, such as "3" or "r3"; 0 for an empty text.
absl::StatusOr<int64_t> RevisionOf(const char* name, const std::string& text) {
  if (text.empty()) return 0;
  int64_t revision = 0;
  if (!absl::SimpleAtoi(absl::StripPrefix(text, "r"), &revision) || revision < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": '", text,
                     "' is not a revision, such as 2 or r2, and the two names are not presets; "
                     "run 'nibble recipe presets' to see them"));
  }
  return revision;
}

absl::StatusOr<Reply> Get(Session& session, const JobRecipeFlags& flags) {
  v1::GetRecipeRequest request;
  request.set_revision(flags.revision);
  request.set_resolved(flags.table);
  NIBBLE_ASSIGN_OR_RETURN(const auto response, CallOfJob(session, flags.job, kGetRecipe, request));
  return ReplyOf(response, RevisionText(response));
}

// Whether ranks have run the revision, which makes its first step final.
bool IsInEffect(Session& session, const std::string& job, int64_t revision) {
  v1::GetRecipeRequest request;
  request.set_job(job);
  request.set_revision(revision);
  const absl::StatusOr<v1::GetRecipeResponse> response = session.Call(kGetRecipe, request);
  return response.ok() && response->revision().confirmed();
}

template <class Response>
std::string RevisionLine(Session& session, const JobRecipeFlags& flags, const v1::Job& job,
                         const Response& response, const std::string& whose) {
  const bool in_effect = !flags.dry_run && IsInEffect(session, job.id(), response.revision());
  return absl::StrCat("revision ", response.revision(), " of ", job.id(),
                      in_effect ? " in effect" : "", " from step ", response.first_step(), whose,
                      "\n", DifferencesText(response.differences()));
}

template <class Request>
void FillChange(const JobRecipeFlags& flags, const v1::Job& job, Request& request) {
  request.set_job(job.id());
  request.set_expected_revision(flags.expected_revision);
  request.set_at(flags.at);
  request.set_reason(flags.reason);
  request.set_dry_run(flags.dry_run);
}

// The result of a change, with the state that the job had before it.
Reply ChangeReply(const JobRecipeFlags& flags, const v1::Job& job,
                  const google::protobuf::Message& response, const std::string& text) {
  Reply reply = ReplyOf(response, absl::StrCat(text, JobLine(job)));
  if (flags.dry_run) reply.notes = {"dry run: nothing was changed"};
  return reply;
}

absl::StatusOr<Reply> Set(Session& session, const JobRecipeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe change, ParseRecipeChange(flags.set, flags.layer));
  if (change.set.empty() && change.layers.empty()) {
    return absl::InvalidArgumentError(
        "set: nothing to change; give FIELD=VALUE, such as fprop=bf16, or --layer");
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  v1::SetRecipeRequest request;
  FillChange(flags, job, request);
  *request.mutable_change() = ChangeMessage(change);
  NIBBLE_ASSIGN_OR_RETURN(const v1::SetRecipeResponse response, session.Call(kSetRecipe, request));
  std::string text = RevisionLine(session, flags, job, response, "");
  if (response.latest_revision() > response.revision()) {
    absl::StrAppend(&text, "later pending revisions were rebased on it: the latest revision is ",
                    response.latest_revision(), "\n");
  }
  return ChangeReply(flags, job, response, text);
}

absl::StatusOr<Reply> Rollback(Session& session, const JobRecipeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  v1::RollbackRecipeRequest request;
  FillChange(flags, job, request);
  request.set_revision(flags.revision);
  NIBBLE_ASSIGN_OR_RETURN(const v1::RollbackRecipeResponse response,
                          session.Call(kRollbackRecipe, request));
  return ChangeReply(flags, job, response,
                     RevisionLine(session, flags, job, response,
                                  absl::StrCat(", the recipe of revision ", flags.revision)));
}

absl::StatusOr<Reply> History(Session& session, const JobRecipeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  v1::ListRecipeRevisionsRequest request;
  request.set_job(job.id());
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
    absl::StrAppend(&table, "and ", history.archived(),
                    " archived revisions; list them with --all\n");
  }
  return ReplyOf(history, table);
}

absl::StatusOr<Reply> Presets(Session& session, const RecipeFlags&) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListRecipePresetsResponse response,
                          session.Call(kListRecipePresets, v1::ListRecipePresetsRequest()));
  TextTable table;
  for (const v1::RecipePreset& preset : response.presets()) {
    table.Add({preset.name(), preset.summary()});
  }
  return ReplyOf(response, table.Text());
}

absl::StatusOr<Reply> Diff(Session& session, const RecipeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const int64_t from, RevisionOf("from_revision", flags.other));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t to, RevisionOf("to_revision", flags.to));
  v1::DiffRecipeRequest request;
  request.set_from_revision(from);
  request.set_to_revision(to);
  NIBBLE_ASSIGN_OR_RETURN(const auto response,
                          CallOfJob(session, flags.recipe, kDiffRecipe, request));
  return ReplyOf(response, response.text());
}

absl::StatusOr<Reply> Cost(Session& session, const RecipeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe change, ParseRecipeChange(flags.set, flags.layer));
  v1::GetRecipeCostRequest request;
  request.set_revision(flags.revision);
  *request.mutable_change() = ChangeMessage(change);
  NIBBLE_ASSIGN_OR_RETURN(const auto response,
                          CallOfJob(session, flags.recipe, kGetRecipeCost, request));
  return ReplyOf(response, CostTable(response.cost()));
}

void AddChange(RemoteVerb<JobRecipeFlags>& verb) {
  verb.app()
      .Add("--at", verb->at,
           "when: now, lr-decay, step:N, tokens:N, or fraction:F of the steps; default: now")
      // As from a script's empty variable. It must not take effect at once.
      .Check([](const std::string& at) {
        return at.empty() ? "'' is not a time; allowed: now, lr-decay, step:N, tokens:N, fraction:F"
                          : "";
      });
  verb.app().Add("--reason", verb->reason, "the reason, for the history");
  verb.app()
      .Add("--expected-revision", verb->expected_revision,
           "refuse the change unless this is the latest revision; see `nibble recipe get`")
      .AtLeast(1);
  verb.app().AddFlag("--dry-run", verb->dry_run, "check and show the change; change nothing");
}

RemoteVerb<JobRecipeFlags> AddVerb(Command recipe, const char* name, const char* help) {
  RemoteVerb<JobRecipeFlags> verb(recipe, name, help);
  AddJobOption(verb.app(), verb->job);
  return verb;
}

}  // namespace

RecipeSource JobRecipes() {
  return {.presets = Remote<RecipeFlags>("recipe presets", Presets),
          .diff = Remote<RecipeFlags>("recipe diff", Diff),
          .cost = Remote<RecipeFlags>("recipe cost", Cost)};
}

void AddRecipeVerbs(Command recipe, int& exit_code) {
  RemoteVerb<JobRecipeFlags> get =
      AddVerb(recipe, "get", "Show the recipe in effect, or another revision");
  get.app()
      .Add("--revision", get->revision, "this revision; default: the one in effect")
      .AtLeast(1);
  get.app().AddFlag("--table", get->table, "also show the format of every operand of every layer");
  get.Runs(exit_code, Get);

  RemoteVerb<JobRecipeFlags> set =
      AddVerb(recipe, "set", "Change the recipe of a job, from a step on");
  set.app().Add("SETTING", set->set, "FIELD=VALUE; see `nibble recipe fields`");
  set.app()
      .Add("--layer", set->layer,
           "SELECTOR:FIELD=VALUE[,FIELD=VALUE]..., such as 'last 4 blocks:fprop=bf16'")
      .OneValueEach();
  AddChange(set);
  set.Runs(exit_code, Set);
  set.app().Footer(
      "Example: nibble recipe set train-1 fprop=bf16 --at step:300 --reason 'to recover'");

  RemoteVerb<JobRecipeFlags> history =
      AddVerb(recipe, "history", "List the revisions of a job's recipe, with authors and reasons");
  history.app().AddFlag("--all", history->all, "include archived revisions");
  history.Runs(exit_code, History);

  RemoteVerb<JobRecipeFlags> rollback =
      AddVerb(recipe, "rollback", "Return to the recipe of an earlier revision, as a new revision");
  rollback.app()
      .Add("REVISION", rollback->revision, "the revision whose recipe takes effect again")
      .Required()
      .AtLeast(1);
  AddChange(rollback);
  rollback.Runs(exit_code, Rollback);
}

}  // namespace nibble
