// Defaults that follow from other fields. An unset field never makes a spec invalid: a short run
// gets a short warm-up, and the batch is a multiple of the ranks.
//
// Long runs get the plain defaults of job/job_spec.h, which are upper bounds of these.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_DEFAULTS_H_
#define NIBBLE_JOB_DEFAULTS_H_

#include "job/job_spec.h"
#include "job/problems.h"

namespace nibble {

// Sets the fields of `spec` that are unset in `text` and whose default follows from other fields.
// Those other fields need not be valid: CheckJob reports their errors.
void FillDefaults(const Problems& text, JobSpec& spec);

}  // namespace nibble

#endif  // NIBBLE_JOB_DEFAULTS_H_
