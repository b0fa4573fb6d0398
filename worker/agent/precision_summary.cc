#include "worker/agent/precision_summary.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/agent/gang_rules.h"
#include "worker/link/link_messages.h"

namespace nibble {

v1::PrecisionSummary SummaryOf(const LinkHost::Precision& samples) {
  v1::PrecisionSummary summary;
  std::vector<const link::v1::PrecisionSample*> quantised;
  double errors = 0;
  for (const link::v1::PrecisionSample& sample : samples) {
    summary.set_step(sample.step());
    summary.set_non_finite(summary.non_finite() + sample.non_finite());
    if (sample.format().empty()) continue;
    quantised.push_back(&sample);
    errors += sample.relative_error();
    summary.set_most_underflow(std::max(summary.most_underflow(), sample.underflow()));
    summary.set_most_clipped(std::max(summary.most_clipped(), sample.clipped()));
  }
  if (quantised.empty()) return summary;
  summary.set_operands(static_cast<int32_t>(quantised.size()));
  summary.set_mean_relative_error(errors / static_cast<double>(quantised.size()));
  // An operand whose error is NaN is worse than any other. Ties keep the order of the model.
  const auto error = [](const link::v1::PrecisionSample& sample) {
    return std::isnan(sample.relative_error()) ? HUGE_VAL : sample.relative_error();
  };
  std::stable_sort(quantised.begin(), quantised.end(), [&error](const auto* a, const auto* b) {
    return error(*a) > error(*b);
  });
  for (size_t i = 0; i < std::min(quantised.size(), kWorstOperands); ++i) {
    const link::v1::PrecisionSample& sample = *quantised[i];
    v1::OperandPrecision& worst = *summary.add_worst();
    worst.set_layer(Printable(sample.layer(), kMaxLayerNameBytes));
    worst.set_operand(Printable(sample.operand(), kMaxLayerNameBytes));
    worst.set_format(Printable(sample.format(), kMaxLayerNameBytes));
    worst.set_relative_error(sample.relative_error());
    worst.set_underflow(sample.underflow());
    worst.set_clipped(sample.clipped());
    worst.set_non_finite(sample.non_finite());
  }
  return summary;
}

}  // namespace nibble
