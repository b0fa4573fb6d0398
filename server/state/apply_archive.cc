// Revisions of recipes that no rank will need any more, kept for ever beside the timeline.
//
// A timeline reaches back to the step that ranks may begin at: the newest checkpoint of an attempt,
// or its beginning. What held before, and what never held, goes to the archive when there is much
// of it. Where that checkpoint is lost ranks begin earlier, and what they ran from there on comes
// back, before anybody is given the timeline or changes it.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/state/apply.h"
#include "server/state/job_machine.h"
#include "server/state/keys.h"
#include "server/state/timeline_record.h"

namespace nibble::apply {

void Archive(const std::string& job, const v1::RecipeRevision& revision,
             v1::TimelineRecord& timeline, Draft& draft) {
  draft.archive.Put(RevisionKey(job, revision.number())) = revision;
  timeline.set_archived(timeline.archived() + 1);
}

absl::Status Apply(const v1::RevisionsArchived& fact, const Stamp&, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditUnfinished(draft, fact.job());
  if (!job.ok()) return job.status();
  v1::TimelineRecord& timeline = *draft.timelines.Edit(fact.job());
  const std::vector<int64_t> outlived =
      Outlived(timeline, draft.NeededStep(**job), (*job)->has_attempt());
  int64_t before = 0;
  for (const int64_t number : fact.numbers()) {
    if (number <= before) {
      return absl::InvalidArgumentError(
          absl::StrCat("numbers: ", number, " after ", before, "; they ascend"));
    }
    before = number;
    if (!std::binary_search(outlived.begin(), outlived.end(), number)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "numbers: revision ", number, " of ", fact.job(), " may yet be needed by its ranks"));
    }
  }
  RevisionMessages& revisions = *timeline.mutable_revisions();
  const auto leaves = [&fact](const v1::RecipeRevision& revision) {
    return std::binary_search(fact.numbers().begin(), fact.numbers().end(), revision.number());
  };
  for (const v1::RecipeRevision& revision : revisions) {
    if (leaves(revision)) Archive(fact.job(), revision, timeline, draft);
  }
  revisions.erase(std::remove_if(revisions.begin(), revisions.end(), leaves), revisions.end());
  return CheckTimelineRecord(timeline);
}

namespace {

void Cover(const v1::JobRecord& job, Draft& draft) {
  const v1::TimelineRecord* const known = draft.timelines.Find(job.id());
  if (known == nullptr || known->archived() == 0) return;
  const int64_t needed = draft.NeededStep(job);
  if (known->revisions(0).first_step() <= needed) return;
  // From the newest on: what ranks have run, back to what held at the step that is needed.
  const auto archive = draft.archive.WithPrefix(JobPrefix(job.id()));
  std::vector<v1::RecipeRevision> back;
  for (auto entry = archive.rbegin(); entry != archive.rend(); ++entry) {
    const v1::RecipeRevision& revision = *entry->second;
    if (revision.number() >= known->revisions(0).number()) continue;
    // Of a run that nothing was reported of, the first is all that is known to have held.
    const bool first = entry + 1 == archive.rend();
    if (!revision.confirmed() && !first) continue;
    back.push_back(revision);
    if (revision.first_step() <= needed) break;
  }
  v1::TimelineRecord& timeline = *draft.timelines.Edit(job.id());
  RevisionMessages revisions;
  for (auto revision = back.rbegin(); revision != back.rend(); ++revision) {
    draft.archive.Erase(RevisionKey(job.id(), revision->number()));
    *revisions.Add() = std::move(*revision);
  }
  timeline.set_archived(timeline.archived() - revisions.size());
  revisions.MergeFrom(timeline.revisions());
  timeline.mutable_revisions()->Swap(&revisions);
}

}  // namespace

void CoverTimelines(Draft& draft) {
  for (const auto& [id, job] : draft.jobs.changes()) {
    if (job != nullptr && !IsFinished(job->state())) Cover(*job, draft);
  }
}

}  // namespace nibble::apply
