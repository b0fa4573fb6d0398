// The recipe of a spec against its model, now and after every planned change; and the timeline that
// comes of it.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_RECIPE_CHECK_H_
#define NIBBLE_JOB_RECIPE_CHECK_H_

#include "absl/status/status.h"
#include "job/job_spec.h"
#include "job/problems.h"
#include "model/outline.h"
#include "recipe/recipe.h"

namespace nibble {

// One recipe against the model and the precision of a job that has spec.resources.ranks ranks.
// InvalidArgument as Selector and Resolve, or naming the first quantised layer of a job in FP32.
absl::Status CheckRecipe(const Recipe& recipe, const Outline& outline, const JobSpec& spec);

// Adds to `problems`; looks at nothing that builds on a field that has one already.
void CheckRecipe(const JobSpec& spec, Problems& problems);

}  // namespace nibble

#endif  // NIBBLE_JOB_RECIPE_CHECK_H_
