// Facts of a job's recipe: revisions, their confirmation by ranks, and the archive.
//
// A timeline reaches back to the step where ranks may begin: that of the newest checkpoint of an
// attempt, or its first step. If it grows large, revisions that ended before that step, and those
// that were never run, move to the archive, which is kept forever. If that checkpoint is lost,
// ranks begin earlier, and the revisions that they ran from there on return from the archive before
// anything reads or changes the timeline.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/state/apply.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"

namespace nibble::apply {
namespace {

// Moves a revision that has left the timeline, or a superseded one, into the archive.
void Archive(const std::string& job, const v1::RecipeRevision& revision,
             v1::TimelineRecord& timeline, Draft& draft) {
  draft.archive.Put(RevisionKey(job, revision.number())) = revision;
  timeline.set_archived(timeline.archived() + 1);
}

}  // namespace

absl::Status Apply(const v1::RevisionsArchived& fact, const Stamp&, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  v1::TimelineRecord& timeline = *draft.timelines.Edit(fact.job());
  const std::vector<int64_t> archivable =
      Archivable(timeline, draft.NeededStep(*job), job->has_attempt());
  int64_t before = 0;
  for (const int64_t number : fact.numbers()) {
    if (number <= before) {
      return absl::InvalidArgumentError(
          absl::StrCat("numbers: ", number, " after ", before, "; numbers must ascend"));
    }
    before = number;
    if (!std::binary_search(archivable.begin(), archivable.end(), number)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "numbers: revision ", number, " of ", fact.job(), " may still be needed by its ranks"));
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

void CoverTimeline(const v1::JobRecord& job, Draft& draft) {
  const v1::TimelineRecord* const known = draft.timelines.Find(job.id());
  if (known == nullptr || known->archived() == 0) return;
  std::vector<const v1::RecipeRevision*> archive;
  for (const auto& [key, revision] : draft.archive.WithPrefix(JobPrefix(job.id()))) {
    archive.push_back(revision);
  }
  RevisionMessages revisions;
  for (const v1::RecipeRevision* revision : Returning(*known, archive, draft.NeededStep(job))) {
    *revisions.Add() = *revision;
  }
  if (revisions.empty()) return;
  v1::TimelineRecord& timeline = *draft.timelines.Edit(job.id());
  for (const v1::RecipeRevision& revision : revisions) {
    draft.archive.Erase(RevisionKey(job.id(), revision.number()));
  }
  timeline.set_archived(timeline.archived() - revisions.size());
  revisions.MergeFrom(timeline.revisions());
  timeline.mutable_revisions()->Swap(&revisions);
}

void CoverTimelines(Draft& draft) {
  for (const auto& [id, job] : draft.jobs.changes()) {
    if (job != nullptr && !IsFinished(job->state())) CoverTimeline(*job, draft);
  }
}

namespace {

// The limit is temporary: checkpoints and reports of ranks make room, and a rollback removes
// pending revisions.
constexpr char kMakeRoom[] =
    "take a checkpoint ('nibble job checkpoint') or roll back to make room";

absl::Status CheckRevised(const v1::RecipeRevised& fact, const v1::JobRecord& job,
                          const v1::TimelineRecord& timeline, const Draft& draft) {
  const int before = timeline.revisions_size();
  NIBBLE_RETURN_IF_ERROR(CheckRange("kept", fact.kept(), 1, before));
  if (fact.revisions().empty()) return absl::InvalidArgumentError("revisions: is empty");
  const v1::RecipeRevision& first = fact.revisions(0);
  const int64_t latest = timeline.revisions(before - 1).number();
  if (first.number() != latest + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("revision: ", first.number(), "; the next is ", latest + 1));
  }
  const int64_t earliest = draft.EarliestStep(job);
  if (first.first_step() < earliest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "first_step: ", first.first_step(), " is in the past; allowed: ", earliest, " or later"));
  }
  for (int i = static_cast<int>(fact.kept()); i < before; ++i) {
    if (!timeline.revisions(i).refused().empty()) continue;
    if (timeline.revisions(i).first_step() <= first.first_step()) {
      return absl::FailedPreconditionError(
          absl::StrCat("kept: revision ", timeline.revisions(i).number(), " begins at step ",
                       timeline.revisions(i).first_step(), ", not after step ", first.first_step(),
                       ": it cannot be superseded"));
    }
  }
  for (const v1::RecipeRevision& revision : fact.revisions()) {
    if (revision.confirmed() || !revision.refused().empty()) {
      return absl::InvalidArgumentError("revisions: a new one cannot be confirmed or refused");
    }
  }
  return absl::OkStatus();
}

// Supersedes the revisions from `kept` on: they move to the retired ones, which ranks may still
// confirm. Refused ones stay in the history.
void Retire(int kept, v1::TimelineRecord& timeline) {
  RevisionMessages& revisions = *timeline.mutable_revisions();
  int stay = kept;
  for (int i = kept; i < revisions.size(); ++i) {
    if (!revisions[i].refused().empty()) {
      revisions.SwapElements(i, stay++);
      continue;
    }
    *timeline.add_retired() = revisions[i];
    timeline.mutable_retired()->rbegin()->set_confirmed(false);
  }
  revisions.DeleteSubrange(stay, revisions.size() - stay);
}

absl::Status CheckRoom(const v1::TimelineRecord& timeline) {
  const int count = timeline.revisions_size() + timeline.retired_size();
  if (count > kMaxRevisions) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "revisions: ", count, " since the newest checkpoint, including pending ones; at most ",
        kMaxRevisions, "; ", kMakeRoom));
  }
  if (const auto bytes = static_cast<int64_t>(timeline.ByteSizeLong()); bytes > kMaxTimelineBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("revisions: ", bytes,
                     " bytes since the newest checkpoint, including pending ones; at most ",
                     kMaxTimelineBytes, "; ", kMakeRoom));
  }
  return CheckTimelineRecord(timeline);
}

RevisionMessages::iterator Find(RevisionMessages& revisions, int64_t number) {
  return std::find_if(revisions.begin(), revisions.end(),
                      [number](const v1::RecipeRevision& r) { return r.number() == number; });
}

// If ranks have run a retired revision after all, returns it to the timeline, ordered by number.
// False if no retired revision has this number.
bool Reinstate(int64_t number, v1::TimelineRecord& timeline) {
  const auto retired = Find(*timeline.mutable_retired(), number);
  if (retired == timeline.mutable_retired()->end()) return false;
  RevisionMessages& revisions = *timeline.mutable_revisions();
  *revisions.Add() = std::move(*retired);
  timeline.mutable_retired()->erase(retired);
  for (int i = revisions.size() - 1; i > 0 && revisions[i - 1].number() > number; --i) {
    revisions.SwapElements(i - 1, i);
  }
  return true;
}

// Archives the retired revisions before `number`: ranks can no longer confirm them.
void ArchiveRetired(const std::string& job, int64_t number, v1::TimelineRecord& timeline,
                    Draft& draft) {
  RevisionMessages& retired = *timeline.mutable_retired();
  for (const v1::RecipeRevision& revision : retired) {
    if (revision.number() < number) Archive(job, revision, timeline, draft);
  }
  retired.erase(std::remove_if(retired.begin(), retired.end(),
                               [number](const auto& r) { return r.number() < number; }),
                retired.end());
}

}  // namespace

absl::Status Apply(const v1::RecipeRevised& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  v1::TimelineRecord* const timeline = draft.timelines.Edit(fact.job());
  NIBBLE_RETURN_IF_ERROR(CheckRevised(fact, *job, *timeline, draft));
  Retire(static_cast<int>(fact.kept()), *timeline);
  if (!job->has_attempt()) ArchiveRetired(fact.job(), kMaxCount, *timeline, draft);
  timeline->mutable_revisions()->MergeFrom(fact.revisions());
  NIBBLE_RETURN_IF_ERROR(CheckRoom(*timeline));
  const v1::RecipeRevision& first = fact.revisions(0);
  AddEvent({.kind = v1::JOB_EVENT_KIND_RECIPE,
            .text = absl::StrCat("revision ", first.number(), " accepted, takes effect at step ",
                                 first.first_step(), first.reason().empty() ? "" : ": ",
                                 Clip(first.reason(), kMaxClause)),
            .attempt = job->attempt().number(),
            .step = first.first_step(),
            .revision = first.number()},
           stamp, *job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::RevisionConfirmed& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckAttempt(*job, fact.attempt()));
  NIBBLE_RETURN_IF_ERROR(CheckRange("first_step", fact.first_step(), 0, job->shape().steps()));
  v1::TimelineRecord* const timeline = draft.timelines.Edit(fact.job());
  const bool reinstated = Reinstate(fact.revision(), *timeline);
  RevisionMessages& revisions = *timeline->mutable_revisions();
  const auto revision = Find(revisions, fact.revision());
  if (revision == revisions.end()) {
    return absl::NotFoundError(
        absl::StrCat("revision: there is no ", fact.revision(), " of job ", fact.job()));
  }
  if (!revision->refused().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("revision: ", fact.revision(),
                     " was refused and never took effect: ", revision->refused()));
  }
  if (fact.first_step() < revision->first_step()) {
    return absl::InvalidArgumentError(absl::StrCat("first_step: ", fact.first_step(),
                                                   " is before that of revision ", fact.revision(),
                                                   ", ", revision->first_step()));
  }
  timeline->set_in_force(fact.revision());
  ArchiveRetired(fact.job(), fact.revision(), *timeline, draft);
  if (revision->confirmed()) return absl::OkStatus();
  const int64_t asked = revision->first_step();
  // Unconfirmed revisions before it were never run, since ranks report a revision before the
  // checkpoint of a later step. Those before a confirmed one, and the first, stay as they are;
  // those after it cannot take effect earlier.
  auto moved = revision;
  while (moved - revisions.begin() > 1 && !(moved - 1)->confirmed()) --moved;
  for (; moved != revisions.end(); ++moved) {
    if (!moved->refused().empty()) continue;
    moved->set_first_step(std::max(moved->first_step(), fact.first_step()));
  }
  revision->set_confirmed(true);
  NIBBLE_RETURN_IF_ERROR(CheckTimelineRecord(*timeline));
  AddEvent(
      {.kind = v1::JOB_EVENT_KIND_RECIPE,
       .text = absl::StrCat(
           "revision ", fact.revision(), " in effect from step ", revision->first_step(),
           asked == revision->first_step() ? "" : absl::StrCat(", requested for step ", asked),
           reinstated ? ": ranks had switched before they received the change that superseded it"
                      : ""),
       .attempt = fact.attempt(),
       .step = revision->first_step(),
       .revision = fact.revision()},
      stamp, *job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::RevisionRefused& fact, const Stamp& stamp, Draft& draft) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobRecord* const job, EditUnfinished(draft, fact.job()));
  NIBBLE_RETURN_IF_ERROR(CheckAttempt(*job, fact.attempt()));
  if (fact.reason().empty()) return absl::InvalidArgumentError("reason: is empty");
  v1::TimelineRecord* const timeline = draft.timelines.Edit(fact.job());
  RevisionMessages& revisions = *timeline->mutable_revisions();
  const auto revision = Find(revisions, fact.revision());
  if (revision == revisions.end()) {
    // It has been superseded already, so it was never run.
    const auto retired = Find(*timeline->mutable_retired(), fact.revision());
    if (retired == timeline->mutable_retired()->end()) {
      return absl::NotFoundError(
          absl::StrCat("revision: there is no ", fact.revision(), " of job ", fact.job()));
    }
    retired->set_refused(fact.reason());
    Archive(fact.job(), *retired, *timeline, draft);
    timeline->mutable_retired()->erase(retired);
    return absl::OkStatus();
  }
  if (revision == revisions.begin()) {
    return absl::InvalidArgumentError(
        absl::StrCat("revision: ", fact.revision(), " is the first, which cannot be refused"));
  }
  if (!revision->refused().empty()) return absl::OkStatus();
  revision->set_refused(fact.reason());
  // The steps that an earlier attempt ran under it are run again without it.
  revision->set_confirmed(false);
  int64_t stays = 0;      // the revision in effect instead
  int64_t confirmed = 0;  // the last one that ranks have run
  for (const v1::RecipeRevision& other : revisions) {
    if (!other.refused().empty() || other.first_step() > revision->first_step()) continue;
    if (other.number() < fact.revision()) {
      stays = other.number();
      if (other.confirmed()) confirmed = other.number();
    }
  }
  if (timeline->in_force() == fact.revision()) timeline->set_in_force(confirmed);
  AddEvent({.kind = v1::JOB_EVENT_KIND_RECIPE,
            .text = Clip(absl::StrCat("revision ", fact.revision(), " refused, revision ", stays,
                                      " stays in effect: ", fact.reason()),
                         kMaxReasonBytes),
            .attempt = fact.attempt(),
            .step = revision->first_step(),
            .revision = fact.revision()},
           stamp, *job, draft);
  return absl::OkStatus();
}

void SettleTimeline(bool all_steps_run, const v1::JobRecord& job, Draft& draft) {
  const v1::TimelineRecord& known = *draft.timelines.Find(job.id());
  const int64_t steps = job.shape().steps();
  int run = known.revisions_size();  // one past the last that ranks have run
  while (all_steps_run && run > 1 && !known.revisions(run - 1).confirmed()) --run;
  bool unreported = false;
  for (int i = run; i < known.revisions_size(); ++i) {
    const v1::RecipeRevision& revision = known.revisions(i);
    unreported |= revision.refused().empty() && revision.first_step() < steps;
  }
  if (!unreported && known.retired().empty()) return;
  v1::TimelineRecord& timeline = *draft.timelines.Edit(job.id());
  ArchiveRetired(job.id(), kMaxCount, timeline, draft);
  for (int i = run; i < timeline.revisions_size(); ++i) {
    if (!timeline.revisions(i).refused().empty()) continue;
    timeline.mutable_revisions(i)->set_first_step(
        std::max(timeline.revisions(i).first_step(), steps));
  }
}

}  // namespace nibble::apply
