// GEMMs over operands that know their formats: C[m, n] = alpha · Σ_k A(m, k) · B(n, k).
//
// Each operand is a high-precision matrix or a quantised copy, and specifies which dimension of its
// source is contracted; the three GEMMs of a linear layer Y = X·Wᵀ differ only in that:
//   Fprop  Y  = X·Wᵀ    X and W contract their columns
//   Dgrad  dX = dY·W    dY contracts its columns, W its rows
//   Wgrad  dW = dYᵀ·X   dY and X contract their rows
//
// The definition of the result, which every engine follows except for the order of FP32 additions:
//   - Elements of nvfp4 and mx formats enter as code · block scale (exact in BF16), elements of the
//     other formats as the bare code value, high-precision elements as they are.
//   - Terms are accumulated in FP32. Scales per 128-wide slice of K (fp8-block, fp4-block128)
//     are applied to the slice's sum: acc += (sum · scaleA) · scaleB, slices in ascending order.
//   - The accumulator is multiplied by alpha, with the tensors' scales folded in: for two nvfp4
//     operands Nvfp4::GemmAlpha(alpha, amaxA, amaxB); otherwise A's is folded in first, then B's:
//     (alpha · amax) · fp32(1/2688) for an nvfp4 operand, alpha · scale for an fp8-tensor operand.
//     Then it is multiplied by the line scales of A and of B (fp4-token-channel). Then C is added
//     (accumulate), and the sum is rounded to C's type, once.
//
// Ownership: requests borrow everything they point to until the GEMM has run. Thread-safety:
// requests are values; for engines see GemmEngine.
#ifndef NIBBLE_KERNELS_GEMM_GEMM_H_
#define NIBBLE_KERNELS_GEMM_GEMM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/tensor/matrix.h"
#include "kernels/tensor/quantized_tensor.h"

namespace nibble {

// The dimension of the source (not of the copy) that the sum runs over.
enum class Contract : uint8_t { kCols, kRows };

using GemmSource = std::variant<ConstMatrix, const QuantizedTensor*>;

struct GemmOperand {
  GemmSource source;
  Contract contract = Contract::kCols;

  static GemmOperand AlongCols(GemmSource source) { return {source, Contract::kCols}; }
  static GemmOperand AlongRows(GemmSource source) { return {source, Contract::kRows}; }

  bool is_quantized() const { return source.index() == 1; }
  const ConstMatrix& matrix() const { return std::get<0>(source); }
  const QuantizedTensor& quantized() const { return *std::get<1>(source); }

  // Dimensions of the source.
  int64_t rows() const { return is_quantized() ? quantized().rows() : matrix().rows; }
  int64_t cols() const { return is_quantized() ? quantized().cols() : matrix().cols; }
  // K, and the remaining dimension of the operand: M or N.
  int64_t depth() const { return contract == Contract::kCols ? cols() : rows(); }
  int64_t lines() const { return contract == Contract::kCols ? rows() : cols(); }

  // "nvfp4 1x16 nearest row copy of [4096, 1024] along its columns", "bf16 [16, 16] along its
  // rows".
  std::string Name() const;
};

// A copy quantised along the contracted dimension, or one whose blocks serve both directions. The
// scales of 1×n blocks can only be taken out of a sum along the blocks' own direction.
bool ServesDirection(const QuantizedTensor& tensor, Contract contract);

struct GemmRequest {
  GemmOperand a;
  GemmOperand b;
  MutableMatrix c;  // [a.lines(), b.lines()]
  float alpha = 1.0f;
  bool accumulate = false;  // adds to C instead of overwriting it
};

// Checks that the operands fit together and fit C; every engine calls it first. InvalidArgument for
// requests that are wrong with any data, FailedPrecondition for a copy without required data (no
// codes, or no scales although the GEMM needs them). Messages name both operands and the numbers
// that differ.
absl::Status Validate(const GemmRequest& request);

// Y[tokens, out] = X[tokens, in] · W[out, in]ᵀ.
inline GemmRequest Fprop(GemmSource x, GemmSource w, MutableMatrix y) {
  return {GemmOperand::AlongCols(x), GemmOperand::AlongCols(w), y};
}
// dX[tokens, in] = dY[tokens, out] · W[out, in].
inline GemmRequest Dgrad(GemmSource dy, GemmSource w, MutableMatrix dx) {
  return {GemmOperand::AlongCols(dy), GemmOperand::AlongRows(w), dx};
}
// dW[out, in] = dY[tokens, out]ᵀ · X[tokens, in].
inline GemmRequest Wgrad(GemmSource dy, GemmSource x, MutableMatrix dw) {
  return {GemmOperand::AlongRows(dy), GemmOperand::AlongRows(x), dw};
}

// The form of an operand that an engine multiplies. Everything that Validate accepts is multiplied,
// but another form than the one wanted costs a conversion in each GEMM.
enum class OperandForm : uint8_t {
  kHighPrecision,   // the matrix itself
  kEmulatedSource,  // QuantizedTensor::emulated() in the source's layout
  kEmulatedCopy,    // QuantizedTensor::emulated() in the copy's layout, K-major
  kPacked,          // K-major codes (a copy along the contracted dimension), row-major scales
  kPackedTiles,     // K-major codes, scales in the tensor cores' tiles of 128 × 4
};

// The operands of a GEMM as a recipe describes them, before anything is allocated.
struct GemmUse {
  struct Operand {
    std::optional<OperandSpec> spec;  // unset: high precision
    DType dtype = DType::kBf16;       // in high precision
    Contract contract = Contract::kCols;
  };
  Operand a;
  Operand b;
};

struct OperandPlan {
  OperandForm form = OperandForm::kHighPrecision;
  // Codes and scales are read: because `form` is a packed one, or because the scales are FP32 and
  // not part of the emulated operand.
  bool packed = false;

  // For QuantizedTensor::Options.
  EmulatedLayout emulated() const {
    return form == OperandForm::kEmulatedSource ? EmulatedLayout::kSource
           : form == OperandForm::kEmulatedCopy ? EmulatedLayout::kCopy
                                                : EmulatedLayout::kNone;
  }
};

// How an engine multiplies: for the caller, which allocates the operands, and for logs.
struct GemmPlan {
  OperandPlan a;
  OperandPlan b;
  std::string path;    // "native FP8", "emulated BF16", "native FP4", "BF16"
  std::string reason;  // "compute capability 9.0 has no FP4 tensor cores"

  // Whether codes are multiplied, rather than their BF16 emulation.
  bool native() const { return a.form >= OperandForm::kPacked && b.form >= OperandForm::kPacked; }
};

// Execution model: an engine enqueues on the queue of its backend (see kernels/ops/backend.h);
// requests are checked in the call, and Backend::Synchronize reports failures of the execution.
// Operands and C are in that backend's memory.
//
// Thread-safety: one thread at a time, together with its backend.
class GemmEngine {
 public:
  virtual ~GemmEngine() = default;

  // The implementation: "onednn fp32 (bf16 operands widened), 2 threads".
  virtual std::string Name() const = 0;
  virtual absl::Status Gemm(const GemmRequest& request) = 0;
  // The forms in which this engine multiplies these operands, whatever their shape. A shape that
  // the path cannot take (see the engine) is multiplied on another one.
  virtual GemmPlan Wants(const GemmUse& use) const = 0;

  // Does what a GEMM of these forms and shapes does only once, such as choosing an algorithm and
  // allocating buffers, so that Gemm() can be captured in a graph. What the operands contain does
  // not matter; C's contents are lost. Waits for the queue.
  virtual absl::Status Prepare(const GemmRequest& request) { return Validate(request); }
  // The algorithms chosen so far, as text. They decide about the last bits of results: a run that
  // resumes in another process has the same bits after LoadChoices() of the same text. Empty for
  // engines that have no choice.
  virtual std::string Choices() const { return {}; }
  // What people should know of choices made since the last call, a sentence each.
  virtual std::vector<std::string> TakeNotices() { return {}; }
  // Uses these choices from now on. FailedPrecondition if they are of another library or device.
  virtual absl::Status LoadChoices(absl::string_view text) {
    if (text.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(Name() + " chooses no algorithms, but some are stored");
  }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_GEMM_GEMM_H_
