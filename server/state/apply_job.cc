#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "job/choices.h"
#include "server/state/apply.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"

namespace nibble::apply {
namespace {

// At most this many requests are forgotten with one update, so that no update takes long.
constexpr int kForgottenAtOnce = 64;

}  // namespace

absl::StatusOr<v1::JobRecord*> EditJob(Draft& draft, const std::string& id) {
  v1::JobRecord* const job = draft.jobs.Edit(id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("job: there is no '", id, "'"));
  return job;
}

absl::StatusOr<v1::JobRecord*> EditUnfinished(Draft& draft, const std::string& id) {
  absl::StatusOr<v1::JobRecord*> job = EditJob(draft, id);
  if (job.ok() && IsFinished((*job)->state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", id, " is finished: ", StateName((*job)->state())));
  }
  return job;
}

absl::Status CheckAttempt(const v1::JobRecord& job, int64_t number) {
  if (number > job.last_attempt() || number < 1) {
    return absl::AbortedError(absl::StrCat("attempt: ", number, " of ", job.id(),
                                           " was never launched; the latest is ",
                                           job.last_attempt()));
  }
  if (job.has_attempt() && number == job.attempt().number()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "attempt: ", number, " of ", job.id(), " is over; ",
      job.has_attempt() ? absl::StrCat("the current one is ", job.attempt().number())
                        : absl::StrCat("none is live, the latest was ", job.last_attempt())));
}

void AddEvent(const EventFacts& facts, const Stamp& stamp, v1::JobRecord& job, Draft& draft) {
  v1::JobEvent& event = draft.events.Put(EventKey(job.id(), job.next_event()));
  event.set_job(job.id());
  event.set_number(job.next_event());
  event.set_sequence(stamp.sequence);
  event.set_time_unix_ms(stamp.time_unix_ms);
  event.set_author(std::string(stamp.author));
  event.set_kind(facts.kind);
  event.set_text(facts.text);
  event.set_from(facts.from);
  event.set_to(facts.to);
  event.set_attempt(facts.attempt);
  event.set_step(facts.step);
  event.set_revision(facts.revision);
  if (facts.alert != nullptr) *event.mutable_alert() = *facts.alert;
  for (v1::NotifyTarget& target : *job.mutable_notify()) {
    if (Wants(target, event)) target.set_wanted_event(event.number());
  }
  job.set_next_event(job.next_event() + 1);
  if (job.next_event() - job.first_event() > kMaxEventsPerJob) {
    draft.events.Erase(EventKey(job.id(), job.first_event()));
    job.set_first_event(job.first_event() + 1);
  }
}

absl::Status Remember(const v1::RequestRecord& request, const Stamp& stamp, Draft& draft) {
  NIBBLE_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  if (!request.author().empty() || request.time_unix_ms() != 0 || request.sequence() != 0) {
    return absl::InvalidArgumentError("request: author, time and sequence are set from the update");
  }
  const std::string key = RequestKey(stamp.author, request.request_id());
  if (draft.requests.Find(key) != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("request_id: '", request.request_id(), "' was already carried out"));
  }
  v1::RequestRecord& record = draft.requests.Put(key);
  record = request;
  record.set_author(std::string(stamp.author));
  record.set_time_unix_ms(stamp.time_unix_ms);
  record.set_sequence(stamp.sequence);
  int64_t count = draft.requests.size();
  int forgotten = 0;
  for (const auto& [sequence, old_key] : draft.before().requests()) {
    if (count <= kMaxRequests || forgotten == kForgottenAtOnce) break;
    draft.requests.Erase(old_key);
    --count;
    ++forgotten;
  }
  return absl::OkStatus();
}

namespace {

// Whether the state of a job without an attempt agrees with its goal; a job for which it does not
// would wait forever.
bool GoalFits(const v1::JobRecord& job) {
  if (IsFinished(job.state()) || job.has_attempt()) return true;
  switch (job.state()) {
    case v1::JOB_STATE_PAUSED:
      return job.goal() == v1::JOB_GOAL_PAUSE;
    default:
      return job.goal() == v1::JOB_GOAL_RUN;
  }
}

}  // namespace

absl::Status CheckJobs(const Draft& draft) {
  for (const auto& [id, job] : draft.jobs.changes()) {
    if (job == nullptr) continue;
    const NeedsAttempt needs = AttemptIn(job->state());
    if ((needs == NeedsAttempt::kAlways && !job->has_attempt()) ||
        (needs == NeedsAttempt::kNever && job->has_attempt())) {
      return absl::FailedPreconditionError(
          absl::StrCat("job: ", id, " would be ", StateName(job->state()),
                       job->has_attempt() ? " with" : " without", " a live attempt"));
    }
    if (!GoalFits(*job)) {
      return absl::FailedPreconditionError(
          absl::StrCat("job: ", id, " would be ", StateName(job->state()),
                       " without an attempt, contrary to its goal"));
    }
    if (!IsFinished(job->state()) && draft.queues.Find(job->scheduling().queue()) == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("job: ", id, " would be in the queue '",
                                                        job->scheduling().queue(),
                                                        "', which does not exist"));
    }
  }
  return absl::OkStatus();
}

namespace {

absl::Status CheckPolicy(const v1::RestartPolicy& policy) {
  NIBBLE_RETURN_IF_ERROR(CheckRange("restart_policy.max_without_progress",
                                    policy.max_without_progress(), 0, kMaxRestarts));
  NIBBLE_RETURN_IF_ERROR(CheckRange("restart_policy.initial_backoff_ms",
                                    policy.initial_backoff_ms(), 0, kMaxBackoffMs));
  return CheckRange("restart_policy.max_backoff_ms", policy.max_backoff_ms(),
                    policy.initial_backoff_ms(), kMaxBackoffMs);
}

absl::Status CheckScheduling(const v1::JobScheduling& scheduling, const Draft& draft) {
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("scheduling.priority", scheduling.priority(), -kMaxPriority, kMaxPriority));
  if (!scheduling.project().empty()) {
    NIBBLE_RETURN_IF_ERROR(CheckName("scheduling.project", scheduling.project()));
  }
  if (draft.queues.Find(scheduling.queue()) == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("scheduling.queue: there is no '", scheduling.queue(), "'"));
  }
  if (scheduling.allowed_ranks().empty()) {
    return absl::InvalidArgumentError("scheduling.allowed_ranks: is empty");
  }
  int32_t least = 1;
  for (const int32_t ranks : scheduling.allowed_ranks()) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("scheduling.allowed_ranks", ranks, least, kMaxRanks));
    least = ranks + 1;
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const v1::JobShape& shape) {
  NIBBLE_RETURN_IF_ERROR(CheckRange("shape.steps", shape.steps(), 1, kMaxSteps));
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("shape.tokens_per_step", shape.tokens_per_step(), 1, kMaxCount));
  NIBBLE_RETURN_IF_ERROR(
      CheckRange("shape.decay_first_step", shape.decay_first_step(), 0, shape.steps()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("shape.ranks", shape.ranks(), 1, kMaxRanks));
  NIBBLE_RETURN_IF_ERROR(CheckRange("shape.parameters", shape.parameters(), 0, kMaxCount));
  return CheckRange("shape.device", shape.device(), v1::DEVICE_CPU, v1::DEVICE_CUDA);
}

}  // namespace

absl::Status CheckPlan(const v1::JobScheduling& scheduling, const v1::RestartPolicy& policy,
                       const v1::JobShape& shape, const Draft& draft) {
  NIBBLE_RETURN_IF_ERROR(CheckShape(shape));
  NIBBLE_RETURN_IF_ERROR(CheckScheduling(scheduling, draft));
  return CheckPolicy(policy);
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
        "origin: ", CheckpointText(origin.checkpoint()), " is not committed or is damaged"));
  }
  return absl::OkStatus();
}

absl::Status CheckSubmission(const v1::JobSubmitted& fact, const v1::ClusterRecord& cluster,
                             const Draft& draft) {
  NIBBLE_RETURN_IF_ERROR(CheckName("name", fact.name()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("number", fact.number(), cluster.next_job_number(), kMaxCount));
  const std::string id = absl::StrCat(fact.name(), "-", fact.number());
  if (fact.job() != id || draft.jobs.Find(id) != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("job: '", fact.job(), "'; the next is '", id, "'"));
  }
  NIBBLE_RETURN_IF_ERROR(CheckName("job", fact.job()));
  if (draft.UnfinishedJobs() >= kMaxUnfinishedJobs) {
    return absl::ResourceExhaustedError(absl::StrCat("jobs: ", draft.UnfinishedJobs(),
                                                     " are unfinished; at most ",
                                                     kMaxUnfinishedJobs, " are allowed"));
  }
  if (fact.spec_yaml().empty()) return absl::InvalidArgumentError("spec_yaml: is empty");
  NIBBLE_RETURN_IF_ERROR(CheckPlan(fact.scheduling(), fact.restart_policy(), fact.shape(), draft));
  if (fact.has_origin()) {
    NIBBLE_RETURN_IF_ERROR(CheckOrigin(fact.origin(), draft));
  }
  return CheckRevisions(fact.revisions());
}

}  // namespace

absl::Status Apply(const v1::JobSubmitted& fact, const Stamp& stamp, Draft& draft) {
  v1::ClusterRecord* const cluster = draft.cluster.Edit(kOnlyKey);
  NIBBLE_RETURN_IF_ERROR(CheckSubmission(fact, *cluster, draft));
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
  NIBBLE_RETURN_IF_ERROR(SetTargets(fact.notify(), job));
  std::string text = "submitted";
  if (fact.has_origin()) {
    text = absl::StrCat(fact.origin().weights_only()
                            ? "submitted, starts at step 0 with the weights of the "
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
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditJob(draft, fact.job()));
  if (job->state() != fact.from() || !MayMove(fact.from(), fact.to())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", fact.job(), " is ", StateName(job->state()), " and cannot go from ",
                     StateName(fact.from()), " to ", StateName(fact.to())));
  }
  if (fact.reason().empty()) return absl::InvalidArgumentError("reason: is empty");
  job->set_state(fact.to());
  job->set_state_reason(fact.reason());
  job->set_state_since_unix_ms(stamp.time_unix_ms);
  job->set_state_author(std::string(stamp.author));
  if (IsFinished(fact.to())) {
    // Finished jobs are forgotten in the order in which they finished. If the clock was set back
    // since the last one finished, this one must not become the oldest.
    const auto* const last = draft.before().finished().Last();
    job->set_finished_unix_ms(
        std::max(stamp.time_unix_ms, last == nullptr ? 0 : last->first.first));
    job->clear_not_before_unix_ms();
    job->clear_backoff_ms();
  }
  if (fact.to() == v1::JOB_STATE_RUNNING && job->has_attempt() &&
      job->attempt().running_unix_ms() == 0) {
    job->mutable_attempt()->set_running_unix_ms(stamp.time_unix_ms);
  }
  AddEvent({.kind = v1::JOB_EVENT_KIND_MOVED,
            .text = fact.reason(),
            .from = fact.from(),
            .to = fact.to(),
            .attempt = job->attempt().number()},
           stamp, *job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::JobGoalSet& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("goal", fact.goal(), v1::JOB_GOAL_RUN, v1::JOB_GOAL_CANCEL));
  if (job->goal() == v1::JOB_GOAL_CANCEL) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", fact.job(), " is being cancelled, which cannot be undone"));
  }
  job->set_goal(fact.goal());
  job->set_goal_reason(fact.reason());
  job->set_goal_author(std::string(stamp.author));
  const char* const wanted = fact.goal() == v1::JOB_GOAL_RUN     ? "to run"
                             : fact.goal() == v1::JOB_GOAL_PAUSE ? "to pause"
                                                                 : "to be cancelled";
  AddEvent({.kind = v1::JOB_EVENT_KIND_GOAL,
            .text = absl::StrCat("asked ", wanted, fact.reason().empty() ? "" : ": ",
                                 Clip(fact.reason(), kMaxClause)),
            .attempt = job->attempt().number()},
           stamp, *job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::JobPrioritySet& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("priority", fact.priority(), -kMaxPriority, kMaxPriority));
  const int32_t before = job->scheduling().priority();
  job->mutable_scheduling()->set_priority(fact.priority());
  AddEvent({.kind = v1::JOB_EVENT_KIND_SETTING,
            .text = absl::StrCat("priority ", before, " → ", fact.priority())},
           stamp, *job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::JobRestartPolicySet& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckPolicy(fact.restart_policy()));
  const int32_t before = job->restart_policy().max_without_progress();
  *job->mutable_restart_policy() = fact.restart_policy();
  AddEvent({.kind = v1::JOB_EVENT_KIND_SETTING,
            .text = absl::StrCat("restarts without progress: ", before, " → ",
                                 fact.restart_policy().max_without_progress(), ", backoff ",
                                 fact.restart_policy().initial_backoff_ms(), " to ",
                                 fact.restart_policy().max_backoff_ms(), " ms")},
           stamp, *job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::JobForgotten& fact, const Stamp&, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditJob(draft, fact.job()));
  if (!IsFinished(job->state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", fact.job(), " is ", StateName(job->state()), ", not finished"));
  }
  const std::string prefix = JobPrefix(fact.job());
  for (const auto& [key, checkpoint] : draft.checkpoints.WithPrefix(prefix)) {
    if (!checkpoint->pins().empty() || draft.AnyForkOf(key)) {
      return absl::FailedPreconditionError(
          absl::StrCat("job: the ", CheckpointText(checkpoint->ref()),
                       " is pinned, or has the initial weights of another job"));
    }
  }
  for (const auto& [key, unused] : draft.checkpoints.WithPrefix(prefix)) {
    draft.checkpoints.Erase(key);
  }
  for (const auto& [key, unused] : draft.shards.WithPrefix(prefix)) draft.shards.Erase(key);
  for (const auto& [key, unused] : draft.deletions.WithPrefix(prefix)) draft.deletions.Erase(key);
  for (const auto& [key, unused] : draft.events.WithPrefix(prefix)) draft.events.Erase(key);
  draft.specs.Erase(fact.job());
  draft.timelines.Erase(fact.job());
  for (const auto& [key, unused] : draft.archive.WithPrefix(prefix)) draft.archive.Erase(key);
  draft.jobs.Erase(fact.job());
  return absl::OkStatus();
}

absl::Status Apply(const v1::CheckpointRequested& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  if (!job->has_attempt()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", fact.job(), " is ", StateName(job->state()),
                     " without an attempt that could take a checkpoint"));
  }
  if (fact.number() != job->checkpoint_request() + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("number: ", fact.number(), "; the next is ", job->checkpoint_request() + 1));
  }
  job->set_checkpoint_request(fact.number());
  AddEvent({.kind = v1::JOB_EVENT_KIND_CHECKPOINT,
            .text = absl::StrCat("requested", fact.reason().empty() ? "" : ": ",
                                 Clip(fact.reason(), kMaxClause)),
            .attempt = job->attempt().number()},
           stamp, *job, draft);
  return absl::OkStatus();
}

namespace {

bool IsEventName(const std::string& name) {
  const auto choices = ChoicesOf<NotifyEvent>();
  return std::any_of(choices.begin(), choices.end(),
                     [&name](const Choice<NotifyEvent>& choice) { return choice.name == name; });
}

}  // namespace

absl::Status SetTargets(const google::protobuf::RepeatedPtrField<v1::NotifyTarget>& targets,
                        v1::JobRecord& job) {
  for (const v1::NotifyTarget& given : targets) {
    if (given.url().empty()) return absl::InvalidArgumentError("notify.url: is empty");
    v1::NotifyTarget& target = *job.add_notify();
    target.set_url(given.url());
    for (const std::string& name : given.on()) {
      if (!IsEventName(name)) {
        return absl::InvalidArgumentError(
            absl::StrCat("notify.on: '", Clip(name, kMaxNameBytes), "' is not an event"));
      }
      target.add_on(name);
    }
  }
  return absl::OkStatus();
}

absl::Status Apply(const v1::PostsSettled& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditJob(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("target", fact.target(), 0, job->notify_size() - 1));
  v1::NotifyTarget& target = *job->mutable_notify(fact.target());
  NIBBLE_RETURN_IF_ERROR(CheckRange("through_event", fact.through_event(),
                                    target.settled_event() + 1, target.wanted_event()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("delivered", fact.delivered(), 0, fact.through_event()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("given_up", fact.given_up(), 0, fact.through_event()));
  target.set_settled_event(fact.through_event());
  target.set_delivered(target.delivered() + fact.delivered());
  target.set_given_up(target.given_up() + fact.given_up());
  target.set_problem(fact.problem());
  target.set_settled_unix_ms(stamp.time_unix_ms);
  return absl::OkStatus();
}

namespace {

std::string AlertText(const v1::AlertChanged& fact) {
  const v1::JobAlert& alert = fact.alert();
  std::string text = alert.name();
  if (alert.ends_unix_ms() == 0) {
    absl::StrAppend(&text, " fires");
    if (!alert.severity().empty()) absl::StrAppend(&text, " (", alert.severity(), ")");
  } else {
    absl::StrAppend(&text, " is resolved");
    if (!fact.reason().empty()) absl::StrAppend(&text, ", ", fact.reason());
  }
  if (!alert.summary().empty()) absl::StrAppend(&text, ": ", alert.summary());
  return Clip(text, kMaxReasonBytes);
}

}  // namespace

absl::Status Apply(const v1::AlertChanged& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditJob(draft, fact.job()));
  const v1::JobAlert& alert = fact.alert();
  if (alert.name().empty()) return absl::InvalidArgumentError("alert.name: is empty");
  auto& alerts = *job->mutable_alerts();
  const auto at = std::find_if(alerts.begin(), alerts.end(), [&alert](const v1::JobAlert& firing) {
    return firing.name() == alert.name();
  });
  const bool fires = alert.ends_unix_ms() == 0;
  if (fires == (at != alerts.end())) {
    return absl::FailedPreconditionError(absl::StrCat("alert: ", alert.name(), " of ", fact.job(),
                                                      fires ? " fires already" : " does not fire"));
  }
  if (fires) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("alerts", alerts.size() + 1, 1, kMaxAlerts));
    *alerts.Add() = alert;
  } else {
    alerts.erase(at);
  }
  AddEvent({.kind = v1::JOB_EVENT_KIND_ALERT, .text = AlertText(fact), .alert = &alert}, stamp,
           *job, draft);
  return absl::OkStatus();
}

}  // namespace nibble::apply
