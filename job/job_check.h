// All that can be wrong with a spec whose fields have the right types.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_JOB_CHECK_H_
#define NIBBLE_JOB_JOB_CHECK_H_

#include "job/job_spec.h"
#include "job/problems.h"

namespace nibble {

// Adds to `problems`. What depends on a field that has one already is left alone, so that one
// mistake is told once.
void CheckJob(const JobSpec& spec, Problems& problems);

}  // namespace nibble

#endif  // NIBBLE_JOB_JOB_CHECK_H_
