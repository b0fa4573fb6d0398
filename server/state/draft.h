// The state as an update would leave it: what the facts' rules read and write. Only State turns a
// draft into what is; thrown away, it has changed nothing.
//
// Ownership: borrows the state, which must not change while the draft lives. Thread-safety: none.
#ifndef NIBBLE_SERVER_STATE_DRAFT_H_
#define NIBBLE_SERVER_STATE_DRAFT_H_

#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "server/state/index.h"
#include "server/state/tables.h"

namespace nibble {

// Which update a fact comes with.
struct Stamp {
  int64_t sequence = 0;
  int64_t time_unix_ms = 0;
  absl::string_view author;
};

class Draft {
 public:
  Draft(const Tables& tables, const Index& index);

  DraftTable<v1::HeadRecord> head;
  DraftTable<v1::ClusterRecord> cluster;
  DraftTable<v1::JobRecord> jobs;
  DraftTable<v1::SpecRecord> specs;
  DraftTable<v1::TimelineRecord> timelines;
  DraftTable<v1::JobEvent> events;
  DraftTable<v1::WorkerRecord> workers;
  DraftTable<v1::Queue> queues;
  DraftTable<v1::Checkpoint> checkpoints;
  DraftTable<v1::CheckpointShard> shards;
  DraftTable<v1::RequestRecord> requests;
  DraftTable<v1::RecipeRevision> archive;
  DraftTable<v1::OrphanRemoval> removals;

  // Of the state before the update.
  const Index& before() const { return before_; }

  // As Index, of the draft.
  std::set<std::string> GangsOn(absl::string_view worker) const;
  bool AnyUnfinishedIn(absl::string_view queue) const;
  int64_t UnfinishedJobs() const;
  bool AnyForkOf(absl::string_view checkpoint_key) const;

  // The newest committed checkpoint that is not damaged, the later attempt's of one step; null
  // where there is none.
  const v1::Checkpoint* NewestGood(absl::string_view job) const;
  // The checkpoint of another job that the job may begin from: its origin, damaged or not; null
  // where it has none, or where only the weights are taken and it has a checkpoint of its own, good
  // or damaged.
  const v1::Checkpoint* OriginOf(const v1::JobRecord& job) const;
  // What the next attempt of a job loads: its newest good checkpoint, else its origin; null:
  // nothing, it begins at step 0.
  const v1::Checkpoint* ResumeOf(const v1::JobRecord& job) const;
  // No rank will make an earlier step: the timeline before it is history.
  int64_t EarliestStep(const v1::JobRecord& job) const;
  // Nor one before this, also in a later attempt, as long as no checkpoint is lost: of an attempt
  // that lives, what it has committed counts. What held before it only is for the archive.
  int64_t NeededStep(const v1::JobRecord& job) const;

 private:
  const Index& before_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_DRAFT_H_
