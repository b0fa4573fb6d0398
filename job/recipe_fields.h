// How a job spec says its recipe and the changes planned to it.
//
// Thread-safety: immutable tables.
#ifndef NIBBLE_JOB_RECIPE_FIELDS_H_
#define NIBBLE_JOB_RECIPE_FIELDS_H_

#include "job/job_spec.h"
#include "job/record.h"
#include "recipe/recipe.h"

namespace nibble {

const Record<Recipe>& RecipeRecord();
const Record<PlannedChange>& ChangeRecord();

}  // namespace nibble

#endif  // NIBBLE_JOB_RECIPE_FIELDS_H_
