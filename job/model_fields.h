// How a job spec says its model: the name of a preset, a preset with fields changed, or all fields.
//
// Thread-safety: an immutable table.
#ifndef NIBBLE_JOB_MODEL_FIELDS_H_
#define NIBBLE_JOB_MODEL_FIELDS_H_

#include "job/job_spec.h"
#include "job/record.h"
#include "job/yaml_tree.h"
#include "model/model_spec.h"
#include "recipe/recipe.h"

namespace nibble {

// Its bounds are those of Validate(ModelSpec).
const Record<ModelSpec>& ModelRecord();

// The preset's name where the model is that preset; {preset, …} with what differs where the model
// bears a preset's name; all fields else.
YamlNode WriteModel(const ModelSpec& model);

// How a job spec says its recipe and the changes planned to it.
//
// Thread-safety: immutable tables.

const Record<Recipe>& RecipeRecord();
const Record<PlannedChange>& ChangeRecord();

}  // namespace nibble

#endif  // NIBBLE_JOB_MODEL_FIELDS_H_
