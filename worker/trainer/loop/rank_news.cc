#include "worker/trainer/loop/rank_news.h"

#include <string>
#include <utility>
#include <vector>

#include "worker/trainer/loop/run_events.h"
#include "worker/trainer/report/events.h"

namespace nibble {
namespace {

std::string Clipped(std::string name) {
  if (name.size() > kMaxLayerNameBytes) name.resize(kMaxLayerNameBytes);
  return name;
}

void AddTotals(const StepReport& report, StepTotals& made) {
  ++made.steps;
  made.skipped += report.updated ? 0 : 1;
  made.tokens += report.tokens;
  made.seconds += report.seconds.total;
  made.data_seconds += report.seconds.data;
  made.weights_seconds += report.seconds.weights;
  made.forward_seconds += report.seconds.forward;
  made.backward_seconds += report.seconds.backward;
  made.reduce_seconds += report.seconds.reduce;
  made.update_seconds += report.seconds.update;
}

}  // namespace

void AddStep(const StepReport& report, const Outline& outline, const Timeline& timeline,
             bool with_precision, RankNews& news) {
  AddTotals(report, news.made);
  news.has_sample = true;
  news.step = report.step;
  news.tokens = (report.step + 1) * report.tokens;
  news.loss = report.loss;
  news.gradient_norm = report.gradient_norm;
  news.learning_rate = report.learning_rate;
  news.step_seconds = report.seconds.total;
  news.tokens_per_second =
      report.seconds.total > 0 ? static_cast<double>(report.tokens) / report.seconds.total : 0;
  news.revision = report.revision;
  news.revision_first_step = timeline.At(report.step).first_step;
  news.updated = report.updated;
  news.precision.clear();
  if (!with_precision || report.figures.empty()) return;
  for (PrecisionEvent& event : PrecisionOf(report, outline, timeline)) {
    if (news.precision.size() == kMaxPrecisionSamples) break;
    news.precision.push_back({.step = event.step,
                              .layer = Clipped(std::move(event.layer)),
                              .operand = Clipped(std::move(event.operand)),
                              .format = Clipped(std::move(event.format)),
                              .relative_error = event.relative_error,
                              .underflow = event.underflow,
                              .clipped = event.clipped,
                              .amax = event.amax,
                              .scale_spread_octaves = event.scale_spread_octaves,
                              .non_finite = event.non_finite});
  }
}

bool NoteBegun(const RevisionBegun& begun, RankNews& news) {
  if (!news.begun.empty() && news.begun.back() == begun) return false;
  if (news.begun.size() == kMaxRevisionsBegun) news.begun.erase(news.begun.begin());
  news.begun.push_back(begun);
  return true;
}

void NoteRefused(RevisionRefused refused, RankNews& news) {
  if (news.refused.size() == kMaxRevisionsRefused) news.refused.erase(news.refused.begin());
  news.refused.push_back(std::move(refused));
}

void AddCheckpoint(const CheckpointGuest::Outcome& outcome, RankNews& news) {
  CheckpointTotals& totals = news.checkpoints;
  totals.stall_seconds += outcome.stall_seconds;
  totals.write_seconds += outcome.write_seconds;
  if (!outcome.status.ok()) {
    ++totals.failed;
    return;
  }
  ++totals.stored;
  totals.bytes += outcome.bytes;
}

}  // namespace nibble
