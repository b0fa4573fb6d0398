#include "client/remote/loss_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/counted.h"
#include "common/text/table.h"
#include "common/text/text.h"

namespace nibble {
namespace {

// The loss of a job relative to the first one's.
double PercentAbove(const ComparedLosses& step, size_t job) {
  return 100 * (step.losses[job] - step.losses[0]) / step.losses[0];
}

const char* ColumnOf(ComparedBy by) { return by == ComparedBy::kStep ? "step" : "tokens"; }

std::vector<ComparedLosses> CommonSteps(const std::vector<LossSeries>& jobs) {
  std::map<int64_t, std::vector<double>> by_step;
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (const v1::StepSample& sample : jobs[i].samples) {
      std::vector<double>& losses = by_step[sample.step()];
      if (losses.size() == i) losses.push_back(sample.loss());
    }
  }
  std::vector<ComparedLosses> common;
  for (auto& [step, losses] : by_step) {
    if (losses.size() == jobs.size()) common.push_back({step, std::move(losses)});
  }
  return common;
}

// Finite losses by tokens; for a number of tokens that occurs twice, the last one.
std::map<int64_t, double> LossesByTokens(const LossSeries& job) {
  std::map<int64_t, double> losses;
  for (const v1::StepSample& sample : job.samples) {
    if (std::isfinite(sample.loss())) losses[sample.tokens()] = sample.loss();
  }
  return losses;
}

// On the straight line between the neighbouring samples; unset outside of their range.
std::optional<double> LossAtTokens(const std::map<int64_t, double>& losses, int64_t tokens) {
  const auto after = losses.lower_bound(tokens);
  if (after == losses.end()) return std::nullopt;
  if (after->first == tokens) return after->second;
  if (after == losses.begin()) return std::nullopt;
  const auto before = std::prev(after);
  const double part = static_cast<double>(tokens - before->first) /
                      static_cast<double>(after->first - before->first);
  return before->second + part * (after->second - before->second);
}

std::vector<ComparedLosses> CommonTokens(const std::vector<LossSeries>& jobs) {
  std::vector<std::map<int64_t, double>> curves;
  for (const LossSeries& job : jobs) curves.push_back(LossesByTokens(job));
  std::vector<ComparedLosses> common;
  for (const auto& [tokens, first] : curves[0]) {
    ComparedLosses row = {tokens, {}};
    for (const std::map<int64_t, double>& curve : curves) {
      const std::optional<double> loss = LossAtTokens(curve, tokens);
      if (loss.has_value()) row.losses.push_back(*loss);
    }
    if (row.losses.size() == jobs.size()) common.push_back(std::move(row));
  }
  return common;
}

std::string ComparisonTable(const Comparison& comparison, int rows) {
  std::vector<std::string> heads = {absl::AsciiStrToUpper(ColumnOf(comparison.by))};
  for (const std::string& job : comparison.jobs) heads.push_back(job);
  for (size_t i = 1; i < comparison.jobs.size(); ++i) {
    heads.push_back(absl::StrCat("Δ ", comparison.jobs[i]));
    heads.push_back("Δ %");
  }
  TextTable table(std::move(heads));
  const size_t all = comparison.rows.size();
  const size_t shown = rows == 0 ? all : std::min(all, static_cast<size_t>(rows));
  for (size_t i = 0; i < shown; ++i) {
    // Indices from the end, so that the last row is included.
    const ComparedLosses& row = comparison.rows[(i + 1) * all / shown - 1];
    std::vector<std::string> cells = {absl::StrCat(row.at)};
    for (const double loss : row.losses) cells.push_back(absl::StrFormat("%.4f", loss));
    for (size_t j = 1; j < row.losses.size(); ++j) {
      cells.push_back(absl::StrFormat("%+.4f", row.losses[j] - row.losses[0]));
      cells.push_back(absl::StrFormat("%+.3f", PercentAbove(row, j)));
    }
    table.Add(std::move(cells));
  }
  return table.Text();
}

// Job ids need no quotes.
std::string ComparisonCsv(const Comparison& comparison) {
  std::string text = ColumnOf(comparison.by);
  for (const std::string& job : comparison.jobs) absl::StrAppend(&text, ",", job);
  for (size_t i = 1; i < comparison.jobs.size(); ++i) {
    absl::StrAppend(&text, ",percent:", comparison.jobs[i]);
  }
  text += "\n";
  for (const ComparedLosses& row : comparison.rows) {
    absl::StrAppend(&text, row.at);
    for (const double loss : row.losses) {
      absl::StrAppend(&text, ",", absl::StrFormat("%.9g", loss));
    }
    for (size_t i = 1; i < row.losses.size(); ++i) {
      absl::StrAppend(&text, ",", absl::StrFormat("%.6g", PercentAbove(row, i)));
    }
    text += "\n";
  }
  return text;
}

}  // namespace

absl::StatusOr<Comparison> CompareLosses(const std::vector<LossSeries>& jobs, ComparedBy by) {
  Comparison comparison = {.jobs = {}, .by = by, .rows = {}};
  for (const LossSeries& job : jobs) {
    if (job.samples.empty()) {
      return absl::NotFoundError(absl::StrCat("job: ", job.job, " has no known losses"));
    }
    comparison.jobs.push_back(job.job);
  }
  comparison.rows = by == ComparedBy::kStep ? CommonSteps(jobs) : CommonTokens(jobs);
  if (!comparison.rows.empty()) return comparison;
  const bool steps = by == ComparedBy::kStep;
  std::string spans;
  for (const LossSeries& job : jobs) {
    const v1::StepSample& first = job.samples.front();
    const v1::StepSample& last = job.samples.back();
    absl::StrAppend(&spans, spans.empty() ? "" : ", ", job.job, " has ",
                    Counted(static_cast<int64_t>(job.samples.size()), "sample"), " from ",
                    steps ? "step " : "", steps ? first.step() : first.tokens(), " to ",
                    steps ? last.step() : last.tokens(), steps ? "" : " tokens");
  }
  return absl::NotFoundError(absl::StrCat(
      "job: ",
      steps ? "no sampled step is common to all: " : "no number of tokens is within all samples: ",
      spans));
}

Reply ComparisonReply(const Comparison& comparison, int rows, const std::string& print) {
  if (print == "csv") return {.text = ComparisonCsv(comparison)};
  const std::string list = comparison.by == ComparedBy::kStep ? "steps" : "tokens";
  nlohmann::ordered_json json = {{"jobs", comparison.jobs},
                                 {list, nlohmann::ordered_json::array()}};
  for (const ComparedLosses& row : comparison.rows) {
    std::vector<double> percent;
    for (size_t i = 0; i < row.losses.size(); ++i) percent.push_back(PercentAbove(row, i));
    json[list].push_back({{ColumnOf(comparison.by), row.at},
                          {"losses", row.losses},
                          {"percent_above_first", percent}});
  }
  return {.text = ComparisonTable(comparison, rows), .json = JsonText(json)};
}

}  // namespace nibble
