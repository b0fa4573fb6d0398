#include "client/remote/job_watch.h"

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
#include "client/remote/job_text.h"
#include "client/remote/job_wait.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/terminal.h"
#include "client/remote/verb.h"
#include "client/remote/watch_view.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/text/text.h"

namespace nibble {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(100);  // least time between redraws
constexpr absl::Duration kClockRedraw = absl::Seconds(1);    // redraw for running times
constexpr absl::Duration kLineEvery = absl::Seconds(1);      // between sample lines on a pipe
constexpr absl::Duration kPollWorkers = absl::Seconds(2);
constexpr absl::Duration kPollTimeout = absl::Seconds(2);
constexpr int kInitialSamples = 512;
constexpr int kMostWorkers = 8;

// Renders the state of a watch in the form that the output takes.
class Display {
 public:
  Display(Session& session, WatchState& state)
      : session_(session), state_(state), terminal_(!json() && StdoutIsTerminal()) {}

  bool terminal() const { return terminal_; }
  bool json() const { return session_.for_programs(); }

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

  // Shows a note about the connection; empty: removes it.
  void Note(const std::string& note) {
    dirty_ = true;
    note_ = note;
    if (!terminal_ && !note.empty()) session_.Say(note);
  }

  void Invalidate() { dirty_ = true; }

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
      : session_(session), job_(job), display_(session, state_) {
    request_.add_jobs(job);
    request_.set_with_samples(true);
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
      if (interrupt.happened()) return Detach();
      const absl::Status status = PrepareRetry(*end);
      if (!status.ok()) {
        display_.Finish();
        return status;
      }
      display_.Draw(true);
      interrupt.SleepFor(absl::FromChrono(backoff.Next()));
      if (interrupt.happened()) return Detach();
    }
  }

 private:
  // Reads the stream to its end and returns its status; unset: the job has finished, or Ctrl-C.
  std::optional<absl::Status> Follow(Interrupt& interrupt, Backoff& backoff) {
    WatchStream stream(session_.client(), request_);
    const Interrupt::Call call(interrupt, [&stream] { stream.Cancel(); });
    bool connected = false;
    while (!interrupt.happened()) {
      display_.Draw();
      std::optional<v1::WatchJobsResponse> message =
          stream.Next(display_.terminal() ? kRedraw : absl::Minutes(1));
      if (message) {
        if (!std::exchange(connected, true)) {
          backoff.Reset();
          Connected();
        }
        Handle(*message);
        if (over_) return std::nullopt;
        continue;
      }
      std::optional<absl::Status> end = stream.End();
      if (end) return end;
      if (display_.terminal()) PollWorkers();
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
    PollRecipe();
    if (display_.json()) return;
    v1::GetJobMetricsRequest metrics;
    metrics.set_job(job_);
    metrics.set_max_samples(kInitialSamples);
    if (const auto found = Poll(kGetJobMetrics, metrics)) {
      for (const v1::StepSample& sample : found->series()) state_.AddSample(sample);
      if (!found->series().empty()) display_.Sample();
    }
    if (!display_.terminal()) return;
    v1::ListJobEventsRequest events;
    events.set_job(job_);
    if (const auto found = Poll(kListJobEvents, events)) {
      for (const v1::JobEvent& event : found->events()) state_.AddEvent(event);
    }
    PollWorkers();
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
    display_.Draw(true);
    session_.Say(absl::StrCat("detached; the job keeps running. Run 'nibble job watch ", job_,
                              "' to follow it again"));
    return {.exit_code = kExitNotFinished};
  }

  // A call for the display: one attempt with a short timeout; failures are ignored.
  template <class Request, class Response>
  std::optional<Response> Poll(const Rpc<Request, Response>& rpc, const Request& request) {
    CallContext context(session_.client(), kPollTimeout);
    absl::StatusOr<Response> response = session_.client().CallOnce(rpc, request, context);
    if (!response.ok()) return std::nullopt;
    display_.Invalidate();
    return *std::move(response);
  }

  void PollRecipe() {
    if (!display_.terminal()) return;
    v1::ListRecipeRevisionsRequest request;
    request.set_job(job_);
    if (const auto found = Poll(kListRecipeRevisions, request)) {
      state_.SetRevisions({found->revisions().begin(), found->revisions().end()});
    }
  }

  void PollWorkers() {
    if (SteadyNow() - polled_ < kPollWorkers) return;
    polled_ = SteadyNow();
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

  Session& session_;
  const std::string job_;
  WatchState state_;
  Display display_;
  v1::WatchJobsRequest request_;
  bool caught_up_ = false;
  bool over_ = false;  // the job has finished, and all of the stream was read
  bool away_ = false;  // the coordinator does not answer
  absl::Duration polled_ = -absl::InfiniteDuration();
};

}  // namespace

absl::StatusOr<Reply> WatchJob(Session& session, const std::string& job) {
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

absl::StatusOr<Reply> Watch(Session& session, const FollowFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  return WatchJob(session, job.id());
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
  AddJobOption(watch.app(), watch->job);
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
