// Checks the recipe of a spec and every planned change of it against the model, and makes the
// timeline from them.
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

// Checks one recipe against the model and the precision of a job that has spec.resources.ranks
// ranks. InvalidArgument as Selector and Resolve, or naming the first quantised layer of an fp32
// job.
absl::Status CheckRecipe(const Recipe& recipe, const Outline& outline, const JobSpec& spec);

// Adds to `problems`; skips checks that depend on a field that already has one.
void CheckRecipe(const JobSpec& spec, Problems& problems);

}  // namespace nibble

#endif  // NIBBLE_JOB_RECIPE_CHECK_H_
