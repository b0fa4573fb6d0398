// Input of commands: files, job specs, recipe changes, and the defaults of options.
//
// Ownership: values. Thread-safety: pure functions, and functions that read files.
#ifndef NIBBLE_CLIENT_SHELL_SPEC_INPUT_H_
#define NIBBLE_CLIENT_SHELL_SPEC_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "model/model_spec.h"
#include "recipe/recipe.h"

namespace nibble {

// The file's text, or stdin's for "-", cut one byte above `max_bytes`, so that the caller can
// detect a longer one. Errors name the path.
absl::StatusOr<std::string> ReadInput(const std::string& path, size_t max_bytes);

// The text of a job spec, for ParseJobSpec, which refuses one above kMaxJobBytes.
absl::StatusOr<std::string> ReadJobText(const std::string& path);
// Reads and parses a spec. Errors: ReadJobText()'s, and ParseJobSpec()'s with the path.
absl::StatusOr<JobSpec> ReadJobSpec(const std::string& path);

// The default sequence length in tokens: 2048, or the maximum of the model's learned positions.
int64_t DefaultSequence(const ModelSpec& spec);

// "last 4 blocks:fprop=bf16,wgrad=mxfp8".
absl::StatusOr<LayerRule> ParseLayerRule(const std::string& text);

// A recipe without a preset, from `settings` like "fprop=bf16" and `rules` as above. Does not check
// that fields, values and selectors exist. InvalidArgument begins with "set" or "layer".
absl::StatusOr<Recipe> ParseRecipeChange(const std::vector<std::string>& settings,
                                         const std::vector<std::string>& rules);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SHELL_SPEC_INPUT_H_
