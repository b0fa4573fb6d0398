#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "job/notify_url.h"
#include "model/outline.h"
#include "recipe/recipe.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"
#include "server/state/views.h"

namespace nibble {
namespace decide {

absl::StatusOr<v1::JobScheduling> CompleteScheduling(v1::JobScheduling scheduling,
                                                     const JobSpec& spec) {
  if (scheduling.queue().empty()) scheduling.set_queue("default");
  if (scheduling.allowed_ranks().empty()) {
    scheduling.add_allowed_ranks(static_cast<int32_t>(spec.resources.ranks));
  }
  for (const int32_t ranks : scheduling.allowed_ranks()) {
    const int64_t least = std::max<int64_t>(1, spec.training.micro_batch);
    if (ranks < 1 || spec.training.batch % ranks != 0 ||
        (spec.training.batch / ranks) % least != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("scheduling.allowed_ranks: ", ranks, " does not divide the batch of ",
                       spec.training.batch, " into whole micro-batches of ", least));
    }
  }
  return scheduling;
}

absl::Status SetProject(const Caller& caller, v1::JobScheduling& scheduling) {
  const std::string& wanted = scheduling.project();
  if (caller.projects.empty()) return absl::OkStatus();
  if (wanted.empty() && caller.projects.size() == 1) {
    scheduling.set_project(caller.projects.front());
    return absl::OkStatus();
  }
  if (std::count(caller.projects.begin(), caller.projects.end(), wanted) > 0) {
    return absl::OkStatus();
  }
  const std::string allowed =
      absl::StrCat("; allowed for ", caller.author, ": ", absl::StrJoin(caller.projects, ", "));
  if (wanted.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("scheduling.project: not set", allowed, " ('nibble job submit --project')"));
  }
  return absl::PermissionDeniedError(absl::StrCat("scheduling.project: '", wanted, "'", allowed));
}

v1::JobSubmitted& AddSubmission(const State& state, const std::string& name, const Caller& caller,
                                v1::Update& update) {
  int64_t number = FindIn(state.tables().cluster, kOnlyKey)->next_job_number();
  const auto is_taken = [&](const std::string& id) {
    return state.FindJob(id) != nullptr ||
           (caller.taken_jobs != nullptr && caller.taken_jobs->contains(id));
  };
  while (is_taken(absl::StrCat(name, "-", number))) ++number;
  v1::JobSubmitted& submitted = *update.add_facts()->mutable_job_submitted();
  submitted.set_job(absl::StrCat(name, "-", number));
  submitted.set_number(number);
  submitted.set_name(name);
  return submitted;
}

static_assert(kMaxNotifyTargets <= kMaxTargets && kMaxNotifyUrlBytes <= kMaxPathBytes);

absl::Status AddTargets(const JobSpec& spec, const Caller& caller, v1::JobSubmitted& submitted) {
  for (size_t i = 0; i < spec.notify.size(); ++i) {
    const NotifySpec& notify = spec.notify[i];
    const absl::Status may =
        caller.may_post == nullptr
            ? absl::FailedPreconditionError(
                  "this coordinator posts no events; start it with --notify-allow")
            : (*caller.may_post)(notify.url);
    if (!may.ok()) {
      return absl::FailedPreconditionError(absl::StrCat("notify[", i, "].url: ", may.message()));
    }
    v1::NotifyTarget& target = *submitted.add_notify();
    target.set_url(notify.url);
    for (const NotifyEvent event : notify.on) target.add_on(std::string(ChoiceName(event)));
  }
  return absl::OkStatus();
}

void DescribeSubmitted(const v1::JobSubmitted& submitted, const Caller& caller, v1::Job& job) {
  job.set_id(submitted.job());
  job.set_name(submitted.name());
  job.set_owner(caller.author);
  *job.mutable_scheduling() = submitted.scheduling();
  *job.mutable_restart_policy() = submitted.restart_policy();
  *job.mutable_shape() = submitted.shape();
  *job.mutable_notify() = submitted.notify();
  if (submitted.has_origin()) *job.mutable_origin() = submitted.origin();
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_goal(v1::JOB_GOAL_RUN);
  job.set_latest_revision(submitted.revisions().rbegin()->number());
  job.set_checkpoint_step(-1);
  const bool forked = submitted.has_origin() && !submitted.origin().weights_only();
  job.set_next_step(forked ? submitted.origin().checkpoint().step() : 0);
}

}  // namespace decide

namespace {

v1::Device DeviceOf(JobDevice device) {
  switch (device) {
    case JobDevice::kCpu:
      return v1::DEVICE_CPU;
    case JobDevice::kCuda:
      return v1::DEVICE_CUDA;
  }
  return v1::DEVICE_UNSPECIFIED;
}

absl::StatusOr<v1::JobShape> ShapeOf(const JobSpec& spec) {
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec.model));
  const ScheduleFacts schedule = MakeScheduleFacts(spec);
  v1::JobShape shape;
  shape.set_model(Clip(spec.model.name, kMaxNameBytes));
  shape.set_parameters(outline.parameters());
  shape.set_ranks(static_cast<int32_t>(spec.resources.ranks));
  shape.set_device(DeviceOf(spec.resources.device));
  shape.set_steps(EndStep(spec));
  shape.set_tokens_per_step(schedule.tokens_per_step);
  shape.set_decay_first_step(std::min(schedule.decay_first_step, EndStep(spec)));
  return shape;
}

void AddLabels(const std::vector<NamedText>& texts,
               google::protobuf::RepeatedPtrField<v1::Label>& labels) {
  for (const NamedText& text : texts) {
    v1::Label& label = *labels.Add();
    label.set_key(text.name);
    label.set_value(text.text);
  }
}

// The spec's scheduling, overridden by the fields that the request sets.
v1::JobScheduling SchedulingOf(const JobSpec& spec, const v1::JobScheduling& request) {
  v1::JobScheduling scheduling = request;
  if (request.queue().empty()) scheduling.set_queue(spec.scheduling.queue);
  if (request.priority() == 0) {
    scheduling.set_priority(static_cast<int32_t>(spec.scheduling.priority));
  }
  if (request.allowed_ranks().empty()) {
    for (const int64_t ranks : AllowedRanks(spec)) {
      scheduling.add_allowed_ranks(static_cast<int32_t>(ranks));
    }
  }
  if (request.required_labels().empty()) {
    AddLabels(spec.scheduling.require, *scheduling.mutable_required_labels());
  }
  if (request.preferred_labels().empty()) {
    AddLabels(spec.scheduling.prefer, *scheduling.mutable_preferred_labels());
  }
  if (spec.scheduling.prefer_fp4) scheduling.set_wants_fp4_tensor_cores(true);
  return scheduling;
}

v1::RestartPolicy PolicyOf(const RestartSpec& restarts) {
  constexpr double kMsPerSecond = 1000;
  v1::RestartPolicy policy;
  policy.set_max_without_progress(static_cast<int32_t>(restarts.max_without_progress));
  policy.set_initial_backoff_ms(std::llround(restarts.backoff * kMsPerSecond));
  policy.set_max_backoff_ms(std::llround(restarts.max_backoff * kMsPerSecond));
  return policy;
}

// The id of the job that init_from names by its id or by a unique name, among those that the caller
// sees.
absl::StatusOr<std::string> ResolveJob(const State& state, const std::string& text,
                                       const Caller& caller) {
  const v1::JobRecord* const known = state.FindJob(text);
  if (known != nullptr && IsOfProjects(caller.projects, *known)) return text;
  std::vector<std::string> named;
  const std::string prefix = absl::StrCat(text, "-");
  const auto& jobs = state.tables().jobs;
  for (auto at = jobs.lower_bound(prefix); at != jobs.end(); ++at) {
    if (!absl::StartsWith(at->first, prefix)) break;
    const bool seen = IsOfProjects(caller.projects, *at->second);
    if (seen && at->second->name() == text) named.push_back(at->first);
  }
  if (named.size() == 1) return named.front();
  const std::string what = absl::StrCat("init_from.job: '", Clip(text, kMaxNameBytes), "'");
  if (named.empty()) {
    return absl::NotFoundError(
        absl::StrCat(what, " is not a job; run 'nibble job list' to see the jobs"));
  }
  constexpr size_t kShown = 3;
  const size_t more = named.size() - std::min(named.size(), kShown);
  named.resize(named.size() - more);
  return absl::InvalidArgumentError(absl::StrCat(
      what, " is the name of ", absl::StrJoin(named, ", "),
      more > 0 ? absl::StrCat(" and ", more, " more jobs") : "", "; use one of these ids"));
}

// The checkpoint with the spec's initial weights. Checks that the models have the same shapes,
// using the spec of the job that wrote it.
absl::StatusOr<v1::JobOrigin> WeightsFor(const State& state, const JobSpec& spec,
                                         const Caller& caller) {
  if (!spec.init_from.path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("init_from.path: '", Clip(spec.init_from.path, kMaxNameBytes),
                     "' is only allowed without a cluster; use init_from.job"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string job, ResolveJob(state, spec.init_from.job, caller));
  v1::CheckpointRef wanted;
  wanted.set_job(job);
  wanted.set_step(spec.init_from.step);
  const absl::StatusOr<v1::CheckpointRef> found = FindCheckpoint(state, wanted, "init_from");
  if (!found.ok()) {
    return absl::Status(found.status().code(), absl::StrCat(std::string(found.status().message()),
                                                            "; run 'nibble checkpoint list ", job,
                                                            "' to see its checkpoints"));
  }
  if (state.FindCheckpoint(*found)->state() != v1::CHECKPOINT_STATE_COMMITTED) {
    return absl::FailedPreconditionError(
        absl::StrCat("init_from: the ", CheckpointText(*found), " is damaged"));
  }
  const absl::StatusOr<JobSpec> theirs = ParseJobSpec(state.FindSpec(job)->spec_yaml());
  if (!theirs.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("init_from.job: the spec of ", job,
                     " cannot be read: ", std::string(theirs.status().message())));
  }
  NIBBLE_RETURN_IF_ERROR(CheckSameShapes(spec.model, theirs->model, job));
  v1::JobOrigin origin;
  *origin.mutable_checkpoint() = *found;
  origin.set_weights_only(true);
  return origin;
}

absl::Status Submit(const State& state, const v1::SubmitJobRequest& request, const Caller& caller,
                    v1::Update& update, v1::SubmitJobResponse& response) {
  NIBBLE_ASSIGN_OR_RETURN(const JobSpec spec, ParseJobSpec(request.spec_yaml()));
  NIBBLE_ASSIGN_OR_RETURN(const v1::JobShape shape, ShapeOf(spec));
  NIBBLE_ASSIGN_OR_RETURN(
      v1::JobScheduling scheduling,
      decide::CompleteScheduling(SchedulingOf(spec, request.scheduling()), spec));
  NIBBLE_RETURN_IF_ERROR(decide::SetProject(caller, scheduling));
  v1::JobSubmitted& submitted = decide::AddSubmission(state, spec.name, caller, update);
  submitted.set_spec_yaml(request.spec_yaml());
  *submitted.mutable_shape() = shape;
  if (spec.init_from.any()) {
    NIBBLE_ASSIGN_OR_RETURN(v1::JobOrigin origin, WeightsFor(state, spec, caller));
    *submitted.mutable_origin() = std::move(origin);
  }
  // ParseJobSpec has checked the spec with its own number of ranks only.
  std::vector<int32_t> others(scheduling.allowed_ranks().begin(), scheduling.allowed_ranks().end());
  std::erase(others, spec.resources.ranks);
  const Timeline timeline = MakeTimeline(spec);
  const absl::Status fits = CheckTimeline(timeline, 0, spec, others);
  if (!fits.ok()) {
    return absl::Status(fits.code(), absl::StrCat("scheduling.allowed_ranks: ", fits.message()));
  }
  *submitted.mutable_scheduling() = std::move(scheduling);
  *submitted.mutable_restart_policy() =
      request.has_restart_policy() ? request.restart_policy() : PolicyOf(spec.restarts);
  *submitted.mutable_revisions() = ToMessages(timeline);
  NIBBLE_RETURN_IF_ERROR(decide::AddTargets(spec, caller, submitted));
  decide::DescribeSubmitted(submitted, caller, *response.mutable_job());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Decision<v1::SubmitJobResponse>> Decide(const State& state,
                                                       const v1::SubmitJobRequest& request,
                                                       const Caller& caller) {
  return decide::Once<v1::SubmitJobResponse>(
      state, request, caller, [&](v1::Update& update, v1::SubmitJobResponse& response) {
        return Submit(state, request, caller, update, response);
      });
}

MaybeUpdate DecideForget(const State& state, const Caller& caller) {
  if (static_cast<int64_t>(state.index().finished().size()) <= kMaxFinishedJobs) {
    return std::nullopt;
  }
  for (const auto& [when, job] : state.index().finished()) {
    v1::Update update = decide::NextUpdate(state, caller);
    update.add_facts()->mutable_job_forgotten()->set_job(job);
    // Skip a job with a pinned checkpoint or a fork.
    if (state.Validate(update).ok()) return update;
  }
  return std::nullopt;
}

}  // namespace nibble
