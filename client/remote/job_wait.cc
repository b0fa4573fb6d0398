#include "client/remote/job_wait.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/remote/job_text.h"
#include "client/remote/rpcs.h"
#include "client/remote/terminal.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// The longest single call: proxies and firewalls may drop a connection without traffic.
constexpr absl::Duration kOneCall = absl::Minutes(5);

// How often Ctrl-C and the deadline are checked while the stream is silent.
constexpr absl::Duration kCheckEvery = absl::Milliseconds(200);

// Reports once per wait that the coordinator is away.
void SayAway(Session& session, bool& reported) {
  if (std::exchange(reported, true)) return;
  session.Say(
      absl::StrCat(session.client().options().server, " does not answer; retrying until it does"));
}

}  // namespace

bool MayResume(const absl::Status& end) {
  switch (end.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:  // the coordinator is stopping
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:  // the connection broke within a message
    case absl::StatusCode::kUnknown:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<v1::Job> WaitForJob(Session& session, const std::string& job,
                                   const std::vector<v1::JobState>& states) {
  CoordinatorClient& client = session.client();
  const absl::Duration deadline = session.WaitDeadline();
  v1::WaitJobRequest request;
  request.set_job(job);
  for (const v1::JobState state : states) request.add_states(state);
  Interrupt interrupt;
  session.Say(absl::StrCat("waiting for ", job, "; Ctrl-C detaches, the job keeps running"));
  bool reported = false;
  Backoff backoff = RetryBackoff();
  while (true) {
    CallContext context(client, std::min(deadline - SteadyNow(), kOneCall));
    absl::StatusOr<v1::WaitJobResponse> response;
    {
      const Interrupt::Call call(interrupt, [&context] { context.Cancel(); });
      response = client.CallOnce(kWaitJob, request, context);
    }
    if (response.ok()) return std::move(*response->mutable_job());
    if (interrupt.happened()) {
      session.Say(absl::StrCat("detached; the job keeps running. Run 'nibble job wait ", job,
                               "' to wait again"));
      return DescribeJob(session, job);
    }
    switch (response.status().code()) {
      case absl::StatusCode::kDeadlineExceeded:
        if (SteadyNow() >= deadline) return DescribeJob(session, job);
        break;
      case absl::StatusCode::kFailedPrecondition:
        session.Say(std::string(response.status().message()));
        return DescribeJob(session, job);
      case absl::StatusCode::kCancelled:  // the coordinator is stopping
      case absl::StatusCode::kUnavailable: {
        const absl::Duration pause = absl::FromChrono(backoff.Next());
        if (SteadyNow() + pause >= deadline) return client.Explain(response.status());
        SayAway(session, reported);
        interrupt.SleepFor(pause);
        break;
      }
      default:
        return client.Explain(response.status());
    }
  }
}

absl::StatusOr<v1::Job> WaitForStep(Session& session, const std::string& job, int64_t step) {
  CoordinatorClient& client = session.client();
  const absl::Duration deadline = session.WaitDeadline();
  v1::WatchJobsRequest request;
  request.add_jobs(job);
  request.set_with_samples(true);
  v1::Job seen;
  // Without a message from the stream yet, the coordinator is called.
  const auto present = [&]() -> absl::StatusOr<v1::Job> {
    if (seen.id().empty()) return DescribeJob(session, job);
    return seen;
  };
  Interrupt interrupt;
  session.Say(absl::StrCat("waiting for step ", step, " of ", job,
                           "; Ctrl-C detaches, the job keeps running"));
  bool reported = false;
  Backoff backoff = RetryBackoff();
  while (true) {
    WatchStream stream(client, request);
    const Interrupt::Call call(interrupt, [&stream] { stream.Cancel(); });
    std::optional<absl::Status> end;
    while (!end) {
      if (const std::optional<v1::WatchJobsResponse> message = stream.Next(kCheckEvery)) {
        backoff.Reset();
        const int64_t made = seen.next_step();
        if (message->has_job()) seen = message->job();
        if (message->has_sample()) seen.set_next_step(message->sample().sample().step() + 1);
        // The job's state may lag behind the samples.
        if (message->has_job()) seen.set_next_step(std::max(made, seen.next_step()));
        if (seen.next_step() >= step || IsOver(seen.state())) return seen;
      } else {
        end = stream.End();
      }
      if (interrupt.happened()) {
        session.Say(absl::StrCat("detached; the job keeps running. Run 'nibble job wait ", job,
                                 " --step ", step, "' to wait again"));
        return present();
      }
      if (SteadyNow() >= deadline) return present();
    }
    if (!MayResume(*end)) return client.Explain(*end);
    SayAway(session, reported);
    interrupt.SleepFor(std::min(absl::FromChrono(backoff.Next()), deadline - SteadyNow()));
  }
}

WatchStream::WatchStream(const CoordinatorClient& client, const v1::WatchJobsRequest& request)
    : stream_(client.WatchJobs(request)) {
  thread_ = std::thread([this] { Read(); });
}

WatchStream::~WatchStream() {
  stream_->Cancel();
  thread_.join();
}

void WatchStream::Read() {
  v1::WatchJobsResponse message;
  while (stream_->Read(message)) {
    MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
    changed_.SignalAll();
  }
  absl::Status status = stream_->Finish();
  MutexLock lock(&mutex_);
  end_ = std::move(status);
  changed_.SignalAll();
}

std::optional<v1::WatchJobsResponse> WatchStream::Next(absl::Duration wait) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(wait);
  MutexLock lock(&mutex_);
  while (messages_.empty() && !end_ && !changed_.WaitUntil(&mutex_, deadline)) {
  }
  if (messages_.empty()) return std::nullopt;
  v1::WatchJobsResponse message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

std::optional<absl::Status> WatchStream::End() {
  MutexLock lock(&mutex_);
  return messages_.empty() ? end_ : std::nullopt;
}

}  // namespace nibble
