// The recipe of a spec against its model, now and after every planned change; and the timeline that
// comes of it.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_RECIPE_CHECK_H_
#define NIBBLE_JOB_RECIPE_CHECK_H_

#include "job/job_spec.h"
#include "job/problems.h"

namespace nibble {

// Adds to `problems`; looks at nothing that builds on a field that has one already.
void CheckRecipe(const JobSpec& spec, Problems& problems);

}  // namespace nibble

#endif  // NIBBLE_JOB_RECIPE_CHECK_H_
