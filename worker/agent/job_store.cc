#include "worker/agent/job_store.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/staged_file.h"
#include "common/protocol/store_identity.h"
#include "common/status_macros.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const std::string& job,
                                                         const std::string& directory,
                                                         const StoreIdentity& identity,
                                                         Trash* trash, DiskFaults* faults) {
  std::unique_ptr<JobStore> opened(new JobStore(job, directory, trash, faults));
  const std::string path = directory + "/checkpoints";
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(path));
  const TakeDamaged take_damaged = [self = opened.get(), path](const StoredDirectory& from,
                                                               int32_t rank) {
    return self->MoveDamaged(
        {.step = from.step, .attempt = from.attempt, .rank = rank}, [&](const std::string& to) {
          return MoveShardFiles(path + "/" + DirectoryName(from), rank, to, self->faults_);
        });
  };
  // The coordinator decides about commits and retention.
  NIBBLE_ASSIGN_OR_RETURN(
      opened->store_,
      CheckpointStore::Open(path, {.identity = identity,
                                   .decides = false,
                                   .retention = {.keep_last = std::numeric_limits<int32_t>::max()},
                                   .damaged = take_damaged,
                                   .faults = faults}));
  return opened;
}

std::string JobStore::HeaderPath(int64_t step, int64_t attempt) const {
  return absl::StrCat(directory_, "/pending-", step, "-", attempt, ".header");
}

std::string JobStore::OriginPath(int64_t step, int64_t attempt) const {
  return absl::StrCat(directory_, "/ordered-by-", step, "-", attempt);
}

// Unset if unknown, as for checkpoints made before stores had identities.
v1::StoreIdentity JobStore::ReadOrigin(int64_t step, int64_t attempt) const {
  std::ifstream file(OriginPath(step, attempt));
  std::string id;
  int64_t epoch = 0;
  v1::StoreIdentity store;
  if (!(file >> id >> epoch)) return store;
  store.set_id(id);
  store.set_epoch(epoch);
  if (std::string epoch_id; file >> epoch_id) store.set_epoch_id(epoch_id);
  return store;
}

absl::StatusOr<CheckpointHeader> JobStore::ReadHeader(int64_t step, int64_t attempt) const {
  NIBBLE_ASSIGN_OR_RETURN(const std::string record, ReadRecord(HeaderPath(step, attempt)));
  return DecodeHeader(record);
}

absl::Status JobStore::AddCommitted(ShardIndex::Checkpoints& checkpoints) const {
  NIBBLE_ASSIGN_OR_RETURN(const auto committed, store_->List());
  for (const CheckpointSummary& summary : committed) {
    // An unreadable one is not reported: the coordinator looks for it elsewhere.
    if (!summary.status.ok()) continue;
    const auto reader = store_->OpenCheckpoint(summary.step);
    if (!reader.ok()) continue;
    const Manifest& manifest = (*reader)->manifest();
    StoredCheckpoint& checkpoint = checkpoints[{job_, summary.step, summary.attempt}];
    checkpoint.header = manifest.header;
    checkpoint.committed = true;
    checkpoint.store = ReadOrigin(summary.step, summary.attempt);
    checkpoint.generation = listed_generation_;
    for (const ShardManifest& shard : manifest.shards) {
      if (!(*reader)->shard_status(shard.rank).ok()) continue;
      checkpoint.shards[shard.rank] = {.report = ShardReportOf(job_, shard, manifest.header.world),
                                       .accepted = true};
    }
  }
  return absl::OkStatus();
}

absl::Status JobStore::AddSealed(ShardIndex::Checkpoints& checkpoints) {
  std::set<CheckpointKey> discarded;
  for (const ShardManifest& shard : store_->InDoubt()) {
    const CheckpointKey key = {job_, shard.step, shard.attempt};
    if (discarded.contains(key)) continue;
    if (!checkpoints.contains(key)) {
      absl::StatusOr<CheckpointHeader> header = ReadHeader(shard.step, shard.attempt);
      if (absl::IsNotFound(header.status())) {
        discarded.insert(key);
        NIBBLE_RETURN_IF_ERROR(store_->Discard(shard.step, shard.attempt));
        continue;
      }
      if (!header.ok() && !absl::IsDataLoss(header.status())) return header.status();
      if (!header.ok()) {
        NIBBLE_RETURN_IF_ERROR(MoveDamaged(shard, [&](const std::string& to) {
          return store_->MoveShardOut(shard.step, shard.attempt, shard.rank, to);
        }));
        continue;
      }
      checkpoints[key] = {.header = *std::move(header),
                          .store = ReadOrigin(shard.step, shard.attempt),
                          .generation = listed_generation_};
    }
    StoredCheckpoint& checkpoint = checkpoints[key];
    checkpoint.shards[shard.rank] = {.report = ShardReportOf(job_, shard, checkpoint.header.world)};
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardIndex::Checkpoints> JobStore::List() {
  listed_generation_ = store_->generation();
  ShardIndex::Checkpoints checkpoints;
  NIBBLE_RETURN_IF_ERROR(AddCommitted(checkpoints));
  NIBBLE_RETURN_IF_ERROR(AddSealed(checkpoints));
  return checkpoints;
}

absl::Status JobStore::WriteOrigin(int64_t step, int64_t attempt,
                                   const v1::StoreIdentity& store) const {
  if (store.id().empty()) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(directory_));
  return ReplaceFile(OriginPath(step, attempt),
                     absl::StrCat(store.id(), " ", store.epoch(), " ", store.epoch_id(), "\n"),
                     faults_);
}

absl::Status JobStore::WriteHeader(const CheckpointHeader& header) const {
  NIBBLE_RETURN_IF_ERROR(MakeDirectories(directory_));
  return ReplaceFile(HeaderPath(header.step, header.attempt), EncodeHeader(header), faults_);
}

absl::Status JobStore::Commit(const CheckpointHeader& header) {
  std::vector<ShardManifest> shards = store_->InDoubt();
  std::erase_if(shards, [&header](const ShardManifest& shard) {
    return shard.step != header.step || shard.attempt != header.attempt;
  });
  NIBBLE_ASSIGN_OR_RETURN(const Manifest manifest, MakeManifest(header, std::move(shards)));
  NIBBLE_RETURN_IF_ERROR(store_->Commit(manifest).status());
  RemoveHeader(header.step, header.attempt);
  return absl::OkStatus();
}

absl::StatusOr<std::set<int32_t>> JobStore::Reopen(const CheckpointHeader& header) {
  NIBBLE_RETURN_IF_ERROR(WriteHeader(header));
  NIBBLE_RETURN_IF_ERROR(store_->Reopen(header.step, header.attempt));
  std::set<int32_t> sealed;
  for (const ShardManifest& shard : store_->InDoubt()) {
    if (shard.step == header.step && shard.attempt == header.attempt) sealed.insert(shard.rank);
  }
  return sealed;
}

absl::Status JobStore::MoveToTrash(const StoredCheckpoint& checkpoint, int32_t rank,
                                   const Deletion& deletion) {
  const StoredCheckpoint::Shard& shard = checkpoint.shards.at(rank);
  v1::TrashedShard record;
  *record.mutable_ref() = shard.report.ref();
  record.set_rank(rank);
  record.set_world(shard.report.world());
  record.set_bytes(shard.report.bytes());
  record.set_manifest_crc32c(shard.report.manifest_crc32c());
  if (!checkpoint.store.id().empty()) *record.mutable_store() = EpochOf(checkpoint.store);
  record.set_kind(deletion.kind);
  record.set_reason(deletion.reason);
  if (!deletion.order.id().empty()) *record.mutable_order() = deletion.order;
  record.set_kept(shard.accepted);
  const int64_t step = record.ref().step();
  const int64_t attempt = record.ref().attempt();
  return trash_->Add(std::move(record), checkpoint.header, [&](const std::string& to) {
    return store_->MoveShardOut(step, attempt, rank, to);
  });
}

absl::Status JobStore::MoveDamaged(
    const ShardManifest& shard, absl::FunctionRef<absl::Status(const std::string& to)> move) const {
  v1::TrashedShard record;
  record.mutable_ref()->set_job(job_);
  record.mutable_ref()->set_step(shard.step);
  record.mutable_ref()->set_attempt(shard.attempt);
  record.set_rank(shard.rank);
  const CheckpointHeader header =
      ReadHeader(shard.step, shard.attempt).value_or(CheckpointHeader());
  record.set_world(header.world);
  const v1::StoreIdentity store = ReadOrigin(shard.step, shard.attempt);
  if (!store.id().empty()) *record.mutable_store() = EpochOf(store);
  record.set_kind(v1::DELETION_KIND_DAMAGED);
  record.set_reason(header.world == 0 ? "its checkpoint's header is damaged"
                                      : "its files have changed since it was sealed");
  return trash_->Add(std::move(record), header, move);
}

absl::StatusOr<ShardManifest> JobStore::TakeFromTrash(const v1::TrashedShard& shard,
                                                      const CheckpointHeader& header,
                                                      const std::string& directory) {
  const v1::CheckpointRef& ref = shard.ref();
  if (header.world <= shard.rank() || header.step != ref.step() ||
      header.attempt != ref.attempt()) {
    return absl::DataLossError("its checkpoint's header is damaged");
  }
  NIBBLE_RETURN_IF_ERROR(WriteOrigin(ref.step(), ref.attempt(), shard.store()));
  NIBBLE_RETURN_IF_ERROR(WriteHeader(header));
  return store_->MoveShardIn(ref.step(), ref.attempt(), shard.rank(), directory);
}

// A file that cannot be removed does no harm: without sealed shards nothing reads it.
void JobStore::RemoveHeader(int64_t step, int64_t attempt) const {
  std::error_code ignored;
  std::filesystem::remove(HeaderPath(step, attempt), ignored);
}

void JobStore::RemoveOrigin(int64_t step, int64_t attempt) const {
  std::error_code ignored;
  std::filesystem::remove(OriginPath(step, attempt), ignored);
}

}  // namespace nibble
