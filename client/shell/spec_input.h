// Job specs, recipe changes and defaults as commands take them.
//
// Ownership: none kept. Thread-safety: pure functions, and functions of the file system.
#ifndef NIBBLE_CLIENT_SHELL_SPEC_INPUT_H_
#define NIBBLE_CLIENT_SHELL_SPEC_INPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "model/model_spec.h"
#include "recipe/recipe.h"

namespace nibble {

// The text of a job spec; "-" reads stdin. Errors name the path. Longer texts are cut one byte
// above kMaxJobBytes, so that the parser refuses them.
absl::StatusOr<std::string> ReadJobText(const std::string& path);
// Reads and parses it; errors of the content as ParseJobSpec.
absl::StatusOr<JobSpec> ReadJobSpec(const std::string& path);

// The sequence length, in tokens, where none is given: 2048, or the maximum that the model's
// learned positions allow.
int64_t DefaultSequence(const ModelSpec& spec);

// "last 4 blocks:fprop=bf16,wgrad=mxfp8".
absl::StatusOr<LayerRule> ParseLayerRule(const std::string& text);

// A recipe without a preset, from `settings` like "fprop=bf16" and `rules` as above. Does not check
// that fields, values and selectors exist. InvalidArgument begins with `settings_name` or "layer".
absl::StatusOr<Recipe> ParseRecipeChange(const std::vector<std::string>& settings,
                                         const std::vector<std::string>& rules,
                                         const char* settings_name = "set");

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SHELL_SPEC_INPUT_H_
