#include "model/block_outline.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {

void BlockOutline::AddLinear(std::string_view name, int64_t in, int64_t out, LinearEnd end) {
  const ModelSpec& spec = outline_.spec;
  LinearInfo linear;
  linear.kind = absl::StrCat(std::string(mixer_), ".", std::string(name));
  linear.name = absl::StrCat("blocks.", block_, ".", linear.kind);
  linear.block = block_;
  linear.in = in;
  linear.out = out;
  linear.bias = spec.biases;
  linear.weight = static_cast<int64_t>(outline_.params.size());

  const bool smaller = end == LinearEnd::kResidual && spec.scale_output_init;
  const double shrink = smaller ? 1 / std::sqrt(2.0 * static_cast<double>(spec.blocks())) : 1;
  outline_.params.push_back({.name = absl::StrCat(linear.name, ".weight"),
                             .shape = {out, in},
                             .init = Init::kNormal,
                             .scale = spec.init_std * shrink,
                             .decay = true,
                             .block = block_,
                             .linear = static_cast<int64_t>(outline_.linears.size())});
  if (linear.bias) {
    outline_.params.push_back({.name = absl::StrCat(linear.name, ".bias"),
                               .shape = {out},
                               .init = Init::kZeros,
                               .block = block_});
  }
  outline_.linears.push_back(std::move(linear));
}

void BlockOutline::AddParam(std::string_view name, std::vector<int64_t> shape, Init init,
                            double scale) {
  outline_.params.push_back(
      {.name = absl::StrCat("blocks.", block_, ".", std::string(mixer_), ".", std::string(name)),
       .shape = std::move(shape),
       .init = init,
       .scale = scale,
       .block = block_});
}

void AddNorm(Outline& outline, std::string_view prefix, int64_t block, int64_t width) {
  outline.params.push_back({.name = absl::StrCat(std::string(prefix), ".weight"),
                            .shape = {width},
                            .init = Init::kOnes,
                            .block = block});
  if (outline.spec.norm != NormKind::kLayerNorm) return;
  outline.params.push_back({.name = absl::StrCat(std::string(prefix), ".bias"),
                            .shape = {width},
                            .init = Init::kZeros,
                            .block = block});
}

}  // namespace nibble
