#include "client/remote/compare_losses.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/local/json_text.h"
#include "client/local/output_format.h"
#include "client/remote/text.h"

namespace nibble {
namespace {

std::string Table(const Comparison& comparison, int rows) {
  std::vector<std::string> heads = {"STEP"};
  for (const std::string& job : comparison.jobs) heads.push_back(job);
  for (size_t i = 1; i < comparison.jobs.size(); ++i) {
    heads.push_back(absl::StrCat("Δ ", comparison.jobs[i]));
  }
  TextTable table(std::move(heads));
  const size_t steps = comparison.steps.size();
  const size_t shown = rows == 0 ? steps : std::min(steps, static_cast<size_t>(rows));
  for (size_t i = 0; i < shown; ++i) {
    // From the end, so that the last step is there.
    const ComparedStep& step = comparison.steps[(i + 1) * steps / shown - 1];
    std::vector<std::string> cells = {absl::StrCat(step.step)};
    for (const double loss : step.losses) cells.push_back(absl::StrFormat("%.4f", loss));
    for (size_t j = 1; j < step.losses.size(); ++j) {
      cells.push_back(absl::StrFormat("%+.4f", step.losses[j] - step.losses[0]));
    }
    table.Add(std::move(cells));
  }
  return table.Text();
}

}  // namespace

absl::StatusOr<Comparison> CompareLosses(const std::vector<LossSeries>& jobs) {
  Comparison comparison;
  std::map<int64_t, std::vector<double>> by_step;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const LossSeries& job = jobs[i];
    if (job.samples.empty()) {
      return absl::NotFoundError(absl::StrCat("job: ", job.job, " has no losses yet"));
    }
    comparison.jobs.push_back(job.job);
    for (const v1::StepSample& sample : job.samples) {
      std::vector<double>& losses = by_step[sample.step()];
      if (losses.size() == i) losses.push_back(sample.loss());
    }
  }
  for (auto& [step, losses] : by_step) {
    if (losses.size() == jobs.size()) comparison.steps.push_back({step, std::move(losses)});
  }
  if (!comparison.steps.empty()) return comparison;
  std::string spans;
  for (const LossSeries& job : jobs) {
    absl::StrAppend(&spans, spans.empty() ? "" : ", ", job.job, " has ", job.samples.size(), " of ",
                    job.samples.front().step(), " to ", job.samples.back().step());
  }
  return absl::NotFoundError(absl::StrCat("job: no sampled step is common: ", spans));
}

absl::StatusOr<std::string> ComparisonText(const Comparison& comparison, const std::string& print,
                                           int rows) {
  if (!ForPrograms(print)) return Table(comparison, rows);
  nlohmann::ordered_json json = {{"jobs", comparison.jobs},
                                 {"steps", nlohmann::ordered_json::array()}};
  for (const ComparedStep& step : comparison.steps) {
    json["steps"].push_back({{"step", step.step}, {"losses", step.losses}});
  }
  return InFormat(print, JsonText(json));
}

}  // namespace nibble
