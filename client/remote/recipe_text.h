// Recipes of jobs for people: revisions, differences, costs.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_RECIPE_TEXT_H_
#define NIBBLE_CLIENT_REMOTE_RECIPE_TEXT_H_

#include <string>

#include "google/protobuf/repeated_field.h"
#include "proto/nibble/v1/recipe.pb.h"

namespace nibble {

// One revision at length.
std::string RevisionText(const v1::GetRecipeResponse& response);
// A line each.
std::string HistoryTable(const google::protobuf::RepeatedPtrField<v1::RecipeRevision>& revisions);
// "  fprop: nvfp4 → bf16 in 12 layers: blocks.0.mlp.up, …" lines; "  no difference" for none.
std::string DifferencesText(
    const google::protobuf::RepeatedPtrField<v1::RecipeDifference>& differences);
std::string CostTable(const v1::RecipeCost& cost);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_RECIPE_TEXT_H_
