#include "client/sensitivity/fork_runner.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/remote/coordinator_client.h"
#include "client/remote/enum_words.h"
#include "client/remote/job_recording.h"
#include "client/remote/job_text.h"
#include "client/remote/rpcs.h"
#include "client/remote/terminal.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {
namespace {

// Between two looks at the unfinished forks.
constexpr absl::Duration kPoll = absl::Milliseconds(500);
// For a worker with the event log of a finished fork to come back.
constexpr absl::Duration kWorkerPatience = absl::Minutes(1);

// Whether a planned fork has to be submitted again.
bool WasCancelled(const v1::Job& job) { return job.state() == v1::JOB_STATE_CANCELLED; }

// The coordinator is away: nothing is known about the forks until it answers.
bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// A client whose pins are the experiment's, not the user's.
CoordinatorClient PinningClient(Session& session) {
  ClientOptions options = session.client().options();
  options.author = absl::StrCat("sensitivity (", options.author, ")");
  return CoordinatorClient(std::move(options));
}

template <class Request, class Response>
absl::Status ChangePin(Session& session, const Rpc<Request, Response>& rpc,
                       const v1::CheckpointRef& ref) {
  Request request;
  *request.mutable_ref() = ref;
  return PinningClient(session).Call(rpc, std::move(request)).status();
}

// `worker_away`: a worker that has an event log of the job does not answer.
absl::StatusOr<double> LossOf(Session& session, const Experiment& experiment, const v1::Job& job,
                              bool& worker_away) {
  NIBBLE_ASSIGN_OR_RETURN(
      const JobRecording recording,
      ReadRecording(session, job, {.only_losses = true, .patience = absl::ZeroDuration()}));
  worker_away = recording.worker_away;
  std::vector<std::pair<int64_t, double>> losses;
  for (const v1::StepSample& sample : LossSamples(recording.record)) {
    losses.emplace_back(sample.step(), sample.loss());
  }
  const absl::StatusOr<double> loss = ComparedLoss(experiment, losses);
  if (loss.ok() || recording.notes.empty()) return loss;
  return absl::FailedPreconditionError(absl::StrJoin(recording.notes, "; "));
}

class Runner {
 public:
  Runner(Session& session, const v1::Job& parent, const Experiment& experiment,
         const ForkRunOptions& options)
      : session_(session),
        parent_(parent),
        experiment_(experiment),
        options_(options),
        planned_(PlanForks(experiment)) {}

  absl::StatusOr<ForkRun> Run();

 private:
  absl::Status Submit(const PlannedFork& fork, v1::Job& job);
  // Submits what may run now and looks at what runs.
  absl::Status Advance();
  absl::Status Settle(const PlannedFork& fork, const v1::Job& job);
  v1::CheckpointRef Ref() const {
    v1::CheckpointRef ref;
    ref.set_job(experiment_.job);
    ref.set_step(experiment_.step);
    return ref;
  }

  Session& session_;
  const v1::Job& parent_;
  const Experiment& experiment_;
  const ForkRunOptions& options_;
  const std::vector<PlannedFork> planned_;
  ForksByName jobs_;                                    // of the planned forks
  std::set<std::string> settled_;                       // names of forks with a result
  std::map<std::string, absl::Duration> unread_since_;  // on SteadyNow()'s clock, by name
  std::vector<ForkResult> results_;
};

absl::Status Runner::Submit(const PlannedFork& fork, v1::Job& job) {
  v1::ForkJobRequest request;
  *request.mutable_checkpoint() = Ref();
  request.set_name(fork.name);
  const Recipe& change = experiment_.arms[fork.arm].change;
  if (!change.set.empty() || !change.layers.empty()) {
    *request.mutable_change() = ChangeMessage(change);
  }
  request.set_reason(fork.reason);
  for (const std::string& setting : fork.settings) request.add_settings(setting);
  *request.mutable_scheduling() = parent_.scheduling();
  request.mutable_scheduling()->set_priority(options_.priority);
  NIBBLE_ASSIGN_OR_RETURN(v1::ForkJobResponse response, session_.Call(kForkJob, request));
  job = std::move(*response.mutable_job());
  return absl::OkStatus();
}

absl::Status Runner::Settle(const PlannedFork& fork, const v1::Job& job) {
  ForkResult result = {
      .arm = fork.arm, .repeat = fork.repeat, .job = job.id(), .loss = std::nullopt, .problem = ""};
  if (job.state() == v1::JOB_STATE_SUCCEEDED) {
    bool worker_away = false;
    const absl::StatusOr<double> loss = LossOf(session_, experiment_, job, worker_away);
    if (IsAway(loss.status())) return loss.status();
    if (worker_away) {
      const absl::Duration since = unread_since_.try_emplace(fork.name, SteadyNow()).first->second;
      if (SteadyNow() - since < kWorkerPatience) return absl::OkStatus();
    }
    if (loss.ok()) {
      result.loss = *loss;
    } else {
      result.problem = std::string(loss.status().message());
    }
  } else {
    result.problem = absl::StrCat(Word(job.state()), ": ", job.state_reason());
  }
  settled_.insert(fork.name);
  session_.Say(
      absl::StrCat(settled_.size(), " of ", planned_.size(), ": ",
                   ArmName(experiment_.arms[fork.arm]), ", repeat ", fork.repeat, ": ",
                   result.loss ? absl::StrFormat("loss %.5f", *result.loss) : result.problem, " (",
                   job.id(), ")"));
  results_.push_back(std::move(result));
  return absl::OkStatus();
}

absl::Status Runner::Advance() {
  int unfinished = 0;
  for (const PlannedFork& fork : planned_) {
    if (settled_.contains(fork.name)) continue;
    const auto known = jobs_.find(fork.name);
    if (known == jobs_.end()) continue;
    NIBBLE_ASSIGN_OR_RETURN(known->second, DescribeJob(session_, known->second.id()));
    if (WasCancelled(known->second)) {
      session_.Say(absl::StrCat(known->second.id(), " was cancelled; it is submitted again"));
      jobs_.erase(known);
    } else if (IsOver(known->second.state())) {
      NIBBLE_RETURN_IF_ERROR(Settle(fork, known->second));
    } else {
      ++unfinished;
    }
  }
  for (const PlannedFork& fork : planned_) {
    if (unfinished >= options_.at_once) break;
    if (jobs_.contains(fork.name)) continue;
    v1::Job job;
    NIBBLE_RETURN_IF_ERROR(Submit(fork, job));
    jobs_.emplace(fork.name, std::move(job));
    ++unfinished;
  }
  return absl::OkStatus();
}

absl::StatusOr<ForkRun> Runner::Run() {
  NIBBLE_ASSIGN_OR_RETURN(ForksByName found, FindForks(session_, experiment_.job));
  int64_t existing = 0;
  for (const PlannedFork& fork : planned_) {
    const auto known = found.find(fork.name);
    if (known == found.end() || WasCancelled(known->second)) continue;
    jobs_.insert(*known);
    ++existing;
  }
  session_.Say(
      absl::StrCat(Counted(static_cast<int64_t>(planned_.size()), "fork"), " of ", experiment_.job,
                   " at step ", experiment_.step, ", ", Counted(experiment_.steps, "step"), " each",
                   existing > 0 ? absl::StrCat("; ", existing, " exist already") : "", "; at most ",
                   options_.at_once, " at once. Ctrl-C detaches, the same command continues"));
  const bool pins = existing < static_cast<int64_t>(planned_.size());
  if (pins) NIBBLE_RETURN_IF_ERROR(ChangePin(session_, kPinCheckpoint, Ref()));

  const absl::Duration deadline = session_.WaitDeadline();
  Interrupt interrupt;
  Backoff backoff = RetryBackoff();
  bool away = false;
  while (true) {
    absl::Duration pause = kPoll;
    const absl::Status status = Advance();
    if (IsAway(status)) {
      if (!std::exchange(away, true)) {
        session_.Say(absl::StrCat(session_.client().options().server,
                                  " does not answer; retrying until it does"));
      }
      pause = absl::FromChrono(backoff.Next());
    } else if (!status.ok()) {
      return status;
    } else {
      away = false;
      backoff.Reset();
    }
    if (settled_.size() == planned_.size()) break;
    if (interrupt.happened() || SteadyNow() >= deadline) {
      return ForkRun{.complete = false, .results = std::move(results_)};
    }
    interrupt.SleepFor(std::min(pause, deadline - SteadyNow()));
  }
  // An earlier run that was interrupted may have pinned it. A deleted checkpoint has no pin.
  const absl::Status unpinned = ChangePin(session_, kUnpinCheckpoint, Ref());
  if (!unpinned.ok() && pins) {
    session_.Say(absl::StrCat("the checkpoint stays pinned: ", unpinned.message()));
  }
  return ForkRun{.complete = true, .results = std::move(results_)};
}

}  // namespace

absl::StatusOr<ForksByName> FindForks(Session& session, const std::string& parent) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListJobsResponse all, session.client().CallAllPages(kListJobs));
  ForksByName forks;
  // Newest first, so that an older one replaces a newer one.
  for (const v1::Job& job : all.jobs()) {
    if (!absl::StartsWith(job.name(), kForkPrefix) || job.origin().checkpoint().job() != parent) {
      continue;
    }
    const auto [known, added] = forks.try_emplace(job.name(), job);
    if (!added && !WasCancelled(job)) known->second = job;
  }
  return forks;
}

absl::StatusOr<ForkRun> RunForks(Session& session, const v1::Job& parent,
                                 const Experiment& experiment, const ForkRunOptions& options) {
  return Runner(session, parent, experiment, options).Run();
}

absl::StatusOr<int64_t> StopForks(Session& session, const std::string& parent) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListJobsResponse all, session.client().CallAllPages(kListJobs));
  int64_t killed = 0;
  for (const v1::Job& job : all.jobs()) {
    if (!absl::StartsWith(job.name(), kForkPrefix) || job.origin().checkpoint().job() != parent ||
        IsOver(job.state())) {
      continue;
    }
    v1::KillJobRequest request;
    request.set_job(job.id());
    request.set_reason("sensitivity --stop");
    NIBBLE_RETURN_IF_ERROR(session.Call(kKillJob, request).status());
    ++killed;
  }
  v1::ListCheckpointsRequest request;
  request.set_job(parent);
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse checkpoints,
                          session.client().CallAllPages(kListCheckpoints, request));
  const std::string author = absl::StrCat("sensitivity (", session.client().options().author, ")");
  for (const v1::Checkpoint& checkpoint : checkpoints.checkpoints()) {
    const auto& pins = checkpoint.pins();
    if (std::find(pins.begin(), pins.end(), author) == pins.end()) continue;
    NIBBLE_RETURN_IF_ERROR(ChangePin(session, kUnpinCheckpoint, checkpoint.ref()));
  }
  return killed;
}

absl::StatusOr<std::vector<std::string>> ReadEventLines(Session& session, const std::string& job,
                                                        int32_t tail) {
  v1::StreamLogsRequest request;
  request.set_job(job);
  request.set_rank(0);
  request.set_tail_lines(tail);
  request.set_events(true);
  const std::unique_ptr<ResponseStream<v1::StreamLogsResponse>> stream =
      session.client().StreamLogs(request);
  std::vector<std::string> lines;
  v1::StreamLogsResponse response;
  while (stream->Read(response)) {
    for (const std::string& line : response.lines()) lines.push_back(line);
  }
  const absl::Status status = stream->Finish();
  if (!status.ok()) return session.client().Explain(status);
  return lines;
}

}  // namespace nibble
