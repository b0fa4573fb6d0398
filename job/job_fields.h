// The one description of a job spec: every field's name, type, default, allowed values, unit and
// meaning. Parsing, messages, `nibble job show-defaults` and docs/reference/job-spec.md are made
// from it.
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

// Of training.batch, and of the ranks that share one.
inline constexpr Range<int64_t> kBatchRange = {1, 65'536};
// Of optimizer.clip_norm where it is not 0, which turns clipping off.
inline constexpr Range<double> kClipNorm = {1e-12, 10'000};

// Of every field, by its whole path: "data.train[].path".
const std::vector<FieldDoc>& JobFieldDocs();

// What a field may hold: "Whole number in [1, 65536], in sequences".
std::string TypeText(const FieldDoc& doc);

}  // namespace nibble

#endif  // NIBBLE_JOB_JOB_FIELDS_H_
