#include "client/report/report_headline.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/counted.h"
#include "common/text/text.h"

namespace nibble {
namespace {

using HeadlineJson = nlohmann::ordered_json;

HeadlineJson Fact(const std::string& label, const std::string& value, const std::string& note,
                  const std::string& tone = "") {
  return {{"label", label}, {"value", value}, {"note", note}, {"tone", tone}};
}

std::string LossText(double loss) {
  return std::isfinite(loss) ? absl::StrFormat("%.4f", loss) : "not finite";
}

// What the guards found, and the last decision.
HeadlineJson GuardFact(const RunRecord& record) {
  int64_t decisions = 0, acted = 0;
  const RunNote* shown = nullptr;
  for (const RunNote& note : record.notes) {
    if (note.kind != "guard") continue;
    const bool observed = OnlyObserved(note.text);
    ++decisions;
    acted += observed ? 0 : 1;
    if (!observed || acted == 0) shown = &note;
  }
  if (shown == nullptr) return Fact("Guards", "nothing found", "");
  constexpr size_t kMostShown = 90;
  const std::string text = absl::StrCat("last at step ", shown->step, ": ", shown->text);
  return Fact("Guards", acted > 0 ? Counted(acted, "action") : Counted(decisions, "observation"),
              WidthOf(text) > kMostShown ? Fit(text, kMostShown) : text, acted > 0 ? "bad" : "");
}

}  // namespace

HeadlineJson ReportHeadline(const ReportInput& input, const std::vector<JobDifference>& differences,
                            const PrecisionMap& precision) {
  HeadlineJson facts = HeadlineJson::array();
  const v1::Job& job = input.job.job;
  const RunRecord& record = input.job.record;
  const int64_t steps = job.shape().steps();
  const double tokens = record.steps.empty() ? 0 : record.steps.rbegin()->second.tokens;
  facts.push_back(
      Fact("Steps", absl::StrCat(job.next_step()),
           absl::StrCat("of ", steps,
                        steps > 0 ? absl::StrFormat(" (%d %%)", job.next_step() * 100 / steps) : "",
                        tokens > 0 ? absl::StrCat(", ", CountText(tokens), " tokens") : "")));
  if (!record.steps.empty()) {
    const auto& [step, last] = *record.steps.rbegin();
    const MeanWithError mean = LastMean(CurveOf(record, &StepFigures::loss));
    facts.push_back(Fact("Loss", LossText(last.loss),
                         absl::StrCat("at step ", step, "; mean of the last ", mean.samples,
                                      " samples ", mean.Text(4)),
                         std::isfinite(last.loss) ? "" : "bad"));
  }
  for (const auto& [set, losses] : record.validation) {
    if (losses.empty()) continue;
    facts.push_back(Fact("Validation loss", LossText(losses.rbegin()->second),
                         absl::StrCat(set, ", after ", losses.rbegin()->first, " steps")));
    break;
  }
  for (const JobDifference& difference : differences) {
    const Points& points = input.by_tokens ? difference.by_tokens : difference.by_step;
    if (difference.job != job.id() || points.size() == 0) continue;
    const MeanWithError last = LastMean(points);
    facts.push_back(
        Fact(absl::StrCat("Loss against ", input.compared[0].job.id()),
             absl::StrCat(last.mean >= 0 ? "+" : "", last.Text(2), " %"),
             absl::StrCat("mean of the last ", last.samples,
                          input.by_tokens
                              ? std::string(" samples at equal tokens")
                              : absl::StrCat(" common steps, to step ",
                                             static_cast<int64_t>(std::llround(points.x.back()))),
                          ", ± its standard error within this pair of runs; positive is worse")));
  }
  const double rate = MedianOf(record, &StepFigures::tokens_per_second);
  if (std::isfinite(rate)) {
    facts.push_back(Fact(
        "Throughput", absl::StrCat(CountText(rate), " tok/s"),
        absl::StrFormat("median; a step takes %.3g s", MedianOf(record, &StepFigures::seconds))));
  }
  if (job.submitted_unix_ms() != 0) {
    const int64_t end = job.finished_unix_ms() != 0 ? job.finished_unix_ms() : input.now_unix_ms;
    const int64_t attempts = std::max<int64_t>(job.attempts(), 0);
    facts.push_back(Fact("Time",
                         DurationText(static_cast<double>(end - job.submitted_unix_ms()) / 1000),
                         absl::StrCat("since submission, ", Counted(attempts, "attempt"))));
  }
  if (!input.job.revisions.empty()) {
    constexpr size_t kMostRecipe = 48;
    for (const auto& [revision, recipe] : input.job.revisions) {
      if (revision.number() != std::max<int64_t>(job.revision_in_force(), 1)) continue;
      facts.push_back(
          Fact("Recipe", WidthOf(recipe) > kMostRecipe ? Fit(recipe, kMostRecipe) : recipe,
               absl::StrCat("revision ", revision.number(), " from step ", revision.first_step(),
                            "; latest ", job.latest_revision())));
    }
  }
  if (!precision.worst.empty()) {
    const WorstOperand& worst = precision.worst[0];
    facts.push_back(Fact("Largest quantisation error",
                         std::isfinite(worst.relative_error)
                             ? absl::StrFormat("%.2g %%", 100 * worst.relative_error)
                             : "not finite",
                         absl::StrCat(worst.layer, ", ", worst.operand),
                         std::isfinite(worst.relative_error) ? "" : "bad"));
  }
  // Without an event log it is not known.
  if (record.lines > 0) facts.push_back(GuardFact(record));
  return facts;
}

}  // namespace nibble
