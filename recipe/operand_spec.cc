#include "recipe/operand_spec.h"

#include <charconv>
#include <cstddef>

#include "absl/strings/str_cat.h"

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

std::string_view FormulaVersionName(FormulaVersion version) {
  return version == FormulaVersion::kTe2_14 ? "te-2.14" : "te-pre-2.14";
}

OperandSpec OperandSpec::Of(Format format) {
  OperandSpec spec;
  spec.format = format;
  spec.block = Info(format).shapes[0];
  return spec;
}

std::string OperandSpec::Name() const {
  std::string name = absl::StrCat(std::string(Info(format).name), " ", BlockShapeName(block),
                                  rounding == Rounding::kNearest ? " nearest" : " stochastic");
  if (hadamard.size != 0) absl::StrAppend(&name, " hadamard", hadamard.size);
  if (formula != FormulaVersion::kTe2_14) {
    absl::StrAppend(&name, " ", std::string(FormulaVersionName(formula)));
  }
  return name;
}

absl::Status OperandSpec::Validate() const {
  const FormatInfo& info = Info(format);
  if (!Allows(info, block)) {
    std::string allowed;
    for (const BlockShape& shape : info.shapes) {
      absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", BlockShapeName(shape));
    }
    return absl::InvalidArgumentError(absl::StrCat("block: ", BlockShapeName(block),
                                                   " is not a block of format ",
                                                   std::string(info.name), "; allowed: ", allowed));
  }
  constexpr int kMaxSize = HadamardSpec::kMaxSize;
  const int size = hadamard.size;
  if (size != 0 && (size < 2 || size > kMaxSize || (size & (size - 1)) != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("hadamard: size ", size, " is not a power of two from 2 to ", kMaxSize));
  }
  if (hadamard.size != 0 && block.rows != 1 && block.rows != BlockShape::kWhole) {
    return absl::InvalidArgumentError(
        absl::StrCat("hadamard: size ", hadamard.size, " with block ", BlockShapeName(block),
                     "; a block of several rows is used in both directions, so it allows no "
                     "transform along one of them"));
  }
  if (formula != FormulaVersion::kTe2_14 && format != Format::kNvfp4) {
    return absl::InvalidArgumentError(
        absl::StrCat("formula: ", std::string(FormulaVersionName(formula)),
                     " is a version of nvfp4, not of ", std::string(info.name)));
  }
  return absl::OkStatus();
}

}  // namespace nibble
