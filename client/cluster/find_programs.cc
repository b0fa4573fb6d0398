#include "client/cluster/find_programs.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Program {
  const char* name;
  const char* built;  // beside client/, where Bazel puts it
  std::string ClusterPrograms::*path;
};

constexpr Program kPrograms[] = {
    {"nibble-coordinator", "server/nibble-coordinator", &ClusterPrograms::coordinator},
    {"nibble-worker", "worker/agent/nibble-worker", &ClusterPrograms::worker},
    {"nibble-trainer", "worker/trainer/loop/nibble-trainer", &ClusterPrograms::trainer},
};

bool IsProgram(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

absl::StatusOr<ClusterPrograms> FindPrograms(const ClusterPrograms& given,
                                             const std::string& self) {
  ClusterPrograms found;
  const fs::path directory = fs::path(self).parent_path();
  for (const Program& program : kPrograms) {
    const fs::path beside = directory / program.name;
    const fs::path built = directory.parent_path() / program.built;
    const std::string& path = given.*program.path;
    if (!path.empty()) {
      if (!IsProgram(path)) {
        return absl::NotFoundError(
            absl::StrCat(program.name, ": '", path, "' is not an executable file"));
      }
      found.*program.path = fs::absolute(path);
    } else if (IsProgram(beside)) {
      found.*program.path = beside;
    } else if (IsProgram(built)) {
      found.*program.path = built;
    } else {
      return absl::NotFoundError(absl::StrCat(program.name, ": found neither ", beside.string(),
                                              " nor ", built.string(), "; give its path with --",
                                              program.name + 7, "-program"));
    }
  }
  return found;
}

std::string SelfPath() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

}  // namespace nibble
