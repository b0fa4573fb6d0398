// Helpers for the tests of this room: operands of every format, and GEMMs in float64 computed from
// codes and scales by definitions that are independent of kernels/formats.
//
// Ownership: a TestOperand owns its source and copy, in its backend's memory; it must not move
// while requests point to it. Thread-safety: plain objects.
#ifndef NIBBLE_KERNELS_GEMM_GEMM_TESTING_H_
#define NIBBLE_KERNELS_GEMM_GEMM_TESTING_H_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/gemm/gemm.h"

namespace nibble::testing {

// Two threads, for the lifetime of the process.
inline CpuBackend& Backend2() {
  static CpuBackend* const backend = CpuBackend::Create({.threads = 2, .isa = {}})->release();
  return *backend;
}

// An element's value, with `exponent_bits` and `mantissa_bits`; bias 2^(e-1) - 1, subnormals.
inline double MinifloatValue(uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bits = exponent_bits + mantissa_bits;
  const int exponent = static_cast<int>((code >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const int mantissa = static_cast<int>(code & ((1u << mantissa_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return (code >> bits) & 1 ? -magnitude : magnitude;
}

inline double ElementValue(Element element, uint32_t code) {
  switch (element) {
    case Element::kE2M1:
      return MinifloatValue(code, 2, 1);
    case Element::kE4M3:
      return MinifloatValue(code, 4, 3);
    case Element::kE5M2:
      break;
  }
  return MinifloatValue(code, 5, 2);
}

// Code and scale of an element of the copy, separately.
inline double CodeAt(const QuantizedTensor& tensor, int64_t row, int64_t col) {
  const uint8_t* codes = tensor.codes() + row * tensor.code_row_bytes();
  const Element element = tensor.format().element;
  if (element != Element::kE2M1) return ElementValue(element, codes[col]);
  return ElementValue(element, col % 2 == 0 ? codes[col / 2] & 15 : codes[col / 2] >> 4);
}
inline double ScaleAt(const QuantizedTensor& tensor, int64_t row, int64_t col) {
  const int64_t index = row / tensor.block_rows() * tensor.scale_cols() + col / tensor.block_cols();
  const auto* bytes = static_cast<const uint8_t*>(tensor.scales());
  switch (tensor.format().scale) {
    case ScaleKind::kE4M3:
      return MinifloatValue(bytes[index], 4, 3);
    case ScaleKind::kE8M0:
      return std::ldexp(1.0, bytes[index] - 127);
    case ScaleKind::kF32:
      break;
  }
  return static_cast<const float*>(tensor.scales())[index];
}

struct OperandKind {
  std::optional<OperandSpec> spec;  // unset: high precision
  DType dtype = DType::kBf16;

  std::string Name() const { return spec ? spec->Name() : dtype == DType::kF32 ? "f32" : "bf16"; }
};

// Every format in every block shape, and the two high precisions.
inline std::vector<OperandKind> AllKinds() {
  std::vector<OperandKind> kinds = {{std::nullopt, DType::kF32}, {std::nullopt, DType::kBf16}};
  for (const FormatInfo& format : AllFormats()) {
    for (const BlockShape& shape : format.shapes) {
      OperandSpec spec = OperandSpec::Of(format.format);
      spec.block = shape;
      kinds.push_back({spec});
    }
  }
  return kinds;
}

struct OperandShape {
  int64_t lines, depth;
  Contract contract = Contract::kCols;
  // Quantised along the dimension that is not contracted, for blocks that serve both.
  bool crossed = false;
  // Elements from this index on along the contracted dimension are zero.
  int64_t filled = INT64_MAX;
};

class TestOperand {
 public:
  TestOperand(CpuBackend& backend, const OperandKind& kind, const OperandShape& shape,
              uint32_t seed, bool packed = true, EmulatedLayout emulated = EmulatedLayout::kNone) {
    const bool by_rows = shape.contract == Contract::kRows;
    rows_ = by_rows ? shape.depth : shape.lines;
    cols_ = by_rows ? shape.lines : shape.depth;
    contract_ = shape.contract;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows_ * cols_; ++i) {
      const bool filled = (by_rows ? i / cols_ : i % cols_) < shape.filled;
      bf16_.push_back(filled ? EncodeBf16(normal(random)) : uint16_t{0});
      // FP32 sources contain values that are not exact in BF16.
      f32_.push_back(DecodeBf16(bf16_.back()) * (kind.dtype == DType::kF32 ? 1.001f : 1.0f));
    }
    dtype_ = kind.dtype;
    if (kind.spec) {
      const bool column = by_rows != shape.crossed;
      Quantize(backend, *kind.spec, column ? Orientation::kColumn : Orientation::kRow, packed,
               emulated);
    }
    if (tensor_ && !packed) return;
    for (int64_t i = 0; i < shape.lines * shape.depth; ++i) {
      values_.push_back(Value(i / shape.depth, i % shape.depth));
    }
  }

  GemmOperand operand() const {
    if (tensor_) return {&*tensor_, contract_};
    if (dtype_ == DType::kF32) return {ConstMatrix::Of(f32_.data(), rows_, cols_), contract_};
    return {ConstMatrix::OfBf16(bf16_.data(), rows_, cols_), contract_};
  }
  const QuantizedTensor& tensor() const { return *tensor_; }

  // [lines, depth], as the elements enter the sum, with the scales that are taken out of it by
  // block (not alpha's). Only for operands with codes.
  const std::vector<double>& values() const { return values_; }
  // The factor that the operand contributes to alpha.
  float Fold(float alpha) const {
    if (!tensor_) return alpha;
    if (is_nvfp4()) return (alpha * tensor_->head()->amax) * BitCast<float>(0x39c30c31u);
    return one_scale() ? alpha * static_cast<const float*>(tensor_->scales())[0] : alpha;
  }
  bool is_nvfp4() const { return tensor_ && tensor_->spec().format == Format::kNvfp4; }
  bool one_scale() const { return tensor_ && tensor_->spec().block.rows == BlockShape::kWhole; }

 private:
  double Value(int64_t line, int64_t k) const {
    const int64_t row = contract_ == Contract::kCols ? line : k;
    const int64_t col = contract_ == Contract::kCols ? k : line;
    if (!tensor_) {
      return dtype_ == DType::kF32 ? f32_[row * cols_ + col] : DecodeBf16(bf16_[row * cols_ + col]);
    }
    const int64_t copy_row = tensor_->is_column() ? col : row;
    const int64_t copy_col = tensor_->is_column() ? row : col;
    const double code = CodeAt(*tensor_, copy_row, copy_col);
    return one_scale() ? code : code * ScaleAt(*tensor_, copy_row, copy_col);
  }

  void Quantize(CpuBackend& backend, const OperandSpec& spec, Orientation orientation, bool packed,
                EmulatedLayout emulated) {
    const auto must = [](const absl::Status& status) {
      if (status.ok()) return;
      fprintf(stderr, "%s\n", status.ToString().c_str());
      abort();
    };
    absl::StatusOr<QuantizedTensor> made = QuantizedTensor::Create(
        backend.memory(), {spec, orientation, rows_, cols_, packed, emulated});
    must(made.status());
    tensor_ = *std::move(made);
    QuantizeRequest request;
    request.x = ConstMatrix::OfBf16(bf16_.data(), rows_, cols_);
    (tensor_->is_column() ? request.column : request.row).out = &*tensor_;
    must(backend.Quantize(request));
  }

  int64_t rows_, cols_;
  Contract contract_;
  DType dtype_;
  std::vector<uint16_t> bf16_;
  std::vector<float> f32_;
  std::vector<double> values_;
  std::optional<QuantizedTensor> tensor_;
};

// alpha as gemm.h defines it.
inline float FoldedAlpha(float alpha, const TestOperand& a, const TestOperand& b) {
  if (a.is_nvfp4() && b.is_nvfp4()) {
    return ((alpha * a.tensor().head()->amax) * b.tensor().head()->amax) *
           BitCast<float>(0x34149b93u);
  }
  return b.Fold(a.Fold(alpha));
}

// Σ_k A(m, k) · B(n, k) in float64, and Σ |A| |B|, of every kEvery-th element of C; with a row
// length that is not a multiple of it, this covers all rows and all columns.
inline constexpr int64_t kEvery = 7;
struct ReferenceSum {
  double sum = 0, magnitude = 0;
};
inline std::vector<ReferenceSum> ReferenceGemm(const TestOperand& a, const TestOperand& b,
                                               int64_t m, int64_t n, int64_t k) {
  std::vector<ReferenceSum> result(m * n);
  for (int64_t i = 0; i < m * n; i += kEvery) {
    const double* x = &a.values()[i / n * k];
    const double* y = &b.values()[i % n * k];
    for (int64_t j = 0; j < k; ++j) {
      result[i].sum += x[j] * y[j];
      result[i].magnitude += std::fabs(x[j] * y[j]);
    }
  }
  return result;
}

// C in either type, filled with small integers.
struct Result {
  Result(int64_t m, int64_t n, DType dtype) : m(m), n(n), dtype(dtype), f32(m * n), bf16(m * n) {
    for (int64_t i = 0; i < m * n; ++i) {
      f32[i] = static_cast<float>(i % 13) - 6.0f;
      bf16[i] = EncodeBf16(f32[i]);
    }
  }
  MutableMatrix matrix() {
    return dtype == DType::kF32 ? MutableMatrix::Of(f32.data(), m, n)
                                : MutableMatrix::OfBf16(bf16.data(), m, n);
  }
  float At(int64_t i) const { return dtype == DType::kF32 ? f32[i] : DecodeBf16(bf16[i]); }
  bool SameBits(const Result& other) const {
    return std::memcmp(f32.data(), other.f32.data(), f32.size() * 4) == 0 && bf16 == other.bf16;
  }

  int64_t m, n;
  DType dtype;
  std::vector<float> f32;
  std::vector<uint16_t> bf16;
};

// A bound on the error of an FP32 sum of k terms: each of the k additions, and the few
// multiplications by scales and alpha, rounds within 2^-24 of its result. BF16 results round once
// more, within 2^-8 of the result.
inline double ErrorBound(int64_t k, double magnitude, double result, DType c) {
  const double accumulated = static_cast<double>(k + 8) * 0x1p-24 * magnitude;
  return accumulated + (c == DType::kBf16 ? 0x1p-8 * (std::fabs(result) + accumulated) : 0);
}

}  // namespace nibble::testing

#endif  // NIBBLE_KERNELS_GEMM_GEMM_TESTING_H_
