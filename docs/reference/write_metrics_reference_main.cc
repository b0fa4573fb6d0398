// Prints docs/reference/metrics.md:
//   bazel run //docs/reference:write_metrics_reference > docs/reference/metrics.md
#include <cstdio>

#include "docs/reference/metrics_reference.h"

int main() {
  std::fputs(nibble::MetricsReferenceMarkdown().c_str(), stdout);
  return 0;
}
