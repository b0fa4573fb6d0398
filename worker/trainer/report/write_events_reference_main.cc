// Prints docs/reference/events.md:
//   bazel run //worker/trainer/report:write_events_reference > docs/reference/events.md
#include <cstdio>

#include "worker/trainer/report/events_reference.h"

int main() {
  std::fputs(nibble::EventsReferenceMarkdown().c_str(), stdout);
  return 0;
}
