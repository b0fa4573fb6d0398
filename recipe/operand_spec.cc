#include "recipe/operand_spec.h"

#include "absl/strings/str_cat.h"

namespace nibble {

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
                     "; a block of several rows serves both directions, so it takes no transform "
                     "along one of them"));
  }
  if (formula != FormulaVersion::kTe2_14 && format != Format::kNvfp4) {
    return absl::InvalidArgumentError(
        absl::StrCat("formula: ", std::string(FormulaVersionName(formula)),
                     " is a version of nvfp4, not of ", std::string(info.name)));
  }
  return absl::OkStatus();
}

}  // namespace nibble
