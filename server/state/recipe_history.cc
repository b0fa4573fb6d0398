#include "server/state/recipe_history.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "server/state/keys.h"

namespace nibble {

absl::StatusOr<const v1::RecipeRevision*> FindRevision(const State& state, absl::string_view job,
                                                       absl::string_view field, int64_t number) {
  const v1::TimelineRecord& timeline = *state.FindTimeline(job);
  for (const v1::RecipeRevision& revision : timeline.revisions()) {
    if (revision.number() == number) return &revision;
  }
  if (number > 0) {
    const v1::RecipeRevision* const archived =
        FindIn(state.tables().archive, RevisionKey(job, number));
    if (archived != nullptr) return archived;
  }
  return absl::NotFoundError(absl::StrCat(field, ": there is no ", number, "; the latest is ",
                                          timeline.revisions().rbegin()->number()));
}

std::vector<const v1::RecipeRevision*> AllRevisions(const State& state, absl::string_view job) {
  const std::vector<const v1::RecipeRevision*> archive = state.ArchiveOf(job);
  std::vector<const v1::RecipeRevision*> timeline;
  for (const v1::RecipeRevision& revision : state.FindTimeline(job)->revisions()) {
    timeline.push_back(&revision);
  }
  std::vector<const v1::RecipeRevision*> all;
  std::merge(archive.begin(), archive.end(), timeline.begin(), timeline.end(),
             std::back_inserter(all),
             [](const auto* a, const auto* b) { return a->number() < b->number(); });
  return all;
}

RevisionMessages WholeTimeline(const State& state, absl::string_view job) {
  const v1::TimelineRecord& timeline = *state.FindTimeline(job);
  if (timeline.archived() == 0) return timeline.revisions();
  RevisionMessages whole;
  for (const v1::RecipeRevision* revision : state.ArchiveOf(job)) {
    const bool before = revision->number() < timeline.revisions(0).number();
    if (before && revision->confirmed()) *whole.Add() = *revision;
  }
  whole.MergeFrom(timeline.revisions());
  whole[0].set_first_step(0);
  return whole;
}

}  // namespace nibble
