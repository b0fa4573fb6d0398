#include "client/report/report_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/report/precision_map.h"
#include "client/report/report_headline.h"
#include "client/report/report_history.h"
#include "client/report/report_tables.h"
#include "client/report/run_curves.h"
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

Points Smoothed(const Points& points) { return Smooth(points, SmoothingReach(points.size())); }

DataJson RawAndSmooth(const Points& points, size_t columns) {
  return {{"raw", PointsJson(Thin(points, columns))},
          {"smooth", PointsJson(Thin(Smoothed(points), columns))}};
}

// ---- Differences -------------------------------------------------------------------------------

DataJson DifferenceJson(const ReportInput& input, const std::vector<JobDifference>& differences,
                        size_t columns) {
  DataJson json = {{"against", input.compared.empty() ? "" : input.compared[0].job.id()},
                   {"note", ""},
                   {"series", DataJson::array()}};
  for (const JobDifference& difference : differences) {
    json["series"].push_back({{"job", difference.job},
                              {"steps", RawAndSmooth(difference.by_step, columns)},
                              {"tokens", RawAndSmooth(difference.by_tokens, columns)}});
  }
  if (!input.compared.empty() && differences.empty()) {
    json["note"] = "The jobs have no steps in common.";
  }
  return json;
}

// ---- Tables ------------------------------------------------------------------------------------

DataJson Tables(const ReportInput& input, const std::vector<JobDifference>& differences) {
  DataJson tables = ReportTables(input);
  if (input.compared.empty()) return tables;
  std::vector<JobSummary> jobs;
  const auto add = [&](const ReportedJob& reported) {
    const RunRecord& record = reported.record;
    JobSummary summary = {.job = reported.job.id(),
                          .model = reported.job.shape().model(),
                          .steps = reported.job.next_step(),
                          .loss = LastMean(CurveOf(record, &StepFigures::loss)).mean,
                          .tokens_per_second = MedianOf(record, &StepFigures::tokens_per_second)};
    for (const auto& [field, value] : record.start) {
      if (field == "recipe") summary.recipe = value;
    }
    if (!record.steps.empty()) summary.tokens = record.steps.rbegin()->second.tokens;
    for (const auto& [set, losses] : record.validation) {
      if (!losses.empty()) summary.validation = losses.rbegin()->second;
      break;
    }
    for (const JobDifference& difference : differences) {
      if (difference.job != summary.job) continue;
      summary.difference = LastMean(input.by_tokens ? difference.by_tokens : difference.by_step);
    }
    jobs.push_back(std::move(summary));
  };
  add(input.job);
  for (const ReportedJob& compared : input.compared) add(compared);
  tables.insert(tables.begin(), ComparedTable(jobs));
  return tables;
}

// ---- Charts ------------------------------------------------------------------------------------

// The newest of the abandoned branches.
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
    // The optimizer's time is that of the step before, so the parts may exceed a short step.
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
                    {"smooth", PointsJson(Thin(Smoothed(loss), columns))},
                    {"steps", job.job.shape().steps()},
                    {"timeline", ReportTimeline(job)}});
  };
  add(input.job);
  for (const ReportedJob& job : input.compared) add(job);
  return jobs;
}

// ---- Texts -------------------------------------------------------------------------------------

const char* ToneOf(v1::JobState state) {
  if (state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_RUNNING) return "good";
  return state == v1::JOB_STATE_FAILED ? "bad" : "";
}

DataJson TextsJson(const ReportInput& input, const PrecisionMap& precision, size_t samples) {
  const std::string smoothing =
      absl::StrCat("centred mean of ", 2 * SmoothingReach(samples) + 1, " samples");
  const std::string reference = input.compared.empty() ? "" : input.compared[0].job.id();
  return {
      {"loss",
       absl::StrCat("Nats per token. Faint: each sampled step; strong: ", smoothing,
                    ". Below it the recipe of each job and what happened, to the same scale.")},
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
  const std::vector<JobDifference> differences = DifferencesOf(input);
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
            {"subtitle", subtitle}}},
          {"axis", input.by_tokens ? "tokens" : "steps"},
          {"headline", ReportHeadline(input, differences, precision)},
          {"notes", input.notes},
          {"texts", TextsJson(input, precision, record.steps.size())},
          {"jobs", JobsJson(input, columns)},
          {"difference", DifferenceJson(input, differences, columns)},
          {"abandoned", AbandonedJson(record, columns)},
          {"validation", std::move(validation)},
          {"marks", ReportMarks(input)},
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
