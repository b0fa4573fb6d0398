#include "client/remote/job_watch.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/local/exit_code.h"
#include "client/remote/interrupt.h"
#include "client/remote/job_text.h"
#include "client/remote/screen.h"
#include "client/remote/text.h"
#include "client/remote/watch_stream.h"
#include "client/remote/watch_view.h"

namespace nibble {
namespace {

using Stub = CoordinatorClient::Stub;

constexpr absl::Duration kRedraw = absl::Milliseconds(100);  // drawings are no closer
constexpr absl::Duration kClockRedraw = absl::Seconds(1);    // times that count on are drawn
constexpr absl::Duration kLineEvery = absl::Seconds(1);      // of samples on a pipe
constexpr absl::Duration kLookEvery = absl::Seconds(2);      // at the workers
constexpr absl::Duration kLookTimeout = absl::Seconds(2);
constexpr int kSeedSamples = 512;
constexpr int kMostWorkers = 8;

// What is shown, and how.
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

  // About the connection.
  void Note(const std::string& note) {
    dirty_ = true;
    note_ = note;
    if (!terminal_ && !note.empty()) session_.Say(note);
  }

  void Touch() { dirty_ = true; }

  // Draws where something has changed, the terminal's size too, but not too often.
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
    const auto described = session_.Call(&Stub::DescribeJob, describe);
    if (!described.ok()) return described.status();
    state_.Take(described->job());
    show_.Begin();
    Interrupt interrupt;
    RetryPauses pauses;
    while (true) {
      const std::optional<grpc::Status> end = Follow(interrupt, pauses);
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
  // Until the stream ends: its status; unset: the job is over, or Ctrl-C.
  std::optional<grpc::Status> Follow(Interrupt& interrupt, RetryPauses& pauses) {
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
      std::optional<grpc::Status> end = stream.End();
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

  // A stream has begun, the first or another.
  void Connected() {
    if (std::exchange(away_, false)) show_.Note("the coordinator is back; the watch goes on");
    LookAtRecipe();
    if (show_.json()) return;
    v1::GetJobMetricsRequest metrics;
    metrics.set_job(job_);
    metrics.set_max_samples(kSeedSamples);
    if (const auto seen = Look(&Stub::GetJobMetrics, metrics)) {
      for (const v1::StepSample& sample : seen->series()) state_.Take(sample);
      if (!seen->series().empty()) show_.Sample();
    }
    if (!show_.terminal()) return;
    v1::ListJobEventsRequest events;
    events.set_job(job_);
    if (const auto seen = Look(&Stub::ListJobEvents, events)) {
      for (const v1::JobEvent& event : seen->events()) state_.Take(event);
    }
    LookAtWorkers();
  }

  // OK: the stream is to be begun again.
  absl::Status MayGoOn(const grpc::Status& end) {
    switch (end.error_code()) {
      case grpc::StatusCode::OK:
      case grpc::StatusCode::CANCELLED:  // by a coordinator that stops
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::INTERNAL:  // a connection that broke in the middle of a message
      case grpc::StatusCode::UNKNOWN:
        if (!std::exchange(away_, true)) {
          show_.Note(absl::StrCat(session_.client().options().server,
                                  " does not answer; the watch goes on when it is back"));
        }
        return absl::OkStatus();
      case grpc::StatusCode::OUT_OF_RANGE:
      case grpc::StatusCode::INVALID_ARGUMENT:
      case grpc::StatusCode::RESOURCE_EXHAUSTED:
        if (request_.resume_token().empty()) break;
        request_.clear_resume_token();
        show_.Note("some events may be missing: " + end.error_message());
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

  // What is only to be shown: once, not for long, and nothing is lost where it fails.
  template <class Request, class Response>
  std::optional<Response> Look(CoordinatorClient::Method<Request, Response> method,
                               const Request& request) {
    const auto context = session_.client().NewContext();
    context->set_deadline(DeadlineIn(kLookTimeout));
    Response response;
    if (!(session_.client().stub().*method)(context.get(), request, &response).ok()) {
      return std::nullopt;
    }
    show_.Touch();
    return response;
  }

  void LookAtRecipe() {
    if (!show_.terminal()) return;
    v1::ListRecipeRevisionsRequest request;
    request.set_job(job_);
    if (auto seen = Look(&Stub::ListRecipeRevisions, request)) {
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
      auto seen = Look(&Stub::DescribeWorker, request);
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

}  // namespace nibble
