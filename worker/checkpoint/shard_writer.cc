#include "worker/checkpoint/shard_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "common/errno_error.h"
#include "common/files/file_lock.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_db.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {
namespace {

StoredDirectory AtStage(StoredDirectory directory, Stage stage) {
  directory.stage = stage;
  return directory;
}

}  // namespace

absl::Status MoveShardFiles(const std::string& from, int32_t rank, const std::string& to,
                            DiskFaults* faults) {
  const auto in = [](const std::string& directory, const std::string& name) {
    return absl::StrCat(directory, "/", name);
  };
  // A seal without a database is no shard, so the rename of the database moves the shard.
  const std::string seal = SealFileName(rank);
  NIBBLE_RETURN_IF_ERROR(RemoveTree(in(to, seal)));
  if (link(in(from, seal).c_str(), in(to, seal).c_str()) != 0) {
    return ErrnoError(errno, "linking", in(to, seal));
  }
  NIBBLE_RETURN_IF_ERROR(SyncDirectory(to));
  if (faults != nullptr) faults->AfterSync(in(to, seal));
  const std::string target = in(to, ShardDirectoryName(rank));
  const int fault = faults == nullptr ? 0 : faults->BeforeWrite(target, 0);
  if (fault != 0) return ErrnoError(fault, "renaming", target);
  if (rename(in(from, ShardDirectoryName(rank)).c_str(), target.c_str()) != 0) {
    return ErrnoError(errno, "renaming",
                      absl::StrCat(in(from, ShardDirectoryName(rank)), " to ", target));
  }
  NIBBLE_RETURN_IF_ERROR(SyncDirectory(to));
  NIBBLE_RETURN_IF_ERROR(SyncDirectory(from));
  if (faults != nullptr) faults->AfterSync(target);
  return absl::OkStatus();
}

WriteSession::WriteSession(const std::string& store, const StoredDirectory& directory,
                           std::shared_ptr<const FileLock> lock, DiskFaults* faults)
    : store_(store),
      directory_(directory),
      path_(absl::StrCat(store, "/", DirectoryName(directory))),
      lock_(std::move(lock)),
      faults_(faults) {}

absl::StatusOr<std::shared_ptr<WriteSession>> WriteSession::Create(
    const std::string& store, const StoredDirectory& directory,
    std::shared_ptr<const FileLock> lock, DiskFaults* faults) {
  std::shared_ptr<WriteSession> session(
      new WriteSession(store, directory, std::move(lock), faults));
  if (mkdir(session->path_.c_str(), 0777) != 0) {
    return ErrnoError(errno, "making directory", session->path_);
  }
  NIBBLE_RETURN_IF_ERROR(SyncDirectory(store, faults));
  return session;
}

absl::StatusOr<std::shared_ptr<WriteSession>> WriteSession::Recover(
    const std::string& store, const StoredDirectory& directory,
    std::shared_ptr<const FileLock> lock, DiskFaults* faults, const TakeDamaged& damaged) {
  std::shared_ptr<WriteSession> session(
      new WriteSession(store, directory, std::move(lock), faults));
  NIBBLE_RETURN_IF_ERROR(RemoveStagedLeftovers(session->path_));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int32_t> ranks, ScanShards(session->path_));
  bool any = false;
  absl::Status not_taken;
  for (const int32_t rank : ranks) {
    absl::StatusOr<ShardManifest> seal = ReadSeal(session->path_, rank);
    if (seal.ok() && seal->step == directory.step && seal->attempt == directory.attempt &&
        seal->rank == rank) {
      MutexLock held(&session->mutex_);
      session->shards_[rank] = {.state = ShardState::kSealed, .manifest = *std::move(seal)};
      any = true;
      continue;
    }
    if (damaged && !absl::IsNotFound(seal.status())) {
      if (const absl::Status taken = damaged(directory, rank); !taken.ok()) {
        not_taken.Update(taken);
        continue;
      }
    }
    session->RemoveFiles(rank);
  }
  if (any) return session;
  NIBBLE_RETURN_IF_ERROR(not_taken);
  NIBBLE_RETURN_IF_ERROR(session->Drop());
  return std::shared_ptr<WriteSession>();
}

std::string WriteSession::ShardPath(int32_t rank) const {
  return absl::StrCat(path_, "/", ShardDirectoryName(rank));
}

std::string WriteSession::ChunkFilePrefix(int32_t rank) const {
  return absl::StrCat(ShardPath(rank), "-chunks-");
}

absl::StatusOr<bool> WriteSession::Enter(int32_t rank) {
  bool was_sealed = false;
  {
    MutexLock lock(&mutex_);
    auto found = shards_.find(rank);
    while (found != shards_.end() && found->second.state == ShardState::kRemoving) {
      removed_.Wait(&mutex_);
      found = shards_.find(rank);
    }
    if (ended_) return false;
    if (found != shards_.end()) {
      if (found->second.state == ShardState::kWriting) {
        return absl::FailedPreconditionError(
            absl::StrCat("rank ", rank, " of step ", directory_.step, ", attempt ",
                         directory_.attempt, " is already being written"));
      }
      was_sealed = true;
    }
    shards_[rank] = {};
  }
  if (was_sealed) RemoveFiles(rank);
  return true;
}

void WriteSession::Leave(int32_t rank) {
  {
    MutexLock lock(&mutex_);
    shards_[rank] = {.state = ShardState::kRemoving};
  }
  RemoveFiles(rank);
  {
    MutexLock lock(&mutex_);
    shards_.erase(rank);
    if (shards_.empty()) ended_ = true;
    removed_.SignalAll();
    if (!ended_) return;
  }
  // Whatever cannot be removed now is removed when the store is next opened.
  (void)RemoveTree(path_);
}

absl::Status WriteSession::CheckSealed(int32_t rank) const {
  MutexLock lock(&mutex_);
  const auto found = shards_.find(rank);
  if (ended_ || found == shards_.end() || found->second.state == ShardState::kRemoving) {
    return absl::NotFoundError(absl::StrCat("rank ", rank, " is not sealed in ", path_));
  }
  if (found->second.state == ShardState::kSealed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank, " is still being written in ", path_));
}

absl::Status WriteSession::Remove(int32_t rank) {
  NIBBLE_RETURN_IF_ERROR(CheckSealed(rank));
  Leave(rank);
  return absl::OkStatus();
}

absl::Status WriteSession::MoveOut(int32_t rank, const std::string& to) {
  NIBBLE_RETURN_IF_ERROR(CheckSealed(rank));
  absl::Status moved = MoveShardFiles(path_, rank, to, faults_);
  if (!moved.ok() && access(ShardPath(rank).c_str(), F_OK) == 0) return moved;
  Leave(rank);
  return moved;
}

absl::Status WriteSession::MoveIn(const ShardManifest& manifest, const std::string& from) {
  absl::Status moved = MoveShardFiles(from, manifest.rank, path_, faults_);
  if (!moved.ok() && access(ShardPath(manifest.rank).c_str(), F_OK) != 0) {
    Leave(manifest.rank);
    return moved;
  }
  MutexLock lock(&mutex_);
  shards_[manifest.rank] = {.state = ShardState::kSealed, .manifest = manifest};
  return moved;
}

absl::Status WriteSession::Seal(const ShardManifest& manifest) {
  const std::string path = absl::StrCat(path_, "/", SealFileName(manifest.rank));
  NIBBLE_RETURN_IF_ERROR(ReplaceFile(path, EncodeShard(manifest), faults_));
  MutexLock lock(&mutex_);
  shards_[manifest.rank] = {.state = ShardState::kSealed, .manifest = manifest};
  return absl::OkStatus();
}

void WriteSession::RemoveFiles(int32_t rank) const {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(path_);
  if (!names.ok()) return;
  // The shard's directory, its seal and the chunk files beside them all begin with its name.
  for (const std::string& name : *names) {
    if (absl::StartsWith(name, ShardDirectoryName(rank))) {
      (void)RemoveTree(absl::StrCat(path_, "/", name));
    }
  }
}

bool WriteSession::ended() const {
  MutexLock lock(&mutex_);
  return ended_;
}

bool WriteSession::being_written() const {
  MutexLock lock(&mutex_);
  return !CheckAllSealed().ok();
}

std::vector<ShardManifest> WriteSession::sealed() const {
  MutexLock lock(&mutex_);
  std::vector<ShardManifest> sealed;
  for (const auto& [rank, shard] : shards_) {
    if (shard.state == ShardState::kSealed && !ended_) sealed.push_back(shard.manifest);
  }
  return sealed;
}

absl::Status WriteSession::CheckAllSealed() const {
  for (const auto& [rank, shard] : shards_) {
    if (shard.state == ShardState::kSealed) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " is still being written in ", path_));
  }
  return absl::OkStatus();
}

absl::Status WriteSession::CheckAgainst(const Manifest& manifest) const {
  const auto refuse = [this](const auto&... why) {
    return absl::FailedPreconditionError(absl::StrCat("step ", directory_.step, ", attempt ",
                                                      directory_.attempt,
                                                      " cannot be committed: ", why...));
  };
  MutexLock lock(&mutex_);
  if (ended_ || shards_.empty()) return refuse("none of its shards is sealed in ", store_);
  if (const absl::Status status = CheckAllSealed(); !status.ok()) return refuse(status.message());
  for (const auto& [rank, shard] : shards_) {
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

// Once all shards are sealed no writer is left, so nobody changes the session meanwhile.
absl::Status WriteSession::Commit(const Manifest& manifest) {
  NIBBLE_RETURN_IF_ERROR(CheckAgainst(manifest));
  NIBBLE_RETURN_IF_ERROR(
      ReplaceFile(absl::StrCat(path_, "/", kManifestFileName), EncodeManifest(manifest), faults_));
  absl::Status status =
      RenameInside(store_, DirectoryName(directory_),
                   DirectoryName(AtStage(directory_, Stage::kCommitted)), faults_);
  // If the rename succeeded and only its sync failed, it is a checkpoint all the same.
  if (!status.ok() && access(path_.c_str(), F_OK) == 0) return status;
  MutexLock lock(&mutex_);
  ended_ = true;
  return status;
}

absl::Status WriteSession::Drop() {
  {
    MutexLock lock(&mutex_);
    NIBBLE_RETURN_IF_ERROR(CheckAllSealed());
    ended_ = true;
    shards_.clear();
  }
  return RemoveTree(path_);
}

namespace {

std::optional<ShardManifest> WithoutFiles(ShardManifest manifest) {
  manifest.files.clear();
  return manifest;
}

}  // namespace

ShardWriter::ShardWriter(std::shared_ptr<WriteSession> session, const ShardManifest& shard,
                         int64_t file_bytes, bool copy)
    : session_(std::move(session)),
      manifest_{.step = shard.step,
                .attempt = shard.attempt,
                .rank = shard.rank,
                .chunk_bytes = shard.chunk_bytes},
      chunks_(session_->ChunkFilePrefix(shard.rank), file_bytes, session_->faults()),
      original_(copy ? WithoutFiles(shard) : std::nullopt) {}

ShardWriter::~ShardWriter() {
  if (!sealed_) session_->Leave(manifest_.rank);
}

absl::Status ShardWriter::Put(const TensorSlice& slice, absl::Span<const std::byte> bytes) {
  if (!status_.ok()) return status_;
  NIBBLE_RETURN_IF_ERROR(CheckSlice(slice));
  if (static_cast<int64_t>(bytes.size()) != SliceBytes(slice)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", slice.name, "\": ", bytes.size(), " bytes are given for ",
                     slice.count, " elements of ", FileDTypeSize(slice.dtype), " bytes"));
  }
  NIBBLE_RETURN_IF_ERROR(BeginSlice(slice));
  return Append(bytes);
}

absl::Status ShardWriter::CheckSliceDone() const {
  if (left_ == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("tensor \"", manifest_.slices.back().slice.name,
                                                    "\": ", left_, " bytes are missing"));
}

absl::Status ShardWriter::BeginSlice(const TensorSlice& slice) {
  if (!status_.ok()) return status_;
  NIBBLE_RETURN_IF_ERROR(CheckSlice(slice));
  NIBBLE_RETURN_IF_ERROR(CheckSliceDone());
  const size_t at = manifest_.slices.size();
  if (original_.has_value() &&
      (at >= original_->slices.size() || !(original_->slices[at].slice == slice))) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", slice.name, "\": is not slice ", at,
                                                   " of the shard that is copied"));
  }
  StoredSlice& stored = manifest_.slices.emplace_back();
  stored.slice = slice;
  left_ = SliceBytes(slice);
  stored.chunk_crcs.reserve(ChunksOf(left_, manifest_.chunk_bytes));
  return absl::OkStatus();
}

absl::Status ShardWriter::Append(absl::Span<const std::byte> bytes) {
  if (!status_.ok()) return status_;
  if (static_cast<int64_t>(bytes.size()) > left_) {
    return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes are given, but only ",
                                                   left_, " of the slice are missing"));
  }
  status_ = AppendChunks(bytes);
  return status_;
}

absl::Status ShardWriter::AppendChunks(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto whole = static_cast<size_t>(
        std::min<int64_t>(manifest_.chunk_bytes, static_cast<int64_t>(begun_.size()) + left_));
    const absl::Span<const std::byte> piece =
        bytes.subspan(0, std::min(bytes.size(), whole - begun_.size()));
    bytes.remove_prefix(piece.size());
    left_ -= static_cast<int64_t>(piece.size());
    if (piece.size() == whole) {
      NIBBLE_RETURN_IF_ERROR(PutChunk(piece));
      continue;
    }
    begun_.insert(begun_.end(), piece.begin(), piece.end());
    if (begun_.size() < whole) continue;
    NIBBLE_RETURN_IF_ERROR(PutChunk(begun_));
    begun_.clear();
  }
  return absl::OkStatus();
}

absl::Status ShardWriter::PutChunk(absl::Span<const std::byte> bytes) {
  StoredSlice& stored = manifest_.slices.back();
  const size_t slice = manifest_.slices.size() - 1;
  const auto chunk = static_cast<int64_t>(stored.chunk_crcs.size());
  stored.chunk_crcs.push_back(Crc32c(bytes));
  const absl::Status same = original_.has_value()
                                ? CheckChunkCrc(original_->slices[slice], chunk, bytes)
                                : absl::OkStatus();
  if (!same.ok()) {
    return absl::DataLossError(absl::StrCat("tensor \"", stored.slice.name, "\", chunk ", chunk,
                                            " of rank ", manifest_.rank, ": ", same.message()));
  }
  return chunks_.Put(static_cast<int32_t>(slice), chunk, bytes);
}

absl::StatusOr<ShardManifest> ShardWriter::Seal() {
  if (sealed_) return absl::FailedPreconditionError("the shard is already sealed");
  if (!status_.ok()) return status_;
  NIBBLE_RETURN_IF_ERROR(CheckSliceDone());
  if (original_.has_value() && !(manifest_ == *original_)) {
    return absl::FailedPreconditionError(absl::StrCat(
        manifest_.slices.size(), " slices were copied of the shard's ", original_->slices.size()));
  }
  status_ = FinishDatabase();
  if (!status_.ok()) return status_;
  status_ = session_->Seal(manifest_);
  if (!status_.ok()) return status_;
  sealed_ = true;
  return manifest_;
}

absl::Status ShardWriter::FinishDatabase() {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> chunk_files, chunks_.Finish());
  const std::string path = session_->ShardPath(manifest_.rank);
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<ShardDb> db, ShardDb::Create(path, session_->faults()));
  NIBBLE_RETURN_IF_ERROR(db->Adopt(chunk_files));
  NIBBLE_RETURN_IF_ERROR(db->Close());
  NIBBLE_ASSIGN_OR_RETURN(std::vector<StoredFile> files,
                          DescribeShardFiles(path, session_->faults()));
  manifest_.files = std::move(files);
  return absl::OkStatus();
}

}  // namespace nibble
