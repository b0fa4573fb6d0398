// The plan of one copy of a quantise request: what to compute first, the units to cut it into, and
// the quantisation of one patch. The driver (quantize.h) decides on which thread and in which order
// patches run.
//
// Ownership: borrows the request. Thread-safety: after the amax pass, const and shared by threads;
// each thread has its own CopyScratch and CopyTotals.
#ifndef NIBBLE_KERNELS_CPU_COPY_PLAN_H_
#define NIBBLE_KERNELS_CPU_COPY_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cpu/lane_kernels.h"
#include "kernels/ops/quantize.h"

namespace nibble::cpu {

struct CopyScratch {
  std::vector<uint16_t> transformed;  // Hadamard sizes other than 16
  std::vector<float> amax, encode, emulate, decode;
};

// One thread's results; merging does not depend on the order.
struct CopyTotals {
  uint32_t amax_bits = 0;
  uint64_t non_finite = 0;
  StatSums stats;

  void Merge(const CopyTotals& other);
};

class CopyPlan {
 public:
  CopyPlan(const LaneKernels& kernels, const QuantizeRequest& request, const CopyRequest& copy);

  bool columns() const { return out_.is_column(); }
  // Patches must be multiples of these numbers of source rows and columns.
  int64_t row_unit() const;
  int64_t col_unit() const;

  // Whether a patch stores factors per group, or finds its scales in registers.
  bool uses_factors() const { return !inline_nvfp4_; }
  // Whether only the BF16 operand is requested, in the source's layout.
  bool operand_only() const { return operand_only_; }

  // Whether the tensor's amax (or each line's) must be computed before quantising.
  bool needs_amax_pass() const { return amax_pass_; }
  // Runs over a patch at (row, col) of the source. `plain` is the patch's largest |x| without a
  // transform, as bits: used if another copy has found it, otherwise set as a by-product.
  void AmaxPatch(const ConstMatrix& x, int64_t row, int64_t col, int64_t rows, int64_t cols,
                 CopyScratch& scratch, CopyTotals& totals, std::optional<uint32_t>& plain);
  // Between the passes: computes the scales that the whole tensor shares.
  void SetAmax(const CopyTotals& amax_pass);

  void QuantizePatch(const ConstMatrix& x, int64_t row, int64_t col, int64_t rows, int64_t cols,
                     CopyScratch& scratch, CopyTotals& totals) const;
  // Writes the head.
  void Finish(const CopyTotals& totals) const;

 private:
  // Non-finite numbers are counted in the pass that finds amax: its own pass, the block factors,
  // or, if amax was given and there are no factors from the data, while encoding.
  bool counts_when_encoding() const { return !amax_pass_ && (inline_nvfp4_ || per_tensor_); }

  Patch MakePatch(const ConstMatrix& x, int64_t row, int64_t col, int64_t rows, int64_t cols,
                  CopyScratch& scratch) const;
  void LineAmaxPatch(const Patch& patch, int64_t line0, CopyScratch& scratch, CopyTotals& totals);
  // Group factors of a patch, and its block scales.
  GroupFactors BlockFactors(const Patch& patch, int64_t line0, int64_t group0, CopyScratch& scratch,
                            CopyTotals& totals) const;
  // False if the operand kernels cannot take the patch, or return it.
  bool EncodeOperand(const EncodeArgs& common, int64_t line0, CopyTotals& totals) const;
  void Encode(const EncodeArgs& args, CopyTotals& totals) const;

  const LaneKernels& kernels_;
  const CopyRequest& copy_;
  const QuantizedTensor& out_;
  const Placement place_;
  const SignMask signs_;
  const RandomStream random_;
  const bool inline_nvfp4_;
  const bool per_line_;    // one scale per copy row
  const bool per_tensor_;  // one scale for all
  const bool amax_pass_;
  const bool operand_only_;
  const bool stream_;
  float amax_ = 0;
  uint64_t amax_pass_non_finite_ = 0;
  // As bits; threads raise them during the amax pass.
  uint32_t amax_so_far_ = 0;
  std::vector<uint32_t> line_amax_;
  std::vector<float> line_encode_;  // for an operand whose blocks are whole lines or the tensor
  Nvfp4::TensorScale tensor_ = {};
  StatNorm norm_ = {};
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_COPY_PLAN_H_
