// Checks of a spec whose fields have the right types.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_JOB_CHECK_H_
#define NIBBLE_JOB_JOB_CHECK_H_

#include "job/job_spec.h"
#include "job/problems.h"

namespace nibble {

// Adds to `problems`. Skips checks that depend on a field that already has a problem, so that one
// mistake is reported once.
void CheckJob(const JobSpec& spec, Problems& problems);

}  // namespace nibble

#endif  // NIBBLE_JOB_JOB_CHECK_H_
