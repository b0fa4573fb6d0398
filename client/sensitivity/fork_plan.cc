#include "client/sensitivity/fork_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "recipe/cost.h"
#include "recipe/recipe_json.h"
#include "recipe/selector.h"
#include "recipe/timeline.h"

namespace nibble {
namespace {

bool IsQuantised(const LayerRecipe& layer) {
  return std::any_of(layer.operand.begin(), layer.operand.end(),
                     [](const OperandFormat& operand) { return operand.has_value(); });
}

// Keeps the quantised ones.
std::vector<int64_t> Quantised(const ResolvedRecipe& recipe, std::vector<int64_t> layers) {
  std::erase_if(layers, [&recipe](int64_t layer) {
    return !IsQuantised(recipe.layers[static_cast<size_t>(layer)]);
  });
  return layers;
}

absl::StatusOr<LayerGroup> GroupOf(const std::string& selector, const Outline& outline,
                                   const ResolvedRecipe& recipe) {
  NIBBLE_ASSIGN_OR_RETURN(const Selector parsed, Selector::Parse(selector));
  NIBBLE_ASSIGN_OR_RETURN(std::vector<int64_t> layers, parsed.Select(outline));
  return LayerGroup{.selector = selector, .layers = Quantised(recipe, std::move(layers))};
}

absl::StatusOr<std::vector<LayerGroup>> NotEmpty(std::vector<LayerGroup> groups) {
  std::erase_if(groups, [](const LayerGroup& group) { return group.layers.empty(); });
  if (groups.empty()) {
    return absl::FailedPreconditionError(
        "the job's recipe quantises no layer at that step, so there is nothing to promote");
  }
  return groups;
}

// "blocks 2-3" → "blocks-2-3": characters that names of jobs may have, at most `most`.
std::string Slug(const std::string& text, size_t most) {
  std::string slug;
  for (const char c : text) {
    const bool allowed = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_';
    if (allowed) {
      slug += c;
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
    if (slug.size() == most) break;
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  return slug.empty() ? "group" : slug;
}

std::string NameOf(const Experiment& experiment, const Arm& arm, int64_t repeat) {
  constexpr size_t kSlug = 22;  // names have at most 63 characters
  const std::string key = absl::StrCat(
      experiment.job, "\n", experiment.step, "\n", experiment.steps, "\n", repeat, "\n",
      experiment.keep ? 1 : 0, "\n", ToJson(experiment.recipe), "\n", ToJson(arm.change));
  return absl::StrFormat("%s%s.r%d.%016x", kForkPrefix, Slug(ArmName(arm), kSlug), repeat,
                         Fnv1a64(key));
}

std::vector<std::string> SettingsOf(const Experiment& experiment, int64_t repeat) {
  return {absl::StrCat("training.stop_at=", experiment.end_step()),
          absl::StrCat("training.repeat=", repeat), "training.validate_every=0",
          "checkpoints.every=0",
          absl::StrCat("checkpoints.at_end=", experiment.keep ? "true" : "false"),
          "metrics.log_every=1", "metrics.precision_every=0", "early_stop.patience=0",
          // A fork that no longer trains must end, not wait for someone, and no guard changes the
          // recipe that is compared.
          "guards.after_skips=fail", "guards.non_finite=skip", "guards.spike=observe",
          "guards.gradient_norm=observe", "notify=[]"};
}

}  // namespace

absl::StatusOr<std::vector<LayerGroup>> GroupsByBlock(const Outline& outline,
                                                      const ResolvedRecipe& recipe,
                                                      int64_t blocks_each) {
  std::vector<LayerGroup> groups;
  const int64_t blocks = outline.spec.blocks();
  for (int64_t first = 0; first < blocks; first += blocks_each) {
    const int64_t last = std::min(first + blocks_each, blocks) - 1;
    LayerGroup& group = groups.emplace_back();
    group.selector =
        first == last ? absl::StrCat("block ", first) : absl::StrCat("blocks ", first, "-", last);
    for (size_t i = 0; i < outline.linears.size(); ++i) {
      const int64_t block = outline.linears[i].block;
      if (first <= block && block <= last) group.layers.push_back(static_cast<int64_t>(i));
    }
    group.layers = Quantised(recipe, std::move(group.layers));
  }
  return NotEmpty(std::move(groups));
}

absl::StatusOr<std::vector<LayerGroup>> GroupsByKind(const Outline& outline,
                                                     const ResolvedRecipe& recipe) {
  std::vector<LayerGroup> groups;
  std::set<std::string> seen;
  for (const LinearInfo& linear : outline.linears) {
    if (!seen.insert(linear.kind).second) continue;
    NIBBLE_ASSIGN_OR_RETURN(LayerGroup group, GroupOf(linear.kind, outline, recipe));
    groups.push_back(std::move(group));
  }
  return NotEmpty(std::move(groups));
}

absl::StatusOr<std::vector<LayerGroup>> GroupsOf(const std::vector<std::string>& selectors,
                                                 const Outline& outline,
                                                 const ResolvedRecipe& recipe) {
  std::vector<LayerGroup> groups;
  std::set<std::string> seen;
  for (const std::string& text : selectors) {
    const std::string selector(absl::StripAsciiWhitespace(text));
    if (!seen.insert(selector).second) {
      return absl::InvalidArgumentError(absl::StrCat("groups: '", selector, "' appears twice"));
    }
    absl::StatusOr<LayerGroup> group = GroupOf(selector, outline, recipe);
    if (!group.ok()) {
      return absl::Status(group.status().code(),
                          absl::StrCat("groups: ", std::string(group.status().message())));
    }
    if (group->layers.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("groups: '", selector, "' selects only layers that are in bf16 already"));
    }
    groups.push_back(*std::move(group));
  }
  return groups;
}

Recipe PromotionTo16Bits(const std::string& selector) {
  return {.layers = {{.match = selector, .set = {{.field = "all", .value = "bf16"}}}}};
}

absl::StatusOr<std::vector<Arm>> MakeArms(const Recipe& recipe, const Outline& outline,
                                          int64_t sequence, std::vector<LayerGroup> groups) {
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe resolved, Resolve(recipe, outline, 0));
  std::vector<int64_t> all;
  for (size_t i = 0; i < outline.linears.size(); ++i) all.push_back(static_cast<int64_t>(i));
  std::vector<Arm> arms;
  arms.push_back({.kind = ArmKind::kControl, .group = {}, .change = {}});
  arms.push_back({.kind = ArmKind::kBound,
                  .group = {.selector = "*", .layers = Quantised(resolved, std::move(all))},
                  .change = PromotionTo16Bits("*")});
  for (LayerGroup& group : groups) {
    Recipe change = PromotionTo16Bits(group.selector);
    arms.push_back(
        {.kind = ArmKind::kGroup, .group = std::move(group), .change = std::move(change)});
  }
  for (Arm& arm : arms) {
    const Recipe changed = arm.kind == ArmKind::kControl ? recipe : ApplyOver(recipe, arm.change);
    NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe promoted, Resolve(changed, outline, 0));
    NIBBLE_ASSIGN_OR_RETURN(const GemmCost cost, CostOf(promoted, outline, sequence));
    arm.gemm_time = cost.total();
  }
  return arms;
}

std::vector<PlannedFork> PlanForks(const Experiment& experiment) {
  std::vector<PlannedFork> forks;
  for (int64_t repeat = 1; repeat <= experiment.repeats; ++repeat) {
    for (size_t i = 0; i < experiment.arms.size(); ++i) {
      const Arm& arm = experiment.arms[i];
      std::string what = absl::StrCat("'", arm.group.selector, "' in bf16");
      if (arm.kind == ArmKind::kControl) what = "the recipe unchanged";
      if (arm.kind == ArmKind::kBound) what = "every layer in bf16";
      forks.push_back(
          {.arm = i,
           .repeat = repeat,
           .name = NameOf(experiment, arm, repeat),
           .reason = absl::StrCat("sensitivity of ", experiment.job, ": ", what, " for ",
                                  Counted(experiment.steps, "step"), ", repeat ", repeat),
           .settings = SettingsOf(experiment, repeat)});
    }
  }
  return forks;
}

std::string ArmName(const Arm& arm) {
  switch (arm.kind) {
    case ArmKind::kControl:
      return "control";
    case ArmKind::kBound:
      return "bf16";
    case ArmKind::kGroup:
      break;
  }
  return arm.group.selector;
}

}  // namespace nibble
