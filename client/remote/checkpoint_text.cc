#include "client/remote/checkpoint_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/remote/text.h"

namespace nibble {

std::string NameOf(const v1::CheckpointRef& ref) {
  return absl::StrCat(ref.job(), "@", ref.step());
}

std::string CheckpointTable(const google::protobuf::RepeatedPtrField<v1::Checkpoint>& checkpoints) {
  TextTable table({"STEP", "ATTEMPT", "STATE", "SIZE", "RANKS", "COMMITTED (UTC)", "PINNED BY"});
  for (auto checkpoint = checkpoints.rbegin(); checkpoint != checkpoints.rend(); ++checkpoint) {
    table.Add({absl::StrCat(checkpoint->ref().step()), absl::StrCat(checkpoint->ref().attempt()),
               checkpoint->left() ? "left" : Word(checkpoint->state()),
               BytesText(checkpoint->bytes()), absl::StrCat(checkpoint->world()),
               TimeText(checkpoint->committed_unix_ms()), absl::StrJoin(checkpoint->pins(), ", ")});
  }
  return table.Text();
}

std::string CheckpointText(const v1::DescribeCheckpointResponse& described) {
  const v1::Checkpoint& checkpoint = described.checkpoint();
  TextList list;
  list.Add("checkpoint",
           absl::StrCat(NameOf(checkpoint.ref()), " of attempt ", checkpoint.ref().attempt()));
  list.Add("state", checkpoint.left() ? "left: a later attempt began before it and took its own way"
                    : checkpoint.damage().empty()
                        ? Word(checkpoint.state())
                        : absl::StrCat(Word(checkpoint.state()), ": ", checkpoint.damage()));
  list.Add("shards", absl::StrCat(checkpoint.durable_shards(), " of ", checkpoint.world(),
                                  " durable, ", BytesText(checkpoint.bytes())));
  if (checkpoint.committed_unix_ms() != 0) {
    list.Add("committed", absl::StrCat(TimeText(checkpoint.committed_unix_ms()), " UTC"));
  }
  if (!checkpoint.pins().empty()) list.Add("pinned by", absl::StrJoin(checkpoint.pins(), ", "));
  for (const v1::CheckpointShard& shard : described.shards()) {
    list.Add("shard", absl::StrCat("rank ", shard.rank(), ", ", BytesText(shard.bytes()), ", on ",
                                   shard.holders().empty() ? "no worker"
                                                           : absl::StrJoin(shard.holders(), ", ")));
  }
  for (const v1::CheckpointTask& task : checkpoint.tasks()) {
    list.Add("task", TaskText(checkpoint.ref(), task));
  }
  return list.Text();
}

std::string TaskText(const v1::CheckpointRef& ref, const v1::CheckpointTask& task) {
  std::string text =
      absl::StrCat(task.kind() == v1::CHECKPOINT_TASK_KIND_EXPORT ? "export " : "verification ",
                   task.number(), " of ", NameOf(ref), " is ", Word(task.state()));
  if (!task.worker().empty()) absl::StrAppend(&text, " on ", task.worker());
  if (!task.destination().empty()) absl::StrAppend(&text, " to ", task.destination());
  if (!task.detail().empty()) absl::StrAppend(&text, ": ", task.detail());
  return text;
}

}  // namespace nibble
