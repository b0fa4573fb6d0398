#include "client/remote/job_watch.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/shell/output.h"
#include "client/remote/job_text.h"
#include "client/remote/job_wait.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/terminal.h"
#include "client/remote/text.h"
#include "client/remote/verb.h"
#include "client/remote/watch_view.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(100);  // least time between redraws
constexpr absl::Duration kClockRedraw = absl::Seconds(1);    // redraw for running times
constexpr absl::Duration kLineEvery = absl::Seconds(1);      // between sample lines on a pipe
constexpr absl::Duration kLookEvery = absl::Seconds(2);      // between looks at the workers
constexpr absl::Duration kLookTimeout = absl::Seconds(2);
constexpr int kSeedSamples = 512;
constexpr int kMostWorkers = 8;

// The output: what is shown, and in which form.
class Show {
 public:
  Show(Session& session, WatchState& state)
      : session_(session), state_(state), terminal_(!json() && StdoutIsTerminal()) {}

  bool terminal() const { return terminal_; }
  bool json() const { return session_.flags().for_programs(); }

  void Begin() {
    if (!terminal_ && !json()) session_.Out(JobLine(state_.job()));
  }

  void Message(const v1::WatchJobsResponse& message) {
    if (json()) session_.PrintElement(message);
  }

  void Event(const v1::JobEvent& event) {
    dirty_ = true;
    if (terminal_ || json()) return;
    session_.Out(absl::StrCat(TimeText(event.time_unix_ms()), "  ", EventText(event), "\n"));
  }

  void Sample() {
    dirty_ = true;
    unprinted_ = true;
    if (SteadyNow() - printed_ >= kLineEvery) PrintSample();
  }

  // `note` is about the connection.
  void Note(const std::string& note) {
    dirty_ = true;
    note_ = note;
    if (!terminal_ && !note.empty()) session_.Say(note);
  }

  void Touch() { dirty_ = true; }

  // Redraws if something changed, including the terminal's size, but at most every kRedraw.
  void Draw(bool at_once = false) {
    if (!terminal_) return;
    const absl::Duration now = SteadyNow();
    const TerminalSize size = StdoutSize();
    const absl::Duration since = now - drawn_;
    const bool due = dirty_ || size != size_ || since >= kClockRedraw;
    if (!at_once && (!due || since < kRedraw)) return;
    session_.Out(screen_.Draw(RenderWatch(state_, {.columns = size.columns, .rows = size.rows},
                                          absl::ToUnixMillis(absl::Now()), note_),
                              size.columns));
    drawn_ = now;
    size_ = size;
    dirty_ = false;
  }

  void Finish() {
    Draw(true);
    if (terminal_ || json()) return;
    if (unprinted_) PrintSample();
    session_.Out(JobLine(state_.job()));
  }

 private:
  void PrintSample() {
    printed_ = SteadyNow();
    unprinted_ = false;
    if (!terminal_ && !json()) session_.Out(SampleLine(state_) + "\n");
  }

  Session& session_;
  WatchState& state_;
  const bool terminal_;
  Screen screen_;
  TerminalSize size_;
  std::string note_;
  bool dirty_ = true;
  bool unprinted_ = false;
  absl::Duration drawn_ = -absl::InfiniteDuration();
  absl::Duration printed_ = -absl::InfiniteDuration();
};

class Watcher {
 public:
  Watcher(Session& session, const std::string& job)
      : session_(session), job_(job), show_(session, state_) {
    request_.add_jobs(job);
    request_.set_with_samples(true);
  }

  absl::StatusOr<int> Run() {
    v1::DescribeJobRequest describe;
    describe.set_job(job_);
    NIBBLE_ASSIGN_OR_RETURN(const auto described, session_.Call(kDescribeJob, describe));
    state_.Take(described.job());
    show_.Begin();
    Interrupt interrupt;
    RetryPauses pauses;
    while (true) {
      const std::optional<absl::Status> end = Follow(interrupt, pauses);
      if (over_) {
        show_.Finish();
        return ExitCodeOfJob(state_.job().state());
      }
      if (interrupt.happened()) return Detach();
      const absl::Status status = MayGoOn(*end);
      if (!status.ok()) {
        show_.Finish();
        return status;
      }
      show_.Draw(true);
      interrupt.SleepFor(pauses.Next());
      if (interrupt.happened()) return Detach();
    }
  }

 private:
  // Returns the status that the stream ended with; unset: the job is over, or Ctrl-C.
  std::optional<absl::Status> Follow(Interrupt& interrupt, RetryPauses& pauses) {
    WatchStream stream(session_.client(), request_);
    const Interrupt::Call call(interrupt, [&stream] { stream.Cancel(); });
    bool begun = false;
    while (!interrupt.happened()) {
      show_.Draw();
      std::optional<v1::WatchJobsResponse> message =
          stream.Next(show_.terminal() ? kRedraw : absl::Minutes(1));
      if (message) {
        if (!std::exchange(begun, true)) {
          pauses = RetryPauses();
          Connected();
        }
        Take(*message);
        if (over_) return std::nullopt;
        continue;
      }
      std::optional<absl::Status> end = stream.End();
      if (end) return end;
      if (show_.terminal()) LookAtWorkers();
    }
    return std::nullopt;
  }

  void Take(const v1::WatchJobsResponse& message) {
    request_.set_resume_token(message.resume_token());
    show_.Message(message);
    switch (message.change_case()) {
      case v1::WatchJobsResponse::kJob: {
        const bool revised = message.job().latest_revision() != state_.job().latest_revision() ||
                             message.job().revision_in_force() != state_.job().revision_in_force();
        state_.Take(message.job());
        show_.Touch();
        if (revised) LookAtRecipe();
        if (caught_up_ && IsOver(state_.job().state())) over_ = true;
        break;
      }
      case v1::WatchJobsResponse::kEvent:
        if (state_.Take(message.event())) show_.Event(message.event());
        break;
      case v1::WatchJobsResponse::kSample:
        state_.Take(message.sample().sample());
        show_.Sample();
        break;
      case v1::WatchJobsResponse::kCaughtUp:
        caught_up_ = true;
        over_ = IsOver(state_.job().state());
        break;
      case v1::WatchJobsResponse::CHANGE_NOT_SET:
        break;
    }
  }

  // A stream has begun: the first one, or one after a lost connection.
  void Connected() {
    if (std::exchange(away_, false)) show_.Note("the coordinator is back; the watch goes on");
    LookAtRecipe();
    if (show_.json()) return;
    v1::GetJobMetricsRequest metrics;
    metrics.set_job(job_);
    metrics.set_max_samples(kSeedSamples);
    if (const auto seen = Look(kGetJobMetrics, metrics)) {
      for (const v1::StepSample& sample : seen->series()) state_.Take(sample);
      if (!seen->series().empty()) show_.Sample();
    }
    if (!show_.terminal()) return;
    v1::ListJobEventsRequest events;
    events.set_job(job_);
    if (const auto seen = Look(kListJobEvents, events)) {
      for (const v1::JobEvent& event : seen->events()) state_.Take(event);
    }
    LookAtWorkers();
  }

  // OK: begin the stream again.
  absl::Status MayGoOn(const absl::Status& end) {
    switch (end.code()) {
      case absl::StatusCode::kOk:
      case absl::StatusCode::kCancelled:  // by a coordinator that is stopping
      case absl::StatusCode::kUnavailable:
      case absl::StatusCode::kInternal:  // a connection that broke in the middle of a message
      case absl::StatusCode::kUnknown:
        if (!std::exchange(away_, true)) {
          show_.Note(absl::StrCat(session_.client().options().server,
                                  " does not answer; the watch goes on when it is back"));
        }
        return absl::OkStatus();
      case absl::StatusCode::kOutOfRange:
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kResourceExhausted:
        if (request_.resume_token().empty()) break;
        request_.clear_resume_token();
        show_.Note(absl::StrCat("some events may be missing: ", end.message()));
        return absl::OkStatus();
      default:
        break;
    }
    return session_.client().Told(end);
  }

  int Detach() {
    show_.Draw(true);
    session_.Say(
        absl::StrCat("detached; the job goes on. `nibble job watch ", job_, "` comes back to it"));
    return kExitNotFinished;
  }

  // A call for the display only: one attempt with a short timeout; failures are ignored.
  template <class Request, class Response>
  std::optional<Response> Look(const Rpc<Request, Response>& rpc, const Request& request) {
    CallContext context(session_.client(), kLookTimeout);
    absl::StatusOr<Response> response = session_.client().CallOnce(rpc, request, context);
    if (!response.ok()) return std::nullopt;
    show_.Touch();
    return *std::move(response);
  }

  void LookAtRecipe() {
    if (!show_.terminal()) return;
    v1::ListRecipeRevisionsRequest request;
    request.set_job(job_);
    if (auto seen = Look(kListRecipeRevisions, request)) {
      state_.TakeRevisions({seen->revisions().begin(), seen->revisions().end()});
    }
  }

  void LookAtWorkers() {
    if (SteadyNow() - looked_ < kLookEvery) return;
    looked_ = SteadyNow();
    std::vector<v1::Worker> workers;
    for (const v1::Placement& placement : state_.job().attempt().placements()) {
      if (workers.size() == kMostWorkers) break;
      v1::DescribeWorkerRequest request;
      request.set_worker(placement.worker());
      auto seen = Look(kDescribeWorker, request);
      if (!seen) return;
      workers.push_back(std::move(*seen->mutable_worker()));
    }
    state_.TakeWorkers(std::move(workers));
  }

  Session& session_;
  const std::string job_;
  WatchState state_;
  Show show_;
  v1::WatchJobsRequest request_;
  bool caught_up_ = false;
  bool over_ = false;
  bool away_ = false;
  absl::Duration looked_ = -absl::InfiniteDuration();
};

}  // namespace

absl::StatusOr<int> WatchJob(Session& session, const std::string& job) {
  return Watcher(session, job).Run();
}

namespace {

struct FollowFlags {
  RemoteFlags remote;
  std::string job;
  bool follow = false;
  int32_t tail = 0;
  int32_t rank = -1;
  int64_t attempt = 0;
};

absl::StatusOr<int> Watch(Session& session, const FollowFlags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  return WatchJob(session, job->id());
}

// For people, each line begins with its rank if there is more than one.
void Print(const Session& session, const v1::StreamLogsResponse& lines, bool with_rank) {
  if (session.flags().for_programs()) {
    session.PrintElement(lines);
    return;
  }
  const std::string head = with_rank ? absl::StrCat("[", lines.rank(), "] ") : "";
  std::string text;
  for (const std::string& line : lines.lines()) absl::StrAppend(&text, head, line, "\n");
  session.Out(text);
}

absl::StatusOr<int> Logs(Session& session, const FollowFlags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  CoordinatorClient& client = session.client();
  v1::StreamLogsRequest request;
  request.set_job(job->id());
  request.set_rank(flags.rank);
  request.set_attempt(flags.attempt);
  request.set_tail_lines(flags.tail);
  request.set_follow(flags.follow);
  const bool with_rank = flags.rank < 0 && job->shape().ranks() > 1;
  Interrupt interrupt;
  RetryPauses pauses;
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
      session.Say(absl::StrCat("detached; the job goes on. `nibble job logs -f ", job->id(),
                               "` comes back to it"));
      return kExitNotFinished;
    }
    if (status.ok()) return kExitDone;
    // A retry would print lines twice, so a stream that has begun is not retried.
    const absl::Duration pause = pauses.Next();
    if (any || !absl::IsUnavailable(status) || SteadyNow() + pause >= deadline) {
      return client.Told(status);
    }
    interrupt.SleepFor(pause);
  }
}

}  // namespace

void AddJobFollowVerbs(Command job, int& exit_code) {
  RemoteVerb<FollowFlags> watch(
      job, "watch", "Progress, losses and events as they come, until the job is finished");
  AddJobOption(watch.app(), watch->job);
  watch.Runs(exit_code, Watch);

  RemoteVerb<FollowFlags> logs(job, "logs", "Lines that ranks wrote");
  AddJobOption(logs.app(), logs->job);
  logs.app().AddFlag("-f,--follow", logs->follow, "Go on until the job is finished");
  logs.app().Add("--tail", logs->tail, "only the last so many lines; 0: all").AtLeast(0);
  logs.app().Add("--rank", logs->rank, "of this rank; else of all").AtLeast(0);
  logs.app().Add("--attempt", logs->attempt, "of this attempt; else of the latest").AtLeast(0);
  logs.Runs(exit_code, Logs);
}

}  // namespace nibble
