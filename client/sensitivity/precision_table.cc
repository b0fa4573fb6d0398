#include "client/sensitivity/precision_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

// Numbers that JSON cannot express are texts there, and count as infinite errors.
double NumberOf(const nlohmann::json& event, const char* field) {
  const auto found = event.find(field);
  if (found == event.end()) return 0;
  return found->is_number() ? found->get<double>() : std::numeric_limits<double>::infinity();
}

std::string TextOf(const nlohmann::json& event, const char* field) {
  const auto found = event.find(field);
  return found != event.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t StepOf(const nlohmann::json& event) {
  const auto found = event.find("step");
  return found != event.end() && found->is_number_integer() ? found->get<int64_t>() : -1;
}

// The middle value; of two the mean. `values` is not empty.
double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

bool IsWorse(const LayerError& a, const LayerError& b) { return a.total > b.total; }

}  // namespace

absl::StatusOr<PrecisionSampleSet> NewestSample(const std::vector<std::string>& lines) {
  PrecisionSampleSet newest;
  // A resumed run repeats steps: the lines that come last count.
  for (const std::string& line : lines) {
    if (!absl::StrContains(line, "\"precision\"")) continue;
    const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object() || TextOf(event, "event") != "precision") continue;
    const int64_t step = StepOf(event);
    if (step != newest.step) newest = {.step = step, .operands = {}};
    OperandError operand = {.layer = TextOf(event, "layer"),
                            .operand = TextOf(event, "operand"),
                            .format = TextOf(event, "format"),
                            .relative_error = NumberOf(event, "relative_error"),
                            .underflow = NumberOf(event, "underflow"),
                            .clipped = NumberOf(event, "clipped")};
    const auto known =
        std::find_if(newest.operands.begin(), newest.operands.end(), [&](const OperandError& o) {
          return o.layer == operand.layer && o.operand == operand.operand;
        });
    if (known == newest.operands.end()) {
      newest.operands.push_back(std::move(operand));
    } else {
      *known = std::move(operand);
    }
  }
  if (newest.operands.empty()) {
    return absl::FailedPreconditionError(
        "the job has reported no precision statistics: it quantises nothing, "
        "metrics.precision_every "
        "of its spec is 0, or no sampled step was run yet");
  }
  return newest;
}

std::vector<std::string> PrecisionTable::Kept() const {
  std::vector<std::string> kept;
  for (const LayerError& layer : layers) {
    if (layer.keep) kept.push_back(layer.layer);
  }
  return kept;
}

PrecisionTable MakePrecisionTable(const PrecisionSampleSet& sample) {
  std::map<std::string, LayerError> layers;
  std::vector<std::string> order;  // as sampled: ties keep the model's order
  for (const OperandError& operand : sample.operands) {
    const auto [at, added] = layers.try_emplace(operand.layer);
    LayerError& layer = at->second;
    if (added) {
      layer.layer = operand.layer;
      order.push_back(operand.layer);
    }
    for (const LinearGemm gemm : kAllLinearGemms) {
      if (!absl::StartsWith(operand.operand, std::string(LinearGemmName(gemm)))) continue;
      double& error = layer.gemm[static_cast<size_t>(gemm)];
      error = std::hypot(error, operand.relative_error);
    }
    layer.underflow = std::max(layer.underflow, operand.underflow);
    layer.clipped = std::max(layer.clipped, operand.clipped);
  }
  PrecisionTable table = {.step = sample.step, .layers = {}};
  std::vector<double> errors;
  for (const std::string& name : order) {
    LayerError& layer = layers[name];
    for (const double error : layer.gemm) layer.total = std::hypot(layer.total, error);
    errors.push_back(layer.total);
    table.layers.push_back(layer);
  }
  if (errors.empty()) return table;
  table.median = MedianOf(errors);
  if (!std::isfinite(table.median)) {
    table.bound = table.median;
    std::stable_sort(table.layers.begin(), table.layers.end(), IsWorse);
    return table;
  }
  for (double& error : errors) error = std::abs(error - table.median);
  // The median deviation of a normal distribution is 1 / 1.4826 of its standard deviation.
  constexpr double kToDeviation = 1.4826;
  constexpr double kDeviations = 3;
  table.bound = table.median + kDeviations * kToDeviation * MedianOf(errors);
  std::stable_sort(table.layers.begin(), table.layers.end(), IsWorse);
  const size_t most = (table.layers.size() * 15 + 99) / 100;
  for (size_t i = 0; i < most; ++i) {
    // Rounding alone does not make a layer stand out among equal ones.
    table.layers[i].keep = table.layers[i].total > table.bound * (1 + 1e-9);
  }
  return table;
}

}  // namespace nibble
