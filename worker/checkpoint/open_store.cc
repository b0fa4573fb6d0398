// Opening a CheckpointStore: checks its identity, reads or rebuilds its record, and recovers from a
// process that died while writing.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/files/file_lock.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_writer.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {
namespace {

absl::Status CheckOptions(const CheckpointStore::Options& options) {
  NIBBLE_RETURN_IF_ERROR(CheckIdentity(options.identity));
  NIBBLE_RETURN_IF_ERROR(CheckRetention(options.retention));
  constexpr int64_t kMaxChunk = int64_t{1} << 30;
  if (options.chunk_bytes < 8 || options.chunk_bytes > kMaxChunk) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_bytes is ", options.chunk_bytes, "; 8 to ", kMaxChunk, " are allowed"));
  }
  if (options.file_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("file_bytes is ", options.file_bytes, "; at least 1 is allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointStore::FilePath() const { return absl::StrCat(path_, "/", kStoreFileName); }

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const std::string& path,
                                                                       const Options& options) {
  NIBBLE_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<CheckpointStore> store(new CheckpointStore(path, options));
  CheckpointStore& opened = *store;
  const Change change(opened);
  if (!options.read_only) {
    NIBBLE_RETURN_IF_ERROR(MakeDirectories(path, options.faults));
    NIBBLE_ASSIGN_OR_RETURN(opened.lock_, LockStore(path));
  }
  NIBBLE_RETURN_IF_ERROR(opened.ReadOrCreate(opened.open_report_));
  if (!options.read_only) {
    NIBBLE_RETURN_IF_ERROR(opened.RemoveLeftovers(opened.open_report_));
  }
  return store;
}

absl::Status CheckpointStore::MakeAgainIfRemoved() {
  const Change change(*this);
  return MakeAgain();
}

int64_t CheckpointStore::generation() const {
  MutexLock lock(&published_mutex_);
  return published_.generation;
}

absl::Status CheckpointStore::MakeAgain() {
  if (options_.read_only || lock_->IsInPlace()) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(path_, options_.faults));
  NIBBLE_ASSIGN_OR_RETURN(std::shared_ptr<const FileLock> lock, LockStore(path_));
  // Their writers keep the old sessions alive, and fail when they seal.
  sessions_.clear();
  lock_ = std::move(lock);
  ++generation_;
  const int64_t fence = file_.attempt;
  file_ = {};
  OpenReport report;
  NIBBLE_RETURN_IF_ERROR(ReadOrCreate(report));
  if (file_.attempt < fence) {
    StoreFile raised = file_;
    raised.attempt = fence;
    NIBBLE_RETURN_IF_ERROR(WriteFile(raised));
  }
  return RemoveLeftovers(report);
}

absl::StatusOr<StoreIdentity> CheckpointStore::IdentityOf(const std::string& path) {
  const std::string name = absl::StrCat(path, "/", kStoreFileName);
  const absl::StatusOr<std::string> bytes = ReadRecord(name);
  absl::Status damage = bytes.status();
  if (bytes.ok()) {
    absl::StatusOr<StoreFile> file = DecodeStoreFile(*bytes);
    if (file.ok()) return file->identity;
    damage = absl::Status(file.status().code(), absl::StrCat(name, ": ", file.status().message()));
    if (!absl::IsDataLoss(damage)) return damage;
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> all, ScanStore(path));
  bool any = false;
  for (auto directory = all.rbegin(); directory != all.rend(); ++directory) {
    if (directory->stage != Stage::kCommitted) continue;
    any = true;
    const absl::StatusOr<std::string> record =
        ReadRecord(absl::StrCat(path, "/", DirectoryName(*directory), "/", kManifestFileName));
    if (!record.ok()) continue;
    const absl::StatusOr<Manifest> manifest = DecodeManifest(*record);
    if (manifest.ok()) return manifest->header.identity;
  }
  if (absl::IsNotFound(damage) && !any) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint store in ", path));
  }
  return absl::DataLossError(absl::StrCat(std::string(damage.message()),
                                          "; and no checkpoint in the store names its job"));
}

absl::Status CheckpointStore::ReadOrCreate(OpenReport& report) {
  const absl::StatusOr<std::string> bytes = ReadRecord(FilePath());
  if (absl::IsNotFound(bytes.status())) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed, Committed());
    if (!committed.empty()) return Rebuild(bytes.status(), report);
    if (options_.read_only) {
      return absl::NotFoundError(absl::StrCat("there is no checkpoint store in ", path_));
    }
    report.created = true;
    return WriteFile({.identity = options_.identity});
  }
  if (absl::IsDataLoss(bytes.status())) return Rebuild(bytes.status(), report);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<StoreFile> file = DecodeStoreFile(*bytes);
  if (absl::IsDataLoss(file.status())) return Rebuild(file.status(), report);
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat(FilePath(), ": ", file.status().message()));
  }
  if (file->identity != options_.identity) {
    return absl::FailedPreconditionError(absl::StrCat("store ", path_, " is of ",
                                                      ToString(file->identity), ", not of ",
                                                      ToString(options_.identity)));
  }
  file_ = *std::move(file);
  return absl::OkStatus();
}

// Rebuilds a lost record from the checkpoints, which contain the identity. Pins are known only to
// the record, so every checkpoint is pinned to keep retention from deleting any.
absl::Status CheckpointStore::Rebuild(const absl::Status& why, OpenReport& report) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> all, ScanStore(path_));
  StoreFile file = {.identity = options_.identity};
  bool known = false;
  for (auto directory = all.rbegin(); directory != all.rend(); ++directory) {
    file.attempt = std::max(file.attempt, directory->attempt);
    if (directory->stage != Stage::kCommitted) continue;
    file.pinned.insert(directory->step);
    if (known) continue;
    const auto reader = CheckpointReader::Open(options_.identity, path_, *directory);
    if (absl::IsFailedPrecondition(reader.status())) return reader.status();
    known = reader.ok();
  }
  if (!known) {
    return absl::DataLossError(absl::StrCat(FilePath(), ": ", why.message(),
                                            "; and no checkpoint in the store names its job"));
  }
  report.problems.push_back(absl::StrCat(
      FilePath(), ": ", why.message(), "; rebuilt from the checkpoints: attempt ", file.attempt,
      " is the highest known, and all ", file.pinned.size(), " checkpoints are pinned"));
  file_ = file;
  if (options_.read_only) return absl::OkStatus();
  if (const absl::Status status = WriteFile(file); !status.ok()) {
    report.problems.emplace_back(status.message());
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::RemoveLeftovers(OpenReport& report) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> all, ScanStore(path_));
  for (const StoredDirectory& directory : all) {
    last_serial_ = std::max(last_serial_, directory.serial);
    if (directory.stage == Stage::kCommitted) continue;
    const std::string path = absl::StrCat(path_, "/", DirectoryName(directory));
    const int64_t bytes = TreeBytes(path);
    absl::Status status;
    if (directory.stage == Stage::kWriting && !options_.decides) {
      auto session =
          WriteSession::Recover(path_, directory, lock_, options_.faults, options_.damaged);
      status = session.status();
      if (session.ok() && *session != nullptr) {
        sessions_.push_back(*std::move(session));
        continue;
      }
    } else {
      status = RemoveTree(path);
    }
    if (status.ok()) {
      report.removed.push_back(DirectoryName(directory));
      report.removed_bytes += bytes;
    } else {
      report.problems.emplace_back(status.message());
    }
  }
  return RemoveStagedLeftovers(path_);
}

}  // namespace nibble
