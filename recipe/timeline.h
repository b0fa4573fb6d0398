// The recipe of a job over time: revisions, each with the step from which it is in effect, and
// promotions, by which guards keep layers in BF16 for some steps. Stored with the job and in every
// checkpoint; training that restarts before a switch repeats the switch at the same step.
//
// Thread-safety: values and pure functions; no clock (the caller passes times).
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

// When a change takes effect: "step:1200", "tokens:5000000", "fraction:0.82" (or "82%"),
// "lr-decay", "now".
struct EffectiveAt {
  enum class Kind : uint8_t { kStep, kTokens, kFraction, kLrDecay, kNow };
  Kind kind = Kind::kStep;
  int64_t count = 0;    // for kStep and kTokens
  double fraction = 0;  // for kFraction
  friend bool operator==(const EffectiveAt&, const EffectiveAt&) = default;
};
absl::StatusOr<EffectiveAt> ParseEffectiveAt(std::string_view text);
std::string ToString(const EffectiveAt& at);

// The facts that convert a time into a step. Steps count from 0: step s is the (s+1)-th update.
struct ScheduleFacts {
  int64_t steps = 0;  // of the whole run
  int64_t tokens_per_step = 0;
  int64_t decay_first_step = 0;  // first step of the learning rate decay; == steps: no decay
  int64_t next_step = 0;         // for kNow
};
// The first step that runs under the change. InvalidArgument naming the value and the bound for a
// step outside [0, steps], a fraction outside [0, 1], or lr-decay without a decay.
absl::StatusOr<int64_t> ResolveStep(const EffectiveAt& at, const ScheduleFacts& facts);

struct Revision {
  int64_t number = 1;      // 1, 2, …
  int64_t first_step = 0;  // in effect from here until the next revision's first step
  std::string author;
  int64_t time_unix_ms = 0;
  std::string reason;
  Recipe recipe;        // complete, so that a revision can be read on its own
  std::string refused;  // why ranks could not prepare it: never in effect; empty: not refused
  double lr_scale = 1;  // factor on the learning rate of the spec, in (0, 1]
  friend bool operator==(const Revision&, const Revision&) = default;
};

// A guard's change for some steps: every GEMM of these layers is BF16, on top of the revision in
// effect. Ranks make it from figures that are functions of the data (decision 0028), so only they
// and their checkpoints have promotions: in the coordinator's timelines there are none.
struct Promotion {
  int64_t first_step = 0;
  int64_t end_step = 0;  // the first step after it
  std::string layers;    // a selector
  std::string guard;     // that decided it
  friend bool operator==(const Promotion&, const Promotion&) = default;
};

// The recipe without the settings that a later one for the same layers, or for all layers,
// overrides: it resolves to the same table, with each field set once for the same layers.
Recipe Normalised(const Recipe& recipe);

// The field of a change that replaces the preset and keeps the fields and rules set over it.
inline constexpr char kPresetField[] = "preset";

// `change` on top of `base`, normalised: its fields and rules are appended, so that they override.
// If the base has layer rules, the change's fields become a rule for "*", because plain fields
// apply before all rules. The preset stays the base's unless the change sets kPresetField:
// `change.preset` is ignored.
Recipe ApplyOver(const Recipe& base, const Recipe& change);

// Invariants: numbers grow in order of acceptance, and first_step never decreases with the number.
// The first revision is in effect from step 0. A revision that has begun is never changed; if an
// earlier step changes, pending revisions are superseded by rebased ones under new numbers, and
// their old numbers are not reused. A refused revision stays in its place and is in effect at no
// step: training through the timeline again skips it again.
class Timeline {
 public:
  // Without revisions: number 0, bf16 throughout.
  Timeline() = default;
  explicit Timeline(Recipe initial);
  // InvalidArgument naming the revision that breaks an invariant, or the promotion that has no
  // layers or no steps.
  static absl::StatusOr<Timeline> FromRevisions(std::vector<Revision> revisions,
                                                std::vector<Promotion> promotions = {});

  const std::vector<Revision>& revisions() const { return revisions_; }
  int64_t latest() const { return revisions_.empty() ? 0 : revisions_.back().number; }
  // The revision in effect at a step (>= 0): the last accepted one that has begun.
  const Revision& At(int64_t step) const;
  // The next step after `step` at which another revision takes effect, or -1.
  int64_t NextSwitchAfter(int64_t step) const;

  // Adds a revision whose recipe is the one in effect at `first_step` with `change` on top
  // (ApplyOver), and whose factor on the learning rate stays. Later pending revisions are rebased:
  // the change is applied to them too, and they follow under new numbers with their own author,
  // time and reason. Returns the number of the revision at `first_step`; latest() is higher if
  // others were rebased. FailedPrecondition if `expected_revision` (>= 0; negative: not checked) is
  // not latest(), naming both, or if there is no recipe to change; InvalidArgument for first_step <
  // `next_step` (history is not rewritten) and for a change that sets nothing.
  absl::StatusOr<int64_t> Append(int64_t expected_revision, const Recipe& change,
                                 int64_t first_step, int64_t next_step, std::string author,
                                 int64_t time_unix_ms, std::string reason);

  // Adds a revision with the recipe in effect at `first_step`, for another factor on the learning
  // rate: ScaleLearningRate() is to follow. Later pending revisions and errors as Append.
  absl::StatusOr<int64_t> Repeat(int64_t first_step, int64_t next_step, std::string author,
                                 int64_t time_unix_ms, std::string reason);

  // Sets the factor on the learning rate of revision `number` and of all later ones.
  // InvalidArgument if it is not in (0, 1], NotFound if there is no such revision. Only for
  // revisions that Append() or Repeat() has just returned: those that ranks have run are never
  // changed.
  absl::Status ScaleLearningRate(int64_t number, double lr_scale);

  // Records that ranks could not prepare revision `number`, with the reason: the one before it
  // stays in effect. A revision that is already refused keeps its reason. NotFound if there is no
  // such revision, InvalidArgument for the first one and for an empty reason.
  absl::Status Refuse(int64_t number, std::string reason);

  // Adds a revision with the same recipe and factor on the learning rate as revision `number`, and
  // withdraws pending revisions after `first_step`. Errors as Append; NotFound if there is no such
  // revision, FailedPrecondition if it was refused.
  absl::StatusOr<int64_t> Restore(int64_t expected_revision, int64_t number, int64_t first_step,
                                  int64_t next_step, std::string author, int64_t time_unix_ms,
                                  std::string reason);
  // Restore with this recipe and factor, of a revision that is no longer in the timeline.
  absl::StatusOr<int64_t> RestoreRecipe(int64_t expected_revision, Recipe recipe, double lr_scale,
                                        int64_t first_step, int64_t next_step, std::string author,
                                        int64_t time_unix_ms, std::string reason);

  const std::vector<Promotion>& promotions() const { return promotions_; }
  // Adds a promotion; one of the same layers that has not ended before it lasts until the later
  // end. Promotions that ended before its first step are forgotten. A guard's program calls it with
  // growing first steps and a valid promotion.
  void Promote(Promotion promotion);
  // Removes the promotions that begin at this step. Returns their layers.
  std::vector<std::string> WithdrawPromotions(int64_t first_step);
  // The layers promoted at a step, in the order in which the promotions began.
  std::vector<std::string> PromotedAt(int64_t step) const;
  // At(step).recipe with the promotions on top.
  Recipe RecipeAt(int64_t step) const;

  friend bool operator==(const Timeline&, const Timeline&) = default;

 private:
  std::vector<Revision>::iterator Find(int64_t number);
  absl::Status CheckTurn(int64_t expected_revision, int64_t first_step, int64_t next_step) const;
  int64_t Insert(const Recipe& change, int64_t first_step, std::string author, int64_t time_unix_ms,
                 std::string reason);
  // Removes the revisions that begin after `step`.
  std::vector<Revision> TakePendingAfter(int64_t step);

  std::vector<Revision> revisions_;
  std::vector<Promotion> promotions_;
};

}  // namespace nibble

#endif  // NIBBLE_RECIPE_TIMELINE_H_
