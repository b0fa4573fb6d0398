#include "job/recipe_check.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "job/schedule.h"
#include "model/outline.h"
#include "recipe/selector.h"

namespace nibble {
namespace {

// The author of revisions that come with the spec.
constexpr char kAuthor[] = "spec";

struct TimedChange {
  size_t index;  // in JobSpec::changes
  int64_t step;
};

std::string ChangePath(size_t index) { return absl::StrCat("changes[", index, "]"); }

// Changes in the order of their steps. Adds a problem for each whose step is unknown.
std::vector<TimedChange> InOrder(const JobSpec& spec, Problems& problems) {
  const ScheduleFacts facts = MakeScheduleFacts(spec);
  std::vector<TimedChange> timed;
  for (size_t i = 0; i < spec.changes.size(); ++i) {
    const absl::StatusOr<int64_t> step = ResolveStep(spec.changes[i].at, facts);
    if (step.ok()) {
      timed.push_back({i, *step});
    } else {
      problems.Add(absl::StrCat(ChangePath(i), ".at"), step.status());
    }
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const TimedChange& a, const TimedChange& b) { return a.step < b.step; });
  return timed;
}

absl::Status AppendChange(const PlannedChange& change, int64_t step, Timeline& timeline) {
  return timeline
      .Append(timeline.latest(), Recipe{.set = change.set, .layers = change.layers}, step, 0,
              kAuthor, 0, change.reason)
      .status();
}

void CheckRules(const std::vector<LayerRule>& rules, const std::string& path,
                const Outline& outline, Problems& problems) {
  for (size_t i = 0; i < rules.size(); ++i) {
    const std::string match = absl::StrCat(path, "[", i, "].match");
    if (!problems.Sound(match)) continue;
    const absl::StatusOr<Selector> selector = Selector::Parse(rules[i].match);
    if (!selector.ok()) continue;  // reported for the field
    const absl::StatusOr<std::vector<int64_t>> layers = selector->Select(outline);
    if (!layers.ok()) problems.Add(match, layers.status());
  }
}

// The first layer with a quantised operand, which fp32 does not allow.
std::optional<std::string> FirstQuantised(const Outline& outline, const ResolvedRecipe& recipe) {
  for (size_t i = 0; i < recipe.layers.size(); ++i) {
    for (const OperandFormat& operand : recipe.layers[i].operand) {
      if (operand) return outline.linears[i].name;
    }
  }
  return std::nullopt;
}

class RecipeCheck {
 public:
  RecipeCheck(const JobSpec& spec, const Outline& outline, Problems& problems)
      : spec_(spec), outline_(outline), problems_(problems) {}

  // Returns whether the recipe resolves.
  bool Check(const std::string& path, const Recipe& recipe) {
    const absl::StatusOr<ResolvedRecipe> resolved =
        Resolve(recipe, outline_, MicroBatch(spec_) * spec_.data.sequence);
    if (!resolved.ok()) {
      problems_.Add(path, resolved.status());
      return false;
    }
    const std::optional<std::string> layer = FirstQuantised(outline_, *resolved);
    if (spec_.training.precision == JobPrecision::kFp32 && layer && problems_.Sound(kPrecision)) {
      problems_.Add(kPrecision, absl::StrCat("fp32 allows no quantised layer, but ", path,
                                             " quantises ", *layer, "; use recipe: bf16"));
    }
    return true;
  }

 private:
  static constexpr char kPrecision[] = "training.precision";

  const JobSpec& spec_;
  const Outline& outline_;
  Problems& problems_;
};

}  // namespace

ScheduleFacts MakeScheduleFacts(const JobSpec& spec) {
  return {.steps = spec.training.steps,
          .tokens_per_step = TokensPerStep(spec),
          .decay_first_step = DecayFirstStep(spec.optimizer, spec.training.steps),
          .next_step = 0};
}

Timeline MakeTimeline(const JobSpec& spec) {
  Problems problems;
  Timeline timeline(spec.recipe);
  for (const TimedChange& timed : InOrder(spec, problems)) {
    const absl::Status status = AppendChange(spec.changes[timed.index], timed.step, timeline);
    if (!status.ok()) problems.Add(ChangePath(timed.index), status);
  }
  if (!problems.empty()) {
    // Running under another recipe than requested would be worse than aborting.
    absl::FPrintF(stderr, "MakeTimeline: the spec is not valid: %s\n",
                  std::string(problems.ToStatus().message()));
    std::abort();
  }
  return timeline;
}

absl::Status CheckRecipe(const Recipe& recipe, const Outline& outline, const JobSpec& spec) {
  for (const LayerRule& rule : recipe.layers) {
    NIBBLE_ASSIGN_OR_RETURN(const Selector selector, Selector::Parse(rule.match));
    NIBBLE_RETURN_IF_ERROR(selector.Select(outline).status());
  }
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe resolved,
                          Resolve(recipe, outline, MicroBatch(spec) * spec.data.sequence));
  const std::optional<std::string> layer = FirstQuantised(outline, resolved);
  if (spec.training.precision != JobPrecision::kFp32 || !layer) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("training.precision is fp32, which allows no quantised layer, but ", *layer,
                   " would be quantised"));
}

void CheckRecipe(const JobSpec& spec, Problems& problems) {
  if (!problems.Sound("model")) return;
  const absl::StatusOr<Outline> outline = MakeOutline(spec.model);
  if (!outline.ok()) {
    problems.Add("model", outline.status());
    return;
  }
  CheckRules(spec.recipe.layers, "recipe.layers", *outline, problems);
  for (size_t i = 0; i < spec.changes.size(); ++i) {
    const PlannedChange& change = spec.changes[i];
    if (change.set.empty() && change.layers.empty() && problems.Sound(ChangePath(i))) {
      problems.Add(ChangePath(i), "changes nothing: neither set nor layers has a field");
    }
    CheckRules(change.layers, absl::StrCat(ChangePath(i), ".layers"), *outline, problems);
  }
  if (constexpr char kPath[] = "guards.promote_layers"; problems.Sound(kPath)) {
    const absl::StatusOr<Selector> selector = Selector::Parse(PromotedLayers(spec.guards));
    absl::Status found = selector.status();
    if (selector.ok()) found = selector->Select(*outline).status();
    if (!found.ok()) problems.Add(kPath, found);
  }
  for (const char* path : {"recipe", "training", "resources.ranks", "data.sequence"}) {
    if (!problems.Sound(path)) return;
  }
  RecipeCheck check(spec, *outline, problems);
  if (!check.Check("recipe", spec.recipe) || !problems.Sound("changes") ||
      !problems.Sound("optimizer")) {
    return;
  }
  Timeline timeline(spec.recipe);
  for (const TimedChange& timed : InOrder(spec, problems)) {
    const absl::Status status = AppendChange(spec.changes[timed.index], timed.step, timeline);
    if (!status.ok()) {
      problems.Add(ChangePath(timed.index), status);
      return;
    }
    if (!check.Check(ChangePath(timed.index), timeline.revisions().back().recipe)) return;
  }
}

}  // namespace nibble
