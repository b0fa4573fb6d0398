#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/apply.h"
#include "server/state/bounds.h"
#include "server/state/job_machine.h"
#include "server/state/keys.h"
#include "server/state/limits.h"
#include "server/state/timeline_record.h"

namespace nibble::apply {
namespace {

// Nothing of it is for good: ranks report, checkpoints are taken, a rollback takes back what is
// pending.
constexpr char kMakeRoom[] =
    "they make room with the next checkpoint ('nibble job checkpoint'), or with a rollback";

absl::Status CheckRevised(const v1::RecipeRevised& fact, const v1::JobRecord& job,
                          const v1::TimelineRecord& timeline, const Draft& draft) {
  const int before = timeline.revisions_size();
  absl::Status status = CheckRange("kept", fact.kept(), 1, before);
  if (!status.ok()) return status;
  if (fact.revisions().empty()) return absl::InvalidArgumentError("revisions: there is none");
  const v1::RecipeRevision& first = fact.revisions(0);
  const int64_t latest = timeline.revisions(before - 1).number();
  if (first.number() != latest + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("revision: ", first.number(), "; the next is ", latest + 1));
  }
  const int64_t earliest = draft.EarliestStep(job);
  if (first.first_step() < earliest) {
    return absl::InvalidArgumentError(absl::StrCat("first_step: ", first.first_step(),
                                                   " lies in the past; allowed: ", earliest,
                                                   " and later"));
  }
  for (int i = static_cast<int>(fact.kept()); i < before; ++i) {
    if (!timeline.revisions(i).refused().empty()) continue;
    if (timeline.revisions(i).first_step() <= first.first_step()) {
      return absl::FailedPreconditionError(
          absl::StrCat("kept: revision ", timeline.revisions(i).number(), " begins at step ",
                       timeline.revisions(i).first_step(), ", not after step ", first.first_step(),
                       ": it does not make way"));
    }
  }
  for (const v1::RecipeRevision& revision : fact.revisions()) {
    if (revision.confirmed() || !revision.refused().empty()) {
      return absl::InvalidArgumentError("revisions: a new one cannot be confirmed, nor refused");
    }
  }
  return absl::OkStatus();
}

// Moves the revisions from `kept` on to those that ranks may yet say they have run; refused ones
// stay in the history.
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
    return absl::ResourceExhaustedError(
        absl::StrCat("revisions: ", count,
                     " since the newest checkpoint, with those that are "
                     "pending; at most ",
                     kMaxRevisions, "; ", kMakeRoom));
  }
  if (const auto bytes = static_cast<int64_t>(timeline.ByteSizeLong()); bytes > kMaxTimelineBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("revisions: ", bytes,
                     " bytes since the newest checkpoint, with those that "
                     "are pending; at most ",
                     kMaxTimelineBytes, "; ", kMakeRoom));
  }
  return CheckTimelineRecord(timeline);
}

RevisionMessages::iterator Find(RevisionMessages& revisions, int64_t number) {
  return std::find_if(revisions.begin(), revisions.end(),
                      [number](const v1::RecipeRevision& r) { return r.number() == number; });
}

// A retired revision that ranks have run after all is one of the timeline's again, in the place of
// its number. Whether there is such a one.
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

// What comes before `number` and was not said to have been run will not be any more.
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
  absl::StatusOr<v1::JobRecord*> job = EditUnfinished(draft, fact.job());
  if (!job.ok()) return job.status();
  v1::TimelineRecord* const timeline = draft.timelines.Edit(fact.job());
  absl::Status status = CheckRevised(fact, **job, *timeline, draft);
  if (!status.ok()) return status;
  Retire(static_cast<int>(fact.kept()), *timeline);
  if (!(*job)->has_attempt()) ArchiveRetired(fact.job(), kMaxCount, *timeline, draft);
  timeline->mutable_revisions()->MergeFrom(fact.revisions());
  status = CheckRoom(*timeline);
  if (!status.ok()) return status;
  const v1::RecipeRevision& first = fact.revisions(0);
  AddEvent({.kind = v1::JOB_EVENT_KIND_RECIPE,
            .text = absl::StrCat("revision ", first.number(), " accepted, to hold from step ",
                                 first.first_step(), first.reason().empty() ? "" : ": ",
                                 Clip(first.reason(), kMaxClause)),
            .attempt = (*job)->attempt().number(),
            .step = first.first_step(),
            .revision = first.number()},
           stamp, **job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::RevisionConfirmed& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditUnfinished(draft, fact.job());
  if (!job.ok()) return job.status();
  absl::Status status = CheckAttempt(**job, fact.attempt());
  if (!status.ok()) return status;
  status = CheckRange("first_step", fact.first_step(), 0, (*job)->shape().steps());
  if (!status.ok()) return status;
  v1::TimelineRecord* const timeline = draft.timelines.Edit(fact.job());
  const bool reinstated = Reinstate(fact.revision(), *timeline);
  RevisionMessages& revisions = *timeline->mutable_revisions();
  const auto revision = Find(revisions, fact.revision());
  if (revision == revisions.end()) {
    return absl::NotFoundError(
        absl::StrCat("revision: there is no ", fact.revision(), " of job ", fact.job()));
  }
  if (!revision->refused().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "revision: ", fact.revision(), " was refused and never held: ", revision->refused()));
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
  // Revisions before it that no rank has run never held: ranks tell what they run under before the
  // checkpoint of a later step. Those before a confirmed one, and the first, stay as they are;
  // those after it cannot hold earlier.
  auto moved = revision;
  while (moved - revisions.begin() > 1 && !(moved - 1)->confirmed()) --moved;
  for (; moved != revisions.end(); ++moved) {
    if (!moved->refused().empty()) continue;
    moved->set_first_step(std::max(moved->first_step(), fact.first_step()));
  }
  revision->set_confirmed(true);
  status = CheckTimelineRecord(*timeline);
  if (!status.ok()) return status;
  AddEvent(
      {.kind = v1::JOB_EVENT_KIND_RECIPE,
       .text = absl::StrCat(
           "revision ", fact.revision(), " in force from step ", revision->first_step(),
           asked == revision->first_step() ? "" : absl::StrCat(", asked for from step ", asked),
           reinstated ? ": ranks had switched before they heard that it made way" : ""),
       .attempt = fact.attempt(),
       .step = revision->first_step(),
       .revision = fact.revision()},
      stamp, **job, draft);
  return absl::OkStatus();
}

absl::Status Apply(const v1::RevisionRefused& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditUnfinished(draft, fact.job());
  if (!job.ok()) return job.status();
  absl::Status status = CheckAttempt(**job, fact.attempt());
  if (!status.ok()) return status;
  if (fact.reason().empty()) return absl::InvalidArgumentError("reason: is empty");
  v1::TimelineRecord* const timeline = draft.timelines.Edit(fact.job());
  RevisionMessages& revisions = *timeline->mutable_revisions();
  const auto revision = Find(revisions, fact.revision());
  if (revision == revisions.end()) {
    // It has been superseded already, and now never held.
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
        absl::StrCat("revision: ", fact.revision(), " is the first, which always holds"));
  }
  if (!revision->refused().empty()) return absl::OkStatus();
  revision->set_refused(fact.reason());
  // Steps that an earlier attempt made under it are made again, without it.
  revision->set_confirmed(false);
  int64_t stays = 0;      // what holds in its place
  int64_t confirmed = 0;  // what ranks have run last
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
           stamp, **job, draft);
  return absl::OkStatus();
}

void SettleTimeline(bool every_step_made, const v1::JobRecord& job, Draft& draft) {
  const v1::TimelineRecord& known = *draft.timelines.Find(job.id());
  const int64_t steps = job.shape().steps();
  int run = known.revisions_size();  // behind the last that ranks have run
  while (every_step_made && run > 1 && !known.revisions(run - 1).confirmed()) --run;
  bool unheard = false;
  for (int i = run; i < known.revisions_size(); ++i) {
    const v1::RecipeRevision& revision = known.revisions(i);
    unheard |= revision.refused().empty() && revision.first_step() < steps;
  }
  if (!unheard && known.retired().empty()) return;
  v1::TimelineRecord& timeline = *draft.timelines.Edit(job.id());
  ArchiveRetired(job.id(), kMaxCount, timeline, draft);
  for (int i = run; i < timeline.revisions_size(); ++i) {
    if (!timeline.revisions(i).refused().empty()) continue;
    timeline.mutable_revisions(i)->set_first_step(
        std::max(timeline.revisions(i).first_step(), steps));
  }
}

}  // namespace nibble::apply
