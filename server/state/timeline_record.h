// Recipes and timelines between their two forms: the values of recipe/ and the messages that are
// stored and sent.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_TIMELINE_RECORD_H_
#define NIBBLE_SERVER_STATE_TIMELINE_RECORD_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "google/protobuf/repeated_field.h"
#include "job/job_spec.h"
#include "proto/nibble/v1/entities.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "recipe/recipe.h"
#include "recipe/timeline.h"

namespace nibble {

using RevisionMessages = google::protobuf::RepeatedPtrField<v1::RecipeRevision>;

Recipe FromMessage(const v1::Recipe& message);
// A change has no preset.
Recipe FromMessage(const v1::RecipeChange& message);
Revision FromMessage(const v1::RecipeRevision& message);
v1::Recipe ToMessage(const Recipe& recipe);
// Not confirmed.
v1::RecipeRevision ToMessage(const Revision& revision);

// Errors as Timeline::FromRevisions.
absl::StatusOr<Timeline> ToTimeline(const RevisionMessages& revisions);
// As ranks get it: of one that reaches back to where they may begin, the first revision holds from
// step 0.
RevisionMessages ForRanks(const v1::TimelineRecord& record);
absl::StatusOr<Timeline> ToTimeline(const v1::TimelineRecord& record);
RevisionMessages ToMessages(const Timeline& timeline);

// InvalidArgument where the revisions make no timeline, or too large a one (ResourceExhausted).
absl::Status CheckRevisions(const RevisionMessages& revisions);
absl::Status CheckTimelineRecord(const v1::TimelineRecord& record);

// The revisions that can go to the archive, by number: those that no rank runs from the step
// `needed` on. Of ranks that live only what they have said to have run is known to hold.
std::vector<int64_t> Outlived(const v1::TimelineRecord& record, int64_t needed, bool ranks_live);

// Of two timelines of one job: revisions that the second has from the first, from the start.
// Numbers are never used again, so that equal numbers are equal revisions.
int CommonRevisions(const RevisionMessages& before, const Timeline& after);

// Whether the recipes of a timeline fit the model of their job in each of the world sizes, those of
// revisions up to number `known` taken for granted. InvalidArgument naming the revision and the
// world size, then as CheckRecipe (job/recipe_check.h).
absl::Status CheckTimeline(const Timeline& timeline, int64_t known, JobSpec spec,
                           absl::Span<const int32_t> worlds);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_TIMELINE_RECORD_H_
