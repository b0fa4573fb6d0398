#include "recipe/gemm_path.h"

namespace nibble {
namespace {

constexpr int kHopper = 90;
constexpr int kBlackwell = 100;

bool IsFp32(const PathOperand& operand) { return !operand.spec.has_value() && operand.fp32; }
bool IsFormat(const PathOperand& operand, Format format) {
  return operand.spec.has_value() && operand.spec->format == format;
}
bool IsMx(const PathOperand& operand) {
  return IsFormat(operand, Format::kMxfp4) || IsFormat(operand, Format::kMxfp8);
}
bool IsFp8Tensor(const PathOperand& operand) {
  return IsFormat(operand, Format::kFp8Tensor) || IsFormat(operand, Format::kFp8TensorE5m2);
}
bool IsFp4(const PathOperand& operand) {
  return operand.spec.has_value() && Info(operand.spec->format).element == Element::kE2M1;
}

// Whether cuBLASLt takes the shape: rows of codes and of C are multiples of 16 bytes, as the manual
// demands; N of 16, as all of its users do.
bool Fits(const PathShape& shape, GemmPath path) {
  const int64_t step = path == GemmPath::kNvfp4 ? 32 : 16;
  return shape.aligned && shape.k % step == 0 && shape.n % 16 == 0 &&
         (path != GemmPath::kFp8Slices || shape.m % 4 == 0);
}

// The native path of two quantised operands on ideal terms; kBf16 with the reason if there is none.
PathChoice NativePath(const PathOperand& a, const PathOperand& b, const GemmHardware& hardware) {
  const bool hopper = hardware.capability / 10 == kHopper / 10;
  const bool blackwell = hardware.capability >= kBlackwell;
  if (IsFormat(a, Format::kNvfp4) && IsFormat(b, Format::kNvfp4)) {
    if (blackwell) return {GemmPath::kNvfp4, "the card has NVFP4 tensor cores"};
    return {GemmPath::kBf16, "cards before compute capability 10.0 have no FP4 tensor cores"};
  }
  if (IsMx(a) && IsMx(b)) {
    if (!blackwell) {
      return {GemmPath::kBf16,
              "cards before compute capability 10.0 have no tensor cores for MX formats"};
    }
    if (!IsFp4(a) && !IsFp4(b)) return {GemmPath::kMx, "the card has MXFP8 tensor cores"};
    if (hardware.fp4_in_fp8) {
      return {GemmPath::kMx, "FP4 codes are E4M3 numbers, and cuBLASLt multiplies MXFP8 only"};
    }
    return {GemmPath::kBf16, "cuBLASLt multiplies no MXFP4"};
  }
  if (IsFp8Tensor(a) && IsFp8Tensor(b)) {
    if (IsFormat(a, Format::kFp8TensorE5m2) && IsFormat(b, Format::kFp8TensorE5m2)) {
      return {GemmPath::kBf16, "cuBLASLt does not multiply E5M2 by E5M2"};
    }
    return {GemmPath::kFp8Tensor, "the card has FP8 tensor cores"};
  }
  const bool slices = HasSlices(a) && HasSlices(b);
  if (!slices && !(HasLines(a) && HasLines(b))) {
    return {GemmPath::kBf16, "there are no tensor cores for this pair of formats"};
  }
  if (!hopper) {
    return {GemmPath::kBf16, "cuBLASLt has these scales on compute capability 9.0 only"};
  }
  const bool fp4 = IsFp4(a) || IsFp4(b);
  if (fp4 && !hardware.fp4_in_fp8) {
    return {GemmPath::kBf16, "FP4 codes in FP8 GEMMs are switched off"};
  }
  return {slices ? GemmPath::kFp8Slices : GemmPath::kFp8Lines,
          fp4 ? "FP4 codes are E4M3 numbers, and the card has FP8 tensor cores"
              : "the card has FP8 tensor cores"};
}

}  // namespace

bool HasSlices(const PathOperand& operand) {
  return IsFormat(operand, Format::kFp8Block) || IsFormat(operand, Format::kFp4Block128);
}
bool HasLines(const PathOperand& operand) { return IsFormat(operand, Format::kFp4TokenChannel); }

PathChoice ChoosePath(const PathOperand& a, const PathOperand& b, const PathShape* shape,
                      const GemmHardware& hardware) {
  PathChoice emulated = {GemmPath::kBf16, "both operands are BF16"};
  if (a.spec.has_value() && b.spec.has_value()) {
    const PathChoice native = NativePath(a, b, hardware);
    emulated.reason = native.reason;
    if (IsNative(native.path)) {
      if (!hardware.native) {
        emulated.reason = "native GEMMs are switched off";
      } else if (!a.codes || !b.codes) {
        emulated.reason = "an operand was made without codes";
      } else if (shape != nullptr && !Fits(*shape, native.path)) {
        emulated.reason = "the tensor cores' layouts need larger multiples in K, N or M";
      } else {
        return native;
      }
    }
  } else if (a.spec.has_value() || b.spec.has_value()) {
    emulated.reason = "one operand is in high precision";
  }
  if (IsFp32(a) || IsFp32(b)) emulated = {GemmPath::kFp32, "an operand is FP32"};
  if (HasSlices(a) || HasSlices(b)) {
    emulated.path = GemmPath::kSliced;
  } else if (emulated.path == GemmPath::kBf16 && (HasLines(a) || HasLines(b))) {
    emulated.path = GemmPath::kBf16Lines;
  }
  return emulated;
}

const char* PathName(GemmPath path, const PathOperand& a, const PathOperand& b) {
  const bool fp4 = IsFp4(a) || IsFp4(b);
  switch (path) {
    case GemmPath::kFp32:
      return a.spec.has_value() || b.spec.has_value() ? "emulated FP32" : "FP32";
    case GemmPath::kBf16:
      return a.spec.has_value() || b.spec.has_value() ? "emulated BF16" : "BF16";
    case GemmPath::kBf16Lines:
      return "emulated BF16, scales per line in a second pass";
    case GemmPath::kSliced:
      return "emulated BF16 in slices of 128 (slow)";
    case GemmPath::kFp8Tensor:
      return "native FP8, a scale per tensor";
    case GemmPath::kFp8Lines:
      return "FP4 in native FP8, a scale per line";
    case GemmPath::kFp8Slices:
      return fp4 ? "FP4 in native FP8, scales per 128" : "native FP8, scales per 128";
    case GemmPath::kMx:
      return fp4 ? "FP4 in native MXFP8" : "native MXFP8";
    case GemmPath::kNvfp4:
      break;
  }
  return "native FP4";
}

bool IsNative(GemmPath path) { return path >= GemmPath::kFp8Tensor; }

}  // namespace nibble
