#include "client/remote/job_wait.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/remote/job_text.h"
#include "client/remote/rpcs.h"
#include "client/remote/terminal.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// Limit of one call: proxies and firewalls may drop a connection without traffic.
constexpr absl::Duration kOneCall = absl::Minutes(5);

absl::StatusOr<v1::Job> JobNow(Session& session, const std::string& job) {
  v1::DescribeJobRequest request;
  request.set_job(job);
  NIBBLE_ASSIGN_OR_RETURN(v1::DescribeJobResponse described, session.Call(kDescribeJob, request));
  return std::move(*described.mutable_job());
}

// How often Ctrl-C and the deadline are checked while the stream is silent.
constexpr absl::Duration kCheckEvery = absl::Milliseconds(200);

bool MayComeBack(const absl::Status& end) {
  return end.ok() || absl::IsUnavailable(end) ||
         absl::IsCancelled(end);  // by a coordinator that is stopping
}

}  // namespace

absl::StatusOr<v1::Job> WaitForJob(Session& session, const std::string& job,
                                   const std::vector<v1::JobState>& states) {
  CoordinatorClient& client = session.client();
  const absl::Duration deadline = session.flags().timeout.empty()
                                      ? absl::InfiniteDuration()
                                      : SteadyNow() + client.options().timeout;
  v1::WaitJobRequest request;
  request.set_job(job);
  for (const v1::JobState state : states) request.add_states(state);
  Interrupt interrupt;
  session.Say(absl::StrCat("waiting for ", job, "; Ctrl-C lets go of it"));
  bool told = false;
  RetryPauses pauses;
  while (true) {
    CallContext context(client, std::min(deadline - SteadyNow(), kOneCall));
    absl::StatusOr<v1::WaitJobResponse> response;
    {
      const Interrupt::Call call(interrupt, [&context] { context.Cancel(); });
      response = client.CallOnce(kWaitJob, request, context);
    }
    if (response.ok()) return std::move(*response->mutable_job());
    if (interrupt.happened()) {
      session.Say(
          absl::StrCat("detached; the job goes on. `nibble job wait ", job, "` waits again"));
      return JobNow(session, job);
    }
    switch (response.status().code()) {
      case absl::StatusCode::kDeadlineExceeded:
        if (SteadyNow() >= deadline) return JobNow(session, job);
        break;
      case absl::StatusCode::kFailedPrecondition:
        session.Say(std::string(response.status().message()));
        return JobNow(session, job);
      case absl::StatusCode::kCancelled:  // by a coordinator that is stopping
      case absl::StatusCode::kUnavailable: {
        const absl::Duration pause = pauses.Next();
        if (SteadyNow() + pause >= deadline) return client.Told(response.status());
        if (!std::exchange(told, true)) {
          session.Say(absl::StrCat(client.options().server,
                                   " does not answer; waiting for it to come back"));
        }
        interrupt.SleepFor(pause);
        break;
      }
      default:
        return client.Told(response.status());
    }
  }
}

absl::StatusOr<v1::Job> WaitForStep(Session& session, const std::string& job, int64_t step) {
  CoordinatorClient& client = session.client();
  const absl::Duration deadline = session.flags().timeout.empty()
                                      ? absl::InfiniteDuration()
                                      : SteadyNow() + client.options().timeout;
  v1::WatchJobsRequest request;
  request.add_jobs(job);
  request.set_with_samples(true);
  v1::Job seen;
  Interrupt interrupt;
  RetryPauses pauses;
  while (true) {
    WatchStream stream(client, request);
    const Interrupt::Call call(interrupt, [&stream] { stream.Cancel(); });
    std::optional<absl::Status> end;
    while (!end) {
      if (const std::optional<v1::WatchJobsResponse> message = stream.Next(kCheckEvery)) {
        pauses = RetryPauses();
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
        session.Say(absl::StrCat("detached; the job goes on. `nibble job wait ", job, " --step ",
                                 step, "` waits again"));
        return seen;
      }
      if (SteadyNow() >= deadline) return seen;
    }
    if (!MayComeBack(*end)) return client.Told(*end);
    interrupt.SleepFor(std::min(pauses.Next(), deadline - SteadyNow()));
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
    std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.notify_all();
  }
  absl::Status status = stream_->Finish();
  std::lock_guard lock(mutex_);
  end_ = std::move(status);
  changed_.notify_all();
}

std::optional<v1::WatchJobsResponse> WatchStream::Next(absl::Duration wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoNanoseconds(wait),
                    [this] { return !messages_.empty() || end_; });
  if (messages_.empty()) return std::nullopt;
  v1::WatchJobsResponse message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

std::optional<absl::Status> WatchStream::End() {
  std::lock_guard lock(mutex_);
  return messages_.empty() ? end_ : std::nullopt;
}

}  // namespace nibble
