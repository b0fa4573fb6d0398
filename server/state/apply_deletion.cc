// Deletions of checkpoints: their records, and the order to restore one from the trash of workers.
#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/protocol/store_identity.h"
#include "common/status_macros.h"
#include "server/state/apply.h"
#include "server/state/entities.h"
#include "server/state/limits.h"

namespace nibble::apply {
namespace {

v1::CheckpointDeletion& PutDeletion(const v1::CheckpointRef& ref, Draft& draft) {
  const std::string key = CheckpointKey(ref);
  const auto all = draft.deletions.WithPrefix(JobPrefix(ref.job()));
  if (draft.deletions.Find(key) == nullptr &&
      static_cast<int64_t>(all.size()) >= kMaxDeletionsPerJob) {
    // One that is being restored is needed longest.
    const auto oldest = std::find_if(
        all.begin(), all.end(), [](const auto& entry) { return !entry.second->restore_ordered(); });
    draft.deletions.Erase(oldest == all.end() ? all.front().first : oldest->first);
  }
  v1::CheckpointDeletion& record = draft.deletions.Put(key);
  *record.mutable_ref() = ref;
  return record;
}

}  // namespace

void EraseCheckpoint(const v1::Checkpoint& checkpoint, v1::DeletionKind kind,
                     const std::string& reason, const Stamp& stamp, Draft& draft) {
  const v1::CheckpointRef& ref = checkpoint.ref();
  v1::CheckpointDeletion& record = PutDeletion(ref, draft);
  record.set_kind(kind);
  record.set_reason(reason);
  record.set_author(std::string(stamp.author));
  record.set_time_unix_ms(stamp.time_unix_ms);
  *record.mutable_order() = EpochOf(draft.cluster.Find(kOnlyKey)->store());
  record.mutable_order()->set_sequence(stamp.sequence);
  record.set_world(checkpoint.world());
  record.set_bytes(checkpoint.bytes());
  std::set<std::string> holders;
  for (const auto& [key, shard] : draft.shards.WithPrefix(ShardPrefix(ref))) {
    holders.insert(shard->holders().begin(), shard->holders().end());
    draft.shards.Erase(key);
  }
  for (const std::string& holder : holders) {
    if (record.holders_size() < kMaxDeletionHolders) record.add_holders(holder);
  }
  draft.checkpoints.Erase(CheckpointKey(ref));  // with `ref`
}

absl::Status Apply(const v1::CheckpointRestoreOrdered& fact, const Stamp& stamp, Draft& draft) {
  const v1::CheckpointRef& ref = fact.ref();
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditJob(draft, ref.job()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("ref.step", ref.step(), 0, job->shape().steps()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("ref.attempt", ref.attempt(), 1, job->last_attempt()));
  const std::string key = CheckpointKey(ref);
  if (draft.checkpoints.Find(key) != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("ref: the ", CheckpointText(ref), " is in the catalogue"));
  }
  v1::CheckpointDeletion* const known = draft.deletions.Edit(key);
  v1::CheckpointDeletion& record = known == nullptr ? PutDeletion(ref, draft) : *known;
  record.set_restore_ordered(true);
  record.set_restore_author(std::string(stamp.author));
  AddEvent(
      {.kind = v1::JOB_EVENT_KIND_CHECKPOINT,
       .text = absl::StrCat("its restoration from the trash was ordered",
                            fact.reason().empty() ? "" : ": ", Clip(fact.reason(), kMaxClause)),
       .attempt = ref.attempt(),
       .step = ref.step()},
      stamp, *job, draft);
  return absl::OkStatus();
}

}  // namespace nibble::apply
