// Deleted checkpoints of jobs: `nibble checkpoint history`, `trash list` and `trash restore`.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/remote/enum_words.h"
#include "client/remote/job_text.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/verb.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "common/text/text.h"

namespace nibble {
namespace {

constexpr size_t kShownOfEpoch = 8;  // digits of its id

struct DeletionFlags {
  RemoteFlags remote;
  std::string job, reason;
  int64_t step = 0;
  int64_t attempt = 0;
};

std::string OrNone(const std::string& text) { return text.empty() ? "-" : text; }

// "2/1a2b3c4d": number and id.
std::string EpochText(const v1::StoreIdentity& order) {
  if (order.epoch() == 0) return "-";
  return order.epoch_id().empty()
             ? absl::StrCat(order.epoch())
             : absl::StrCat(order.epoch(), "/", order.epoch_id().substr(0, kShownOfEpoch));
}

std::string KindText(v1::DeletionKind kind, bool restore_ordered) {
  return absl::StrCat(kind == v1::DELETION_KIND_UNSPECIFIED ? "unknown" : Word(kind),
                      restore_ordered ? ", being restored" : "");
}

absl::StatusOr<Reply> History(Session& session, const DeletionFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  v1::ListDeletionsRequest request;
  request.set_job(job.id());
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListDeletionsResponse all,
                          session.client().CallAllPages(kListDeletions, request));
  TextTable table({"STEP", "ATTEMPT", "KIND", "DELETED (UTC)", "BY", "EPOCH", "UPDATE", "REASON"});
  for (auto at = all.deletions().rbegin(); at != all.deletions().rend(); ++at) {
    table.Add({absl::StrCat(at->ref().step()), absl::StrCat(at->ref().attempt()),
               KindText(at->kind(), at->restore_ordered()), OrNone(TimeText(at->time_unix_ms())),
               OrNone(at->author()), EpochText(at->order()),
               at->order().sequence() == 0 ? "-" : absl::StrCat(at->order().sequence()),
               OrNone(at->reason())});
  }
  return ReplyOf(all, table.Text());
}

std::string TrashTable(const v1::ListTrashResponse& all) {
  TextTable table({"JOB", "STEP", "ATTEMPT", "SHARDS", "SIZE", "WORKERS", "KIND", "FOR", "REASON"});
  for (const v1::TrashedCheckpoint& checkpoint : all.checkpoints()) {
    std::vector<std::string> workers;
    const v1::TrashedShard* newest = nullptr;  // the one that was deleted last
    for (const v1::TrashHolding& holding : checkpoint.holdings()) {
      workers.push_back(holding.worker());
      for (const v1::TrashedShard& shard : holding.shards()) {
        if (newest == nullptr || shard.age_ms() < newest->age_ms()) newest = &shard;
      }
    }
    if (newest == nullptr) continue;
    table.Add({checkpoint.ref().job(), absl::StrCat(checkpoint.ref().step()),
               absl::StrCat(checkpoint.ref().attempt()),
               absl::StrCat(checkpoint.present_shards(), " of ", checkpoint.world()),
               BytesText(checkpoint.bytes()), absl::StrJoin(workers, ", "),
               KindText(newest->kind(), checkpoint.restore_ordered()),
               DurationText(static_cast<double>(newest->age_ms()) / 1000),
               OrNone(newest->reason())});
  }
  return table.Text();
}

absl::StatusOr<Reply> ListTrash(Session& session, const DeletionFlags& flags) {
  v1::ListTrashRequest request;
  if (!flags.job.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
    request.set_job(job.id());
  }
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListTrashResponse all,
                          session.client().CallAllPages(kListTrash, request));
  return ReplyOf(all, TrashTable(all));
}

absl::StatusOr<Reply> Restore(Session& session, const DeletionFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, flags.job));
  v1::RestoreCheckpointRequest request;
  request.mutable_ref()->set_job(job.id());
  request.mutable_ref()->set_step(flags.step);
  request.mutable_ref()->set_attempt(flags.attempt);
  request.set_reason(flags.reason);
  NIBBLE_ASSIGN_OR_RETURN(const v1::RestoreCheckpointResponse restored,
                          session.Call(kRestoreCheckpoint, request));
  Reply reply = ReplyOf(restored, absl::StrCat(RefText(restored.ref()), " of attempt ",
                                               restored.ref().attempt(), " is being restored\n"));
  reply.notes = {absl::StrCat("run 'nibble checkpoint list ", job.id(),
                              "' to see when its workers have it again")};
  return reply;
}

}  // namespace

void AddDeletionVerbs(Command checkpoint, int& exit_code) {
  RemoteVerb<DeletionFlags> history(
      checkpoint, "history", "List a job's deleted checkpoints: when, by whom and why, by step");
  AddJobOption(history.app(), history->job);
  history.Runs(exit_code, History);
  history.app().Footer("EPOCH and UPDATE name the update of the coordinator's store that did it.");

  const Command trash = NounOf(checkpoint, "trash", "Deleted checkpoints that workers still have");
  RemoteVerb<DeletionFlags> list(trash, "list", "List the checkpoints in the workers' trash",
                                 "checkpoint ");
  list.app().Add("JOB", list->job, "only of this job; default: of all jobs");
  list.Runs(exit_code, ListTrash);
  list.app().Footer(
      "SHARDS: of how many ranks present workers have the shard, in the trash or not.");

  RemoteVerb<DeletionFlags> restore(trash, "restore",
                                    "Restore a checkpoint from the workers' trash", "checkpoint ");
  AddJobOption(restore.app(), restore->job);
  restore.app().Add("STEP", restore->step, "of the checkpoint").Required().AtLeast(0);
  restore.app()
      .Add("--attempt", restore->attempt, "that wrote it; default: the newest in the trash")
      .AtLeast(1);
  restore.app().Add("--reason", restore->reason, "the reason, for the job's events");
  restore.Runs(exit_code, Restore);
}

}  // namespace nibble
