#include "worker/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/shard_writer.h"
#include "worker/checkpoint/store_layout.h"

namespace nibble {
namespace {

absl::Status NoCheckpoint(const std::string& path, int64_t step) {
  return absl::NotFoundError(absl::StrCat("there is no checkpoint of step ", step, " in ", path));
}

}  // namespace

void CheckpointStore::Publish() {
  MutexLock lock(&published_mutex_);
  published_ = {.attempt = file_.attempt,
                .generation = generation_,
                .pinned = file_.pinned,
                .sessions = sessions_};
}

absl::Status CheckpointStore::CheckWritable() const {
  if (!options_.read_only) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("store ", path_, " is open for reading only"));
}

absl::Status CheckpointStore::WriteFile(const StoreFile& file) {
  const absl::Status status = ReplaceFile(FilePath(), EncodeStoreFile(file), options_.faults);
  if (status.ok()) file_ = file;
  return status;
}

int64_t CheckpointStore::attempt() const {
  MutexLock lock(&published_mutex_);
  return published_.attempt;
}

absl::Status CheckpointStore::Fence(int64_t attempt) {
  const Change change(*this);
  return RaiseFence(attempt, "begin");
}

absl::Status CheckpointStore::RaiseFence(int64_t attempt, const char* doing) {
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  if (attempt < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("attempt is ", attempt, "; at least 1 is allowed"));
  }
  if (attempt < file_.attempt) {
    return absl::AbortedError(absl::StrCat("attempt ", attempt, " of ", ToString(options_.identity),
                                           " cannot ", doing, ": attempt ", file_.attempt,
                                           " is recorded"));
  }
  if (attempt == file_.attempt) return absl::OkStatus();
  StoreFile raised = file_;
  raised.attempt = attempt;
  return WriteFile(raised);
}

std::shared_ptr<WriteSession> CheckpointStore::FindSession(int64_t step, int64_t attempt) const {
  for (auto session = sessions_.rbegin(); session != sessions_.rend(); ++session) {
    const StoredDirectory& directory = (*session)->directory();
    if (directory.step == step && directory.attempt == attempt && !(*session)->ended()) {
      return *session;
    }
  }
  return nullptr;
}

absl::StatusOr<std::unique_ptr<ShardWriter>> CheckpointStore::Begin(int64_t step, int64_t attempt,
                                                                    int32_t rank) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(MakeAgain());
  NIBBLE_RETURN_IF_ERROR(RaiseFence(attempt, "begin a checkpoint"));
  const ShardManifest shard = {
      .step = step, .attempt = attempt, .rank = rank, .chunk_bytes = options_.chunk_bytes};
  NIBBLE_RETURN_IF_ERROR(CheckShard(shard));
  return StartWriting(shard, /*copy=*/false);
}

absl::StatusOr<std::unique_ptr<ShardWriter>> CheckpointStore::BeginCopy(
    const ShardManifest& original) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  NIBBLE_RETURN_IF_ERROR(MakeAgain());
  NIBBLE_RETURN_IF_ERROR(CheckShard(original));
  NIBBLE_RETURN_IF_ERROR(CheckTakesCopies(original.step, original.attempt));
  return StartWriting(original, /*copy=*/true);
}

absl::Status CheckpointStore::CheckTakesCopies(int64_t step, int64_t attempt) const {
  if (options_.decides) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path_, " decides which checkpoints exist, so it takes no copies"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed, Committed());
  for (const StoredDirectory& directory : committed) {
    if (directory.step != step || directory.attempt != attempt) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, ", attempt ", attempt, " is committed in ", path_));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShardWriter>> CheckpointStore::StartWriting(
    const ShardManifest& shard, bool copy) {
  NIBBLE_ASSIGN_OR_RETURN(std::shared_ptr<WriteSession> session,
                          EnterSession(shard.step, shard.attempt, shard.rank));
  return std::make_unique<ShardWriter>(std::move(session), shard, options_.file_bytes, copy);
}

absl::StatusOr<std::shared_ptr<WriteSession>> CheckpointStore::EnterSession(int64_t step,
                                                                            int64_t attempt,
                                                                            int32_t rank) {
  std::erase_if(sessions_, [](const auto& session) { return session->ended(); });
  while (true) {
    std::shared_ptr<WriteSession> session = FindSession(step, attempt);
    if (session == nullptr) {
      NIBBLE_ASSIGN_OR_RETURN(
          std::shared_ptr<WriteSession> made,
          WriteSession::Create(path_, {Stage::kWriting, step, attempt, ++last_serial_}, lock_,
                               options_.faults));
      session = std::move(made);
      sessions_.push_back(session);
    }
    NIBBLE_ASSIGN_OR_RETURN(const bool entered, session->Enter(rank));
    // The session ended just now, with its last writer; the next iteration makes another.
    if (entered) return session;
  }
}

absl::StatusOr<CheckpointStore::CommitReport> CheckpointStore::Commit(const Manifest& manifest) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(CheckManifest(manifest));
  const CheckpointHeader& header = manifest.header;
  if (header.identity != options_.identity) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path_, " is of ", ToString(options_.identity), ", the manifest of ",
                     ToString(header.identity)));
  }
  if (options_.decides) {
    NIBBLE_RETURN_IF_ERROR(RaiseFence(header.attempt, "commit a checkpoint"));
  }
  const std::shared_ptr<WriteSession> session = FindSession(header.step, header.attempt);
  if (session == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("step ", header.step, ", attempt ",
                                                      header.attempt,
                                                      " cannot be committed: none of its "
                                                      "shards is sealed in ",
                                                      path_));
  }
  NIBBLE_RETURN_IF_ERROR(session->Commit(manifest));
  CommitReport report;
  CollectGarbage(session->directory(), report);
  return report;
}

void CheckpointStore::CollectGarbage(const StoredDirectory& newest, CommitReport& report) {
  const auto note = [&report](const absl::Status& status) {
    if (!status.ok()) report.problems.emplace_back(status.message());
  };
  for (const auto& session : sessions_) {
    if (options_.decides && session->directory().serial < newest.serial && !session->ended() &&
        !session->being_written()) {
      note(session->Drop());
    }
  }
  std::erase_if(sessions_, [](const auto& session) { return session->ended(); });

  const absl::StatusOr<std::vector<StoredDirectory>> committed = Committed();
  if (!committed.ok()) return note(committed.status());
  const std::vector<StoredDirectory> gone = ToDelete(*committed, file_.pinned, options_.retention);
  for (const StoredDirectory& directory : gone) {
    note(DeleteDirectory(directory));
    const bool replaced = std::any_of(
        committed->begin(), committed->end(), [&directory](const StoredDirectory& other) {
          return other.step == directory.step && other.serial > directory.serial;
        });
    if (!replaced) report.deleted.push_back(directory.step);
  }
}

absl::Status CheckpointStore::DeleteDirectory(const StoredDirectory& directory) {
  StoredDirectory gone = directory;
  gone.stage = Stage::kDeleted;
  // Rename first: a partly removed directory is never a checkpoint.
  NIBBLE_RETURN_IF_ERROR(
      RenameInside(path_, DirectoryName(directory), DirectoryName(gone), options_.faults));
  return RemoveTree(absl::StrCat(path_, "/", DirectoryName(gone)));
}

absl::Status CheckpointStore::Discard(int64_t step, int64_t attempt) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  const std::shared_ptr<WriteSession> session = FindSession(step, attempt);
  return session == nullptr ? absl::OkStatus() : session->Drop();
}

absl::Status CheckpointStore::NotSealed(int64_t step, int64_t attempt, int32_t rank) const {
  return absl::NotFoundError(absl::StrCat("rank ", rank, " of step ", step, ", attempt ", attempt,
                                          " is not sealed in ", path_));
}

absl::Status CheckpointStore::DiscardShard(int64_t step, int64_t attempt, int32_t rank) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  const std::shared_ptr<WriteSession> session = FindSession(step, attempt);
  return session == nullptr ? NotSealed(step, attempt, rank) : session->Remove(rank);
}

absl::Status CheckpointStore::MoveShardOut(int64_t step, int64_t attempt, int32_t rank,
                                           const std::string& to) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  const std::shared_ptr<WriteSession> session = FindSession(step, attempt);
  return session == nullptr ? NotSealed(step, attempt, rank) : session->MoveOut(rank, to);
}

absl::StatusOr<ShardManifest> CheckpointStore::MoveShardIn(int64_t step, int64_t attempt,
                                                           int32_t rank, const std::string& from) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  NIBBLE_RETURN_IF_ERROR(MakeAgain());
  NIBBLE_RETURN_IF_ERROR(CheckTakesCopies(step, attempt));
  NIBBLE_ASSIGN_OR_RETURN(ShardManifest manifest, ReadSeal(from, rank));
  if (manifest.step != step || manifest.attempt != attempt || manifest.rank != rank) {
    return absl::DataLossError(absl::StrCat("the seal in ", from, " is of rank ", manifest.rank,
                                            ", step ", manifest.step, ", attempt ",
                                            manifest.attempt));
  }
  if (const auto session = FindSession(step, attempt); session != nullptr) {
    for (const ShardManifest& sealed : session->sealed()) {
      if (sealed.rank != rank) continue;
      return absl::AlreadyExistsError(
          absl::StrCat("rank ", rank, " is sealed in ", session->path()));
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<WriteSession> session,
                          EnterSession(step, attempt, rank));
  NIBBLE_RETURN_IF_ERROR(session->MoveIn(manifest, from));
  return manifest;
}

absl::Status CheckpointStore::Reopen(int64_t step, int64_t attempt) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  if (options_.decides) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path_, " decides which checkpoints exist, so it reopens none"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed, Committed());
  const auto found =
      std::find_if(committed.begin(), committed.end(), [&](const StoredDirectory& directory) {
        return directory.step == step && directory.attempt == attempt;
      });
  if (found == committed.end()) return NoCheckpoint(path_, step);
  StoredDirectory writing = *found;
  writing.stage = Stage::kWriting;
  NIBBLE_RETURN_IF_ERROR(
      RenameInside(path_, DirectoryName(*found), DirectoryName(writing), options_.faults));
  NIBBLE_RETURN_IF_ERROR(
      RemoveTree(absl::StrCat(path_, "/", DirectoryName(writing), "/", kManifestFileName)));
  NIBBLE_ASSIGN_OR_RETURN(auto session, WriteSession::Recover(path_, writing, lock_,
                                                              options_.faults, options_.damaged));
  if (session != nullptr) sessions_.push_back(std::move(session));
  return absl::OkStatus();
}

std::vector<ShardManifest> CheckpointStore::InDoubt() const {
  std::vector<std::shared_ptr<WriteSession>> sessions;
  {
    MutexLock lock(&published_mutex_);
    sessions = published_.sessions;
  }
  std::vector<ShardManifest> shards;
  for (const auto& session : sessions) {
    for (ShardManifest& shard : session->sealed()) shards.push_back(std::move(shard));
  }
  return shards;
}

absl::Status CheckpointStore::Pin(int64_t step) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  NIBBLE_RETURN_IF_ERROR(FindCommitted(step).status());
  StoreFile file = file_;
  return file.pinned.insert(step).second ? WriteFile(file) : absl::OkStatus();
}

absl::Status CheckpointStore::Unpin(int64_t step) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  NIBBLE_RETURN_IF_ERROR(FindCommitted(step).status());
  StoreFile file = file_;
  return file.pinned.erase(step) > 0 ? WriteFile(file) : absl::OkStatus();
}

absl::Status CheckpointStore::Delete(int64_t step) {
  const Change change(*this);
  NIBBLE_RETURN_IF_ERROR(CheckWritable());
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed, Committed());
  if (file_.pinned.contains(step)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint of step ", step, " in ", path_, " is pinned; unpin it first"));
  }
  bool found = false;
  for (const StoredDirectory& directory : committed) {
    if (directory.step != step) continue;
    found = true;
    NIBBLE_RETURN_IF_ERROR(DeleteDirectory(directory));
  }
  return found ? absl::OkStatus() : NoCheckpoint(path_, step);
}

absl::StatusOr<StoredDirectory> CheckpointStore::FindCommitted(int64_t step) const {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed, Committed());
  for (auto directory = committed.rbegin(); directory != committed.rend(); ++directory) {
    if (directory->step == step) return *directory;
  }
  return NoCheckpoint(path_, step);
}

absl::StatusOr<std::vector<StoredDirectory>> CheckpointStore::Committed() const {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<StoredDirectory> all, ScanStore(path_));
  std::erase_if(all, [](const StoredDirectory& d) { return d.stage != Stage::kCommitted; });
  return all;
}

absl::StatusOr<std::vector<CheckpointSummary>> CheckpointStore::List() const {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed, Committed());
  std::set<int64_t> pinned;
  {
    MutexLock lock(&published_mutex_);
    pinned = published_.pinned;
  }
  std::vector<CheckpointSummary> list;
  std::set<int64_t> seen;
  for (auto directory = committed.rbegin(); directory != committed.rend(); ++directory) {
    if (!seen.insert(directory->step).second) continue;
    CheckpointSummary& summary = list.emplace_back();
    summary.step = directory->step;
    summary.attempt = directory->attempt;
    summary.pinned = pinned.contains(directory->step);
    const auto reader = CheckpointReader::Open(options_.identity, path_, *directory);
    summary.status = reader.status();
    if (!reader.ok()) continue;
    summary.header = (*reader)->manifest().header;
    summary.tensors = static_cast<int64_t>((*reader)->tensors().size());
    summary.bytes = (*reader)->manifest().bytes();
  }
  std::reverse(list.begin(), list.end());
  return list;
}

absl::StatusOr<std::shared_ptr<const CheckpointReader>> CheckpointStore::OpenCheckpoint(
    int64_t step) const {
  NIBBLE_ASSIGN_OR_RETURN(const StoredDirectory directory, FindCommitted(step));
  return CheckpointReader::Open(options_.identity, path_, directory);
}

absl::StatusOr<Verification> CheckpointStore::Verify(int64_t step) const {
  NIBBLE_ASSIGN_OR_RETURN(const auto reader, OpenCheckpoint(step));
  return reader->Verify();
}

absl::StatusOr<std::unique_ptr<ShardReader>> CheckpointStore::OpenShard(int64_t step,
                                                                        int64_t attempt,
                                                                        int32_t rank) const {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> all, ScanStore(path_));
  absl::Status status = absl::NotFoundError(absl::StrCat(
      "the shard of rank ", rank, " of step ", step, ", attempt ", attempt, " is not in ", path_));
  for (auto directory = all.rbegin(); directory != all.rend(); ++directory) {
    if (directory->step != step || directory->attempt != attempt ||
        directory->stage == Stage::kDeleted) {
      continue;
    }
    absl::StatusOr<std::unique_ptr<ShardReader>> reader =
        ShardReader::Open(absl::StrCat(path_, "/", DirectoryName(*directory)), rank);
    if (reader.ok()) return reader;
    if (!absl::IsNotFound(reader.status())) status = reader.status();
  }
  return status;
}

absl::StatusOr<GoodCheckpoint> CheckpointStore::LatestGood() const {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<StoredDirectory> committed, Committed());
  if (committed.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint in ", path_));
  }
  GoodCheckpoint good;
  for (auto directory = committed.rbegin(); directory != committed.rend(); ++directory) {
    auto reader = CheckpointReader::Open(options_.identity, path_, *directory);
    absl::Status status = reader.ok() ? (*reader)->Verify().ToStatus() : reader.status();
    if (status.ok()) {
      good.reader = *std::move(reader);
      return good;
    }
    good.skipped.push_back({directory->step, directory->attempt, std::move(status)});
  }
  std::vector<std::string> reasons;
  for (const SkippedCheckpoint& skipped : good.skipped) {
    reasons.push_back(absl::StrCat("step ", skipped.step, ": ", skipped.status.message()));
  }
  return absl::DataLossError(absl::StrCat("no checkpoint in ", path_,
                                          " passes its checksums: ", absl::StrJoin(reasons, "; ")));
}

absl::Status CheckRetention(const Retention& retention) {
  if (retention.keep_last < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep_last is ", retention.keep_last, "; at least 1 is allowed"));
  }
  if (retention.keep_every < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep_every is ", retention.keep_every, "; at least 0 is allowed"));
  }
  return absl::OkStatus();
}

std::vector<StoredDirectory> ToDelete(const std::vector<StoredDirectory>& committed,
                                      const std::set<int64_t>& pinned, const Retention& retention) {
  std::vector<StoredDirectory> gone;
  std::set<int64_t> seen;
  for (auto it = committed.rbegin(); it != committed.rend(); ++it) {
    if (!seen.insert(it->step).second) {
      gone.push_back(*it);
      continue;
    }
    const bool last = static_cast<int64_t>(seen.size()) <= retention.keep_last;
    const bool nth = retention.keep_every > 0 && it->step % retention.keep_every == 0;
    if (!last && !nth && !pinned.contains(it->step)) gone.push_back(*it);
  }
  std::reverse(gone.begin(), gone.end());
  return gone;
}

}  // namespace nibble
