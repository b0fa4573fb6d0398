#include "worker/trainer/loop/run_trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

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

}  // namespace

RunTrace::RunTrace(const Device& device, Collective& collective, std::function<double()> clock)
    : collective_(collective),
      recorder_(device.backend, std::move(clock)),
      traced_(device, recorder_) {
  collective_.set_tracer(&recorder_);
}

RunTrace::~RunTrace() { collective_.set_tracer(nullptr); }

void RunTrace::Request(int64_t after, int64_t steps, Receiver receiver) {
  after_ = after;
  left_ = steps;
  receiver_ = std::move(receiver);
}

void RunTrace::TraceToFile(const std::string& path, int64_t after, int64_t steps) {
  Request(after, steps, [path](const std::string& events) { return AppendTrace(path, events); });
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
  const absl::Status finished = Finish();
  return status.ok() ? finished : status;
}

absl::Status RunTrace::Finish() {
  RankTrace trace = {.rank = collective_.rank(), .first_step = first_step_};
  NIBBLE_ASSIGN_OR_RETURN(trace.spans, recorder_.End());
  trace.dropped = recorder_.dropped();
  trace.spans.insert(trace.spans.end(), parts_.begin(), parts_.end());
  parts_.clear();
  const std::vector<TraceSpan> gaps = GapsOf(trace.spans, kLeastGapSeconds);
  trace.spans.insert(trace.spans.end(), gaps.begin(), gaps.end());
  const Receiver receiver = std::exchange(receiver_, nullptr);
  return receiver(ChromeEvents(trace));
}

}  // namespace nibble
