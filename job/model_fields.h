// How a job spec writes its model: the name of a preset, a preset with changed fields, or all
// fields.
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

// Validate(ModelSpec) checks the bounds.
const Record<ModelSpec>& ModelRecord();

// The preset's name if the model equals that preset; {preset, …} with the differing fields if the
// model has a preset's name; all fields otherwise.
YamlNode WriteModel(const ModelSpec& model);

// How a job spec writes its recipe and the planned changes of it.
//
// Thread-safety: immutable tables.

const Record<Recipe>& RecipeRecord();
const Record<PlannedChange>& ChangeRecord();

}  // namespace nibble

#endif  // NIBBLE_JOB_MODEL_FIELDS_H_
