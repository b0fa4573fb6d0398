#include "client/cluster/find_programs.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

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

absl::StatusOr<ClusterPrograms> FindPrograms(const ClusterPrograms& said, const std::string& self) {
  ClusterPrograms found;
  const fs::path directory = fs::path(self).parent_path();
  for (const Program& program : kPrograms) {
    const fs::path beside = directory / program.name;
    const fs::path built = directory.parent_path() / program.built;
    const std::string& given = said.*program.path;
    if (!given.empty()) {
      if (!IsProgram(given)) {
        return absl::NotFoundError(absl::StrCat(program.name, ": '", given, "' is no program"));
      }
      found.*program.path = fs::absolute(given);
    } else if (IsProgram(beside)) {
      found.*program.path = beside;
    } else if (IsProgram(built)) {
      found.*program.path = built;
    } else {
      return absl::NotFoundError(absl::StrCat(program.name, ": is neither ", beside.string(),
                                              " nor ", built.string(), "; --", program.name + 7,
                                              "-program says where it is"));
    }
  }
  return found;
}

std::string SelfPath() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

}  // namespace nibble
