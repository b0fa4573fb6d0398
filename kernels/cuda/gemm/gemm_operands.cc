#include "kernels/cuda/gemm/gemm_operands.h"

#include <utility>

#include "common/status_macros.h"
#include "kernels/cuda/gemm/scale_tiles.h"
#include "kernels/gemm/plain_operand.h"

namespace nibble {
namespace {

gpu::CodeElement CodeElementOf(Element element) {
  switch (element) {
    case Element::kE2M1:
      return gpu::CodeElement::kE2M1;
    case Element::kE4M3:
      return gpu::CodeElement::kE4M3;
    case Element::kE5M2:
      break;
  }
  return gpu::CodeElement::kE5M2;
}

LtType TypeOf(Element element) {
  switch (element) {
    case Element::kE2M1:
      return LtType::kE2M1;
    case Element::kE4M3:
      return LtType::kE4M3;
    case Element::kE5M2:
      break;
  }
  return LtType::kE5M2;
}

// Whether the contracted dimension runs along the copy's rows, across its own blocks.
bool IsCrossed(const GemmOperand& operand) {
  return operand.quantized().is_column() != (operand.contract == Contract::kRows);
}

gpu::ExpandArgs ExpandArgsOf(const QuantizedTensor& tensor) {
  gpu::ExpandArgs args;
  args.codes = tensor.codes();
  args.rows = tensor.copy_rows();
  args.cols = tensor.copy_cols();
  args.element = CodeElementOf(tensor.format().element);
  if (tensor.format().exact_in_bf16) {
    args.scale =
        tensor.format().scale == ScaleKind::kE4M3 ? gpu::CodeScale::kE4M3 : gpu::CodeScale::kE8M0;
    args.scales = static_cast<const uint8_t*>(tensor.scales());
    args.block_rows = tensor.block_rows();
    args.block_cols = tensor.block_cols();
  }
  return args;
}

gpu::TileScalesArgs TileScalesArgsOf(const GemmOperand& operand) {
  const QuantizedTensor& tensor = operand.quantized();
  gpu::TileScalesArgs args;
  args.from = static_cast<const uint8_t*>(tensor.scales());
  args.lines = operand.lines();
  args.blocks = operand.depth() / tensor.block_cols();
  if (IsCrossed(operand)) {
    // Blocks are square: lines run along the scales' columns.
    args.line_block = tensor.block_cols();
    args.line_stride = 1;
    args.block_stride = tensor.scale_cols();
  } else {
    args.line_block = tensor.block_rows();
    args.line_stride = tensor.scale_cols();
    args.block_stride = 1;
  }
  return args;
}

}  // namespace

int AlignmentOf(const void* data, int64_t row_bytes) {
  const auto bits = reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(row_bytes) | 16u;
  return static_cast<int>(bits & -bits);
}

int64_t RowBytes(const LtOperand& operand) { return operand.stride * LtTypeBits(operand.type) / 8; }

gpu::ScaleView ViewOf(const LineScales& scales) {
  return {scales.data, scales.line_block, scales.line_stride, scales.slice_stride};
}

absl::StatusOr<PreparedOperand> GemmOperands::Plain(const GemmOperand& operand, DType dtype,
                                                    Side side) {
  const LtType type = dtype == DType::kF32 ? LtType::kF32 : LtType::kBf16;
  const PlainOperand plain = PlainOf(operand, dtype);
  if (plain.is_ready) {
    return PreparedOperand{plain.data, {type, plain.k_major, plain.stride}};
  }
  NIBBLE_ASSIGN_OR_RETURN(
      void* const out,
      Of(side).converted.Reserve(memory_, stream_, plain.rows * plain.cols * DTypeBytes(dtype)));
  if (plain.bf16 != nullptr) {
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(gpu::LaunchWiden(plain.bf16, plain.rows, plain.cols, plain.stride,
                                  static_cast<float*>(out), stream_.get()),
                 "launch of the widening kernel"));
  } else {
    gpu::ExpandArgs args = ExpandArgsOf(operand.quantized());
    args.output = dtype == DType::kF32 ? gpu::CodeOutput::kF32 : gpu::CodeOutput::kBf16;
    args.out = out;
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(gpu::LaunchExpand(args, stream_.get()), "launch of the expanding kernel"));
  }
  return PreparedOperand{out, {type, plain.k_major, plain.cols}};
}

absl::Status GemmOperands::Codes(GemmPath path, const GemmOperand& operand, Side side,
                                 PreparedOperand& out) {
  const QuantizedTensor& tensor = operand.quantized();
  Buffers& buffers = Of(side);
  const uint8_t* codes = tensor.codes();
  LtType type = TypeOf(tensor.format().element);
  if (type == LtType::kE2M1 && path != GemmPath::kNvfp4) {
    gpu::ExpandArgs args = ExpandArgsOf(tensor);
    args.scale = gpu::CodeScale::kNone;
    args.output = gpu::CodeOutput::kE4M3;
    NIBBLE_ASSIGN_OR_RETURN(args.out,
                            buffers.converted.Reserve(memory_, stream_, args.rows * args.cols));
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(gpu::LaunchExpand(args, stream_.get()), "launch of the expanding kernel"));
    codes = static_cast<const uint8_t*>(args.out);
    type = LtType::kE4M3;
  }
  if (IsCrossed(operand)) {
    const int bits = LtTypeBits(type);
    NIBBLE_ASSIGN_OR_RETURN(
        void* const transposed,
        buffers.transposed.Reserve(memory_, stream_,
                                   tensor.copy_rows() * tensor.copy_cols() * bits / 8));
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(gpu::LaunchTransposeCodes(codes, tensor.copy_rows(), tensor.copy_cols(), bits,
                                           static_cast<uint8_t*>(transposed), stream_.get()),
                 "launch of the transposing kernel"));
    codes = static_cast<const uint8_t*>(transposed);
  }
  out = {codes, {type, true, operand.depth()}};
  return absl::OkStatus();
}

absl::Status GemmOperands::Native(GemmPath path, const GemmOperand& a, const GemmOperand& b,
                                  PreparedOperand& prepared_a, PreparedOperand& prepared_b) {
  NIBBLE_RETURN_IF_ERROR(Codes(path, a, Side::kA, prepared_a));
  NIBBLE_RETURN_IF_ERROR(Codes(path, b, Side::kB, prepared_b));
  switch (path) {
    case GemmPath::kFp8Slices:
      return ArrangeSlices(a, b, prepared_a, prepared_b);
    case GemmPath::kMx:
    case GemmPath::kNvfp4:
      prepared_a.form.scale = prepared_b.form.scale =
          path == GemmPath::kMx ? LtScale::kMx : LtScale::kNvfp4;
      return TileScales(a, b, prepared_a, prepared_b);
    default:
      break;
  }
  prepared_a.form.scale = prepared_b.form.scale =
      path == GemmPath::kFp8Lines ? LtScale::kLines : LtScale::kTensor;
  prepared_a.scales = a.quantized().scales();
  prepared_b.scales = b.quantized().scales();
  return absl::OkStatus();
}

absl::Status GemmOperands::ArrangeSlices(const GemmOperand& a, const GemmOperand& b,
                                         PreparedOperand& out_a, PreparedOperand& out_b) {
  gpu::ArrangeArgs args[2];
  const GemmOperand* const operands[2] = {&a, &b};
  PreparedOperand* const out[2] = {&out_a, &out_b};
  for (int i = 0; i < 2; ++i) {
    args[i].from = ViewOf(LineScalesOf(*operands[i]));
    args[i].lines = operands[i]->lines();
    args[i].slices = operands[i]->depth() / kSliceDepth;
    // cuBLASLt does not take blocks on both sides: then B's scales are repeated for its lines.
    args[i].blocks = args[i].from.line_block == kSliceDepth && !(i == 1 && args[0].blocks);
    const int64_t padded = (args[i].slices + 3) / 4 * 4;
    const int64_t elements = args[i].blocks
                                 ? (args[i].lines + kSliceDepth - 1) / kSliceDepth * padded
                                 : args[i].lines * args[i].slices;
    NIBBLE_ASSIGN_OR_RETURN(
        void* const to, buffers_[i].scales.Reserve(memory_, stream_,
                                                   elements * static_cast<int64_t>(sizeof(float))));
    args[i].to = static_cast<float*>(to);
    out[i]->scales = to;
    out[i]->form.scale = args[i].blocks ? LtScale::kBlocks : LtScale::kSlices;
  }
  return StatusOf(gpu::LaunchArrange(args[0], args[1], stream_.get()),
                  "launch of the kernel that arranges scales");
}

absl::Status GemmOperands::TileScales(const GemmOperand& a, const GemmOperand& b,
                                      PreparedOperand& out_a, PreparedOperand& out_b) {
  gpu::TileScalesArgs args[2] = {TileScalesArgsOf(a), TileScalesArgsOf(b)};
  PreparedOperand* const out[2] = {&out_a, &out_b};
  for (int i = 0; i < 2; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(
        void* const to, buffers_[i].scales.Reserve(
                            memory_, stream_, gpu::ScaleTilesBytes(args[i].lines, args[i].blocks)));
    args[i].to = static_cast<uint8_t*>(to);
    out[i]->scales = to;
  }
  return StatusOf(gpu::LaunchTileScales(args[0], args[1], stream_.get()),
                  "launch of the kernel that tiles scales");
}

}  // namespace nibble
