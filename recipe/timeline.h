// The recipe of a job over time: revisions, each with the step from which it holds. Stored with the
// job and in every checkpoint; training from before a switch replays the switch at its step.
//
// Thread-safety: values and pure functions; no clock (times are given).
#ifndef NIBBLE_RECIPE_TIMELINE_H_
#define NIBBLE_RECIPE_TIMELINE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "recipe/recipe.h"

namespace nibble {

// When a change takes force: "step:1200", "tokens:5000000", "fraction:0.82" (or "82%"),
// "lr-decay", "now".
struct EffectiveAt {
  enum class Kind : uint8_t { kStep, kTokens, kFraction, kLrDecay, kNow };
  Kind kind = Kind::kStep;
  int64_t count = 0;    // of kStep and kTokens
  double fraction = 0;  // of kFraction
  friend bool operator==(const EffectiveAt&, const EffectiveAt&) = default;
};
absl::StatusOr<EffectiveAt> ParseEffectiveAt(std::string_view text);
std::string ToString(const EffectiveAt& at);

// What turns a time into a step. Steps count from 0: step s is the (s+1)-th update.
struct ScheduleFacts {
  int64_t steps = 0;  // of the whole run
  int64_t tokens_per_step = 0;
  int64_t decay_first_step = 0;  // first step of the learning-rate decay; == steps: never decays
  int64_t next_step = 0;         // of kNow
};
// The first step that runs under the change. InvalidArgument naming the value and the bound for a
// step outside [0, steps], a fraction outside [0, 1], or lr-decay without a decay.
absl::StatusOr<int64_t> ResolveStep(const EffectiveAt& at, const ScheduleFacts& facts);

struct Revision {
  int64_t number = 1;      // 1, 2, …
  int64_t first_step = 0;  // holds from here until the next revision's
  std::string author;
  int64_t time_unix_ms = 0;
  std::string reason;
  Recipe recipe;        // whole, so that a revision can be read alone
  std::string refused;  // why ranks could not take it: it never holds; empty: not refused
  friend bool operator==(const Revision&, const Revision&) = default;
};

// The recipe without the settings that a later one for the same layers, or for all of them, takes
// the place of: it resolves alike, and a field is set once for the same layers.
Recipe Normalised(const Recipe& recipe);

// `change` over `base`, normalised: its fields and rules appended, so that they have the last word.
// Where the base has layer rules, the change's fields become a rule for "*", because a plain field
// speaks before every rule. The preset stays the base's: a change has none (`change.preset` is not
// read).
Recipe ApplyOver(const Recipe& base, const Recipe& change);

// Invariants: numbers grow in order of acceptance, and first_step never decreases with the number.
// The first revision holds from step 0. What has begun is never rewritten; a revision that is
// pending when an earlier step is changed makes way for its rebased self under a new number, and
// its old number is not used again. A revision that was refused stays in its place and holds at no
// step: whoever trains through the timeline again passes it by again.
class Timeline {
 public:
  // No revisions: number 0, bf16 throughout.
  Timeline() = default;
  explicit Timeline(Recipe initial);
  // InvalidArgument naming the revision that breaks an invariant.
  static absl::StatusOr<Timeline> FromRevisions(std::vector<Revision> revisions);

  const std::vector<Revision>& revisions() const { return revisions_; }
  int64_t latest() const { return revisions_.empty() ? 0 : revisions_.back().number; }
  // The revision in force at a step (>= 0): the last accepted of those that have begun.
  const Revision& At(int64_t step) const;
  // The next step after `step` at which another revision takes force, or -1.
  int64_t NextSwitchAfter(int64_t step) const;

  // Adds a revision whose recipe is the one in force at `first_step` with `change` applied over it
  // (ApplyOver). Later pending revisions are rebased: the change is applied to them too, and they
  // follow under new numbers with their own author, time and reason. Returns the number of the
  // revision at `first_step`; latest() is larger where others were rebased. FailedPrecondition
  // where `expected_revision` (>= 0; less: not checked) is not latest(), naming both, or where
  // there is no recipe to change; InvalidArgument for first_step < `next_step` (history is not
  // rewritten) and for a change that sets nothing.
  absl::StatusOr<int64_t> Append(int64_t expected_revision, const Recipe& change,
                                 int64_t first_step, int64_t next_step, std::string author,
                                 int64_t time_unix_ms, std::string reason);

  // Ranks could not take revision `number`, for this reason: the one before it continues to hold.
  // One that was refused already keeps its reason. NotFound where there is no such revision,
  // InvalidArgument for the first one and for no reason.
  absl::Status Refuse(int64_t number, std::string reason);

  // Adds a revision with the very recipe of revision `number`, and takes back what is pending after
  // `first_step`. Errors as Append; NotFound where there is no such revision, FailedPrecondition
  // where it was refused.
  absl::StatusOr<int64_t> Restore(int64_t expected_revision, int64_t number, int64_t first_step,
                                  int64_t next_step, std::string author, int64_t time_unix_ms,
                                  std::string reason);
  // Restore with this recipe, of a revision that is not in the timeline any more.
  absl::StatusOr<int64_t> RestoreRecipe(int64_t expected_revision, Recipe recipe,
                                        int64_t first_step, int64_t next_step, std::string author,
                                        int64_t time_unix_ms, std::string reason);

  friend bool operator==(const Timeline&, const Timeline&) = default;

 private:
  std::vector<Revision>::iterator Find(int64_t number);
  absl::Status CheckTurn(int64_t expected_revision, int64_t first_step, int64_t next_step) const;
  // Takes out the revisions that begin after `step`.
  std::vector<Revision> TakePendingAfter(int64_t step);

  std::vector<Revision> revisions_;
};

}  // namespace nibble

#endif  // NIBBLE_RECIPE_TIMELINE_H_
