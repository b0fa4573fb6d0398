#include "client/report/report_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/report/precision_map.h"
#include "client/report/report_tables.h"
#include "client/report/series.h"
#include "common/counted.h"
#include "common/text/text.h"
#include "common/version/build_version.h"

namespace nibble {
namespace {

using DataJson = nlohmann::ordered_json;

// Bounds of the file's size: columns of a thinned curve, for all compared jobs together and for
// one; points of means; codes of the heat map.
constexpr size_t kAllColumns = 10'000, kCurveColumns = 2400, kMeanPoints = 400;
constexpr size_t kMostCells = 1'000'000;

// In the text of a guard's decision that changed nothing.
constexpr char kObserved[] = " guard: observed";

// ---- Curves as JSON ----------------------------------------------------------------------------

// Six significant digits; null if it is not finite.
DataJson Rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (std::abs(value) < 1e15 && value == std::floor(value)) return static_cast<int64_t>(value);
  return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr);
}

// x: steps and tokens are whole numbers, and are not rounded.
DataJson PointsJson(const Points& points) {
  DataJson x = DataJson::array(), y = DataJson::array();
  for (size_t i = 0; i < points.size(); ++i) {
    x.push_back(static_cast<int64_t>(std::llround(points.x[i])));
    y.push_back(Rounded(points.y[i]));
  }
  return DataJson::array({std::move(x), std::move(y)});
}

Points CurveOf(const RunRecord& record, double StepFigures::*figure) {
  Points points;
  for (const auto& [step, figures] : record.steps) {
    points.Add(static_cast<double>(step), figures.*figure);
  }
  return points;
}

Points Smoothed(const Points& points) { return Smooth(points, SmoothingReach(points.size())); }

DataJson RawAndSmooth(const Points& points, size_t columns) {
  return {{"raw", PointsJson(Thin(points, columns))},
          {"smooth", PointsJson(Thin(Smoothed(points), columns))}};
}

// Tokens by step, as a bent line.
Points TokensOf(const RunRecord& record) {
  Points tokens;
  for (const auto& [step, figures] : record.steps) {
    if (std::isfinite(figures.tokens)) tokens.Add(static_cast<double>(step), figures.tokens);
  }
  return Corners(tokens);
}

Points LossByTokens(const RunRecord& record) {
  Points points;
  for (const auto& [step, figures] : record.steps) {
    if (!std::isfinite(figures.tokens)) continue;
    if (points.size() > 0 && figures.tokens <= points.x.back()) continue;
    points.Add(figures.tokens, figures.loss);
  }
  return points;
}

// ---- Differences -------------------------------------------------------------------------------

struct Difference {
  std::string job;
  Points by_step, by_tokens;
};

std::vector<Difference> DifferencesOf(const ReportInput& input) {
  std::vector<Difference> differences;
  if (input.compared.empty()) return differences;
  const RunRecord& reference = input.compared[0].record;
  const auto add = [&](const ReportedJob& job) {
    Difference difference = {job.job.id(),
                             RelativeDifference(CurveOf(job.record, &StepFigures::loss),
                                                CurveOf(reference, &StepFigures::loss)),
                             RelativeDifference(LossByTokens(job.record), LossByTokens(reference))};
    if (difference.by_step.size() > 0 || difference.by_tokens.size() > 0) {
      differences.push_back(std::move(difference));
    }
  };
  add(input.job);
  for (size_t i = 1; i < input.compared.size(); ++i) add(input.compared[i]);
  return differences;
}

DataJson DifferenceJson(const ReportInput& input, const std::vector<Difference>& differences,
                        size_t columns) {
  DataJson json = {{"against", input.compared.empty() ? "" : input.compared[0].job.id()},
                   {"note", ""},
                   {"series", DataJson::array()}};
  for (const Difference& difference : differences) {
    json["series"].push_back({{"job", difference.job},
                              {"steps", RawAndSmooth(difference.by_step, columns)},
                              {"tokens", RawAndSmooth(difference.by_tokens, columns)}});
  }
  if (!input.compared.empty() && differences.empty()) {
    json["note"] = "The jobs have no steps in common.";
  }
  return json;
}

// ---- The head ----------------------------------------------------------------------------------

// The mean of the last samples of the smoothing's reach; NaN if none is finite.
double LastMean(const Points& points) {
  const size_t reach = 2 * SmoothingReach(points.size()) + 1;
  double sum = 0;
  int count = 0;
  for (size_t i = points.size() - std::min(points.size(), reach); i < points.size(); ++i) {
    if (!std::isfinite(points.y[i])) continue;
    sum += points.y[i];
    ++count;
  }
  return count > 0 ? sum / count : StepFigures::kUnknown;
}

std::vector<double> Values(const RunRecord& record, double StepFigures::*figure) {
  return CurveOf(record, figure).y;
}

DataJson Fact(const std::string& label, const std::string& value, const std::string& note,
              const std::string& tone = "") {
  return {{"label", label}, {"value", value}, {"note", note}, {"tone", tone}};
}

const char* ToneOf(v1::JobState state) {
  if (state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_RUNNING) return "good";
  return state == v1::JOB_STATE_FAILED ? "bad" : "";
}

std::string LossText(double loss) {
  return std::isfinite(loss) ? absl::StrFormat("%.4f", loss) : "not finite";
}

// What the guards found, and the last decision.
DataJson GuardFact(const RunRecord& record) {
  int64_t decisions = 0, acted = 0;
  const RunNote* shown = nullptr;
  for (const RunNote& note : record.notes) {
    if (note.kind != "guard") continue;
    const bool observed = absl::StrContains(note.text, kObserved);
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

DataJson Headline(const ReportInput& input, const std::vector<Difference>& differences,
                  const PrecisionMap& precision) {
  DataJson facts = DataJson::array();
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
    const Points loss = CurveOf(record, &StepFigures::loss);
    facts.push_back(Fact("Loss", LossText(last.loss),
                         absl::StrCat("at step ", step, "; mean of the last ",
                                      std::min(loss.size(), 2 * SmoothingReach(loss.size()) + 1),
                                      " samples ", LossText(LastMean(loss))),
                         std::isfinite(last.loss) ? "" : "bad"));
  }
  for (const auto& [set, losses] : record.validation) {
    if (losses.empty()) continue;
    facts.push_back(Fact("Validation loss", LossText(losses.rbegin()->second),
                         absl::StrCat(set, ", after ", losses.rbegin()->first, " steps")));
    break;
  }
  for (const Difference& difference : differences) {
    const Points& points = input.by_tokens ? difference.by_tokens : difference.by_step;
    if (difference.job != job.id() || points.size() == 0) continue;
    const double last = LastMean(points);
    facts.push_back(Fact(
        absl::StrCat("Loss against ", input.compared[0].job.id()),
        absl::StrFormat("%+.2f %%", last),
        absl::StrCat(
            "mean of the last ", std::min(points.size(), 2 * SmoothingReach(points.size()) + 1),
            input.by_tokens ? std::string(" samples at equal tokens")
                            : absl::StrCat(" common steps, to step ",
                                           static_cast<int64_t>(std::llround(points.x.back()))),
            "; positive is worse")));
  }
  const double rate = Median(Values(record, &StepFigures::tokens_per_second));
  if (std::isfinite(rate)) {
    facts.push_back(Fact("Throughput", absl::StrCat(CountText(rate), " tok/s"),
                         absl::StrFormat("median; a step takes %.3g s",
                                         Median(Values(record, &StepFigures::seconds)))));
  }
  if (job.submitted_unix_ms() != 0) {
    const int64_t end = job.finished_unix_ms() != 0 ? job.finished_unix_ms() : input.now_unix_ms;
    const int64_t attempts = std::max<int64_t>(job.attempts(), 0);
    facts.push_back(Fact("Time",
                         DurationText(static_cast<double>(end - job.submitted_unix_ms()) / 1000),
                         absl::StrCat("since submission, ", Counted(attempts, "attempt"))));
  }
  if (!input.revisions.empty()) {
    constexpr size_t kMostRecipe = 48;
    for (const auto& [revision, recipe] : input.revisions) {
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

// ---- Tables ------------------------------------------------------------------------------------

DataJson Tables(const ReportInput& input, const std::vector<Difference>& differences) {
  DataJson tables = ReportTables(input);
  if (input.compared.empty()) return tables;
  std::vector<JobSummary> jobs;
  const auto add = [&](const ReportedJob& reported) {
    const RunRecord& record = reported.record;
    JobSummary summary = {
        .job = reported.job.id(),
        .model = reported.job.shape().model(),
        .steps = reported.job.next_step(),
        .loss = LastMean(CurveOf(record, &StepFigures::loss)),
        .tokens_per_second = Median(Values(record, &StepFigures::tokens_per_second))};
    for (const auto& [field, value] : record.start) {
      if (field == "recipe") summary.recipe = value;
    }
    if (!record.steps.empty()) summary.tokens = record.steps.rbegin()->second.tokens;
    for (const auto& [set, losses] : record.validation) {
      if (!losses.empty()) summary.validation = losses.rbegin()->second;
      break;
    }
    for (const Difference& difference : differences) {
      if (difference.job != summary.job) continue;
      const Points& points = input.by_tokens ? difference.by_tokens : difference.by_step;
      if (points.size() > 0) summary.difference = LastMean(points);
    }
    jobs.push_back(std::move(summary));
  };
  add(input.job);
  for (const ReportedJob& compared : input.compared) add(compared);
  tables.insert(tables.begin(), ComparedTable(jobs));
  return tables;
}

// ---- Timeline and marks ------------------------------------------------------------------------

DataJson TimelineJson(const ReportInput& input) {
  DataJson timeline = DataJson::array();
  std::vector<const ReportedRevision*> in_effect;
  for (const ReportedRevision& one : input.revisions) {
    if (!one.revision.refused().empty()) continue;
    // A later revision from the same or an earlier step supersedes this one before it runs.
    while (!in_effect.empty() &&
           in_effect.back()->revision.first_step() >= one.revision.first_step()) {
      in_effect.pop_back();
    }
    in_effect.push_back(&one);
  }
  for (const ReportedRevision* one : in_effect) {
    const v1::RecipeRevision& revision = one->revision;
    DataJson lines = DataJson::array();
    lines.push_back(absl::StrCat("from step ", revision.first_step(),
                                 revision.confirmed() ? "" : ", not run yet"));
    if (!revision.author().empty()) {
      lines.push_back(
          absl::StrCat("by ", revision.author(), ", ", TimeText(revision.time_unix_ms()), " UTC"));
    }
    if (!revision.reason().empty()) lines.push_back(revision.reason());
    timeline.push_back({{"number", revision.number()},
                        {"first", revision.first_step()},
                        {"title", one->recipe},
                        {"lines", std::move(lines)}});
  }
  if (timeline.empty()) {
    timeline.push_back({{"number", 1}, {"first", 0}, {"title", ""}, {"lines", DataJson::array()}});
  }
  return timeline;
}

DataJson MarksJson(const ReportInput& input) {
  std::vector<std::pair<int64_t, DataJson>> marks;
  const auto add = [&marks](int64_t step, const char* kind, const std::string& text) {
    marks.emplace_back(step, DataJson{{"step", step}, {"kind", kind}, {"text", text}});
  };
  for (const v1::Checkpoint& checkpoint : input.checkpoints) {
    if (checkpoint.state() == v1::CHECKPOINT_STATE_WRITING || checkpoint.left()) continue;
    add(checkpoint.ref().step(), "checkpoint",
        absl::StrCat("checkpoint of step ", checkpoint.ref().step(), ", ",
                     BytesText(checkpoint.bytes()),
                     checkpoint.state() == v1::CHECKPOINT_STATE_DAMAGED ? ", damaged" : ""));
  }
  const v1::Job& job = input.job.job;
  const auto restart = [&](const v1::Attempt& attempt) {
    if (attempt.number() <= 1) return;
    const bool own = attempt.has_resume() && attempt.resume().job() == job.id();
    const int64_t step = own ? attempt.resume().step() : 0;
    add(step, "restart",
        absl::StrCat("attempt ", attempt.number(), " starts at step ", step, " with ",
                     Counted(attempt.world(), "rank")));
  };
  for (const v1::Attempt& attempt : job.recent_attempts()) restart(attempt);
  if (job.has_attempt()) restart(job.attempt());
  for (const RunNote& note : input.job.record.notes) {
    if (note.kind == "guard" || note.kind == "error") add(note.step, "guard", note.text);
  }
  std::stable_sort(marks.begin(), marks.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // A guard that observes something in each step of a long run would fill the page.
  constexpr int64_t kMostObserved = 3000;
  const auto observed = [](const DataJson& mark) {
    return mark["kind"] == "guard" && absl::StrContains(mark["text"].get<std::string>(), kObserved);
  };
  const int64_t stride =
      std::count_if(marks.begin(), marks.end(), [&](const auto& m) { return observed(m.second); }) /
          kMostObserved +
      1;
  DataJson json = DataJson::array();
  int64_t seen = 0;
  for (auto& [step, mark] : marks) {
    if (!observed(mark) || seen++ % stride == 0) json.push_back(std::move(mark));
  }
  return json;
}

// Abandoned branches, the newest ones.
DataJson AbandonedJson(const RunRecord& record, size_t columns) {
  constexpr size_t kMostAbandoned = 8;
  DataJson json = DataJson::array();
  const auto& all = record.abandoned;
  for (size_t i = all.size() - std::min(all.size(), kMostAbandoned); i < all.size(); ++i) {
    Points points;
    for (const auto& [step, loss] : all[i]) points.Add(static_cast<double>(step), loss);
    json.push_back(PointsJson(Thin(points, columns / kMostAbandoned)));
  }
  return json;
}

// ---- The other charts --------------------------------------------------------------------------

DataJson PartsJson(const RunRecord& record) {
  std::array<Points, kStepParts.size()> parts;
  Points other;
  for (const auto& [step, figures] : record.steps) {
    if (!figures.has_parts || !std::isfinite(figures.seconds)) continue;
    double rest = figures.seconds;
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].Add(static_cast<double>(step), figures.parts[i]);
      rest -= figures.parts[i];
    }
    // The optimizer's time is of the step before: the parts may exceed a short step.
    other.Add(static_cast<double>(step), std::max(rest, 0.0));
  }
  DataJson json = {{"x", DataJson::array()}, {"layers", DataJson::array()}};
  if (other.size() == 0) return json;
  const auto add = [&json](const char* name, const Points& points) {
    DataJson means = PointsJson(Means(points, kMeanPoints));
    json["x"] = std::move(means[0]);
    json["layers"].push_back({{"name", name}, {"y", std::move(means[1])}});
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::vector<double>& seconds = parts[i].y;
    const bool any = std::any_of(seconds.begin(), seconds.end(), [](double s) { return s > 0; });
    if (any) add(kStepParts[i].second, parts[i]);
  }
  add("other", other);
  return json;
}

DataJson PrecisionJson(const PrecisionMap& map) {
  if (map.columns() == 0) return nullptr;
  DataJson json = {{"layers", map.layers},         {"operands", map.operands},
                   {"edges", map.edges},           {"worst_operand", -1},
                   {"worst_step", map.worst_step}, {"worst", WorstTable(map)},
                   {"figures", DataJson::array()}};
  for (const PrecisionFigure& figure : map.figures) {
    DataJson cells = DataJson::array();
    for (const std::string& codes : figure.cells) cells.push_back(absl::Base64Escape(codes));
    json["figures"].push_back({{"label", figure.label},
                               {"low", Rounded(figure.low)},
                               {"high", Rounded(figure.high)},
                               {"low_is_zero", figure.low_is_zero},
                               {"cells", std::move(cells)}});
  }
  return json;
}

DataJson JobsJson(const ReportInput& input, size_t columns) {
  DataJson jobs = DataJson::array();
  const auto add = [&](const ReportedJob& job) {
    const Points loss = CurveOf(job.record, &StepFigures::loss);
    jobs.push_back({{"id", job.job.id()},
                    {"tokens", PointsJson(TokensOf(job.record))},
                    {"loss", PointsJson(Thin(loss, columns))},
                    {"smooth", PointsJson(Thin(Smoothed(loss), columns))}});
  };
  add(input.job);
  for (const ReportedJob& job : input.compared) add(job);
  return jobs;
}

DataJson TextsJson(const ReportInput& input, const PrecisionMap& precision, size_t samples) {
  const std::string smoothing =
      absl::StrCat("centred mean of ", 2 * SmoothingReach(samples) + 1, " samples");
  const std::string reference = input.compared.empty() ? "" : input.compared[0].job.id();
  return {
      {"loss", absl::StrCat("Nats per token. Faint: each sampled step; strong: ", smoothing,
                            ". Below it the recipe and what happened, to the same scale.")},
      {"difference", absl::StrCat("100 · (loss − loss of ", reference, ") / loss of ", reference,
                                  ": above zero is worse than ", reference,
                                  ". Faint: at the steps that both have; strong: centred mean.")},
      {"precision",
       absl::StrCat(
           "Each operand before quantisation, compared with what the GEMM reads. A cell is the "
           "largest value of its samples. Last sample: step ",
           precision.worst_step, ".")},
      {"throughput", "Tokens per second. Dashed lines: restarts."},
      {"parts", "Seconds of a step on rank 0."}};
}

}  // namespace

DataJson ReportData(const ReportInput& input) {
  const v1::Job& job = input.job.job;
  const RunRecord& record = input.job.record;
  const size_t columns = std::min(kCurveColumns, kAllColumns / (1 + input.compared.size()));
  const std::vector<Difference> differences = DifferencesOf(input);
  const PrecisionMap precision = MapPrecision(record, kMostCells);

  std::string subtitle = absl::StrCat(
      job.shape().model(), ", ", CountText(static_cast<double>(job.shape().parameters())),
      " parameters, ", Counted(job.shape().ranks(), "rank"), ", ",
      Counted(job.shape().tokens_per_step(), "token"), " a step, owner ", job.owner());
  if (job.has_origin()) {
    absl::StrAppend(&subtitle, job.origin().weights_only() ? ", weights from " : ", forked from ",
                    job.origin().checkpoint().job(), "@", job.origin().checkpoint().step());
  }
  if (!job.state_reason().empty()) absl::StrAppend(&subtitle, "; ", job.state_reason());

  DataJson validation = DataJson::array();
  for (const auto& [set, losses] : record.validation) {
    Points points;
    for (const auto& [step, loss] : losses) points.Add(static_cast<double>(step), loss);
    validation.push_back({{"set", set}, {"points", PointsJson(Thin(points, kMeanPoints))}});
  }
  const auto curve = [&](double StepFigures::*figure) {
    return RawAndSmooth(CurveOf(record, figure), columns / 2);
  };
  return {{"title", absl::StrCat(job.id(), " – report")},
          {"version", absl::StrCat("nibble ", BuildVersion())},
          {"made", TimeText(input.now_unix_ms)},
          {"job",
           {{"id", job.id()},
            {"state", PlainWord(v1::JobState_Name(job.state()), "JOB_STATE_")},
            {"tone", ToneOf(job.state())},
            {"subtitle", subtitle},
            {"steps", job.shape().steps()}}},
          {"axis", input.by_tokens ? "tokens" : "steps"},
          {"headline", Headline(input, differences, precision)},
          {"notes", input.notes},
          {"texts", TextsJson(input, precision, record.steps.size())},
          {"jobs", JobsJson(input, columns)},
          {"difference", DifferenceJson(input, differences, columns)},
          {"abandoned", AbandonedJson(record, columns)},
          {"validation", std::move(validation)},
          {"timeline", TimelineJson(input)},
          {"marks", MarksJson(input)},
          {"precision", PrecisionJson(precision)},
          {"throughput", curve(&StepFigures::tokens_per_second)},
          {"step_seconds", curve(&StepFigures::seconds)},
          {"parts", PartsJson(record)},
          {"gradient_norm", curve(&StepFigures::gradient_norm)},
          {"learning_rate",
           PointsJson(Thin(Corners(CurveOf(record, &StepFigures::learning_rate)), columns))},
          {"tables", Tables(input, differences)},
          {"environment", EnvironmentList(input)},
          {"recipe_title", absl::StrCat("revision ", input.recipe_revision)},
          {"recipe_table", input.recipe_table},
          {"spec", input.spec_yaml}};
}

}  // namespace nibble
