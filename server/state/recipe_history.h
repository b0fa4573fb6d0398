// The revisions of a job's recipe, those in the archive included.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_RECIPE_HISTORY_H_
#define NIBBLE_SERVER_STATE_RECIPE_HISTORY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/state/state.h"
#include "server/state/timeline_record.h"

namespace nibble {

// The revision with this number, whichever there ever was. NotFound naming `field`, the number and
// the latest; the job exists.
absl::StatusOr<const v1::RecipeRevision*> FindRevision(const State& state, absl::string_view job,
                                                       absl::string_view field, int64_t number);

// Every revision that there ever was, by number; those that never held, too.
std::vector<const v1::RecipeRevision*> AllRevisions(const State& state, absl::string_view job);

// The recipe of the job from its first step on: what its ranks have run, as far as they have
// reported it, and what is to hold.
RevisionMessages WholeTimeline(const State& state, absl::string_view job);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_RECIPE_HISTORY_H_
