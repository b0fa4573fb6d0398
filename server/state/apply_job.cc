#include <string>

#include "absl/strings/str_cat.h"
#include "server/state/apply.h"
#include "server/state/bounds.h"
#include "server/state/job_machine.h"
#include "server/state/keys.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"

namespace nibble::apply {
namespace {

absl::Status CheckPolicy(const v1::RestartPolicy& policy) {
  absl::Status status = CheckRange("restart_policy.max_without_progress",
                                   policy.max_without_progress(), 0, kMaxRestarts);
  if (!status.ok()) return status;
  status = CheckRange("restart_policy.initial_backoff_ms", policy.initial_backoff_ms(), 0,
                      kMaxBackoffMs);
  if (!status.ok()) return status;
  return CheckRange("restart_policy.max_backoff_ms", policy.max_backoff_ms(),
                    policy.initial_backoff_ms(), kMaxBackoffMs);
}

absl::Status CheckScheduling(const v1::JobScheduling& scheduling, const Draft& draft) {
  absl::Status status =
      CheckRange("scheduling.priority", scheduling.priority(), -kMaxPriority, kMaxPriority);
  if (!status.ok()) return status;
  if (draft.queues.Find(scheduling.queue()) == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("scheduling.queue: there is no '", scheduling.queue(), "'"));
  }
  if (scheduling.allowed_ranks().empty()) {
    return absl::InvalidArgumentError("scheduling.allowed_ranks: is empty");
  }
  int32_t least = 1;
  for (const int32_t ranks : scheduling.allowed_ranks()) {
    status = CheckRange("scheduling.allowed_ranks", ranks, least, kMaxRanks);
    if (!status.ok()) return status;
    least = ranks + 1;
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const v1::JobShape& shape) {
  absl::Status status = CheckRange("shape.steps", shape.steps(), 1, kMaxSteps);
  if (!status.ok()) return status;
  status = CheckRange("shape.tokens_per_step", shape.tokens_per_step(), 1, kMaxCount);
  if (!status.ok()) return status;
  status = CheckRange("shape.decay_first_step", shape.decay_first_step(), 0, shape.steps());
  if (!status.ok()) return status;
  status = CheckRange("shape.ranks", shape.ranks(), 1, kMaxRanks);
  if (!status.ok()) return status;
  status = CheckRange("shape.parameters", shape.parameters(), 0, kMaxCount);
  if (!status.ok()) return status;
  return CheckRange("shape.device", shape.device(), v1::DEVICE_CPU, v1::DEVICE_CUDA);
}

}  // namespace

absl::Status CheckPlan(const v1::JobScheduling& scheduling, const v1::RestartPolicy& policy,
                       const v1::JobShape& shape, const Draft& draft) {
  absl::Status status = CheckShape(shape);
  if (!status.ok()) return status;
  status = CheckScheduling(scheduling, draft);
  return status.ok() ? CheckPolicy(policy) : status;
}

namespace {

absl::Status CheckOrigin(const v1::JobOrigin& origin, const Draft& draft) {
  const v1::Checkpoint* const checkpoint =
      draft.checkpoints.Find(CheckpointKey(origin.checkpoint()));
  if (checkpoint == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("origin: there is no ", CheckpointText(origin.checkpoint())));
  }
  if (checkpoint->state() != v1::CHECKPOINT_STATE_COMMITTED) {
    return absl::FailedPreconditionError(absl::StrCat(
        "origin: ", CheckpointText(origin.checkpoint()), " is not committed, or damaged"));
  }
  return absl::OkStatus();
}

absl::Status CheckSubmission(const v1::JobSubmitted& fact, const v1::ClusterRecord& cluster,
                             const Draft& draft) {
  absl::Status status = CheckName("name", fact.name());
  if (!status.ok()) return status;
  status = CheckRange("number", fact.number(), cluster.next_job_number(), kMaxCount);
  if (!status.ok()) return status;
  const std::string id = absl::StrCat(fact.name(), "-", fact.number());
  if (fact.job() != id || draft.jobs.Find(id) != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("job: '", fact.job(), "'; the next is '", id, "'"));
  }
  status = CheckName("job", fact.job());
  if (!status.ok()) return status;
  if (draft.UnfinishedJobs() >= kMaxUnfinishedJobs) {
    return absl::ResourceExhaustedError(absl::StrCat("jobs: ", draft.UnfinishedJobs(),
                                                     " are unfinished; at most ",
                                                     kMaxUnfinishedJobs, " are allowed"));
  }
  if (fact.spec_yaml().empty()) return absl::InvalidArgumentError("spec_yaml: is empty");
  status = CheckPlan(fact.scheduling(), fact.restart_policy(), fact.shape(), draft);
  if (!status.ok()) return status;
  if (fact.has_origin()) {
    status = CheckOrigin(fact.origin(), draft);
    if (!status.ok()) return status;
  }
  return CheckRevisions(fact.revisions());
}

}  // namespace

absl::Status Apply(const v1::JobSubmitted& fact, const Stamp& stamp, Draft& draft) {
  v1::ClusterRecord* const cluster = draft.cluster.Edit(kOnlyKey);
  absl::Status status = CheckSubmission(fact, *cluster, draft);
  if (!status.ok()) return status;
  cluster->set_next_job_number(fact.number() + 1);
  draft.specs.Put(fact.job()).set_spec_yaml(fact.spec_yaml());
  *draft.timelines.Put(fact.job()).mutable_revisions() = fact.revisions();
  v1::JobRecord& job = draft.jobs.Put(fact.job());
  job.set_id(fact.job());
  job.set_number(fact.number());
  job.set_name(fact.name());
  job.set_owner(std::string(stamp.author));
  *job.mutable_scheduling() = fact.scheduling();
  *job.mutable_restart_policy() = fact.restart_policy();
  *job.mutable_shape() = fact.shape();
  if (fact.has_origin()) *job.mutable_origin() = fact.origin();
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_state_reason("submitted");
  job.set_state_since_unix_ms(stamp.time_unix_ms);
  job.set_state_author(std::string(stamp.author));
  job.set_goal(v1::JOB_GOAL_RUN);
  job.set_goal_author(std::string(stamp.author));
  job.set_submitted_unix_ms(stamp.time_unix_ms);
  job.set_first_event(1);
  job.set_next_event(1);
  status = SetTargets(fact.notify(), job);
  if (!status.ok()) return status;
  std::string text = "submitted";
  if (fact.has_origin()) {
    text = absl::StrCat(fact.origin().weights_only()
                            ? "submitted, to begin at step 0 with the weights of the "
                            : "forked from ",
                        CheckpointText(fact.origin().checkpoint()));
  }
  if (!fact.reason().empty()) absl::StrAppend(&text, ": ", Clip(fact.reason(), kMaxClause));
  AddEvent({.kind = v1::JOB_EVENT_KIND_SUBMITTED,
            .text = text,
            .to = v1::JOB_STATE_QUEUED,
            .revision = fact.revisions().rbegin()->number()},
           stamp, job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::JobMoved& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditJob(draft, fact.job());
  if (!job.ok()) return job.status();
  if ((*job)->state() != fact.from() || !MayMove(fact.from(), fact.to())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", fact.job(), " is ", StateName((*job)->state()),
                     " and cannot go from ", StateName(fact.from()), " to ", StateName(fact.to())));
  }
  if (fact.reason().empty()) return absl::InvalidArgumentError("reason: is empty");
  (*job)->set_state(fact.to());
  (*job)->set_state_reason(fact.reason());
  (*job)->set_state_since_unix_ms(stamp.time_unix_ms);
  (*job)->set_state_author(std::string(stamp.author));
  if (IsFinished(fact.to())) {
    // Jobs are forgotten in the order in which they finished: a clock that was set back since the
    // last one did must not make this one the oldest.
    const auto* const last = draft.before().finished().Last();
    (*job)->set_finished_unix_ms(
        std::max(stamp.time_unix_ms, last == nullptr ? 0 : last->first.first));
    (*job)->clear_not_before_unix_ms();
    (*job)->clear_backoff_ms();
  }
  if (fact.to() == v1::JOB_STATE_RUNNING && (*job)->has_attempt() &&
      (*job)->attempt().running_unix_ms() == 0) {
    (*job)->mutable_attempt()->set_running_unix_ms(stamp.time_unix_ms);
  }
  AddEvent({.kind = v1::JOB_EVENT_KIND_MOVED,
            .text = fact.reason(),
            .from = fact.from(),
            .to = fact.to(),
            .attempt = (*job)->attempt().number()},
           stamp, **job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::JobGoalSet& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditUnfinished(draft, fact.job());
  if (!job.ok()) return job.status();
  absl::Status status = CheckRange("goal", fact.goal(), v1::JOB_GOAL_RUN, v1::JOB_GOAL_CANCEL);
  if (!status.ok()) return status;
  if ((*job)->goal() == v1::JOB_GOAL_CANCEL) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", fact.job(), " is being cancelled; that is not taken back"));
  }
  (*job)->set_goal(fact.goal());
  (*job)->set_goal_reason(fact.reason());
  (*job)->set_goal_author(std::string(stamp.author));
  const char* const wanted = fact.goal() == v1::JOB_GOAL_RUN     ? "to run"
                             : fact.goal() == v1::JOB_GOAL_PAUSE ? "to pause"
                                                                 : "to be cancelled";
  AddEvent({.kind = v1::JOB_EVENT_KIND_GOAL,
            .text = absl::StrCat("asked ", wanted, fact.reason().empty() ? "" : ": ",
                                 Clip(fact.reason(), kMaxClause)),
            .attempt = (*job)->attempt().number()},
           stamp, **job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::JobPrioritySet& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditUnfinished(draft, fact.job());
  if (!job.ok()) return job.status();
  absl::Status status = CheckRange("priority", fact.priority(), -kMaxPriority, kMaxPriority);
  if (!status.ok()) return status;
  const int32_t before = (*job)->scheduling().priority();
  (*job)->mutable_scheduling()->set_priority(fact.priority());
  AddEvent({.kind = v1::JOB_EVENT_KIND_SETTING,
            .text = absl::StrCat("priority ", before, " → ", fact.priority())},
           stamp, **job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::JobRestartPolicySet& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditUnfinished(draft, fact.job());
  if (!job.ok()) return job.status();
  absl::Status status = CheckPolicy(fact.restart_policy());
  if (!status.ok()) return status;
  const int32_t before = (*job)->restart_policy().max_without_progress();
  *(*job)->mutable_restart_policy() = fact.restart_policy();
  AddEvent({.kind = v1::JOB_EVENT_KIND_SETTING,
            .text = absl::StrCat("restarts without progress: ", before, " → ",
                                 fact.restart_policy().max_without_progress(), ", back-off ",
                                 fact.restart_policy().initial_backoff_ms(), " to ",
                                 fact.restart_policy().max_backoff_ms(), " ms")},
           stamp, **job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::JobForgotten& fact, const Stamp&, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditJob(draft, fact.job());
  if (!job.ok()) return job.status();
  if (!IsFinished((*job)->state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", fact.job(), " is ", StateName((*job)->state()), ", not finished"));
  }
  const std::string prefix = JobPrefix(fact.job());
  for (const auto& [key, checkpoint] : draft.checkpoints.WithPrefix(prefix)) {
    if (!checkpoint->pins().empty() || draft.AnyForkOf(key)) {
      return absl::FailedPreconditionError(
          absl::StrCat("job: the ", CheckpointText(checkpoint->ref()),
                       " is pinned, or another job began with it"));
    }
  }
  for (const auto& [key, unused] : draft.checkpoints.WithPrefix(prefix)) {
    draft.checkpoints.Erase(key);
  }
  for (const auto& [key, unused] : draft.shards.WithPrefix(prefix)) draft.shards.Erase(key);
  for (const auto& [key, unused] : draft.events.WithPrefix(prefix)) draft.events.Erase(key);
  draft.specs.Erase(fact.job());
  draft.timelines.Erase(fact.job());
  for (const auto& [key, unused] : draft.archive.WithPrefix(prefix)) draft.archive.Erase(key);
  draft.jobs.Erase(fact.job());
  return absl::OkStatus();
}

absl::Status Apply(const v1::CheckpointRequested& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditUnfinished(draft, fact.job());
  if (!job.ok()) return job.status();
  if (!(*job)->has_attempt()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", fact.job(), " is ", StateName((*job)->state()),
                     " without an attempt that could take a checkpoint"));
  }
  if (fact.number() != (*job)->checkpoint_request() + 1) {
    return absl::InvalidArgumentError(absl::StrCat("number: ", fact.number(), "; the next is ",
                                                   (*job)->checkpoint_request() + 1));
  }
  (*job)->set_checkpoint_request(fact.number());
  AddEvent({.kind = v1::JOB_EVENT_KIND_CHECKPOINT,
            .text = absl::StrCat("asked for", fact.reason().empty() ? "" : ": ",
                                 Clip(fact.reason(), kMaxClause)),
            .attempt = (*job)->attempt().number()},
           stamp, **job, draft);
  return absl::OkStatus();
}

}  // namespace nibble::apply
