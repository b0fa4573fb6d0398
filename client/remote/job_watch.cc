#include "client/remote/job_watch.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/remote/event_lines.h"
#include "client/remote/job_recording.h"
#include "client/remote/job_text.h"
#include "client/remote/job_wait.h"
#include "client/remote/loss_comparison.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/run_watch.h"
#include "client/remote/terminal.h"
#include "client/remote/verb.h"
#include "client/remote/watch_display.h"
#include "client/remote/watch_state.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "model/outline.h"

namespace nibble {
namespace {

constexpr absl::Duration kPollDetails = absl::Seconds(2);  // workers, ranks, precision
constexpr absl::Duration kPollReference = absl::Seconds(10);
constexpr absl::Duration kPollTimeout = absl::Seconds(2);
constexpr absl::Duration kHistoryTimeout = absl::Seconds(10);  // of a whole series
constexpr int kMostWorkers = 8;

class Watcher {
 public:
  // `reference`: an id; empty: none.
  Watcher(Session& session, const std::string& job, const WatchReference& reference)
      : session_(session), job_(job), display_(session, state_) {
    request_.add_jobs(job);
    request_.set_with_samples(true);
    state_.SetReference(reference.job);
    for (const v1::StepSample& sample : reference.samples) state_.AddReferenceSample(sample);
  }

  absl::StatusOr<Reply> Run() {
    NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, DescribeJob(session_, job_));
    state_.SetJob(job);
    display_.Begin();
    Interrupt interrupt;
    Backoff backoff = RetryBackoff();
    while (true) {
      const std::optional<absl::Status> end = Follow(interrupt, backoff);
      if (over_) {
        display_.Finish();
        return Reply{.exit_code = ExitCodeOfJob(state_.job().state())};
      }
      if (left_ || interrupt.happened()) return Detach();
      const absl::Status status = PrepareRetry(*end);
      if (!status.ok()) {
        display_.Finish();
        return status;
      }
      display_.Draw(true);
      const absl::Duration retry = SteadyNow() + absl::FromChrono(backoff.Next());
      while (SteadyNow() < retry && KeepsGoing(interrupt)) {
        interrupt.SleepFor(std::min(retry - SteadyNow(), WatchDisplay::kRedraw));
        display_.Draw();
      }
      if (left_ || interrupt.happened()) return Detach();
    }
  }

 private:
  // False once the user wants to leave.
  bool KeepsGoing(const Interrupt& interrupt) {
    if (!display_.HandleKeys()) left_ = true;
    return !left_ && !interrupt.happened();
  }

  // Reads the stream to its end and returns its status; unset: the job has finished, or the user
  // leaves.
  std::optional<absl::Status> Follow(Interrupt& interrupt, Backoff& backoff) {
    WatchStream stream(session_.client(), request_);
    const Interrupt::Call call(interrupt, [&stream] { stream.Cancel(); });
    bool connected = false;
    while (KeepsGoing(interrupt)) {
      display_.Draw();
      std::optional<v1::WatchJobsResponse> message =
          stream.Next(display_.terminal() ? WatchDisplay::kRedraw : absl::Minutes(1));
      if (message) {
        if (!std::exchange(connected, true)) {
          backoff.Reset();
          Connected();
        }
        Handle(*message);
        if (over_) return std::nullopt;
      } else if (std::optional<absl::Status> end = stream.End()) {
        return end;
      }
      if (!connected) continue;
      PollReference();
      if (display_.terminal()) PollDetails();
    }
    return std::nullopt;
  }

  void Handle(const v1::WatchJobsResponse& message) {
    request_.set_resume_token(message.resume_token());
    display_.Message(message);
    switch (message.change_case()) {
      case v1::WatchJobsResponse::kJob: {
        const bool revised = message.job().latest_revision() != state_.job().latest_revision() ||
                             message.job().revision_in_force() != state_.job().revision_in_force();
        state_.SetJob(message.job());
        display_.Invalidate();
        if (revised) PollRecipe();
        if (caught_up_ && IsOver(state_.job().state())) over_ = true;
        break;
      }
      case v1::WatchJobsResponse::kEvent:
        if (state_.AddEvent(message.event())) display_.Event(message.event());
        break;
      case v1::WatchJobsResponse::kSample:
        state_.AddSample(message.sample().sample());
        display_.Sample();
        break;
      case v1::WatchJobsResponse::kCaughtUp:
        caught_up_ = true;
        over_ = IsOver(state_.job().state());
        break;
      case v1::WatchJobsResponse::CHANGE_NOT_SET:
        break;
    }
  }

  // The first message of a stream has arrived: of the first, or of one after a lost connection.
  void Connected() {
    if (std::exchange(away_, false)) display_.Note("the coordinator is back; the watch continues");
    if (display_.terminal() && !outline_) FetchModel();
    PollRecipe();
    if (display_.json()) return;
    PollReference();
    if (FetchSamples(job_, state_.losses(),
                     [this](const v1::StepSample& sample) { state_.AddSample(sample); })) {
      display_.Sample();
    }
    if (!display_.terminal()) return;
    v1::ListJobEventsRequest events;
    events.set_job(job_);
    if (const auto found = Poll(kListJobEvents, events)) {
      for (const v1::JobEvent& event : found->events()) state_.AddEvent(event);
    }
    PollDetails();
  }

  // Fetches the samples of a job from where `known` ends: all that the coordinator has at first.
  // Whether there were any.
  bool FetchSamples(const std::string& job, const LossHistory& known,
                    const std::function<void(const v1::StepSample&)>& add) {
    v1::GetJobMetricsRequest request;
    request.set_job(job);
    request.set_max_samples(kMostComparedSamples);
    if (!known.buckets().empty()) request.set_from_step(known.buckets().back().last_step + 1);
    const auto found = Poll(kGetJobMetrics, request, kHistoryTimeout);
    if (!found) return false;
    for (const v1::StepSample& sample : found->series()) add(sample);
    return !found->series().empty();
  }

  // The model of the job's spec, to name the precision of its GEMMs.
  void FetchModel() {
    v1::DescribeJobRequest request;
    request.set_job(job_);
    request.set_with_spec(true);
    const auto found = Poll(kDescribeJob, request);
    if (!found) return;
    const absl::StatusOr<JobSpec> spec = ParseJobSpec(found->spec_yaml());
    if (!spec.ok()) return;
    absl::StatusOr<Outline> outline = MakeOutline(spec->model);
    if (outline.ok()) outline_ = *std::move(outline);
  }

  // OK: the stream may be opened again.
  absl::Status PrepareRetry(const absl::Status& end) {
    if (MayResume(end)) {
      if (!std::exchange(away_, true)) {
        display_.Note(absl::StrCat(session_.client().options().server,
                                   " does not answer; the watch continues when it does"));
      }
      return absl::OkStatus();
    }
    switch (end.code()) {
      case absl::StatusCode::kOutOfRange:
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kResourceExhausted:
        if (request_.resume_token().empty()) break;
        request_.clear_resume_token();
        display_.Note(absl::StrCat("some events may be missing: ", end.message()));
        return absl::OkStatus();
      default:
        break;
    }
    return session_.client().Explain(end);
  }

  Reply Detach() {
    display_.Leave();
    session_.Say(absl::StrCat("detached; the job keeps running. Run 'nibble job watch ", job_,
                              "' to follow it again"));
    return {.exit_code = kExitNotFinished};
  }

  // A call for the display: one attempt with a short timeout; failures are ignored.
  template <class Request, class Response>
  std::optional<Response> Poll(const Rpc<Request, Response>& rpc, const Request& request,
                               absl::Duration timeout = kPollTimeout) {
    CallContext context(session_.client(), timeout);
    absl::StatusOr<Response> response = session_.client().CallOnce(rpc, request, context);
    if (!response.ok()) return std::nullopt;
    display_.Invalidate();
    return *std::move(response);
  }

  void PollRecipe() {
    if (!display_.terminal()) return;
    v1::ListRecipeRevisionsRequest request;
    request.set_job(job_);
    const auto found = Poll(kListRecipeRevisions, request);
    if (!found) return;
    std::map<int64_t, GemmBits> bits;
    for (const v1::RecipeRevision& revision : found->revisions()) {
      const auto known = state_.bits().find(revision.number());
      if (known != state_.bits().end()) {
        bits.insert(*known);
      } else if (outline_) {
        bits[revision.number()] = BitsOf(revision.recipe(), *outline_);
      }
    }
    state_.SetRevisions({found->revisions().begin(), found->revisions().end()}, std::move(bits));
  }

  void PollDetails() {
    if (SteadyNow() - polled_ < kPollDetails) return;
    polled_ = SteadyNow();
    v1::GetJobMetricsRequest metrics;
    metrics.set_job(job_);
    metrics.set_max_samples(1);
    if (auto found = Poll(kGetJobMetrics, metrics)) {
      state_.SetRanks({found->ranks().begin(), found->ranks().end()});
      if (found->has_precision()) state_.SetPrecision(found->precision());
    }
    std::vector<v1::Worker> workers;
    for (const v1::Placement& placement : state_.job().attempt().placements()) {
      if (workers.size() == kMostWorkers) break;
      v1::DescribeWorkerRequest request;
      request.set_worker(placement.worker());
      auto found = Poll(kDescribeWorker, request);
      if (!found) return;
      workers.push_back(std::move(*found->mutable_worker()));
    }
    state_.SetWorkers(std::move(workers));
  }

  // The reference may still run.
  void PollReference() {
    if (state_.reference().empty() || SteadyNow() - reference_polled_ < kPollReference) return;
    reference_polled_ = SteadyNow();
    FetchSamples(state_.reference(), state_.reference_losses(),
                 [this](const v1::StepSample& sample) { state_.AddReferenceSample(sample); });
  }

  Session& session_;
  const std::string job_;
  WatchState state_;
  WatchDisplay display_;
  v1::WatchJobsRequest request_;
  bool caught_up_ = false;
  bool over_ = false;               // the job has finished, and all of the stream was read
  bool away_ = false;               // the coordinator does not answer
  bool left_ = false;               // the user has left
  std::optional<Outline> outline_;  // of the job's model; unset: unknown
  absl::Duration polled_ = -absl::InfiniteDuration();
  absl::Duration reference_polled_ = -absl::InfiniteDuration();
};

}  // namespace

absl::StatusOr<Reply> WatchJob(Session& session, const std::string& job,
                               const WatchReference& reference) {
  return Watcher(session, job, reference).Run();
}

namespace {

struct FollowFlags {
  RemoteFlags remote;
  std::string job;
  std::string reference;
  bool follow = false;
  int32_t tail = 0;
  int32_t rank = -1;
  int64_t attempt = 0;
};

absl::StatusOr<Reply> Watch(Session& session, const FollowFlags& flags) {
  if (const std::optional<std::string> directory = RunDirectory(flags.job, flags.remote)) {
    if (session.for_programs()) {
      return absl::InvalidArgumentError(
          "-o json and yaml are for jobs of a cluster; for a run without one: nibble job metrics "
          "DIR --follow -o json");
    }
    if (!flags.reference.empty()) {
      return absl::InvalidArgumentError("reference: is for jobs of a cluster");
    }
    return WatchRun(session, *directory, std::filesystem::path(*directory).filename().string());
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  if (flags.reference.empty()) return WatchJob(session, job.id());
  if (session.for_programs()) {
    return absl::InvalidArgumentError(
        "reference: is for people; with -o json or yaml, watch both jobs");
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job reference, FindJob(session, flags.reference));
  NIBBLE_ASSIGN_OR_RETURN(const JobRecording recording,
                          ReadRecording(session, reference, {.only_losses = true}));
  for (const std::string& note : recording.notes) session.Say(note);
  return WatchJob(session, job.id(), {reference.id(), LossSamples(recording.record)});
}

// For people, each line begins with its rank if there are several ranks.
void Print(const Session& session, const v1::StreamLogsResponse& lines, bool with_rank) {
  if (session.for_programs()) {
    session.PrintElement(lines);
    return;
  }
  const std::string head = with_rank ? absl::StrCat("[", lines.rank(), "] ") : "";
  std::string text;
  for (const std::string& line : lines.lines()) absl::StrAppend(&text, head, line, "\n");
  session.Out(text);
}

absl::StatusOr<Reply> Logs(Session& session, const FollowFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  CoordinatorClient& client = session.client();
  v1::StreamLogsRequest request;
  request.set_job(job.id());
  request.set_rank(flags.rank);
  request.set_attempt(flags.attempt);
  request.set_tail_lines(flags.tail);
  request.set_follow(flags.follow);
  const bool with_rank = flags.rank < 0 && job.shape().ranks() > 1;
  Interrupt interrupt;
  Backoff backoff = RetryBackoff();
  const absl::Duration deadline = SteadyNow() + client.options().timeout;
  bool any = false;
  while (true) {
    const std::unique_ptr<ResponseStream<v1::StreamLogsResponse>> stream =
        client.StreamLogs(request);
    absl::Status status;
    {
      const Interrupt::Call call(interrupt, [&stream] { stream->Cancel(); });
      v1::StreamLogsResponse lines;
      while (stream->Read(lines)) {
        any = true;
        Print(session, lines, with_rank);
      }
      status = stream->Finish();
    }
    if (interrupt.happened()) {
      session.Say(absl::StrCat("detached; the job keeps running. Run 'nibble job logs -f ",
                               job.id(), "' to follow it again"));
      return Reply{.exit_code = kExitNotFinished};
    }
    if (status.ok()) return Reply{};
    // A retry would print lines twice, so a stream that has printed some is not retried.
    const absl::Duration pause = absl::FromChrono(backoff.Next());
    if (any || !absl::IsUnavailable(status) || SteadyNow() + pause >= deadline) {
      return client.Explain(status);
    }
    interrupt.SleepFor(pause);
  }
}

}  // namespace

void AddJobFollowVerbs(Command job, int& exit_code) {
  RemoteVerb<FollowFlags> watch(job, "watch",
                                "Follow progress, losses and events until the job finishes");
  watch.app()
      .Add("JOB", watch->job,
           absl::StrCat(kJobHelp,
                        "; or the output directory of a run on this machine, such as runs/train"))
      .Required();
  watch.app().Add("--reference", watch->reference,
                  "another job, whose losses are shown beside this one's");
  watch.Runs(exit_code, Watch);

  RemoteVerb<FollowFlags> logs(job, "logs", "Print the output of a job's ranks");
  AddJobOption(logs.app(), logs->job);
  logs.app().AddFlag("-f,--follow", logs->follow, "continue until the job finishes");
  logs.app().Add("--tail", logs->tail, "only the last N lines; 0: all").AtLeast(0);
  logs.app().Add("--rank", logs->rank, "only this rank; default: all").AtLeast(0);
  logs.app().Add("--attempt", logs->attempt, "only this attempt; default: the latest").AtLeast(0);
  logs.Runs(exit_code, Logs);
}

}  // namespace nibble
