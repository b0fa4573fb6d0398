#include "worker/agent/allowed_roots.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "job/job_spec.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Whether the path is the root or below it; both are resolved.
bool IsUnder(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

}  // namespace

absl::StatusOr<AllowedRoots> AllowedRoots::Make(const std::vector<std::string>& directories) {
  AllowedRoots made;
  for (const std::string& directory : directories) {
    std::error_code error;
    const fs::path resolved = fs::canonical(directory, error);
    if (error || !fs::is_directory(resolved, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--root: '", directory, "' is not an existing directory"));
    }
    made.roots_.push_back(resolved.string());
  }
  return made;
}

absl::Status AllowedRoots::Check(absl::string_view field, const std::string& path) const {
  if (roots_.empty()) return absl::OkStatus();
  std::error_code error;
  const fs::path resolved = fs::weakly_canonical(path, error);
  const bool allowed =
      !error && std::any_of(roots_.begin(), roots_.end(),
                            [&](const std::string& root) { return IsUnder(resolved, root); });
  if (allowed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": '", path, "' is ", error ? "not readable" : resolved.string(),
      " on this worker; allowed: below ", absl::StrJoin(roots_, ", "), " (nibble-worker --root)"));
}

absl::Status AllowedRoots::CheckSpec(const JobSpec& spec) const {
  if (roots_.empty()) return absl::OkStatus();
  for (size_t i = 0; i < spec.data.train.size(); ++i) {
    const std::string& path = spec.data.train[i].path;
    const std::string field = absl::StrCat("data.train[", i, "].path");
    // A source may be named by the common beginning of its two files.
    for (const char* const suffix : {"", ".bin", ".idx"}) {
      NIBBLE_RETURN_IF_ERROR(Check(field, path + suffix));
    }
  }
  for (size_t i = 0; i < spec.data.validation.size(); ++i) {
    const std::string& path = spec.data.validation[i].path;
    const std::string field = absl::StrCat("data.validation[", i, "].path");
    for (const char* const suffix : {"", ".bin", ".idx"}) {
      NIBBLE_RETURN_IF_ERROR(Check(field, path + suffix));
    }
  }
  if (!spec.data.tokenizer_model.empty()) {
    NIBBLE_RETURN_IF_ERROR(Check("data.tokenizer_model", spec.data.tokenizer_model));
  }
  if (!spec.init_from.path.empty()) {
    NIBBLE_RETURN_IF_ERROR(Check("init_from.path", spec.init_from.path));
  }
  for (const NamedText& variable : spec.env) {
    if (variable.text.find('/') == std::string::npos) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("env.", variable.name, ": '", variable.text,
                     "' has a '/'; on this worker no variable may have a path "
                     "(nibble-worker --root)"));
  }
  return CheckTensorboard(spec.output.tensorboard);
}

absl::Status AllowedRoots::CheckTensorboard(const std::string& path) const {
  constexpr char kTensorboard[] = "output.tensorboard";
  if (path.starts_with("/")) return Check(kTensorboard, path);
  // Relative to the directory of the job, which has no links.
  const fs::path inside = fs::path(path).lexically_normal();
  if (inside.empty() || *inside.begin() != "..") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kTensorboard, ": '", path,
                   "' leads out of the job's directory; allowed: a directory in it, "
                   "or below ",
                   absl::StrJoin(roots_, ", "), " (nibble-worker --root)"));
}

}  // namespace nibble
