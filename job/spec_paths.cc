#include "job/spec_paths.h"

#include <filesystem>

namespace nibble {

bool MakePathsAbsolute(const std::string& directory, JobSpec& spec) {
  bool changed = false;
  const auto resolve = [&](std::string& path) {
    if (path.empty() || path[0] == '/') return;
    path = (std::filesystem::path(directory) / path).lexically_normal().string();
    changed = true;
  };
  for (TrainingSource& source : spec.data.train) resolve(source.path);
  for (ValidationSource& source : spec.data.validation) resolve(source.path);
  resolve(spec.data.tokenizer_model);
  resolve(spec.init_from.path);
  return changed;
}

}  // namespace nibble
