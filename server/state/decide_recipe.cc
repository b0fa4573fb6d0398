#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "model/outline.h"
#include "recipe/render.h"
#include "recipe/timeline.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"

namespace nibble {
namespace {

// Removes the revisions that no rank needs any more from a timeline that has grown large, and
// returns their numbers.
std::vector<int64_t> TakeArchivable(const State& state, const v1::JobRecord& job,
                                    v1::TimelineRecord& record) {
  if (record.revisions_size() < kManyRevisions &&
      static_cast<int64_t>(record.ByteSizeLong()) < kManyTimelineBytes) {
    return {};
  }
  std::vector<int64_t> archivable = Archivable(record, state.NeededStep(job), job.has_attempt());
  RevisionMessages& revisions = *record.mutable_revisions();
  revisions.erase(std::remove_if(revisions.begin(), revisions.end(),
                                 [&archivable](const v1::RecipeRevision& revision) {
                                   return std::binary_search(archivable.begin(), archivable.end(),
                                                             revision.number());
                                 }),
                  revisions.end());
  record.set_archived(record.archived() + static_cast<int64_t>(archivable.size()));
  return archivable;
}

// One change of a job's timeline: reads the present one, edits it, and makes the facts.
class Revising {
 public:
  static absl::StatusOr<Revising> Begin(const State& state, const std::string& id,
                                        const std::string& at, const LiveProgress& live) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::JobRecord* const job, decide::FindUnfinished(state, id));
    v1::TimelineRecord record = *state.FindTimeline(id);
    const std::vector<int64_t> archivable = TakeArchivable(state, *job, record);
    NIBBLE_ASSIGN_OR_RETURN(Timeline timeline, ToTimeline(record));
    NIBBLE_ASSIGN_OR_RETURN(JobSpec spec, ParseJobSpec(state.FindSpec(id)->spec_yaml()));
    NIBBLE_ASSIGN_OR_RETURN(const EffectiveAt when, ParseEffectiveAt(at.empty() ? "now" : at));
    Revising revising(*job, std::move(record), std::move(timeline), std::move(spec));
    revising.archived_ = archivable;
    revising.next_step_ = state.NeededStep(*job);
    if (job->has_attempt() && live.attempt == job->attempt().number()) {
      if (live.unheard) {
        return absl::UnavailableError(absl::StrCat(
            "job: the progress of attempt ", live.attempt, " of ", id,
            " is unknown until its ranks report to the restarted coordinator; try again"));
      }
      revising.next_step_ = std::max(revising.next_step_, live.next_step);
    }
    const v1::JobShape& shape = job->shape();
    NIBBLE_ASSIGN_OR_RETURN(
        const int64_t step,
        ResolveStep(when, {.steps = shape.steps(),
                           .tokens_per_step = shape.tokens_per_step(),
                           .decay_first_step = shape.decay_first_step(),
                           .next_step = std::min(revising.next_step_, shape.steps())}));
    if (step >= shape.steps()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "at: step ", step, " is after the last of ", id, ", so that the change would ",
          "never run; allowed: steps up to ", shape.steps() - 1));
    }
    revising.first_step_ = step;
    return revising;
  }

  Timeline& timeline() { return timeline_; }
  int64_t first_step() const { return first_step_; }
  int64_t next_step() const { return next_step_; }

  // Checks the changed timeline, adds the facts, and reports what differs at the first step.
  template <class Response>
  absl::Status End(v1::Update& update, Response& response) const {
    const int64_t latest = record_.revisions().rbegin()->number();
    NIBBLE_RETURN_IF_ERROR(
        CheckTimeline(timeline_, latest, spec_, job_.scheduling().allowed_ranks()));
    if (!archived_.empty()) {
      v1::RevisionsArchived& archived = *update.add_facts()->mutable_revisions_archived();
      archived.set_job(job_.id());
      archived.mutable_numbers()->Add(archived_.begin(), archived_.end());
    }
    v1::RecipeRevised& revised = *update.add_facts()->mutable_recipe_revised();
    revised.set_job(job_.id());
    revised.set_kept(CommonRevisions(record_.revisions(), timeline_));
    for (const Revision& revision : timeline_.revisions()) {
      if (revision.number > latest) *revised.add_revisions() = ToMessage(revision);
    }
    AddRoom(update);
    return AddDifferences(*response.mutable_differences());
  }

 private:
  Revising(const v1::JobRecord& job, v1::TimelineRecord record, Timeline timeline, JobSpec spec)
      : job_(job),
        record_(std::move(record)),
        timeline_(std::move(timeline)),
        spec_(std::move(spec)) {}

  // Requests a checkpoint each time its ranks have run another 2 * kManyRevisions revisions since
  // the newest one: revisions before a checkpoint can be archived.
  void AddRoom(v1::Update& update) const {
    if (!job_.has_attempt() || job_.attempt().stopping()) return;
    if (record_.revisions_size() % (2 * kManyRevisions) != 0) return;
    v1::CheckpointRequested& requested = *update.add_facts()->mutable_checkpoint_requested();
    requested.set_job(job_.id());
    requested.set_number(job_.checkpoint_request() + 1);
    requested.set_reason(absl::StrCat("the recipe has ", record_.revisions_size(),
                                      " revisions since the newest one"));
  }

  absl::Status AddDifferences(
      google::protobuf::RepeatedPtrField<v1::RecipeDifference>& differences) const {
    const v1::RecipeRevision* before = &record_.revisions(0);
    for (const v1::RecipeRevision& revision : record_.revisions()) {
      if (revision.refused().empty() && revision.first_step() <= first_step_) before = &revision;
    }
    NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec_.model));
    NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe from,
                            Resolve(FromMessage(before->recipe()), outline, 0));
    NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe to,
                            Resolve(timeline_.At(first_step_).recipe, outline, 0));
    NIBBLE_ASSIGN_OR_RETURN(const RecipeDiff diff, Diff(from, to, outline));
    for (const RecipeChangeGroup& group : diff.groups) {
      v1::RecipeDifference& difference = *differences.Add();
      difference.set_field(group.field);
      difference.set_from(group.from);
      difference.set_to(group.to);
      for (const int64_t layer : group.layers) {
        difference.add_layers(outline.linears[static_cast<size_t>(layer)].name);
      }
    }
    return absl::OkStatus();
  }

  const v1::JobRecord& job_;
  const v1::TimelineRecord record_;  // without the revisions that this change archives
  std::vector<int64_t> archived_;    // their numbers
  Timeline timeline_;
  JobSpec spec_;
  int64_t next_step_ = 0;
  int64_t first_step_ = 0;
};

absl::Status CheckExpected(int64_t expected) {
  if (expected >= -1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected_revision: ", expected, "; allowed: -1 or more"));
}

}  // namespace

namespace decide {

namespace {

// Guards that watch loss, gradient norm or non-finite values, which a lower learning rate helps.
bool WatchesTheUpdates(const v1::GuardDecision& decision) {
  return IsSpike(decision) || decision.guard() == "non-finite";
}

// The rules with which rollbacks to steps after `step` put layers into BF16.
std::vector<LayerRule> EarlierPromotions(const Timeline& timeline, int64_t step) {
  const std::vector<FieldSetting> bf16 = {{"all", "bf16"}};
  std::vector<LayerRule> rules;
  for (const Revision& revision : timeline.revisions()) {
    if (revision.author != kGuardAuthor || revision.first_step <= step) continue;
    for (const LayerRule& rule : revision.recipe.layers) {
      if (rule.set == bf16) rules.push_back(rule);
    }
  }
  return rules;
}

}  // namespace

absl::StatusOr<v1::RecipeRevised> SaferRecipe(const State& state, const v1::JobRecord& job,
                                              const Rollback& rollback) {
  v1::RecipeRevised revised;
  revised.set_job(job.id());
  const int64_t step = rollback.step;
  const v1::TimelineRecord record = CoveredFrom(state, job.id(), step);
  NIBBLE_ASSIGN_OR_RETURN(const JobSpec spec, ParseJobSpec(state.FindSpec(job.id())->spec_yaml()));
  NIBBLE_ASSIGN_OR_RETURN(Timeline timeline, ToTimeline(record));
  const int64_t latest = timeline.latest();
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec.model));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe before,
                          Resolve(timeline.At(step).recipe, outline, 0));
  Recipe change = {.layers = EarlierPromotions(timeline, step)};
  for (const std::string& layer : rollback.decision.layers()) {
    change.layers.push_back({layer, {{"all", "bf16"}}});
  }
  const bool of_updates = WatchesTheUpdates(rollback.decision);
  // A guard of operands that found very many layers does not name them.
  if (rollback.decision.layers().empty() && (!of_updates || UpdatesRollBackToBf16(spec.guards))) {
    change.layers.push_back({PromotedLayers(spec.guards), {{"all", "bf16"}}});
  }
  const double lr_before = timeline.At(step).lr_scale;
  const double lr_failed = timeline.At(std::max(step, rollback.decision.step())).lr_scale;
  const double lr_scale = of_updates ? lr_failed * spec.guards.rollback_lr_scale : lr_failed;
  const bool lowers = lr_scale != lr_failed;
  const std::string reason = OneLine(absl::StrCat(
      lowers ? absl::StrCat("learning rate times ", lr_scale, ", ") : "", rollback.reason));
  NIBBLE_ASSIGN_OR_RETURN(
      const int64_t number,
      change.layers.empty()
          ? timeline.Repeat(step, step, rollback.author, rollback.time_unix_ms, reason)
          : timeline.Append(-1, change, step, step, rollback.author, rollback.time_unix_ms,
                            reason));
  NIBBLE_RETURN_IF_ERROR(timeline.ScaleLearningRate(number, lr_scale));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe after,
                          Resolve(timeline.At(step).recipe, outline, 0));
  NIBBLE_ASSIGN_OR_RETURN(const RecipeDiff diff, Diff(before, after, outline));
  if (diff.groups.empty() && lr_scale == lr_before) return revised;
  NIBBLE_RETURN_IF_ERROR(CheckTimeline(timeline, latest, spec, job.scheduling().allowed_ranks()));
  if (static_cast<int64_t>(timeline.revisions().size()) + record.retired_size() > kMaxRevisions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("revisions: ", timeline.revisions().size(), "; at most ", kMaxRevisions));
  }
  revised.set_kept(CommonRevisions(record.revisions(), timeline));
  for (const Revision& revision : timeline.revisions()) {
    if (revision.number > latest) *revised.add_revisions() = ToMessage(revision);
  }
  return revised;
}

}  // namespace decide

absl::StatusOr<Decision<v1::SetRecipeResponse>> Decide(const State& state,
                                                       const v1::SetRecipeRequest& request,
                                                       const Caller& caller,
                                                       const LiveProgress& live) {
  return decide::Once<v1::SetRecipeResponse>(
      state, request, caller, [&](v1::Update& update, v1::SetRecipeResponse& response) {
        NIBBLE_RETURN_IF_ERROR(CheckExpected(request.expected_revision()));
        NIBBLE_ASSIGN_OR_RETURN(Revising revising,
                                Revising::Begin(state, request.job(), request.at(), live));
        NIBBLE_ASSIGN_OR_RETURN(
            const int64_t number,
            revising.timeline().Append(request.expected_revision(), FromMessage(request.change()),
                                       revising.first_step(), revising.next_step(), caller.author,
                                       update.time_unix_ms(), request.reason()));
        response.set_revision(number);
        response.set_first_step(revising.first_step());
        response.set_latest_revision(revising.timeline().latest());
        return revising.End(update, response);
      });
}

absl::StatusOr<Decision<v1::RollbackRecipeResponse>> Decide(
    const State& state, const v1::RollbackRecipeRequest& request, const Caller& caller,
    const LiveProgress& live) {
  return decide::Once<v1::RollbackRecipeResponse>(
      state, request, caller, [&](v1::Update& update, v1::RollbackRecipeResponse& response) {
        NIBBLE_RETURN_IF_ERROR(CheckExpected(request.expected_revision()));
        NIBBLE_ASSIGN_OR_RETURN(Revising revising,
                                Revising::Begin(state, request.job(), request.at(), live));
        NIBBLE_ASSIGN_OR_RETURN(const v1::RecipeRevision* const wanted,
                                FindRevision(state, request.job(), "revision", request.revision()));
        if (!wanted->refused().empty()) {
          return absl::FailedPreconditionError(absl::StrCat(
              "revision: ", request.revision(), " was refused (", wanted->refused(),
              ") and never took effect; to try its recipe again, set its fields again"));
        }
        NIBBLE_ASSIGN_OR_RETURN(
            const int64_t number,
            revising.timeline().RestoreRecipe(
                request.expected_revision(), FromMessage(wanted->recipe()),
                FromMessage(*wanted).lr_scale, revising.first_step(), revising.next_step(),
                caller.author, update.time_unix_ms(), request.reason()));
        response.set_revision(number);
        response.set_first_step(revising.first_step());
        return revising.End(update, response);
      });
}

}  // namespace nibble
