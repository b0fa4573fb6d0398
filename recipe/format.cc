#include "recipe/format.h"

#include <charconv>
#include <cstddef>

namespace nibble {
namespace {

constexpr int kAll = BlockShape::kWhole;
constexpr BlockShape kNvfp4Shapes[] = {{1, 16}, {16, 16}};
constexpr BlockShape kMxfp4Shapes[] = {{1, 32}, {32, 32}};
constexpr BlockShape kMxfp8Shapes[] = {{1, 32}};
constexpr BlockShape kFp8BlockShapes[] = {{1, 128}, {128, 128}};
constexpr BlockShape kBlock128Shapes[] = {{1, 128}};
constexpr BlockShape kTensorShapes[] = {{kAll, kAll}};
constexpr BlockShape kRowShapes[] = {{1, kAll}};

// In the order of the enumeration.
constexpr FormatInfo kFormats[] = {
    {Format::kNvfp4, "nvfp4", Element::kE2M1, ScaleKind::kE4M3, true, true, kNvfp4Shapes},
    {Format::kMxfp4, "mxfp4", Element::kE2M1, ScaleKind::kE8M0, false, true, kMxfp4Shapes},
    {Format::kMxfp8, "mxfp8", Element::kE4M3, ScaleKind::kE8M0, false, true, kMxfp8Shapes},
    {Format::kFp8Block, "fp8-block", Element::kE4M3, ScaleKind::kF32, false, false,
     kFp8BlockShapes},
    {Format::kFp8Tensor, "fp8-tensor", Element::kE4M3, ScaleKind::kF32, false, false,
     kTensorShapes},
    {Format::kFp8TensorE5m2, "fp8-tensor-e5m2", Element::kE5M2, ScaleKind::kF32, false, false,
     kTensorShapes},
    {Format::kFp4Block128, "fp4-block128", Element::kE2M1, ScaleKind::kF32, false, false,
     kBlock128Shapes},
    {Format::kFp4TokenChannel, "fp4-token-channel", Element::kE2M1, ScaleKind::kF32, false, false,
     kRowShapes},
};

std::string DimensionName(int size) {
  return size == BlockShape::kWhole ? "all" : std::to_string(size);
}

std::optional<int> ParseDimension(std::string_view text) {
  if (text == "all") return BlockShape::kWhole;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

}  // namespace

const FormatInfo& Info(Format format) { return kFormats[static_cast<size_t>(format)]; }

std::span<const FormatInfo> AllFormats() { return kFormats; }

std::optional<Format> ParseFormat(std::string_view name) {
  for (const FormatInfo& info : kFormats) {
    if (info.name == name) return info.format;
  }
  return std::nullopt;
}

std::string BlockShapeName(BlockShape shape) {
  return DimensionName(shape.rows) + "x" + DimensionName(shape.cols);
}

std::optional<BlockShape> ParseBlockShape(std::string_view name) {
  const size_t x = name.find('x');
  if (x == std::string_view::npos) return std::nullopt;
  const std::optional<int> rows = ParseDimension(name.substr(0, x));
  const std::optional<int> cols = ParseDimension(name.substr(x + 1));
  if (!rows || !cols) return std::nullopt;
  return BlockShape{*rows, *cols};
}

bool Allows(const FormatInfo& info, BlockShape shape) {
  for (const BlockShape& allowed : info.shapes) {
    if (allowed == shape) return true;
  }
  return false;
}

}  // namespace nibble
