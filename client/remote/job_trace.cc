// `nibble job trace`: a timeline of the next steps of a running job, of all its ranks, for
// Perfetto; or the life of a job as OpenTelemetry spans.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "client/export/otlp_trace.h"
#include "client/remote/coordinator_client.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/terminal.h"
#include "client/remote/verb.h"
#include "client/shell/output.h"
#include "common/bytes.h"
#include "common/command_line/command_line.h"
#include "common/counted.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"
#include "common/version/build_version.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {
namespace {

struct TraceFlags {
  RemoteFlags remote;
  std::string job;
  int64_t steps = 2;
  std::string output = "trace.json";
  std::string otlp;  // empty: a timeline of steps
};

// The array of events in a file, made of the lines of several such arrays.
class TraceFile {
 public:
  static absl::StatusOr<TraceFile> Create(const std::string& path) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<StagedFile> file, StagedFile::Create(path));
    return TraceFile(std::move(file));
  }

  absl::Status AddLine(absl::string_view line) {
    if (!line.empty() && line.back() == ',') line.remove_suffix(1);
    if (line.empty() || line == "[" || line == "]") return absl::OkStatus();
    if (absl::StrContains(line, "\"ph\":\"X\"")) ++spans_;
    if (absl::StrContains(line, "\"process_name\"")) ++ranks_;
    return Append(absl::StrCat(events_++ == 0 ? "[\n" : ",\n", line));
  }
  absl::Status Publish() {
    NIBBLE_RETURN_IF_ERROR(Append(events_ == 0 ? "[\n]\n" : "\n]\n"));
    return file_->Publish();
  }
  int64_t spans() const { return spans_; }
  int64_t ranks() const { return ranks_; }

 private:
  explicit TraceFile(std::unique_ptr<StagedFile> file) : file_(std::move(file)) {}
  absl::Status Append(const std::string& text) { return file_->Append(AsBytes(text)); }

  std::unique_ptr<StagedFile> file_;
  int64_t events_ = 0;
  int64_t spans_ = 0;
  int64_t ranks_ = 0;
};

absl::StatusOr<Reply> LifeOf(Session& session, const TraceFlags& flags) {
  JobLife life = {.now_unix_ms = absl::ToUnixMillis(absl::Now()), .version = BuildVersion()};
  NIBBLE_ASSIGN_OR_RETURN(life.job, FindJob(session, flags.job));
  v1::ListJobEventsRequest events;
  events.set_job(life.job.id());
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListJobEventsResponse listed,
                          session.Call(kListJobEvents, events));
  life.events = {listed.events().begin(), listed.events().end()};
  v1::ListCheckpointsRequest checkpoints;
  checkpoints.set_job(life.job.id());
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse stored,
                          session.client().CallAllPages(kListCheckpoints, checkpoints));
  life.checkpoints = {stored.checkpoints().begin(), stored.checkpoints().end()};
  const nlohmann::ordered_json trace = OtlpTrace(life);
  // On one line, as OpenTelemetry's collector reads files. Texts may contain any bytes.
  NIBBLE_RETURN_IF_ERROR(ReplaceFile(
      flags.otlp,
      trace.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"));
  Reply reply{.text = absl::StrCat(flags.otlp, ": ", Counted(SpansOf(trace), "span"), "\n")};
  if (listed.dropped() > 0) {
    reply.notes = {
        absl::StrCat("the oldest ", Counted(listed.dropped(), "event"), " are no longer stored")};
  }
  return reply;
}

absl::StatusOr<Reply> TraceOf(Session& session, const TraceFlags& flags) {
  if (!flags.otlp.empty()) return LifeOf(session, flags);
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  NIBBLE_ASSIGN_OR_RETURN(TraceFile file, TraceFile::Create(flags.output));
  v1::StreamLogsRequest request;
  request.set_job(job.id());
  request.set_rank(-1);
  request.set_trace_steps(static_cast<int32_t>(flags.steps));
  Interrupt interrupt;
  const std::unique_ptr<ResponseStream<v1::StreamLogsResponse>> stream =
      session.client().StreamLogs(request);
  absl::Status written;
  {
    const Interrupt::Call call(interrupt, [&stream] { stream->Cancel(); });
    v1::StreamLogsResponse lines;
    while (stream->Read(lines)) {
      for (const std::string& line : lines.lines()) written.Update(file.AddLine(line));
    }
  }
  const absl::Status status = stream->Finish();
  if (interrupt.happened()) return Reply{.exit_code = kExitNotFinished};
  if (!status.ok()) return session.client().Explain(status);
  NIBBLE_RETURN_IF_ERROR(written);
  NIBBLE_RETURN_IF_ERROR(file.Publish());
  return Reply{.text = absl::StrCat(flags.output, ": ", Counted(file.spans(), "span"), " of ",
                                    Counted(file.ranks(), "rank"), "\n"),
               .notes = {"open it at https://ui.perfetto.dev or chrome://tracing"}};
}

}  // namespace

void AddJobTraceVerb(Command job, int& exit_code) {
  const auto flags = std::make_shared<TraceFlags>();
  const Command trace = job.AddSubcommand(
      "trace", "Write a timeline of a running job's next steps, for Perfetto or chrome://tracing");
  AddServerOptions(trace, flags->remote);
  AddJobOption(trace, flags->job);
  trace.Add("--steps", flags->steps, "number of steps").WholeNumber(1, 100).ShowDefault();
  trace.Add("-o,--output", flags->output, "the file to write").ShowDefault();
  trace
      .Add("--otlp", flags->otlp,
           "instead write the life of the job, running or finished, to this file: OpenTelemetry "
           "spans as OTLP/JSON")
      .Excludes("--steps")
      .Excludes("--output");
  trace.OnParsed([flags, &exit_code, run = Remote<TraceFlags>("job trace", TraceOf)] {
    exit_code = Finish("job trace", flags->remote.print, run(*flags));
  });
  trace.Footer(
      "Example: nibble job trace train-1 --steps 2 -o trace.json\n"
      "         nibble job trace train-1 --otlp train-1.otlp.json");
}

}  // namespace nibble
