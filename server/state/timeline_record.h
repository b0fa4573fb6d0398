// Conversion of recipes and timelines between the values of recipe/ and the messages that are
// stored and sent, and the history of a job's recipe, including archived revisions.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_TIMELINE_RECORD_H_
#define NIBBLE_SERVER_STATE_TIMELINE_RECORD_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/repeated_field.h"
#include "job/job_spec.h"
#include "proto/nibble/v1/entities.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "recipe/recipe.h"
#include "recipe/timeline.h"

namespace nibble {

class State;

using RevisionMessages = google::protobuf::RepeatedPtrField<v1::RecipeRevision>;

Recipe FromMessage(const v1::Recipe& message);
// The result has no preset.
Recipe FromMessage(const v1::RecipeChange& message);
Revision FromMessage(const v1::RecipeRevision& message);
v1::Recipe ToMessage(const Recipe& recipe);
// The message is not confirmed.
v1::RecipeRevision ToMessage(const Revision& revision);

// Errors as Timeline::FromRevisions.
absl::StatusOr<Timeline> ToTimeline(const RevisionMessages& revisions);
// The timeline that ranks receive: it reaches back to where they may begin, so its first revision
// is in effect from step 0.
RevisionMessages ForRanks(const v1::TimelineRecord& record);
absl::StatusOr<Timeline> ToTimeline(const v1::TimelineRecord& record);
RevisionMessages ToMessages(const Timeline& timeline);

// InvalidArgument if the revisions make no valid timeline, ResourceExhausted if they exceed a
// limit.
absl::Status CheckRevisions(const RevisionMessages& revisions);
absl::Status CheckTimelineRecord(const v1::TimelineRecord& record);

// The numbers of the revisions that can be archived: those that no rank runs from the step `needed`
// on. While ranks live, only revisions that they confirmed count as run.
std::vector<int64_t> Archivable(const v1::TimelineRecord& record, int64_t needed, bool ranks_live);

// The number of leading revisions that two timelines of one job share. Revision numbers are never
// reused, so equal numbers are equal revisions.
int CommonRevisions(const RevisionMessages& before, const Timeline& after);

// Checks that the recipes of a timeline fit the model of their job in each of the world sizes;
// skips revisions up to number `known`. InvalidArgument names the revision and the world size,
// followed by the message of CheckRecipe (job/recipe_check.h).
absl::Status CheckTimeline(const Timeline& timeline, int64_t known, JobSpec spec,
                           absl::Span<const int32_t> worlds);

// The revision with this number, in the timeline or the archive. NotFound names `field`, the number
// and the latest one. The job must exist.
absl::StatusOr<const v1::RecipeRevision*> FindRevision(const State& state, absl::string_view job,
                                                       absl::string_view field, int64_t number);

// Every revision that was ever accepted, by number, including those that were never run.
std::vector<const v1::RecipeRevision*> AllRevisions(const State& state, absl::string_view job);

// The archived revisions, by number, that ranks which begin at the step `needed` run before those
// of the timeline; none if it reaches back to that step. `archive`: the job's, by number.
std::vector<const v1::RecipeRevision*> Returning(
    const v1::TimelineRecord& record, absl::Span<const v1::RecipeRevision* const> archive,
    int64_t needed);
// The timeline with its returning revisions.
v1::TimelineRecord CoveredFrom(const State& state, absl::string_view job, int64_t needed);

// The recipe of the job from its first step on: revisions that its ranks reported to have run, and
// scheduled ones.
RevisionMessages WholeTimeline(const State& state, absl::string_view job);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_TIMELINE_RECORD_H_
