#include "kernels/cpu/copy_plan.h"

#include <algorithm>
#include <atomic>

#include "kernels/cpu/reference.h"
#include "kernels/tensor/hadamard_signs.h"
#include "kernels/tensor/quant_stats.h"

namespace nibble::cpu {
namespace {

constexpr uint32_t kInfinityBits = 0x7f800000u;

// Raises a value shared by threads; returns its new value.
uint32_t RaisedTo(uint32_t& shared, uint32_t bits) {
  std::atomic_ref<uint32_t> value(shared);
  uint32_t before = value.load(std::memory_order_relaxed);
  while (before < bits && !value.compare_exchange_weak(before, bits, std::memory_order_relaxed)) {
  }
  return std::max(before, bits);
}

int64_t OutputBytes(const QuantizedTensor& out) {
  return (out.packed() ? out.code_bytes() : 0) +
         (out.emulated_layout() != EmulatedLayout::kNone ? 2 * out.rows() * out.cols() : 0);
}

// Only the BF16 operand is requested, in the source's layout.
bool IsOperandOnly(const CopyRequest& copy) {
  const EmulatedLayout layout = copy.out->emulated_layout();
  return !copy.statistics && !copy.out->packed() && layout != EmulatedLayout::kNone &&
         (layout == EmulatedLayout::kSource || !copy.out->is_column());
}

// Whether outputs are written past the caches, because they would be evicted before they are read.
// Operands without codes are written as fast as they can be read, next to a source that is read
// twice, so this pays off early; other outputs take longer to compute than to write.
bool Streams(const QuantizeRequest& request, const QuantizedTensor& out, bool operand_only) {
  constexpr int64_t kLarge = int64_t{8} << 20;  // about the cache size per thread
  if (!operand_only) return OutputBytes(out) > kLarge;
  int64_t bytes = request.x.rows * request.x.cols * DTypeBytes(request.x.dtype);
  for (const CopyRequest* copy : {&request.row, &request.column}) {
    if (copy->out != nullptr) bytes += OutputBytes(*copy->out);
  }
  return bytes > kLarge;
}

RandomStream StreamOf(const CopyRequest& copy) {
  RandomStream random = copy.random;
  if (copy.step != nullptr) random.step = static_cast<uint32_t>(*copy.step);
  return random;
}

bool IsWhole(int64_t block) { return block == BlockShape::kWhole; }

BlockScale ScaleOf(const FormatInfo& format, float amax, const Nvfp4::TensorScale& tensor) {
  switch (format.scale) {
    case ScaleKind::kE4M3:
      return Nvfp4Block(amax, tensor);
    case ScaleKind::kE8M0:
      return format.element == Element::kE2M1 ? MxBlock<E2M1>(amax) : MxBlock<E4M3>(amax);
    case ScaleKind::kF32:
      break;
  }
  switch (format.element) {
    case Element::kE2M1:
      return Fp32Block<E2M1>(amax);
    case Element::kE4M3:
      return Fp32Block<E4M3>(amax);
    case Element::kE5M2:
      break;
  }
  return Fp32Block<E5M2>(amax);
}

}  // namespace

void CopyTotals::Merge(const CopyTotals& other) {
  amax_bits = std::max(amax_bits, other.amax_bits);
  non_finite += other.non_finite;
  nibble::Merge(other.stats, stats);
}

CopyPlan::CopyPlan(const LaneKernels& kernels, const QuantizeRequest& request,
                   const CopyRequest& copy)
    : kernels_(kernels),
      copy_(copy),
      out_(*copy.out),
      place_(request.placement),
      signs_(Signs(copy.out->spec().hadamard)),
      random_(StreamOf(copy)),
      inline_nvfp4_(copy.out->spec().format == Format::kNvfp4 && copy.out->spec().block.rows == 1),
      per_line_(copy.out->spec().block == BlockShape{1, BlockShape::kWhole}),
      per_tensor_(IsWhole(copy.out->spec().block.rows)),
      amax_pass_(per_line_ || (copy.amax == nullptr && (copy.out->format().tensor_scale ||
                                                        per_tensor_ || copy.statistics))),
      operand_only_(IsOperandOnly(copy)),
      stream_(Streams(request, *copy.out, operand_only_)) {
  if (per_line_) line_amax_.assign(out_.copy_rows(), 0u);
}

int64_t CopyPlan::row_unit() const {
  const OperandSpec& spec = out_.spec();
  if (!columns()) return IsWhole(spec.block.rows) ? 1 : spec.block.rows;
  return std::max<int64_t>({16, spec.block.cols, spec.hadamard.size});
}

int64_t CopyPlan::col_unit() const {
  const OperandSpec& spec = out_.spec();
  if (columns()) return std::max<int64_t>(spec.block.rows, 1);
  return std::max<int64_t>({16, spec.block.cols, spec.hadamard.size});
}

Patch CopyPlan::MakePatch(const ConstMatrix& x, int64_t row, int64_t col, int64_t rows,
                          int64_t cols, CopyScratch& scratch) const {
  const int64_t at = row * x.stride + col;
  const bool bf16 = x.dtype == DType::kBf16;
  const void* data = bf16 ? static_cast<const void*>(static_cast<const uint16_t*>(x.data) + at)
                          : static_cast<const float*>(x.data) + at;
  const int size = out_.spec().hadamard.size;
  Patch patch = {data, bf16, x.stride, rows, cols, size == 16, {}};
  for (int i = 0; i < 16; ++i) patch.sign_bits[i] = signs_.Bit(i) << 31;
  if (size == 0 || size == 16) return patch;
  scratch.transformed.resize(rows * cols);
  const auto transform = columns() ? kernels_.hadamard_columns : kernels_.hadamard_rows;
  transform(patch, size, signs_, scratch.transformed.data(), cols);
  return {scratch.transformed.data(), true, cols, rows, cols, false, {}};
}

void CopyPlan::AmaxPatch(const ConstMatrix& x, int64_t row, int64_t col, int64_t rows, int64_t cols,
                         CopyScratch& scratch, CopyTotals& totals, std::optional<uint32_t>& plain) {
  const Patch patch = MakePatch(x, row, col, rows, cols, scratch);
  if (per_line_) return LineAmaxPatch(patch, columns() ? col : row, scratch, totals);
  // Ragged ends only occur without a transform, where the sweep does not depend on groups.
  uint32_t seen;
  if (out_.spec().hadamard.size == 0) {
    if (!plain) plain = kernels_.amax_rows(patch);
    seen = *plain;
  } else if (columns()) {
    uint32_t source;
    seen = kernels_.amax_columns(patch, RaisedTo(amax_so_far_, totals.amax_bits), &source);
    if (patch.data != scratch.transformed.data()) plain = source;
  } else {
    seen = kernels_.amax_rows(patch);
  }
  if (seen >= kInfinityBits) {
    const AmaxResult careful = ReferenceAmax(patch, columns());
    seen = careful.amax_bits;
    totals.non_finite += careful.non_finite;
  }
  totals.amax_bits = std::max(totals.amax_bits, seen);
}

void CopyPlan::LineAmaxPatch(const Patch& patch, int64_t line0, CopyScratch& scratch,
                             CopyTotals& totals) {
  const int64_t lines = columns() ? patch.cols : patch.rows;
  const int64_t groups = ((columns() ? patch.rows : patch.cols) + 15) / 16;
  const int64_t stride = columns() ? lines : groups;
  scratch.amax.resize(lines * groups);
  // The lane kernels need whole groups.
  const bool whole = (columns() ? patch.rows : patch.cols) % 16 == 0;
  uint32_t seen = kInfinityBits;
  if (whole) {
    seen = columns() ? kernels_.group_amax_columns(patch, scratch.amax.data(), stride)
                     : kernels_.group_amax_rows(patch, 1, scratch.amax.data(), stride);
  }
  if (seen >= kInfinityBits) {
    const AmaxResult careful = ReferenceGroupAmax(patch, columns(), scratch.amax.data(), stride);
    seen = careful.amax_bits;
    totals.non_finite += careful.non_finite;
  }
  totals.amax_bits = std::max(totals.amax_bits, seen);
  for (int64_t line = 0; line < lines; ++line) {
    float amax = 0.0f;
    for (int64_t group = 0; group < groups; ++group) {
      amax =
          std::max(amax, scratch.amax[columns() ? group * stride + line : line * stride + group]);
    }
    RaisedTo(line_amax_[line0 + line], BitsOf<float>(amax));
  }
}

void CopyPlan::SetAmax(const CopyTotals& amax_pass) {
  amax_ = copy_.amax != nullptr ? *copy_.amax : FromBits<float>(amax_pass.amax_bits);
  amax_pass_non_finite_ = amax_pass.non_finite;
  tensor_ = Nvfp4::ForTensor(amax_, out_.spec().formula == FormulaVersion::kTePre2_14);
  norm_ = StatNormFor(copy_.statistics_amax != nullptr ? *copy_.statistics_amax : amax_, amax_);
  if (!operand_only_ || (!per_line_ && !per_tensor_)) return;
  line_encode_.resize(out_.copy_rows());
  for (int64_t line = 0; line < out_.copy_rows(); ++line) {
    const float amax = per_line_ ? FromBits<float>(line_amax_[line]) : amax_;
    line_encode_[line] = ScaleOf(out_.format(), amax, tensor_).encode;
  }
}

GroupFactors CopyPlan::BlockFactors(const Patch& patch, int64_t line0, int64_t group0,
                                    CopyScratch& scratch, CopyTotals& totals) const {
  const int64_t lines = columns() ? patch.cols : patch.rows;
  const int64_t groups = ((columns() ? patch.rows : patch.cols) + 15) / 16;
  const int64_t stride = columns() ? lines : groups;
  const auto at = [&](int64_t line, int64_t group) {
    return columns() ? group * stride + line : line * stride + group;
  };
  for (std::vector<float>* v :
       {&scratch.amax, &scratch.encode, &scratch.emulate, &scratch.decode}) {
    v->resize(lines * groups);
  }
  const bool from_data = !per_line_ && !per_tensor_;
  const int64_t block_lines = from_data ? out_.block_rows() : 1;
  // Row patches: of a block's rows the first has the largest of all, unless the reference did it.
  int64_t amax_lines = columns() ? block_lines : 1;
  if (from_data) {
    float* amax = scratch.amax.data();
    uint32_t seen = columns() ? kernels_.group_amax_columns(patch, amax, stride)
                              : kernels_.group_amax_rows(patch, block_lines, amax, stride);
    if (seen >= kInfinityBits) {
      const AmaxResult careful = ReferenceGroupAmax(patch, columns(), amax, stride);
      amax_lines = block_lines;
      seen = careful.amax_bits;
      if (!amax_pass_) totals.non_finite += careful.non_finite;
    }
    totals.amax_bits = std::max(totals.amax_bits, seen);
  }
  const int64_t block_groups = from_data ? out_.block_cols() / 16 : groups;
  const int scale_bytes = ScaleBytes(out_.format().scale);
  for (int64_t line = 0; line < lines; line += block_lines) {
    for (int64_t group = 0; group < groups; group += block_groups) {
      float amax = per_tensor_ ? amax_
                   : per_line_ ? FromBits<float>(line_amax_[line0 + line])
                               : 0.0f;
      if (from_data) {
        for (int64_t i = 0; i < amax_lines; ++i) {
          for (int64_t j = 0; j < block_groups; ++j) {
            amax = std::max(amax, scratch.amax[at(line + i, group + j)]);
          }
        }
      }
      const BlockScale scale = ScaleOf(out_.format(), amax, tensor_);
      const float decode = out_.format().scale == ScaleKind::kE4M3
                               ? Nvfp4::DecodeFactor<float>(scale.value, norm_.amax)
                               : scale.value * norm_.factor;
      if (amax > 0.0f && scale.value > 0.0f) {
        const uint64_t bits = BitsOf<float>(scale.value);
        totals.stats.max_scale = std::max(totals.stats.max_scale, bits);
        totals.stats.min_scale = std::min(totals.stats.min_scale, bits);
      }
      if (out_.packed()) {
        const int64_t index = (line0 + line) / out_.block_rows() * out_.scale_cols() +
                              (group0 + group) * 16 / out_.block_cols();
        char* to = static_cast<char*>(out_.scales()) + index * scale_bytes;
        // Several patches of a tensor-wide block write the same bytes; only the first one writes.
        const bool first = from_data || ((per_line_ || line0 + line == 0) && group0 == 0);
        if (first) __builtin_memcpy(to, &scale.bits, scale_bytes);
      }
      // Row patches have one row of factors per block, column patches one per column.
      for (int64_t i = 0; i < (columns() ? block_lines : 1); ++i) {
        for (int64_t j = 0; j < block_groups; ++j) {
          const int64_t k =
              columns() ? at(line + i, group + j) : line / block_lines * stride + group + j;
          scratch.encode[k] = scale.encode;
          scratch.emulate[k] = scale.emulate;
          scratch.decode[k] = decode;
        }
      }
    }
  }
  int shift = 0;
  while (!columns() && (int64_t{1} << shift) < block_lines) ++shift;
  return {scratch.encode.data(), scratch.emulate.data(), scratch.decode.data(), stride, shift};
}

bool CopyPlan::EncodeOperand(const EncodeArgs& common, int64_t line0, CopyTotals& totals) const {
  const Patch& x = common.x;
  const int64_t along = columns() ? x.rows : x.cols;
  const bool whole_lines = per_line_ || per_tensor_;
  if (!operand_only_ || kernels_.operand_rows == nullptr || along % 16 != 0 ||
      x.cols < (columns() ? 2 : 16) * kernels_.lanes) {
    return false;
  }
  if (columns() && !whole_lines && out_.block_rows() > 1) return false;
  if (x.hadamard16 && (!columns() || !x.bf16 || !inline_nvfp4_)) return false;
  EncodeArgs args = common;
  args.blocks.scale = out_.format().scale;
  if (whole_lines) {
    args.blocks.line_encode = line_encode_.data() + line0;
  } else {
    args.blocks.lines = out_.block_rows();
    args.blocks.groups = out_.block_cols() / 16;
  }
  const uint32_t seen = columns() ? kernels_.operand_columns(args) : kernels_.operand_rows(args);
  if (seen >= kInfinityBits) return false;
  if (!whole_lines) totals.amax_bits = std::max(totals.amax_bits, seen);
  return true;
}

void CopyPlan::Encode(const EncodeArgs& args, CopyTotals& totals) const {
  StatSums stats;
  EncodeArgs run = args;
  if (args.stats != nullptr) run.stats = &stats;
  const uint32_t seen = columns() ? kernels_.encode_columns(run) : kernels_.encode_rows(run);
  if (seen >= kInfinityBits) {
    stats = StatSums();
    ReferenceEncode(run, columns());
    if (counts_when_encoding()) totals.non_finite += ReferenceAmax(args.x, columns()).non_finite;
  } else if (inline_nvfp4_) {
    totals.amax_bits = std::max(totals.amax_bits, seen);
  }
  totals.Merge({0, 0, stats});
}

void CopyPlan::QuantizePatch(const ConstMatrix& x, int64_t row, int64_t col, int64_t rows,
                             int64_t cols, CopyScratch& scratch, CopyTotals& totals) const {
  const Patch patch = MakePatch(x, row, col, rows, cols, scratch);
  const int64_t line0 = columns() ? col : row;
  const int64_t along0 = columns() ? row : col;
  const FormatInfo& format = out_.format();

  EncodeArgs args = {};
  args.x = patch;
  args.element = format.element;
  args.stochastic = out_.spec().rounding == Rounding::kStochastic;
  args.inline_nvfp4 = inline_nvfp4_;
  args.tensor = tensor_;
  args.norm = norm_;
  args.stream = stream_;
  args.round_emulated = format.scale == ScaleKind::kE8M0;
  if (copy_.statistics) args.stats = &totals.stats;
  // Column patches run upwards (see the driver): prefetch the source of the next patch, above this
  // one.
  args.prefetch_rows = columns() ? -rows : 0;
  args.random = random_;
  const int64_t global_along = columns() ? place_.global_rows : place_.global_cols;
  args.copy_row_blocks = (global_along != 0 ? global_along : out_.copy_cols()) / 16;
  const int64_t global_line = line0 + (columns() ? place_.first_col : place_.first_row);
  const int64_t global_first = along0 + (columns() ? place_.first_row : place_.first_col);
  args.first_block = global_line * args.copy_row_blocks + global_first / 16;

  if (out_.packed()) {
    args.codes_stride = out_.code_row_bytes();
    args.codes =
        out_.codes() + line0 * args.codes_stride + along0 * ElementBits(format.element) / 8;
    if (inline_nvfp4_) {
      args.scales_stride = out_.scale_cols();
      args.scales = static_cast<uint8_t*>(out_.scales()) + line0 * args.scales_stride + along0 / 16;
    }
  }
  if (out_.emulated_layout() != EmulatedLayout::kNone) {
    args.emulated_transposed = columns() && out_.emulated_layout() == EmulatedLayout::kCopy;
    args.emulated_stride = args.emulated_transposed ? out_.copy_cols() : out_.cols();
    args.emulated =
        out_.emulated() + (args.emulated_transposed ? line0 * args.emulated_stride + along0
                                                    : row * args.emulated_stride + col);
  }

  if (EncodeOperand(args, line0, totals)) return;
  if (!inline_nvfp4_) args.factors = BlockFactors(patch, line0, along0 / 16, scratch, totals);

  // The lane kernels need whole groups of 16; the reference does a ragged end (tensor-wide blocks
  // only).
  const int64_t length = columns() ? rows : cols;
  const int64_t whole = length / 16 * 16;
  if (whole == length) return Encode(args, totals);
  if (whole > 0) {
    EncodeArgs part = args;
    (columns() ? part.x.rows : part.x.cols) = whole;
    Encode(part, totals);
  }
  EncodeArgs rest = args;
  const int64_t skip = columns() ? whole * patch.stride : whole;
  rest.x.data = patch.bf16
                    ? static_cast<const void*>(static_cast<const uint16_t*>(patch.data) + skip)
                    : static_cast<const float*>(patch.data) + skip;
  (columns() ? rest.x.rows : rest.x.cols) = length - whole;
  const int64_t factors = columns() ? whole / 16 * args.factors.stride : whole / 16;
  rest.factors.encode += factors;
  rest.factors.emulate += factors;
  rest.factors.decode += factors;
  if (rest.codes != nullptr) rest.codes += whole * ElementBits(format.element) / 8;
  if (rest.emulated != nullptr) {
    rest.emulated += columns() && !args.emulated_transposed ? whole * args.emulated_stride : whole;
  }
  ReferenceEncode(rest, columns());
  if (counts_when_encoding()) totals.non_finite += ReferenceAmax(rest.x, columns()).non_finite;
}

void CopyPlan::Finish(const CopyTotals& totals) const {
  QuantHead head;
  const bool known = amax_pass_ || copy_.amax != nullptr;
  head.amax = known ? amax_ : FromBits<float>(totals.amax_bits);
  head.non_finite = amax_pass_ ? amax_pass_non_finite_ : totals.non_finite;
  if (copy_.statistics) head.stats = totals.stats;
  *out_.head() = head;
}

}  // namespace nibble::cpu
