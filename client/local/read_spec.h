// A job spec from a file or stdin.
//
// Ownership: none kept. Thread-safety: functions of the file system.
#ifndef NIBBLE_CLIENT_LOCAL_READ_SPEC_H_
#define NIBBLE_CLIENT_LOCAL_READ_SPEC_H_

#include <string>

#include "absl/status/statusor.h"
#include "job/job_spec.h"

namespace nibble {

// "-" is stdin. Errors name the path. The text is cut one byte above kMaxJobBytes, which shows
// whoever parses it that there is too much.
absl::StatusOr<std::string> ReadJobText(const std::string& path);
// Its spec; errors of the content as ParseJobSpec.
absl::StatusOr<JobSpec> ReadJobSpec(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_READ_SPEC_H_
