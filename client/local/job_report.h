// What `nibble job validate` has to say of a valid spec: what it amounts to, as text for people and
// JSON for programs.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_LOCAL_JOB_REPORT_H_
#define NIBBLE_CLIENT_LOCAL_JOB_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "job/job_spec.h"

namespace nibble {

struct RevisionReport {
  int64_t number = 0;
  int64_t first_step = 0;
  std::string reason;
  std::vector<std::string> changes;  // against the revision before, a line each
};

struct JobReport {
  JobSpec spec;
  int64_t parameters = 0;
  int64_t quantised_layers = 0;  // of the first revision
  int64_t layers = 0;
  int64_t decay_first_step = 0;
  std::vector<RevisionReport> revisions;
};

// `spec` is valid; else what is wrong with it.
absl::StatusOr<JobReport> MakeJobReport(const JobSpec& spec);

// Both end with a newline.
std::string JobReportText(const JobReport& report);
std::string JobReportJson(const JobReport& report);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_JOB_REPORT_H_
