// How one operand of one GEMM is quantised: what a recipe can say about it, and nothing of where or
// when. Recipes resolve to these; kernels carry them out.
//
// Thread-safety: values.
#ifndef NIBBLE_RECIPE_OPERAND_SPEC_H_
#define NIBBLE_RECIPE_OPERAND_SPEC_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "recipe/format.h"

namespace nibble {

enum class Rounding : uint8_t { kNearest, kStochastic };

// Which version of the NVFP4 scale formula; part of the recipe and of every checkpoint.
enum class FormulaVersion : uint8_t {
  kTe2_14,     // block_amax · (S_enc · fp32(1/6)): Transformer Engine 2.14 and later
  kTePre2_14,  // (block_amax / 6) · S_enc: before 2.14; differs in 0.06 % of the block scales
};
std::string_view FormulaVersionName(FormulaVersion version);

// Where the ±1 of a Hadamard transform come from.
enum class SignChoice : uint8_t {
  kFixed,   // the paper's 16-entry vector, repeated for larger sizes
  kSeeded,  // drawn from `seed`
  kNone,    // all +1
  kGiven,   // `mask`
};

// Applied along the quantised direction before amax. Size 0 means off.
struct HadamardSpec {
  static constexpr int kMaxSize = 128;

  int size = 0;
  SignChoice signs = SignChoice::kFixed;
  uint64_t seed = 0;                            // of kSeeded
  std::array<uint32_t, 4> mask = {0, 0, 0, 0};  // of kGiven: bit i set: sign i is negative
  friend bool operator==(const HadamardSpec&, const HadamardSpec&) = default;
};

struct OperandSpec {
  Format format = Format::kNvfp4;
  BlockShape block = {1, 16};
  Rounding rounding = Rounding::kNearest;
  HadamardSpec hadamard;
  FormulaVersion formula = FormulaVersion::kTe2_14;

  // The format with its default block.
  static OperandSpec Of(Format format);
  // "nvfp4 1x16 nearest", "nvfp4 1x16 stochastic hadamard16".
  std::string Name() const;
  // InvalidArgument naming the field, its value and what is allowed.
  absl::Status Validate() const;

  friend bool operator==(const OperandSpec&, const OperandSpec&) = default;
};

}  // namespace nibble

#endif  // NIBBLE_RECIPE_OPERAND_SPEC_H_
