// Prints docs/reference/job-spec.md:
//   bazel run //job:write_reference > docs/reference/job-spec.md
#include <cstdio>

#include "job/reference.h"

int main() {
  std::fputs(nibble::JobReferenceMarkdown().c_str(), stdout);
  return 0;
}
