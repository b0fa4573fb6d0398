// Feeds arbitrary text to ParseJobSpec, which parses untrusted specs in the coordinator, and checks
// its guarantees: either a refusal with the reason and the place, or a spec that can be written,
// read again and turned into a timeline.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "job/job_spec.h"

namespace {

void Check(bool ok, const char* claim, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "broken: %s\n%s\n", claim, what.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<nibble::JobSpec> spec = nibble::ParseJobSpec(text);
  if (!spec.ok()) {
    const std::string words = spec.status().ToString();
    Check(absl::IsInvalidArgument(spec.status()) || absl::IsOutOfRange(spec.status()),
          "a refusal is InvalidArgument or OutOfRange", words);
    Check(!spec.status().message().empty(), "a refusal has a reason", words);
    return 0;
  }
  Check(nibble::Validate(*spec).ok(), "a parsed spec is valid", std::string(text));
  const std::string written = nibble::ToYaml(*spec);
  const absl::StatusOr<nibble::JobSpec> again = nibble::ParseJobSpec(written);
  Check(again.ok(), "a written spec can be read", written + again.status().ToString());
  Check(*again == *spec, "a spec is equal after it is written and read", written);
  Check(!nibble::MakeTimeline(*spec).revisions().empty(), "a valid spec has a timeline", written);
  return 0;
}
