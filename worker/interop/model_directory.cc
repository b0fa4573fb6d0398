#include "worker/interop/model_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace nibble {
namespace {

using Json = nlohmann::json;

// Refuses names that lead outside the directory.
bool IsPlainShardName(const std::string& name) {
  return name.ends_with(".safetensors") && name.size() <= 255 && name.front() != '.' &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

absl::Status Refuse(std::string_view what, const Json& value, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(kIndexFile), ": ", std::string(what),
                                                 ": ", BriefJson(value), " ", std::string(why)));
}

}  // namespace

std::vector<std::string> ShardIndex::Files() const {
  std::set<std::string> files;
  for (const auto& [tensor, file] : file_of) files.insert(file);
  return {files.begin(), files.end()};
}

absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view text) {
  NIBBLE_ASSIGN_OR_RETURN(const Json object, ParseJsonObject(kIndexFile, text));
  const auto map = object.find("weight_map");
  if (map == object.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(kIndexFile), ": weight_map is missing"));
  }
  if (!map->is_object() || map->empty()) {
    return Refuse("weight_map", *map, "is not an object of tensors and files");
  }
  ShardIndex index;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !IsPlainShardName(file.get_ref<const std::string&>())) {
      return Refuse(absl::StrCat("weight_map: ", BriefText(tensor)), file,
                    "is not the name of a .safetensors file in this directory");
    }
    index.file_of.emplace(tensor, file.get<std::string>());
  }
  return index;
}

std::string ShardIndexText(const ShardIndex& index, int64_t bytes) {
  Json map = Json::object();
  for (const auto& [tensor, file] : index.file_of) map[tensor] = file;
  return FileJson({{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}});
}

std::string ShardFileName(int64_t shard, int64_t shards) {
  if (shards == 1) return std::string(kWeightsFile);
  return absl::StrFormat("model-%05d-of-%05d.safetensors", shard, shards);
}

namespace {

namespace fs = std::filesystem;

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening directory ", path));
  const absl::Cleanup close_fd = [fd] { (void)close(fd); };
  if (fsync(fd) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("syncing directory ", path));
  return absl::OkStatus();
}

absl::Status Replaceable(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error)) &&
      (fs::is_empty(path, error) || fs::is_regular_file(fs::path(path) / "config.json", error))) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is neither an empty directory nor one with a config.json, so it is not replaced"));
}

}  // namespace

StagedDirectory::StagedDirectory(std::string path, std::string temporary, bool replaces)
    : path_(std::move(path)), temporary_(std::move(temporary)), replaces_(replaces) {}

absl::StatusOr<std::unique_ptr<StagedDirectory>> StagedDirectory::Create(const std::string& path,
                                                                         bool overwrite) {
  std::string target = path;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  struct stat info = {};
  const bool exists = lstat(target.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, absl::StrCat("looking at ", target));
  }
  if (exists && !overwrite) {
    return absl::AlreadyExistsError(absl::StrCat(target, " exists"));
  }
  if (exists) {
    NIBBLE_RETURN_IF_ERROR(Replaceable(target));
  }
  // The counter separates this process's directories, mkdir those of a dead process with our pid.
  static std::atomic<uint64_t> counter{0};
  while (true) {
    std::string temporary = absl::StrCat(target, ".tmp-", getpid(), "-", counter.fetch_add(1));
    if (mkdir(temporary.c_str(), 0777) == 0) {
      return std::unique_ptr<StagedDirectory>(
          new StagedDirectory(std::move(target), std::move(temporary), exists));
    }
    if (errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat("making ", temporary));
  }
}

StagedDirectory::~StagedDirectory() {
  std::error_code error;
  if (!temporary_.empty()) fs::remove_all(temporary_, error);
}

std::string StagedDirectory::PathOf(std::string_view name) const {
  return (fs::path(temporary_) / name).string();
}

absl::Status StagedDirectory::Write(std::string_view name, std::string_view content) {
  const std::string path = PathOf(name);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("creating ", path));
  absl::Status status;
  while (status.ok() && !content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      status = absl::ErrnoToStatus(errno, absl::StrCat("writing ", path));
    } else {
      content.remove_prefix(static_cast<size_t>(written));
    }
  }
  if (status.ok() && fsync(fd) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("syncing ", path));
  }
  // Some network file systems report a failed write only here.
  if (close(fd) != 0 && status.ok()) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("closing ", path));
  }
  return status;
}

absl::Status StagedDirectory::Commit() {
  NIBBLE_RETURN_IF_ERROR(SyncDirectory(temporary_));
  const unsigned flags = replaces_ ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), flags) != 0) {
    const int error = errno;
    const std::string what = absl::StrCat("renaming ", temporary_, " to ", path_);
    if (error == EINVAL || error == ENOSYS) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, ": the file system cannot do it in one step; write where nothing is and move it"));
    }
    return absl::ErrnoToStatus(error, what);
  }
  // The temporary name now belongs to the replaced directory, or to nothing.
  std::error_code error;
  if (replaces_) fs::remove_all(temporary_, error);
  const std::string left = std::exchange(temporary_, "");
  const fs::path parent = fs::path(path_).parent_path();
  absl::Status status = SyncDirectory(parent.empty() ? "." : parent.string());
  if (status.ok() && error) {
    status = absl::ErrnoToStatus(error.value(),
                                 absl::StrCat("removing the replaced directory, now ", left));
  }
  return status;
}

}  // namespace nibble
