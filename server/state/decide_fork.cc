// Forks: the timeline, the spec and the name of a job that continues from a checkpoint of another.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "model/outline.h"
#include "recipe/recipe.h"
#include "recipe/timeline.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"
#include "server/state/views.h"

namespace nibble {
namespace {

// If there are many revisions, keeps only those in effect from the step on: the earlier ones are
// the parent's history.
RevisionMessages From(int64_t step, const RevisionMessages& whole) {
  if (whole.size() < kManyRevisions) return whole;
  int base = 0;
  while (base + 1 < whole.size() && whole[base + 1].first_step() <= step) ++base;
  RevisionMessages revisions(whole.begin() + base, whole.end());
  revisions[0].set_first_step(0);
  return revisions;
}

// The parent's timeline, up to the step or with its pending revisions, and the change from the step
// on.
absl::StatusOr<Timeline> ForkTimeline(const RevisionMessages& parent,
                                      const v1::ForkJobRequest& request, int64_t step,
                                      const Caller& caller) {
  NIBBLE_ASSIGN_OR_RETURN(Timeline timeline, ToTimeline(From(step, parent)));
  if (!request.with_pending()) {
    std::vector<Revision> begun = timeline.revisions();
    std::erase_if(begun, [step](const Revision& r) { return r.first_step > step; });
    NIBBLE_ASSIGN_OR_RETURN(timeline, Timeline::FromRevisions(std::move(begun)));
  }
  if (!request.has_change()) return timeline;
  NIBBLE_RETURN_IF_ERROR(timeline
                             .Append(-1, FromMessage(request.change()), step, step, caller.author,
                                     std::max<int64_t>(0, caller.now_unix_ms), request.reason())
                             .status());
  return timeline;
}

// Fields of the spec that a fork may have otherwise than its parent, with the fields in them: they
// change neither the model, its data and recipe, nor where the fork runs.
constexpr const char* kForkFields[] = {"training.stop_at",
                                       "training.repeat",
                                       "training.validate_every",
                                       "training.validation_batches",
                                       "checkpoints",
                                       "early_stop",
                                       "guards",
                                       "metrics",
                                       "notify"};

// The parent's spec with the settings of the fork, which begins at `step`.
absl::StatusOr<JobSpec> ForkSpec(const std::string& parent, const v1::ForkJobRequest& request,
                                 int64_t step) {
  for (const std::string& setting : request.settings()) {
    const std::string field = setting.substr(0, setting.find('='));
    const bool allowed = std::any_of(
        std::begin(kForkFields), std::end(kForkFields), [&field](const std::string& known) {
          return field == known || absl::StartsWith(field, absl::StrCat(known, "."));
        });
    if (!allowed) {
      return absl::InvalidArgumentError(absl::StrCat(
          "settings: '", Clip(setting, kMaxNameBytes),
          "' does not set a field that may differ in a fork: ", absl::StrJoin(kForkFields, ", ")));
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(JobSpec spec, ParseJobSpec(parent));
  if (!request.settings().empty()) {
    const std::vector<std::string> settings(request.settings().begin(), request.settings().end());
    // With every field written, no default follows from a setting.
    NIBBLE_ASSIGN_OR_RETURN(spec, ParseJobSpec(ToYaml(spec), settings));
  }
  const int64_t end = EndStep(spec);
  if (end > step) return spec;
  const std::string& job = request.checkpoint().job();
  return absl::InvalidArgumentError(absl::StrCat(
      "checkpoint.step: ", step, " leaves no step before the end of the fork, ", end,
      end < spec.training.steps ? absl::StrCat("; set a later training.stop_at, at most ",
                                               spec.training.steps, ", or choose")
                                : "; choose",
      " an earlier checkpoint: 'nibble checkpoint list ", job, "'"));
}

// Whether the recipes and learning rates of two timelines are the same at each step of [step, end).
absl::StatusOr<bool> AreEqualFrom(int64_t step, int64_t end, const Timeline& a, const Timeline& b,
                                  const JobSpec& spec) {
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec.model));
  const auto next = [&](const Timeline& timeline) {
    const int64_t found = timeline.NextSwitchAfter(step);
    return found < 0 ? end : found;
  };
  for (; step < end; step = std::min(next(a), next(b))) {
    const Revision &ours = a.At(step), &theirs = b.At(step);
    if (ours.lr_scale != theirs.lr_scale) return false;
    if (ours.recipe == theirs.recipe) continue;
    NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe mine, Resolve(ours.recipe, outline, 0));
    NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe other, Resolve(theirs.recipe, outline, 0));
    if (mine != other) return false;
  }
  return true;
}

// The scheduling that may change what a job computes, or how fast.
std::string PlacementOf(v1::JobScheduling scheduling) {
  scheduling.clear_queue();
  scheduling.clear_priority();
  scheduling.clear_project();
  return scheduling.SerializeAsString();
}

// InvalidArgument if the fork would repeat its parent bit for bit: training is deterministic. The
// fork of a job that ended early continues it, and repeats nothing.
absl::Status CheckDiffers(const v1::JobRecord& parent, JobSpec parents, JobSpec spec,
                          const Timeline& parents_timeline, const Timeline& timeline,
                          const v1::JobScheduling& scheduling, int64_t step) {
  if (parent.state() == v1::JOB_STATE_CANCELLED || parent.state() == v1::JOB_STATE_FAILED ||
      PlacementOf(parent.scheduling()) != PlacementOf(scheduling)) {
    return absl::OkStatus();
  }
  for (JobSpec* one : {&parents, &spec}) {
    one->name.clear();
    one->init_from = {};
    one->changes.clear();  // they are in the timeline
  }
  if (parents != spec) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const bool equal,
                          AreEqualFrom(step, EndStep(spec), parents_timeline, timeline, spec));
  if (!equal) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "change: the fork would repeat ", parent.id(), " from step ", step,
      " bit for bit; change its recipe ('nibble job fork --set FIELD=VALUE') or its samples "
      "('--spec training.repeat=1')"));
}

// The parent's name with the first free number, without the number of a parent that is a fork
// itself: "train-fork2". Never the id of a job, which ends in '-' and a number.
std::string ForkName(const State& state, std::string parent) {
  constexpr absl::string_view kFork = "-fork";
  constexpr size_t kMostNameBytes = 63, kNumberBytes = 8;
  const size_t digits = parent.find_last_not_of("0123456789") + 1;
  if (digits < parent.size() && absl::EndsWith(parent.substr(0, digits), kFork)) {
    parent.resize(digits - kFork.size());
  }
  parent.resize(std::min(parent.size(), kMostNameBytes - kFork.size() - kNumberBytes));
  const std::string prefix = absl::StrCat(parent, kFork);
  std::set<std::string> taken;
  const auto& jobs = state.tables().jobs;
  for (auto at = jobs.lower_bound(prefix); at != jobs.end(); ++at) {
    if (!absl::StartsWith(at->first, prefix)) break;
    taken.insert(at->second->name());
  }
  int64_t number = 1;
  while (taken.contains(absl::StrCat(prefix, number))) ++number;
  return absl::StrCat(prefix, number);
}

absl::Status Fork(const State& state, const v1::ForkJobRequest& request, const Caller& caller,
                  v1::Update& update, v1::ForkJobResponse& response) {
  const v1::JobRecord* const parent = state.FindJob(request.checkpoint().job());
  if (parent == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint.job: there is no '", request.checkpoint().job(), "'"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::CheckpointRef from,
                          FindCheckpoint(state, request.checkpoint(), "checkpoint"));
  const std::string& parents_yaml = state.FindSpec(parent->id())->spec_yaml();
  NIBBLE_ASSIGN_OR_RETURN(JobSpec spec, ForkSpec(parents_yaml, request, from.step()));
  const RevisionMessages parents = WholeTimeline(state, parent->id());
  NIBBLE_ASSIGN_OR_RETURN(const Timeline timeline,
                          ForkTimeline(parents, request, from.step(), caller));
  spec.name = request.name().empty() ? ForkName(state, parent->name()) : request.name();
  // The timeline decides when each recipe is in effect; the parent's planned changes would
  // contradict it.
  if (!request.with_pending()) spec.changes.clear();
  // The fork starts from the parent's checkpoint, even if the parent itself had init_from.
  spec.init_from = {};
  NIBBLE_RETURN_IF_ERROR(Validate(spec));
  NIBBLE_ASSIGN_OR_RETURN(
      v1::JobScheduling scheduling,
      decide::CompleteScheduling(
          request.has_scheduling() ? request.scheduling() : parent->scheduling(), spec));
  NIBBLE_RETURN_IF_ERROR(decide::SetProject(caller, scheduling));
  NIBBLE_RETURN_IF_ERROR(CheckTimeline(timeline, 0, spec, scheduling.allowed_ranks()));
  NIBBLE_ASSIGN_OR_RETURN(JobSpec parents_spec, ParseJobSpec(parents_yaml));
  NIBBLE_ASSIGN_OR_RETURN(const Timeline parents_timeline, ToTimeline(parents));
  NIBBLE_RETURN_IF_ERROR(CheckDiffers(*parent, std::move(parents_spec), spec, parents_timeline,
                                      timeline, scheduling, from.step()));
  v1::JobSubmitted& submitted = decide::AddSubmission(state, spec.name, caller, update);
  submitted.set_spec_yaml(ToYaml(spec));
  *submitted.mutable_shape() = parent->shape();
  submitted.mutable_shape()->set_steps(EndStep(spec));
  submitted.mutable_shape()->set_decay_first_step(
      std::min(MakeScheduleFacts(spec).decay_first_step, EndStep(spec)));
  *submitted.mutable_scheduling() = std::move(scheduling);
  *submitted.mutable_restart_policy() =
      request.has_restart_policy() ? request.restart_policy() : parent->restart_policy();
  *submitted.mutable_origin()->mutable_checkpoint() = from;
  *submitted.mutable_revisions() = ToMessages(timeline);
  submitted.set_reason(request.reason());
  NIBBLE_RETURN_IF_ERROR(decide::AddTargets(spec, caller, submitted));
  decide::DescribeSubmitted(submitted, caller, *response.mutable_job());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Decision<v1::ForkJobResponse>> Decide(const State& state,
                                                     const v1::ForkJobRequest& request,
                                                     const Caller& caller) {
  return decide::Once<v1::ForkJobResponse>(state, request, caller,
                                           [&](v1::Update& update, v1::ForkJobResponse& response) {
                                             return Fork(state, request, caller, update, response);
                                           });
}

}  // namespace nibble
