// Recipes and timelines as JSON, for jobs and checkpoints and on the wire. Strict: a field that is
// missing, unknown or of another type is an error.
//
//   {"version": 1,
//    "revisions": [{"number": 1, "first_step": 0, "author": "", "time_unix_ms": 0, "reason": "",
//                   "recipe": RECIPE}]}
//   RECIPE: {"preset": "nvfp4",
//            "set": [{"field": "fprop", "value": "bf16"}],
//            "layers": [{"match": "last 4 blocks", "set": [{"field": …, "value": …}]}]}
//
// Texts are UTF-8; invalid bytes are written as U+FFFD.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_RECIPE_RECIPE_JSON_H_
#define NIBBLE_RECIPE_RECIPE_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "recipe/recipe.h"
#include "recipe/timeline.h"

namespace nibble {

inline constexpr int kTimelineJsonVersion = 1;

std::string ToJson(const Recipe& recipe);
std::string ToJson(const Timeline& timeline);

// InvalidArgument naming the field by its path ("revisions[2].recipe.set[0].value") and what is
// allowed, or an unknown version. Does not check fields and selectors: Resolve does, against a
// model.
absl::StatusOr<Timeline> TimelineFromJson(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_RECIPE_JSON_H_
