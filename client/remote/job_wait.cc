#include "client/remote/job_wait.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/remote/interrupt.h"

namespace nibble {
namespace {

// A call does not wait longer: what lies between may forget a connection on which nothing moves.
constexpr absl::Duration kOneCall = absl::Minutes(5);

absl::StatusOr<v1::Job> JobNow(Session& session, const std::string& job) {
  v1::DescribeJobRequest request;
  request.set_job(job);
  absl::StatusOr<v1::DescribeJobResponse> described =
      session.Call(&CoordinatorClient::Stub::DescribeJob, request);
  if (!described.ok()) return described.status();
  return std::move(*described->mutable_job());
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
    const auto context = client.NewContext();
    context->set_deadline(DeadlineIn(std::min(deadline - SteadyNow(), kOneCall)));
    v1::WaitJobResponse response;
    grpc::Status status;
    {
      const Interrupt::Call call(interrupt, [&context] { context->TryCancel(); });
      status = client.stub().WaitJob(context.get(), request, &response);
    }
    if (status.ok()) return std::move(*response.mutable_job());
    if (interrupt.happened()) {
      session.Say(
          absl::StrCat("detached; the job goes on. `nibble job wait ", job, "` waits again"));
      return JobNow(session, job);
    }
    switch (status.error_code()) {
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        if (SteadyNow() >= deadline) return JobNow(session, job);
        break;
      case grpc::StatusCode::FAILED_PRECONDITION:
        session.Say(status.error_message());
        return JobNow(session, job);
      case grpc::StatusCode::CANCELLED:  // by a coordinator that stops
      case grpc::StatusCode::UNAVAILABLE: {
        const absl::Duration pause = pauses.Next();
        if (SteadyNow() + pause >= deadline) return client.Told(status);
        if (!std::exchange(told, true)) {
          session.Say(absl::StrCat(client.options().server,
                                   " does not answer; waiting for it to come back"));
        }
        interrupt.SleepFor(pause);
        break;
      }
      default:
        return client.Told(status);
    }
  }
}

}  // namespace nibble
