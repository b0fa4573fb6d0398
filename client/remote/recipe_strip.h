// The recipe timeline of a job as one line under a plot, to the scale of its x axis: a segment per
// revision, with its name, drawn the denser the more bits its GEMMs have.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_RECIPE_STRIP_H_
#define NIBBLE_CLIENT_REMOTE_RECIPE_STRIP_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/remote/curve_plot.h"
#include "client/remote/styled_text.h"
#include "model/outline.h"
#include "proto/nibble/v1/recipe.pb.h"

namespace nibble {

// Bits of the elements of each GEMM of linear layers: of its wider operand, in most layers, by
// weights. 0: unknown.
struct GemmBits {
  int fprop = 0;
  int dgrad = 0;
  int wgrad = 0;
  friend bool operator==(const GemmBits&, const GemmBits&) = default;
};

// All 0 if the recipe does not resolve against this model.
GemmBits BitsOf(const v1::Recipe& recipe, const Outline& outline);
// "4 bits", or "fprop 16, dgrad 4, wgrad 4 bits"; empty if they are unknown.
std::string BitsText(const GemmBits& bits);

// The revisions that take effect, by first step: without refused ones and those superseded before
// their first step.
std::vector<v1::RecipeRevision> EffectiveRevisions(const std::vector<v1::RecipeRevision>& all);

// What the second recipe changes: "fprop=bf16"; all of it if the preset differs or nothing was
// added.
std::string RecipeChangeText(const v1::Recipe& before, const v1::Recipe& after);

// `bits`: by number of the revision. `x_per_step`: units of the x axis. The line begins with
// "timeline" in the margin.
StyledLine RecipeStrip(const std::vector<v1::RecipeRevision>& effective,
                       const std::map<int64_t, GemmBits>& bits, const PlotArea& area,
                       double x_per_step);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_RECIPE_STRIP_H_
