#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "model/outline.h"
#include "worker/agent/gang.h"

namespace nibble {
namespace {

std::string PhaseWord(RankState state) {
  switch (state) {
    case RankState::kPrepares:
      return "preparing";
    case RankState::kRuns:
      return "running";
    case RankState::kStands:
      return "paused";
    case RankState::kStopped:
      return "stopped";
    case RankState::kSucceeded:
      return "succeeded";
    case RankState::kFailed:
      break;
  }
  return "failed";
}

double Seconds(int64_t ms) { return static_cast<double>(ms) / 1000; }

}  // namespace

void Gang::NoteModel(const JobSpec& spec) {
  planned_steps_ = spec.training.steps;
  const absl::StatusOr<Outline> outline = MakeOutline(spec.model);
  if (outline.ok()) flops_per_token_ = CountFlops(*outline, spec.data.sequence).training();
}

GangFigures Gang::Figures(const PresentGang& present) const {
  GangFigures figures = {.job = job_,
                         .attempt = attempt_,
                         .world = desired_.world(),
                         .planned_steps = planned_steps_,
                         .flops_per_token = flops_per_token_};
  std::map<int32_t, LinkHost::Rank> linked;
  if (link_ != nullptr) linked = link_->Ranks();
  const int64_t now = home_.clock();
  for (const PresentRank& rank : present.ranks) {
    RankFigures& own = figures.ranks.emplace_back();
    own.rank = rank.rank;
    own.phase = PhaseWord(rank.state);
    own.ended = HasEnded(rank.state);
    own.hung = rank.hangs;
    const auto log = home_.supervisor->LogOf(ProcessName(job_, attempt_, rank.rank));
    if (log != nullptr) own.log_bytes = log->end();
    const auto said = linked.find(rank.rank);
    if (said == linked.end()) continue;
    own.news = said->second.news;
    own.precision = said->second.precision;
    own.since_step_seconds = Seconds(std::max<int64_t>(0, now - said->second.step_at_ms));
    own.median_step_seconds = Seconds(said->second.median_step_ms);
  }
  return figures;
}

}  // namespace nibble
