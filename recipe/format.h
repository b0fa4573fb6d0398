// The formats a GEMM operand can be in, as data: names, element, block shapes, kind of scale.
// Plain C++ (no Abseil), so that device code may include it.
//
// Thread-safety: immutable tables and pure functions.
#ifndef NIBBLE_RECIPE_FORMAT_H_
#define NIBBLE_RECIPE_FORMAT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

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

// Rows by columns of the copy being quantised; kWhole stands for that whole dimension.
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
  // A second, FP32 scale for the whole tensor (its amax) enters the block scales.
  bool tensor_scale;
  // code · block scale is exact in BF16, so BF16 matrix units compute what FP4/FP8 ones would.
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

}  // namespace nibble

#endif  // NIBBLE_RECIPE_FORMAT_H_
