// The experiment behind `nibble job sensitivity`, on paper: which layers are promoted to BF16
// together, and the forks that measure what each promotion is worth.
//
// Every arm of the experiment runs once per repeat. The control has the job's recipe unchanged, the
// bound has every layer in BF16, and each group's arm has this group in BF16. Forks of one repeat
// see the same samples in the same order and draw the same random numbers for stochastic rounding
// (training.repeat of the spec), so that their losses can be compared in pairs.
//
// A fork's name depends on everything that determines its losses. A command that runs again
// therefore finds the forks that an earlier one has left.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_SENSITIVITY_FORK_PLAN_H_
#define NIBBLE_CLIENT_SENSITIVITY_FORK_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/outline.h"
#include "recipe/recipe.h"

namespace nibble {

// ---- Groups of layers --------------------------------------------------------------------------

// Layers that are promoted together.
struct LayerGroup {
  std::string selector;         // as in recipe/selector.h
  std::vector<int64_t> layers;  // the quantised ones among them, indices in Outline::linears
};

// A group for every `blocks_each` neighbouring blocks, or for every kind of linear layer, that have
// a quantised layer. FailedPrecondition if the recipe quantises nothing.
absl::StatusOr<std::vector<LayerGroup>> GroupsByBlock(const Outline& outline,
                                                      const ResolvedRecipe& recipe,
                                                      int64_t blocks_each);
absl::StatusOr<std::vector<LayerGroup>> GroupsByKind(const Outline& outline,
                                                     const ResolvedRecipe& recipe);
// A group for each selector. InvalidArgument names a selector that is malformed, appears twice, or
// selects no quantised layer.
absl::StatusOr<std::vector<LayerGroup>> GroupsOf(const std::vector<std::string>& selectors,
                                                 const Outline& outline,
                                                 const ResolvedRecipe& recipe);

// The change that promotes the layers of a selector.
Recipe PromotionTo16Bits(const std::string& selector);

// ---- Arms and forks ----------------------------------------------------------------------------

enum class ArmKind : uint8_t { kControl, kBound, kGroup };

struct Arm {
  ArmKind kind = ArmKind::kGroup;
  LayerGroup group;      // empty for the control; all quantised layers for the bound
  Recipe change;         // of the job's recipe; without settings for the control
  double gemm_time = 0;  // theoretical, relative to 16 bit (recipe/cost.h)
};

struct Experiment {
  std::string job;        // id of the parent
  int64_t step = 0;       // of the checkpoint
  int64_t steps = 0;      // that each fork runs
  int64_t repeats = 0;    // of each arm
  bool keep = false;      // forks write a checkpoint at their end
  Recipe recipe;          // of the job at `step`
  std::vector<Arm> arms;  // control, bound, groups

  int64_t end_step() const { return step + steps; }
  // The steps whose losses are compared are [first_compared(), end_step()), the second half of the
  // fork: the first ones still depend on the weights that the unchanged recipe has trained.
  int64_t first_compared() const { return step + steps / 2; }
};

// The experiment's arms with their cost. Errors of Resolve() and CostOf().
absl::StatusOr<std::vector<Arm>> MakeArms(const Recipe& recipe, const Outline& outline,
                                          int64_t sequence, std::vector<LayerGroup> groups);

struct PlannedFork {
  size_t arm = 0;                     // index in Experiment::arms
  int64_t repeat = 0;                 // from 1
  std::string name;                   // of the job
  std::string reason;                 // for the job's events
  std::vector<std::string> settings;  // ForkJobRequest.settings
};

// All forks, repeat by repeat, so that an interrupted experiment has complete repeats.
std::vector<PlannedFork> PlanForks(const Experiment& experiment);

// Forks of every experiment have names that begin with this.
inline constexpr char kForkPrefix[] = "sensitivity.";

// "control", "bf16" or the group's selector.
std::string ArmName(const Arm& arm);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SENSITIVITY_FORK_PLAN_H_
