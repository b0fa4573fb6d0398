// Defaults that follow from other fields. A field that a spec does not write never makes the spec
// invalid: a short run has a short warm-up, a batch is a multiple of the ranks.
//
// Long runs get the plain defaults of job/job_spec.h, which bound these from above.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_DEFAULTS_H_
#define NIBBLE_JOB_DEFAULTS_H_

#include "job/job_spec.h"
#include "job/problems.h"

namespace nibble {

// Sets the fields of `spec` that `text` does not have and whose default follows from others. Other
// fields need not be valid yet: what they are wrong about is for CheckJob to report.
void FillDefaults(const Problems& text, JobSpec& spec);

}  // namespace nibble

#endif  // NIBBLE_JOB_DEFAULTS_H_
