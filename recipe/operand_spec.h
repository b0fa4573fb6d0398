// The formats of GEMM operands, as data: names, element, block shapes, kind of scale. Plain C++ (no
// Abseil), so that device code may include it.
//
// Thread-safety: immutable tables and pure functions.
#ifndef NIBBLE_RECIPE_OPERAND_SPEC_H_
#define NIBBLE_RECIPE_OPERAND_SPEC_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nibble {

enum class Format : uint8_t {
  kNvfp4,
  kMxfp4,
  kMxfp8,
  kFp8Block,
  kFp8Tensor,      // forward operands
  kFp8TensorE5m2,  // gradients of fp8-tensor
  kFp4Block128,
  kFp4TokenChannel,
};

enum class Element : uint8_t { kE2M1, kE4M3, kE5M2 };

// How a block's scale is stored.
enum class ScaleKind : uint8_t { kE4M3, kE8M0, kF32 };

// Rows by columns of the copy being quantised; kWhole stands for the whole dimension.
struct BlockShape {
  static constexpr int kWhole = 0;
  int rows;
  int cols;
  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

struct FormatInfo {
  Format format;
  std::string_view name;
  Element element;
  ScaleKind scale;
  // A second, FP32 scale for the whole tensor (from its amax) is a factor of the block scales.
  bool tensor_scale;
  // code · block scale is exact in BF16, so BF16 tensor cores compute the same as FP4/FP8 ones.
  bool exact_in_bf16;
  // The first is the default.
  std::span<const BlockShape> shapes;
};

const FormatInfo& Info(Format format);
std::span<const FormatInfo> AllFormats();
std::optional<Format> ParseFormat(std::string_view name);

// "1x16", "16x16", "1xall", "allxall".
std::string BlockShapeName(BlockShape shape);
std::optional<BlockShape> ParseBlockShape(std::string_view name);
bool Allows(const FormatInfo& info, BlockShape shape);

inline int ElementBits(Element element) { return element == Element::kE2M1 ? 4 : 8; }
inline int ScaleBytes(ScaleKind kind) { return kind == ScaleKind::kF32 ? 4 : 1; }

// How one operand of one GEMM is quantised: everything that a recipe sets, independent of the layer
// and the time. Recipes resolve to these; kernels execute them.
//
// Thread-safety: values.

enum class Rounding : uint8_t { kNearest, kStochastic };

// The version of the NVFP4 scale formula; part of the recipe and of every checkpoint.
enum class FormulaVersion : uint8_t {
  kTe2_14,     // block_amax · (S_enc · fp32(1/6)): Transformer Engine 2.14 and later
  kTePre2_14,  // (block_amax / 6) · S_enc: before 2.14; differs in 0.06 % of the block scales
};
std::string_view FormulaVersionName(FormulaVersion version);

// The source of the ±1 signs of a Hadamard transform.
enum class SignChoice : uint8_t {
  kFixed,   // the paper's 16-entry vector, repeated for larger sizes
  kSeeded,  // drawn from `seed`
  kNone,    // all +1
  kGiven,   // `mask`
};

// Applied along the quantised direction before the amax. Size 0 means off.
struct HadamardSpec {
  static constexpr int kMaxSize = 128;

  int size = 0;
  SignChoice signs = SignChoice::kFixed;
  uint64_t seed = 0;                            // for kSeeded
  std::array<uint32_t, 4> mask = {0, 0, 0, 0};  // for kGiven; bit i set: sign i is negative
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
