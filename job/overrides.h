// Overrides of spec fields: `nibble job submit --set optimizer.lr=0.002`.
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
#include "job/yaml_tree.h"

namespace nibble {

// Returns `yaml` with each of `settings`, "PATH=VALUE", applied; without settings unchanged,
// otherwise without comments. The value is YAML, so that it has the type that it would have in the
// file: "training.steps=200", "data.train=[a.txt, b.txt]", "model.pattern='*-'". Paths name fields
// as error messages do, "data.train[0].weight"; recipe settings are given in full,
// "recipe.set.fprop.weight=bf16". A section that is a preset's name is first replaced by the
// equivalent map.
//
// InvalidArgument naming the setting if it is not of that form, its path leads through a scalar or
// past the end of a list, or overlaps with that of an earlier setting; errors of ParseJobSpec if
// `yaml` is not YAML. Does not check whether the field exists and accepts the value: ParseJobSpec
// does.
absl::StatusOr<std::string> OverrideFields(std::string_view yaml,
                                           std::span<const std::string> settings);
// The same as a tree. What the settings have set has no line.
absl::StatusOr<YamlNode> OverriddenTree(std::string_view yaml,
                                        std::span<const std::string> settings);

// Paths of a spec that is sent to another machine or working directory.
//
// Thread-safety: pure functions.

// Prepends `directory` to every relative path of an input. Returns whether there was one. The
// output directory stays as it is: the worker chooses where it is.
bool MakePathsAbsolute(const std::string& directory, JobSpec& spec);

}  // namespace nibble

#endif  // NIBBLE_JOB_OVERRIDES_H_
