// `nibble job metrics`: the figures of a run as CSV, as JSON lines, or as a TensorBoard file.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/export/figure_rows.h"
#include "client/remote/event_lines.h"
#include "client/remote/remote_commands.h"
#include "client/remote/verb.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "worker/trainer/report/events.h"
#include "worker/trainer/report/run_event.h"
#include "worker/trainer/tensorboard/tensorboard_file.h"

namespace nibble {
namespace {

constexpr size_t kOutputBytes = 64 << 10;

struct MetricsFlags {
  MetricsFlags() { remote.print = "csv"; }  // the format for people

  RemoteFlags remote;
  std::string job;
  int64_t from_step = 0;
  int64_t to_step = std::numeric_limits<int64_t>::max();
  int64_t every = 1;
  int64_t attempt = 0;
  bool precision = false;
  bool validation = false;
  bool follow = false;
  std::string tensorboard;
};

// A form of output.
class FigureSink {
 public:
  virtual ~FigureSink() = default;
  // Each `start` event, and each selected one.
  virtual absl::Status Add(const RunEvent& event) = 0;
  virtual absl::Status Flush() = 0;
};

class RowSink : public FigureSink {
 public:
  RowSink(const Session& session, const MetricsFlags& flags, std::string_view event)
      : session_(session), print_(flags.remote.print), columns_(FigureColumns(event)) {
    if (print_ == "csv") text_ = CsvHead(columns_);
  }

  absl::Status Add(const RunEvent& event) override {
    if (event.kind == StartEvent::kName) return absl::OkStatus();
    if (print_ == "csv") {
      text_ += CsvRow(event, columns_);
    } else if (print_ == "json") {
      text_ += JsonLine(RowObject(event, columns_));
    } else {
      absl::StrAppend(&text_, "---\n", YamlOf(RowObject(event, columns_)));
    }
    return text_.size() < kOutputBytes ? absl::OkStatus() : Flush();
  }
  absl::Status Flush() override {
    if (!text_.empty()) session_.Out(text_);
    text_.clear();
    return absl::OkStatus();
  }

 private:
  const Session& session_;
  const std::string print_;
  const std::vector<std::string> columns_;
  std::string text_;  // not written yet
};

// The file is made at the first event, whose time names it.
class TensorboardSink : public FigureSink {
 public:
  explicit TensorboardSink(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Add(const RunEvent& event) override {
    if (file_ == nullptr) {
      NIBBLE_ASSIGN_OR_RETURN(file_, TensorboardFile::Create(directory_, event.time));
    }
    return file_->Add(event);
  }
  absl::Status Flush() override { return file_ == nullptr ? absl::OkStatus() : file_->Flush(); }

  const TensorboardFile* file() const { return file_.get(); }

 private:
  const std::string directory_;
  std::unique_ptr<TensorboardFile> file_;
};

// Reads the log twice (run_event.h).
absl::Status Export(EventLines& lines, const FigureSelection& selection, bool follow,
                    FigureSink& sink) {
  FigureFilter filter(selection);
  const absl::Status surveyed =
      lines.Read(false, {.take = [&filter](std::string_view line) -> absl::Status {
                           NIBBLE_ASSIGN_OR_RETURN(const RunEvent event, ParseRunEvent(line));
                           filter.Survey(event);
                           return absl::OkStatus();
                         },
                         .pause = [] { return absl::OkStatus(); }});
  // A followed run may not have begun.
  if (!surveyed.ok() && !(follow && absl::IsNotFound(surveyed))) return surveyed;
  const absl::Status read =
      lines.Read(follow, {.take = [&](std::string_view line) -> absl::Status {
                            NIBBLE_ASSIGN_OR_RETURN(const RunEvent event, ParseRunEvent(line));
                            const bool taken = filter.Takes(event);
                            if (!taken && event.kind != StartEvent::kName) return absl::OkStatus();
                            return sink.Add(event);
                          },
                          .pause = [&sink] { return sink.Flush(); }});
  const absl::Status flushed = sink.Flush();
  return read.ok() ? flushed : read;
}

// Of a log's source: the lines, and the name of the run for TensorBoard.
struct NamedLines {
  std::unique_ptr<EventLines> lines;
  std::string name;
};

absl::StatusOr<NamedLines> LinesOf(Session& session, const MetricsFlags& flags) {
  if (const std::optional<std::string> directory = RunDirectory(flags.job, flags.remote)) {
    return NamedLines{std::make_unique<FileEventLines>(*directory),
                      std::filesystem::path(*directory).filename().string()};
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  return NamedLines{std::make_unique<JobEventLines>(session, job.id(), flags.attempt), job.id()};
}

absl::StatusOr<Reply> Metrics(Session& session, const MetricsFlags& flags) {
  if (flags.to_step < flags.from_step) {
    return absl::InvalidArgumentError(
        absl::StrCat("--to-step: ", flags.to_step, " is below --from-step, ", flags.from_step));
  }
  NIBBLE_ASSIGN_OR_RETURN(const NamedLines source, LinesOf(session, flags));
  FigureSelection selection = {
      .from_step = flags.from_step, .to_step = flags.to_step, .every = flags.every};
  if (flags.tensorboard.empty()) {
    selection.steps = !flags.precision && !flags.validation;
    selection.precision = flags.precision;
    selection.validation = flags.validation;
    RowSink sink(session, flags,
                 flags.precision    ? "precision"
                 : flags.validation ? ValidationEvent::kName
                                    : "step");
    const absl::Status status = Export(*source.lines, selection, flags.follow, sink);
    if (absl::IsCancelled(status)) return Reply{.exit_code = kExitNotFinished};
    if (!status.ok()) return status;
    return Reply{};
  }
  selection.validation = true;
  selection.precision = flags.precision;
  TensorboardSink sink(absl::StrCat(flags.tensorboard, "/", source.name));
  if (flags.follow) {
    session.Say(absl::StrCat("writes to ", flags.tensorboard, " until the run ends; run ",
                             "'tensorboard --logdir ", flags.tensorboard, "' to look at it"));
  }
  const absl::Status status = Export(*source.lines, selection, flags.follow, sink);
  if (!status.ok() && !absl::IsCancelled(status)) return status;
  const TensorboardFile* const file = sink.file();
  if (file == nullptr) return absl::NotFoundError("event log: it has no events yet");
  nlohmann::ordered_json json = {{"path", file->path()}, {"scalars", file->scalars()}};
  return Reply{.text = absl::StrCat(file->path(), ": ", Counted(file->scalars(), "scalar"), "\n"),
               .json = JsonText(json),
               .exit_code = status.ok() ? kExitDone : kExitNotFinished};
}

}  // namespace

void AddJobMetricsVerb(Command job, int& exit_code) {
  RemoteVerb<MetricsFlags> metrics(
      job, "metrics", "Print the figures of a run's steps, or write them for TensorBoard");
  metrics.app()
      .Add("JOB", metrics->job,
           absl::StrCat(kJobHelp,
                        "; or the output directory of a run on this machine, such as runs/train"))
      .Required();
  metrics.app()
      .Add("--from-step", metrics->from_step, "only this step and later ones")
      .AtLeast(0)
      .ShowDefault();
  metrics.app().Add("--to-step", metrics->to_step, "only this step and earlier ones").AtLeast(0);
  metrics.app()
      .Add("--every", metrics->every, "only steps that are multiples of N")
      .AtLeast(1)
      .ShowDefault();
  metrics.app().AddFlag("--precision", metrics->precision,
                        "statistics of the quantised operands: with --tensorboard also, otherwise "
                        "instead of the steps' figures");
  metrics.app()
      .Add("--attempt", metrics->attempt,
           "read the log of the worker that ran rank 0 in this attempt; default: the latest")
      .AtLeast(0);
  metrics.app().AddFlag("-f,--follow", metrics->follow, "continue until the run ends");
  metrics.app().Add("--tensorboard", metrics->tensorboard,
                    "write an event file to DIR/JOB instead of printing");
  metrics.app()
      .AddFlag("--validation", metrics->validation,
               "validation losses instead of the steps' figures")
      .Excludes("--precision")
      .Excludes("--tensorboard");
  metrics.Runs(exit_code, Metrics);
  metrics.app().Footer(
      "Example: nibble job metrics train-1 --every 100 > train-1.csv\n"
      "         nibble job metrics train-1 --tensorboard logs --follow");
}

}  // namespace nibble
