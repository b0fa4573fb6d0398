// Fields of a spec set from outside its text: `nibble job submit --set optimizer.lr=0.002`.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_OVERRIDES_H_
#define NIBBLE_JOB_OVERRIDES_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_spec.h"

namespace nibble {

// `yaml` with each of `settings`, "PATH=VALUE", in place of what it has there; unchanged where
// there are none, else without comments. The value is YAML, so that types are those of the file:
// "training.steps=200", "data.train=[a.txt, b.txt]", "model.pattern='*-'". A path names fields as
// error messages do, "data.train[0].weight"; the settings of a recipe are named whole,
// "recipe.set.fprop.weight=bf16". A section that is a preset's name becomes the map that says the
// same.
//
// InvalidArgument naming the setting where it is not of that form, its path leads through a value
// or past the end of a list, or an earlier one sets the same or a part of it; as ParseJobSpec
// where `yaml` is not YAML. Whether the field exists and takes the value is for ParseJobSpec to
// say.
absl::StatusOr<std::string> OverrideFields(std::string_view yaml,
                                           std::span<const std::string> settings);

// Where the paths of a spec lead when it is sent from where it was written to where it runs.
//
// Thread-safety: pure functions.

// Puts `directory` before every path that is read and is relative. True where there was one. The
// output directory is left alone: it is the worker's to choose.
bool MakePathsAbsolute(const std::string& directory, JobSpec& spec);

}  // namespace nibble

#endif  // NIBBLE_JOB_OVERRIDES_H_
