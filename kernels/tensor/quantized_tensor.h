// A quantised copy of a matrix with its format, block shape, orientation and tensor scale, so that
// copies that do not fit together are refused by name instead of multiplied.
//
// A copy has its own coordinates, [copy_rows, copy_cols], and is quantised along copy_cols: the row
// copy of an [R, C] source is [R, C], the column copy is its transpose, [C, R].
//
// Ownership: owns its buffers, in the memory it was created in. Quantising writes them; the figures
// in `head` are valid after the backend's queue has drained (Backend::Synchronize or ReadHead).
// Thread-safety: as a plain object; two operations enqueued on one tensor run in order.
#ifndef NIBBLE_KERNELS_TENSOR_QUANTIZED_TENSOR_H_
#define NIBBLE_KERNELS_TENSOR_QUANTIZED_TENSOR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/formats/statistics.h"
#include "kernels/tensor/memory.h"
#include "recipe/operand_spec.h"

namespace nibble {

enum class Orientation : uint8_t {
  kRow,     // quantised along the source's columns
  kColumn,  // quantised along the source's rows; stored transposed
};

// Layout of the BF16 operand for emulation: the source's or the copy's. They differ for column
// copies: BF16 GEMMs take any transposition, so the source's layout saves a transposed write.
enum class EmulatedLayout : uint8_t { kNone, kSource, kCopy };

// Results of a quantisation, in the tensor's memory, so that no step waits for them.
struct QuantHead {
  float amax = 0;  // of the quantised values (after the Hadamard transform), without NaN
  uint32_t reserved = 0;
  uint64_t non_finite = 0;  // NaN and infinities among the quantised values
  StatSums stats;           // if statistics were requested
};

class QuantizedTensor {
 public:
  struct Options {
    OperandSpec spec;
    Orientation orientation = Orientation::kRow;
    int64_t rows = 0;  // of the source
    int64_t cols = 0;
    bool packed = true;  // codes and scales
    EmulatedLayout emulated = EmulatedLayout::kNone;
    // Memory of the results; null: that of the tensor. Results may outlive the data: a copy that is
    // needed for one GEMM can be in reused memory, and still be reported on later.
    Memory* figures = nullptr;
  };

  QuantizedTensor() = default;

  // InvalidArgument if the shape is not a multiple of the block or of the Hadamard size, naming the
  // dimension, its size and the block.
  static absl::StatusOr<QuantizedTensor> Create(Memory& memory, const Options& options);

  const OperandSpec& spec() const { return options_.spec; }
  const FormatInfo& format() const { return Info(options_.spec.format); }
  Orientation orientation() const { return options_.orientation; }
  int64_t rows() const { return options_.rows; }
  int64_t cols() const { return options_.cols; }
  int64_t copy_rows() const { return is_column() ? options_.cols : options_.rows; }
  int64_t copy_cols() const { return is_column() ? options_.rows : options_.cols; }
  bool is_column() const { return options_.orientation == Orientation::kColumn; }

  // Block with kWhole resolved to this tensor's dimensions.
  int64_t block_rows() const;
  int64_t block_cols() const;
  int64_t scale_rows() const { return copy_rows() / block_rows(); }
  int64_t scale_cols() const { return copy_cols() / block_cols(); }

  bool packed() const { return static_cast<bool>(codes_) || rows() * cols() == 0; }
  EmulatedLayout emulated_layout() const { return options_.emulated; }

  // [copy_rows, copy_cols] elements of format().element; FP4 packs two to a byte, even one low.
  uint8_t* codes() const { return codes_.data<uint8_t>(); }
  int64_t code_row_bytes() const { return copy_cols() * ElementBits(format().element) / 8; }
  // [scale_rows, scale_cols] of format().scale.
  void* scales() const { return scales_.data(); }
  // BF16 operand: code · block scale if that is exact in BF16 (FormatInfo::exact_in_bf16),
  // otherwise the bare code value; [rows, cols] or [copy_rows, copy_cols] by emulated_layout().
  uint16_t* emulated() const { return emulated_.data<uint16_t>(); }
  QuantHead* head() const { return head_.data<QuantHead>(); }

  int64_t code_bytes() const { return copy_rows() * code_row_bytes(); }
  int64_t scale_bytes() const { return scale_rows() * scale_cols() * ScaleBytes(format().scale); }

  // "nvfp4 1x16 stochastic column copy of [4096, 1024]".
  std::string Name() const;

 private:
  Options options_;
  Buffer codes_, scales_, emulated_, head_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_TENSOR_QUANTIZED_TENSOR_H_
