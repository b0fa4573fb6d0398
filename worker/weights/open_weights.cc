#include "worker/weights/open_weights.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/interop/hf_import.h"
#include "worker/weights/checkpoint_name.h"
#include "worker/weights/checkpoint_weights.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeights(const std::string& source) {
  const absl::StatusOr<CheckpointName> name = ParseCheckpointName(source);
  if (!name.ok()) return name.status();
  std::error_code error;
  if (!name->step.has_value() && std::filesystem::exists(source + "/config.json", error)) {
    absl::StatusOr<std::unique_ptr<HfWeights>> exported = HfWeights::Open(source);
    if (!exported.ok()) return exported.status();
    return std::unique_ptr<WeightSource>(*std::move(exported));
  }
  absl::StatusOr<std::unique_ptr<CheckpointWeights>> checkpoint =
      CheckpointWeights::Open(name->directory, name->step);
  if (absl::IsNotFound(checkpoint.status())) {
    return absl::NotFoundError(absl::StrCat(std::string(checkpoint.status().message()),
                                            "; and no config.json of an exported model"));
  }
  if (!checkpoint.ok()) return checkpoint.status();
  return std::unique_ptr<WeightSource>(*std::move(checkpoint));
}

}  // namespace nibble
