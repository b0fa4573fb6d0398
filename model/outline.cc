#include "model/outline.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/mixers.h"

namespace nibble {

namespace {

// Weight decay applies to matrices: linears and the tables at both ends (embedding, learned
// positions, head). Parameters that scale, shift or time a channel are not decayed, since zero is
// no natural value for them: norms, biases, A_log, D, dt_bias, and the convolution, which is one
// short vector per channel although it is stored as a table.
ParamInfo Table(std::string name, int64_t rows, const ModelSpec& spec) {
  return {.name = std::move(name),
          .shape = {rows, spec.d_model},
          .init = Init::kNormal,
          .scale = spec.init_std,
          .decay = true};
}

}  // namespace

int64_t Outline::parameters() const {
  int64_t total = 0;
  for (const ParamInfo& param : params) total += param.elements();
  return total;
}

absl::StatusOr<int64_t> Outline::Find(std::string_view param) const {
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].name == param) return static_cast<int64_t>(i);
  }
  return absl::NotFoundError(
      absl::StrCat("parameter: model ", spec.name, " has no '", std::string(param), "'"));
}

absl::StatusOr<Outline> MakeOutline(const ModelSpec& spec) {
  NIBBLE_RETURN_IF_ERROR(Validate(spec));
  Outline outline;
  outline.spec = spec;
  outline.params.push_back(Table("embedding.weight", spec.vocab, spec));
  if (spec.positions == Positions::kLearned) {
    outline.params.push_back(Table("positions.weight", spec.max_positions, spec));
  }
  for (int64_t i = 0; i < spec.blocks(); ++i) {
    const MixerKind& mixer = *FindMixerKind(spec.pattern[static_cast<size_t>(i)]);
    AddNorm(outline, absl::StrCat("blocks.", i, ".norm"), i, spec.d_model);
    BlockOutline block(outline, i, mixer.name);
    mixer.add(spec, block);
  }
  AddNorm(outline, "final_norm", -1, spec.d_model);
  if (!spec.tied_head) outline.params.push_back(Table("head.weight", spec.vocab, spec));
  return outline;
}

std::vector<PartCount> ParametersByPart(const Outline& outline) {
  PartCount embedding{"embedding"}, norms{"norms"}, head{"head"};
  std::vector<PartCount> mixers;
  for (const MixerKind* mixer : AllMixerKinds()) {
    if (outline.spec.pattern.find(mixer->symbol) != std::string::npos) {
      mixers.push_back({std::string(mixer->name)});
    }
  }
  for (const ParamInfo& param : outline.params) {
    PartCount* part = &embedding;
    if (param.block >= 0) {
      // "blocks.<block>." and then "norm." or the mixer's name.
      const size_t inside = param.name.find('.', param.name.find('.') + 1) + 1;
      const std::string_view name = std::string_view(param.name).substr(inside);
      part = &norms;
      for (PartCount& mixer : mixers) {
        if (name.starts_with(mixer.part + ".")) part = &mixer;
      }
    } else if (param.name.starts_with("final_norm.")) {
      part = &norms;
    } else if (param.name.starts_with("head.")) {
      part = &head;
    }
    part->parameters += param.elements();
  }
  std::vector<PartCount> parts = {std::move(embedding)};
  parts.insert(parts.end(), mixers.begin(), mixers.end());
  parts.push_back(std::move(norms));
  parts.push_back(std::move(head));
  return parts;
}

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

FlopsPerToken CountFlops(const Outline& outline, int64_t sequence) {
  const ModelSpec& spec = outline.spec;
  FlopsPerToken flops;
  for (const LinearInfo& linear : outline.linears) {
    flops.linears += 2 * static_cast<double>(linear.in) * static_cast<double>(linear.out);
  }
  for (const char symbol : spec.pattern) FindMixerKind(symbol)->add_flops(spec, sequence, flops);
  flops.head = 2 * static_cast<double>(spec.d_model) * static_cast<double>(spec.vocab);
  return flops;
}

}  // namespace nibble
