// The description of a job spec: every field's name, type, default, allowed values, unit and
// meaning. Parsing, error messages, `nibble job show-defaults` and docs/reference/job-spec.md are
// generated from it.
//
// Thread-safety: an immutable table.
#ifndef NIBBLE_JOB_JOB_FIELDS_H_
#define NIBBLE_JOB_JOB_FIELDS_H_

#include <string>
#include <vector>

#include "job/job_spec.h"
#include "job/record.h"

namespace nibble {

const Record<JobSpec>& JobRecord();

// Bounds of training.batch and of the number of ranks.
inline constexpr Range<int64_t> kBatchRange = {1, 65'536};
// Bounds of optimizer.clip_norm, except for 0, which disables clipping.
inline constexpr Range<double> kClipNorm = {1e-12, 10'000};

// All fields with their full paths, such as "data.train[].path".
const std::vector<FieldDoc>& JobFieldDocs();

// The allowed values of a field: "Whole number in [1, 65536], in sequences".
std::string TypeText(const FieldDoc& doc);

}  // namespace nibble

#endif  // NIBBLE_JOB_JOB_FIELDS_H_
