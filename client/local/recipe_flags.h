// Changes of a recipe as a command line has them.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_LOCAL_RECIPE_FLAGS_H_
#define NIBBLE_CLIENT_LOCAL_RECIPE_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "recipe/recipe.h"

namespace nibble {

// "last 4 blocks:fprop=bf16,wgrad=mxfp8".
absl::StatusOr<LayerRule> ParseLayerRule(const std::string& text);

// `settings` are "fprop=bf16", `rules` as above. No preset. Whether fields, values and selectors
// exist is not looked at. InvalidArgument begins with `settings_name` or "layer".
absl::StatusOr<Recipe> ParseRecipeChange(const std::vector<std::string>& settings,
                                         const std::vector<std::string>& rules,
                                         const char* settings_name = "set");

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_RECIPE_FLAGS_H_
