#include "client/remote/step_wait.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/remote/interrupt.h"
#include "client/remote/job_text.h"
#include "client/remote/watch_stream.h"

namespace nibble {
namespace {

// A stream on which nothing comes is looked at this often for Ctrl-C and the deadline.
constexpr absl::Duration kLookEvery = absl::Milliseconds(200);

bool MayComeBack(grpc::StatusCode code) {
  return code == grpc::StatusCode::OK || code == grpc::StatusCode::UNAVAILABLE ||
         code == grpc::StatusCode::CANCELLED;  // by a coordinator that stops
}

}  // namespace

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
    std::optional<grpc::Status> end;
    while (!end) {
      if (const std::optional<v1::WatchJobsResponse> message = stream.Next(kLookEvery)) {
        pauses = RetryPauses();
        const int64_t made = seen.next_step();
        if (message->has_job()) seen = message->job();
        if (message->has_sample()) seen.set_next_step(message->sample().sample().step() + 1);
        // What a sample has said, the job's own state may not know yet.
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
    if (!MayComeBack(end->error_code())) return client.Told(*end);
    interrupt.SleepFor(std::min(pauses.Next(), deadline - SteadyNow()));
  }
}

}  // namespace nibble
