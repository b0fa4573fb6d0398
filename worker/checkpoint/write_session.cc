#include "worker/checkpoint/write_session.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/manifest_codec.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/store_layout.h"
#include "worker/checkpoint/store_lock.h"

namespace nibble {
namespace {

StoredDirectory AtStage(StoredDirectory directory, Stage stage) {
  directory.stage = stage;
  return directory;
}

}  // namespace

WriteSession::WriteSession(const std::string& store, const StoredDirectory& directory,
                           std::shared_ptr<StoreLock> lock, DiskFaults* faults)
    : store_(store),
      directory_(directory),
      path_(absl::StrCat(store, "/", DirectoryName(directory))),
      lock_(std::move(lock)),
      faults_(faults) {}

absl::StatusOr<std::shared_ptr<WriteSession>> WriteSession::Create(
    const std::string& store, const StoredDirectory& directory, std::shared_ptr<StoreLock> lock,
    DiskFaults* faults) {
  std::shared_ptr<WriteSession> session(
      new WriteSession(store, directory, std::move(lock), faults));
  if (mkdir(session->path_.c_str(), 0777) != 0) {
    return ErrnoStatus(errno, absl::StrCat("making directory ", session->path_));
  }
  if (absl::Status status = SyncDirectory(store); !status.ok()) return status;
  return session;
}

absl::StatusOr<std::shared_ptr<WriteSession>> WriteSession::Recover(
    const std::string& store, const StoredDirectory& directory, std::shared_ptr<StoreLock> lock,
    DiskFaults* faults) {
  std::shared_ptr<WriteSession> session(
      new WriteSession(store, directory, std::move(lock), faults));
  const absl::StatusOr<std::vector<int32_t>> ranks = ScanShards(session->path_);
  if (!ranks.ok()) return ranks.status();
  for (const int32_t rank : *ranks) {
    absl::StatusOr<ShardManifest> seal = ReadSeal(session->path_, rank);
    if (seal.ok() && seal->step == directory.step && seal->attempt == directory.attempt &&
        seal->rank == rank) {
      session->shards_[rank] = {.writing = false, .manifest = *std::move(seal)};
    } else {
      session->RemoveFiles(rank);
    }
  }
  if (!session->shards_.empty()) return session;
  if (absl::Status status = session->Drop(); !status.ok()) return status;
  return std::shared_ptr<WriteSession>();
}

std::string WriteSession::ShardPath(int32_t rank) const {
  return absl::StrCat(path_, "/", ShardDirectoryName(rank));
}

std::string WriteSession::ChunkFilePrefix(int32_t rank) const {
  return absl::StrCat(ShardPath(rank), "-chunks-");
}

absl::StatusOr<bool> WriteSession::Enter(int32_t rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) return false;
  const auto found = shards_.find(rank);
  if (found != shards_.end()) {
    if (found->second.writing) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " of step ", directory_.step, ", attempt ",
                       directory_.attempt, " is being written already"));
    }
    shards_.erase(found);
    RemoveFiles(rank);
  }
  shards_.try_emplace(rank);
  return true;
}

void WriteSession::Leave(int32_t rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  shards_.erase(rank);
  RemoveFiles(rank);
  if (shards_.empty()) {
    ended_ = true;
    // What cannot be removed now is removed when the store is opened next.
    (void)RemoveTree(path_);
  }
}

absl::Status WriteSession::Remove(int32_t rank) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = shards_.find(rank);
    if (ended_ || found == shards_.end()) {
      return absl::NotFoundError(absl::StrCat("rank ", rank, " is not sealed in ", path_));
    }
    if (found->second.writing) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " is still being written in ", path_));
    }
  }
  Leave(rank);
  return absl::OkStatus();
}

absl::Status WriteSession::Seal(const ShardManifest& manifest) {
  const std::string path = absl::StrCat(path_, "/", SealFileName(manifest.rank));
  if (absl::Status status = ReplaceFile(path, EncodeShard(manifest), faults_); !status.ok()) {
    return status;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  shards_[manifest.rank] = {.writing = false, .manifest = manifest};
  return absl::OkStatus();
}

void WriteSession::RemoveFiles(int32_t rank) {
  // The shard's directory, its seal and the chunk files beside them all begin with its name.
  const std::string prefix = ShardPath(rank);
  std::error_code error;
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error)) {
    if (absl::StartsWith(entry->path().string(), prefix)) files.push_back(entry->path().string());
  }
  for (const std::string& file : files) (void)RemoveTree(file);
}

bool WriteSession::ended() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_;
}

bool WriteSession::being_written() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [rank, shard] : shards_) {
    if (shard.writing) return true;
  }
  return false;
}

std::vector<ShardManifest> WriteSession::sealed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<ShardManifest> sealed;
  for (const auto& [rank, shard] : shards_) {
    if (!shard.writing && !ended_) sealed.push_back(shard.manifest);
  }
  return sealed;
}

absl::Status WriteSession::CheckAgainst(const Manifest& manifest) const {
  const auto refuse = [this](const auto&... why) {
    return absl::FailedPreconditionError(absl::StrCat("step ", directory_.step, ", attempt ",
                                                      directory_.attempt,
                                                      " cannot be committed: ", why...));
  };
  if (ended_ || shards_.empty()) return refuse("nothing of it is sealed in ", store_);
  for (const auto& [rank, shard] : shards_) {
    if (shard.writing) return refuse("rank ", rank, " is still being written");
    if (rank >= manifest.header.world) {
      return refuse("rank ", rank, " is sealed here, but the manifest is of ",
                    manifest.header.world, " ranks");
    }
    if (shard.manifest != manifest.shards[rank]) {
      return refuse("the manifest's shard of rank ", rank, " is not the one that is sealed here");
    }
  }
  return absl::OkStatus();
}

absl::Status WriteSession::Commit(const Manifest& manifest) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (absl::Status status = CheckAgainst(manifest); !status.ok()) return status;
  const absl::Status written = ReplaceFile(absl::StrCat(path_, "/", kManifestFileName),
                                           EncodeManifest(manifest), faults_);
  if (!written.ok()) return written;
  absl::Status status = RenameInside(store_, DirectoryName(directory_),
                                     DirectoryName(AtStage(directory_, Stage::kCommitted)));
  // Where the rename went well and only its sync did not, it is a checkpoint all the same.
  if (status.ok() || access(path_.c_str(), F_OK) != 0) ended_ = true;
  return status;
}

absl::Status WriteSession::Drop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [rank, shard] : shards_) {
    if (shard.writing) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " of step ", directory_.step, ", attempt ",
                       directory_.attempt, " is still being written"));
    }
  }
  ended_ = true;
  shards_.clear();
  return RemoveTree(path_);
}

}  // namespace nibble
