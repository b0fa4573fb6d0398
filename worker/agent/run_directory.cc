#include "worker/agent/run_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/staged_file.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "nibble-worker-";

// A note that somebody has written over must not make anything else go.
bool IsOurs(const std::string& path) {
  struct stat facts;
  return absl::StartsWith(fs::path(path).filename().string(), kPrefix) &&
         lstat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == geteuid();
}

void RemoveNoted(const std::string& note) {
  std::string left;
  std::ifstream file(note);
  std::getline(file, left);
  std::error_code ignored;
  if (IsOurs(left)) fs::remove_all(left, ignored);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Claim(
    const std::string& data_directory) {
  std::string note = data_directory + "/run-directory";
  RemoveNoted(note);
  std::error_code error;
  std::string path = fs::temp_directory_path(error) / absl::StrCat(kPrefix, "XXXXXX");
  if (error || mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("making ", path, ": ", error ? error.message() : std::strerror(errno)));
  }
  std::unique_ptr<RunDirectory> claimed(new RunDirectory(std::move(path), std::move(note)));
  if (absl::Status status = WriteStaged(claimed->note_, claimed->path_ + "\n"); !status.ok()) {
    return status;
  }
  return claimed;
}

RunDirectory::RunDirectory(std::string path, std::string note)
    : path_(std::move(path)), note_(std::move(note)) {}

RunDirectory::~RunDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  fs::remove(note_, ignored);
}

}  // namespace nibble
