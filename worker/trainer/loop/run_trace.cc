#include "worker/trainer/loop/run_trace.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "worker/trainer/loop/run_reporter.h"

namespace nibble {
namespace {

constexpr double kLeastGapSeconds = 2e-6;  // shorter ones are launches

const char* PartName(StepPart part) {
  switch (part) {
    case StepPart::kData:
      return "data";
    case StepPart::kWeights:
      return "weights";
    case StepPart::kForward:
      return "forward";
    case StepPart::kBackward:
      return "backward";
    case StepPart::kReduce:
      return "gradients over ranks";
    case StepPart::kUpdate:
      break;
  }
  return "optimizer";
}

// Seconds since kTraceEpoch by the wall clock as it was at the first call, so that the traces of
// several machines share an axis; they run steadily.
double TraceSeconds() {
  static const double offset =
      absl::ToDoubleSeconds(absl::Now() - absl::FromUnixSeconds(kTraceEpoch)) - SteadySeconds();
  return SteadySeconds() + offset;
}

}  // namespace

RunTrace::RunTrace(const Device& device, Collective& collective)
    : collective_(collective), recorder_(device.backend, TraceSeconds), traced_(device, recorder_) {
  collective_.set_tracer(&recorder_);
}

RunTrace::~RunTrace() { collective_.set_tracer(nullptr); }

void RunTrace::Request(int64_t after, int64_t steps, Receiver receiver) {
  after_ = after;
  left_ = steps;
  receiver_ = std::move(receiver);
}

void RunTrace::TraceToFile(const std::string& path, int64_t after, int64_t steps) {
  Request(after, steps, [path](const absl::StatusOr<std::string>& events) {
    return events.ok() ? AppendTrace(path, *events) : events.status();
  });
}

void RunTrace::TakeRequest(RankLink* link, RankStatus* status) {
  if (link == nullptr) return;
  const std::optional<link::v1::TraceCommand> command = link->TakeTrace();
  if (!command.has_value()) return;
  Request(0, command->steps(),
          [path = std::string(command->path()), number = command->number(),
           status](const absl::StatusOr<std::string>& events) {
            const absl::Status written = events.ok() ? AppendTrace(path, *events) : events.status();
            status->AddTrace(number, written);
            return written;
          });
}

absl::Status RunTrace::BeforeStep(Trainer& trainer) {
  if (left_ == 0 || recorder_.active() || after_-- > 0) return absl::OkStatus();
  first_step_ = trainer.next_step();
  parts_.clear();
  trainer.EnqueueEach(true);
  return recorder_.Begin();
}

absl::Status RunTrace::AddParts(Trainer& trainer) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StepTimes::Span> parts,
                          trainer.LastParts(recorder_.origin()));
  if (parts.empty()) return absl::OkStatus();
  const double origin = recorder_.origin_seconds();
  parts_.push_back({.track = TraceTrack::kSteps,
                    .name = absl::StrCat("step ", trainer.next_step() - 1),
                    .begin = origin + parts.front().begin,
                    .seconds = parts.back().end - parts.front().begin});
  for (const StepTimes::Span& part : parts) {
    parts_.push_back({.track = TraceTrack::kSteps,
                      .name = PartName(part.part),
                      .begin = origin + part.begin,
                      .seconds = part.end - part.begin});
  }
  return absl::OkStatus();
}

absl::Status RunTrace::AfterStep(Trainer& trainer) {
  if (!recorder_.active()) return absl::OkStatus();
  absl::Status status = AddParts(trainer);
  if (status.ok() && --left_ > 0) return status;
  left_ = 0;
  trainer.EnqueueEach(false);
  absl::StatusOr<std::string> events = Finish();
  if (!status.ok()) events = status;
  return std::exchange(receiver_, nullptr)(events);
}

absl::Status RunTrace::End() {
  if (left_ == 0) return absl::OkStatus();
  const absl::Status missed = absl::FailedPreconditionError(absl::StrCat(
      "trace: the run ended with ", left_, " of the steps to trace left, so none is written"));
  left_ = 0;
  return std::exchange(receiver_, nullptr)(missed);
}

absl::StatusOr<std::string> RunTrace::Finish() {
  RankTrace trace = {.rank = collective_.rank(), .first_step = first_step_};
  NIBBLE_ASSIGN_OR_RETURN(trace.spans, recorder_.End());
  trace.dropped = recorder_.dropped();
  trace.spans.insert(trace.spans.end(), parts_.begin(), parts_.end());
  parts_.clear();
  const std::vector<TraceSpan> gaps = GapsOf(trace.spans, kLeastGapSeconds);
  trace.spans.insert(trace.spans.end(), gaps.begin(), gaps.end());
  return ChromeEvents(trace);
}

}  // namespace nibble
