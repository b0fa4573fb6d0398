// Recipes as messages, and for people.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_RECIPE_MESSAGE_H_
#define NIBBLE_CLIENT_REMOTE_RECIPE_MESSAGE_H_

#include <string>

#include "proto/nibble/v1/recipe.pb.h"
#include "recipe/recipe.h"

namespace nibble {

// The preset is not in it.
v1::RecipeChange ChangeMessage(const Recipe& change);

// "nvfp4, fprop=bf16, last 8 blocks:fprop=bf16,wgrad=mxfp8"
std::string RecipeText(const v1::Recipe& recipe);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_RECIPE_MESSAGE_H_
