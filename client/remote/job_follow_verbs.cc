#include "client/remote/job_follow_verbs.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/local/exit_code.h"
#include "client/local/number_check.h"
#include "client/remote/find_job.h"
#include "client/remote/interrupt.h"
#include "client/remote/job_watch.h"
#include "client/remote/verb.h"

namespace nibble {
namespace {

struct Flags {
  RemoteFlags remote;
  std::string job;
  bool follow = false;
  int32_t tail = 0;
  int32_t rank = -1;
  int64_t attempt = 0;
};

absl::StatusOr<int> Watch(Session& session, const Flags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, flags.job);
  if (!job.ok()) return job.status();
  return WatchJob(session, job->id());
}

// For people each line begins with its rank where there is more than one.
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

absl::StatusOr<int> Logs(Session& session, const Flags& flags) {
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
    const auto context = client.NewContext();
    const std::unique_ptr<grpc::ClientReaderInterface<v1::StreamLogsResponse>> stream =
        client.stub().StreamLogs(context.get(), request);
    grpc::Status status;
    {
      const Interrupt::Call call(interrupt, [&context] { context->TryCancel(); });
      v1::StreamLogsResponse lines;
      while (stream->Read(&lines)) {
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
    // Begun again, lines would come twice: what was printed stays, and the rest is asked for.
    const absl::Duration pause = pauses.Next();
    if (any || status.error_code() != grpc::StatusCode::UNAVAILABLE ||
        SteadyNow() + pause >= deadline) {
      return client.Told(status);
    }
    interrupt.SleepFor(pause);
  }
}

}  // namespace

void AddJobFollowVerbs(CLI::App* job, int& exit_code) {
  RemoteVerb<Flags> watch(job, "watch",
                          "Progress, losses and events as they come, until the job is finished");
  AddJobOption(watch.app(), watch->job);
  watch.Runs(exit_code, Watch);

  RemoteVerb<Flags> logs(job, "logs", "Lines that ranks wrote");
  AddJobOption(logs.app(), logs->job);
  logs.app()->add_flag("-f,--follow", logs->follow, "Go on until the job is finished");
  logs.app()
      ->add_option("--tail", logs->tail, "only the last so many lines; 0: all")
      ->check(WholeFor(logs->tail, 0));
  logs.app()
      ->add_option("--rank", logs->rank, "of this rank; else of all")
      ->check(WholeFor(logs->rank, 0));
  logs.app()
      ->add_option("--attempt", logs->attempt, "of this attempt; else of the latest")
      ->check(WholeFor(logs->attempt, 0));
  logs.Runs(exit_code, Logs);
}

}  // namespace nibble
