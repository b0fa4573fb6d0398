// docs/reference/metrics.md, generated from the metric tables of the programs.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_DOCS_REFERENCE_METRICS_REFERENCE_H_
#define NIBBLE_DOCS_REFERENCE_METRICS_REFERENCE_H_

#include <string>

namespace nibble {

std::string MetricsReferenceMarkdown();

}  // namespace nibble

#endif  // NIBBLE_DOCS_REFERENCE_METRICS_REFERENCE_H_
