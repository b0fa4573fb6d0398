#include "kernels/gemm/expand.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/scaling.h"
#include "kernels/gemm/code_value.h"

namespace nibble {
namespace {

float CodeValueOf(Element element, uint32_t code) {
  switch (element) {
    case Element::kE2M1:
      return CodeValue<E2M1>(code);
    case Element::kE4M3:
      return CodeValue<E4M3>(code);
    case Element::kE5M2:
      break;
  }
  return CodeValue<E5M2>(code);
}

uint16_t OperandOf(Element element, uint32_t code, float scale) {
  switch (element) {
    case Element::kE2M1:
      return OperandBf16<E2M1>(code, scale);
    case Element::kE4M3:
      return OperandBf16<E4M3>(code, scale);
    case Element::kE5M2:
      break;
  }
  return OperandBf16<E5M2>(code, scale);
}

// For formats with one byte per scale.
float ByteScaleValue(ScaleKind kind, uint8_t code) {
  return kind == ScaleKind::kE4M3 ? CodeValue<E4M3>(code) : E8M0ScaleValue(code);
}

float ScaleValue(ScaleKind kind, const void* scales, int64_t index) {
  return kind == ScaleKind::kF32 ? static_cast<const float*>(scales)[index]
                                 : ByteScaleValue(kind, static_cast<const uint8_t*>(scales)[index]);
}

// Elements of the BF16 operand for each scale code and element code; one row for formats whose
// scales are not part of the operand. 8 KiB for FP4, 128 KiB for mxfp8.
class OperandTable {
 public:
  explicit OperandTable(const FormatInfo& format)
      : codes_(1 << ElementBits(format.element)), one_row_(!format.exact_in_bf16) {
    const int rows = one_row_ ? 1 : 256;
    for (int scale_code = 0; scale_code < rows; ++scale_code) {
      const float scale =
          one_row_ ? 1.0f : ByteScaleValue(format.scale, static_cast<uint8_t>(scale_code));
      for (int code = 0; code < codes_; ++code) {
        values_.push_back(OperandOf(format.element, static_cast<uint32_t>(code), scale));
      }
    }
  }

  const uint16_t* Row(const void* scales, int64_t index) const {
    return values_.data() + (one_row_ ? 0 : codes_ * static_cast<const uint8_t*>(scales)[index]);
  }

 private:
  int codes_;
  bool one_row_;
  std::vector<uint16_t> values_;
};

const OperandTable& TableOf(const FormatInfo& format) {
  static const std::vector<OperandTable>* const tables = [] {
    auto* all = new std::vector<OperandTable>;
    for (const FormatInfo& info : AllFormats()) all->emplace_back(info);
    return all;
  }();
  return (*tables)[static_cast<size_t>(format.format)];
}

void Put(uint16_t value, uint16_t& out) { out = value; }
void Put(uint16_t value, float& out) { out = DecodeBf16(value); }

// codes: of one block in one copy row.
template <class Lookup, class Out>
void Decode(bool fp4, const uint8_t* codes, int64_t count, Lookup&& lookup, Out* out) {
  if (!fp4) {
    for (int64_t i = 0; i < count; ++i) lookup(codes[i], out[i]);
    return;
  }
  for (int64_t i = 0; i < count; i += 2) {
    lookup(codes[i / 2] & 0x0f, out[i]);
    lookup(codes[i / 2] >> 4, out[i + 1]);
  }
}

// Calls block(row, first column, scale index) for every block of every copy row, with the rows
// distributed over the pool.
template <class Block>
absl::Status ForBlocks(const QuantizedTensor& tensor, ThreadPool* pool, Block&& block) {
  if (!tensor.packed()) {
    return absl::FailedPreconditionError(absl::StrCat(tensor.Name(), " has no codes to expand"));
  }
  const int64_t rows = tensor.copy_rows();
  const int64_t cols = tensor.copy_cols();
  if (rows == 0 || cols == 0) return absl::OkStatus();
  const int64_t block_rows = tensor.block_rows();
  const int64_t block_cols = tensor.block_cols();
  const int64_t scale_cols = tensor.scale_cols();
  constexpr int64_t kTaskElements = 1 << 16;
  const int64_t rows_per_task = std::max<int64_t>(1, kTaskElements / cols);
  const auto task = [&](int64_t index, int) {
    const int64_t end = std::min(rows, (index + 1) * rows_per_task);
    for (int64_t row = index * rows_per_task; row < end; ++row) {
      for (int64_t col = 0; col < cols; col += block_cols) {
        block(row, col, row / block_rows * scale_cols + col / block_cols);
      }
    }
  };
  const int64_t tasks = (rows + rows_per_task - 1) / rows_per_task;
  if (pool != nullptr) {
    pool->ParallelFor(tasks, task);
  } else {
    for (int64_t i = 0; i < tasks; ++i) task(i, 0);
  }
  return absl::OkStatus();
}

template <class Out>
absl::Status Expand(const QuantizedTensor& tensor, ThreadPool* pool, Out* out) {
  const OperandTable& table = TableOf(tensor.format());
  const bool fp4 = tensor.format().element == Element::kE2M1;
  return ForBlocks(tensor, pool, [&](int64_t row, int64_t col, int64_t scale) {
    const uint16_t* values = table.Row(tensor.scales(), scale);
    const int64_t first = row * tensor.copy_cols() + col;
    Decode(
        fp4, tensor.codes() + (fp4 ? first / 2 : first), tensor.block_cols(),
        [&](uint32_t code, Out& to) { Put(values[code], to); }, out + first);
  });
}

}  // namespace

absl::Status ExpandOperand(const QuantizedTensor& tensor, ThreadPool* pool, uint16_t* out) {
  return Expand(tensor, pool, out);
}

absl::Status ExpandOperand(const QuantizedTensor& tensor, ThreadPool* pool, float* out) {
  return Expand(tensor, pool, out);
}

absl::Status Dequantize(const QuantizedTensor& tensor, ThreadPool* pool, float* out) {
  const FormatInfo& format = tensor.format();
  const bool fp4 = format.element == Element::kE2M1;
  float values[256];
  for (int code = 0; code < (fp4 ? 16 : 256); ++code) {
    values[code] = CodeValueOf(format.element, static_cast<uint32_t>(code));
  }
  return ForBlocks(tensor, pool, [&](int64_t row, int64_t col, int64_t index) {
    const float scale = ScaleValue(format.scale, tensor.scales(), index);
    const float factor =
        format.tensor_scale ? Nvfp4::DecodeFactor<float>(scale, tensor.head()->amax) : scale;
    const int64_t first = row * tensor.copy_cols() + col;
    Decode(
        fp4, tensor.codes() + (fp4 ? first / 2 : first), tensor.block_cols(),
        [&](uint32_t code, float& to) { to = values[code] * factor; }, out + first);
  });
}

}  // namespace nibble
