#include "kernels/cuda/layers/cuda_mamba_ops.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();

int64_t DivideUp(int64_t x, int64_t by) { return (x + by - 1) / by; }

// Whether the tile kernels take a matrix: BF16, rows at multiples of 16 bytes.
template <class Matrix>
bool IsAligned(const Matrix& m) {
  return m.dtype == DType::kBf16 && m.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

// Scratch is one piece of memory: the first pass adds up what the second gives out.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  void Take(T*& to, int64_t bytes) {
    to = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += static_cast<size_t>(DivideUp(bytes, 256) * 256);
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

int64_t StateBytes(const gpu::ScanArgs& args, bool tiles) {
  return tiles ? int64_t{args.lanes} * args.tile_cols * args.tile_state * 2
               : int64_t{args.heads} * args.head_dim * args.state * 4;
}

// Scratch of a batch, and totals of all chunks of the request.
size_t Divide(void* base, bool tiles, bool backward, bool hopper, int64_t all_chunks,
              gpu::ScanArgs& args) {
  Arena arena(base);
  const int64_t chunks = args.chunk_count();
  arena.Take(args.chunks, chunks * int64_t{sizeof(gpu::ScanChunkInfo)});
  arena.Take(args.decays, chunks * args.heads * gpu::ScanDecays::kArrays * gpu::kScanChunk * 4);
  arena.Take(args.states, chunks * StateBytes(args, tiles));
  if (!backward) return arena.used();
  arena.Take(args.gradients, chunks * StateBytes(args, tiles));
  arena.Take(args.token_sums,
             chunks * args.lanes * gpu::ScanTokenSums::kArrays * gpu::kScanChunk * 4);
  arena.Take(args.head_sums, chunks * args.lanes * int64_t{sizeof(gpu::ScanHeadSums)});
  arena.Take(args.totals, all_chunks * args.heads * int64_t{sizeof(gpu::ScanTotals)});
  if (hopper) {
    arena.Take(args.pairs, chunks * args.groups * (3 * gpu::kScanChunk * gpu::kScanChunk / 4) * 2);
  }
  if (!tiles) {
    arena.Take(args.group_sums, args.sequences * args.length * 2 * args.groups * args.state * 4);
    arena.Take(args.balances, chunks * args.heads * gpu::kScanChunk * int64_t{sizeof(double)});
  }
  return arena.used();
}

// The tile and the slices of a head.
void ChooseTile(gpu::ScanArgs& args) {
  const gpu::ScanTile& widest = gpu::kScanTiles[std::size(gpu::kScanTiles) - 1];
  args.slices = static_cast<int>(DivideUp(args.head_dim, widest.cols));
  args.slice_cols = static_cast<int>(DivideUp(DivideUp(args.head_dim, args.slices), 8) * 8);
  args.lanes = args.heads * args.slices;
  for (const gpu::ScanTile& tile : gpu::kScanTiles) {
    if (args.slice_cols <= tile.cols && args.state <= tile.state) {
      args.tile_cols = tile.cols;
      args.tile_state = tile.state;
      return;
    }
  }
}

void ChooseNoTile(gpu::ScanArgs& args) {
  args.slices = 1;
  args.slice_cols = args.head_dim;
  args.lanes = args.heads;
}

// Moves a matrix's pointer down by rows.
template <class Pointer>
void MoveDown(Pointer& data, int64_t rows, int64_t stride, bool f32) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  if (data != nullptr) data = static_cast<Byte*>(data) + rows * stride * (f32 ? 4 : 2);
}

// Calls `launch` with the pieces of a layout, several at a time.
template <class Launch>
absl::Status ForPieces(const SequenceLayout& layout, std::span<float* const> states,
                       Launch&& launch) {
  gpu::Pieces pieces = {};
  for (size_t i = 0; i < states.size(); ++i) {
    const Continuation& piece = layout.continued[i];
    pieces.piece[pieces.count++] = {piece.row, piece.rows, states[i]};
    if (pieces.count < gpu::kPiecesPerLaunch && i + 1 < states.size()) continue;
    NIBBLE_RETURN_IF_ERROR(launch(pieces));
    pieces.count = 0;
  }
  return absl::OkStatus();
}

template <class Request>
gpu::ConvArgs ConvArgsOf(const Request& request) {
  return {.sequences = request.layout.sequences,
          .length = request.layout.length,
          .channels = request.in.cols,
          .width = request.width,
          .f32 = request.in.dtype == DType::kF32,
          .doc_begin = request.layout.doc_begin,
          .weight = request.weight,
          .bias = request.bias,
          .in = request.in.data,
          .in_stride = request.in.stride};
}

// The kernels number their thread blocks in 32 bits: `blocks` is at least their number.
absl::Status CheckSize(const char* operation, double blocks) {
  if (blocks <= static_cast<double>(kMostBlocks)) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(operation, ": needs ", blocks, " thread blocks, more than ", kMostBlocks));
}

}  // namespace

CudaMambaOps::CudaMambaOps(CudaBackend& backend) : backend_(backend) {
  int device = 0;
  cudaDeviceProp properties;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
    hopper_ = properties.major == 9;
  }
}

absl::Status CudaMambaOps::Grow(size_t bytes) {
  if (scratch_.bytes() >= bytes) return absl::OkStatus();
  // Enqueued kernels may still use the old memory.
  NIBBLE_RETURN_IF_ERROR(backend_.Synchronize());
  scratch_ = Buffer();
  NIBBLE_ASSIGN_OR_RETURN(scratch_, backend_.memory().Allocate(bytes));
  return absl::OkStatus();
}

absl::Status CudaMambaOps::Forward(const ConvForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  if (request.in.rows == 0 || request.in.cols == 0) return absl::OkStatus();
  gpu::ConvArgs args = ConvArgsOf(request);
  args.out = request.out.data;
  args.out_stride = request.out.stride;
  // Thread blocks have at least 32 channels and 32 rows.
  NIBBLE_RETURN_IF_ERROR(CheckSize(
      "convolution",
      static_cast<double>(request.in.rows) * (static_cast<double>(args.channels) / 32 + 1)));
  if (request.layout.continued.empty()) {
    last_path_ = "convolution";
    return StatusOf(gpu::LaunchConvForward(args, backend_.stream()),
                    "launch of the convolution kernel");
  }
  last_path_ = "convolution tokens";
  return ForPieces(request.layout, request.windows, [&](const gpu::Pieces& pieces) {
    return StatusOf(gpu::LaunchConvTokens(args, pieces, backend_.stream()),
                    "launch of the convolution kernel of continued sequences");
  });
}

absl::Status CudaMambaOps::Backward(const ConvBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  if (request.in.rows == 0 || request.in.cols == 0) return absl::OkStatus();
  gpu::ConvArgs args = ConvArgsOf(request);
  args.out = request.din.data;
  args.out_stride = request.din.stride;
  args.dout = request.dout.data;
  args.dout_stride = request.dout.stride;
  args.dweight = request.dweight;
  args.dbias = request.dbias;
  NIBBLE_RETURN_IF_ERROR(CheckSize(
      "convolution backward",
      static_cast<double>(request.in.rows) * (static_cast<double>(args.channels) / 32 + 1)));
  NIBBLE_RETURN_IF_ERROR(Grow(ScratchBytes(request)));
  args.partial = scratch_.data<float>();
  last_path_ = "convolution backward";
  return StatusOf(gpu::LaunchConvBackward(args, backend_.stream()),
                  "launch of the convolution's backward kernels");
}

size_t CudaMambaOps::ScratchBytes(const ConvBackward& request) const {
  const SequenceLayout& layout = request.layout;
  const int64_t sums =
      gpu::ConvRowBlocks(layout.sequences, layout.length) * (request.width + 1) * request.in.cols;
  return static_cast<size_t>(sums) * sizeof(float);
}

CudaMambaOps::Scan CudaMambaOps::Plan(const ScanShape& shape, const ScanParams& params,
                                      const SequenceLayout& layout, bool aligned,
                                      bool backward) const {
  Scan scan;
  gpu::ScanArgs& args = scan.args = {};
  args.heads = shape.heads;
  args.head_dim = shape.head_dim;
  args.groups = shape.groups;
  args.state = shape.state;
  args.sequences = layout.sequences;
  args.length = layout.length;
  args.chunks_per_sequence = static_cast<int>(DivideUp(layout.length, gpu::kScanChunk));
  args.doc_begin = layout.doc_begin;
  args.dt_bias = params.dt_bias;
  args.a_log = params.a_log;
  args.d = params.d;
  const int most_state = gpu::kScanTiles[std::size(gpu::kScanTiles) - 1].state;
  scan.backward = backward;
  scan.tiles = aligned && !simple_only_ && shape.head_dim % 8 == 0 && shape.state % 8 == 0 &&
               shape.state <= most_state;
  if (scan.tiles) {
    ChooseTile(args);
    scan.hopper = hopper_ && use_hopper_ && gpu::HopperTakesScan({args.tile_cols, args.tile_state});
  } else {
    ChooseNoTile(args);
  }
  const int64_t sequence_bytes =
      args.chunks_per_sequence * StateBytes(args, scan.tiles) * (backward ? 2 : 1);
  scan.batch = std::clamp<int64_t>(batch_bytes_ / sequence_bytes, 1, layout.sequences);
  return scan;
}

CudaMambaOps::Scan CudaMambaOps::Plan(const ScanBackward& request) const {
  return Plan(request.shape, request.params, request.layout,
              IsAligned(request.xbc) && IsAligned(request.dy) && IsAligned(request.dxbc), true);
}

size_t CudaMambaOps::ScratchBytes(const Scan& scan) {
  gpu::ScanArgs args = scan.args;
  const int64_t all_chunks = args.chunk_count();
  args.sequences = scan.batch;
  return Divide(nullptr, scan.tiles, scan.backward, scan.hopper, all_chunks, args);
}

size_t CudaMambaOps::ScratchBytes(const ScanBackward& request) const {
  return ScratchBytes(Plan(request));
}

absl::Status CudaMambaOps::RunBatch(const Scan& scan, const gpu::ScanArgs& args) {
  const cudaStream_t stream = backend_.stream();
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(gpu::LaunchScanDecays(args, stream), "launch of the scan's kernel of exponents"));
  if (scan.tiles) {
    NIBBLE_RETURN_IF_ERROR(StatusOf(scan.hopper
                                        ? gpu::LaunchScanHopperStates(args, scan.backward, stream)
                                        : gpu::LaunchScanStates(args, scan.backward, stream),
                                    "launch of the scan's kernel of states"));
    if (!scan.backward) {
      return StatusOf(scan.hopper ? gpu::LaunchScanHopperForward(args, stream)
                                  : gpu::LaunchScanForward(args, stream),
                      "launch of the scan kernel");
    }
    if (scan.hopper) {
      NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchScanHopperPairs(args, stream),
                                      "launch of the scan's backward kernel of pairs"));
      NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchScanHopperGroups(args, stream),
                                      "launch of the scan's backward kernel of groups"));
    } else {
      NIBBLE_RETURN_IF_ERROR(
          StatusOf(gpu::LaunchScanBackward(args, stream), "launch of the scan's backward kernel"));
    }
  } else {
    NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchScanSimpleStates(args, scan.backward, stream),
                                    "launch of the simple scan's kernel of states"));
    if (!scan.backward) {
      return StatusOf(gpu::LaunchScanSimpleForward(args, stream),
                      "launch of the simple scan kernel");
    }
    NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchScanSimpleBackward(args, stream),
                                    "launch of the simple scan's backward kernel"));
  }
  return StatusOf(gpu::LaunchScanTokenGradients(args, stream), "launch of the scan's kernel of dt");
}

absl::Status CudaMambaOps::Run(Scan& scan, float* ddt_bias, float* da_log, float* dd) {
  gpu::ScanArgs& args = scan.args;
  const int64_t sequences = args.sequences, all_chunks = args.chunk_count();
  const double state_parts = static_cast<double>(args.head_dim) * args.state / 256 + 1;
  NIBBLE_RETURN_IF_ERROR(CheckSize(scan.backward ? "scan backward" : "scan",
                                   static_cast<double>(all_chunks) * args.lanes * 8 +
                                       static_cast<double>(sequences) * args.heads * state_parts));
  NIBBLE_RETURN_IF_ERROR(Grow(ScratchBytes(scan)));
  args.sequences = scan.batch;
  Divide(scratch_.data(), scan.tiles, scan.backward, scan.hopper, all_chunks, args);
  gpu::ScanTotals* const totals = args.totals;
  last_path_ = absl::StrCat(scan.hopper  ? "hopper"
                            : scan.tiles ? "tiles"
                                         : "simple",
                            scan.backward ? " backward" : "");
  for (int64_t begin = 0; begin < sequences; begin += scan.batch) {
    args.sequences = std::min(scan.batch, sequences - begin);
    NIBBLE_RETURN_IF_ERROR(RunBatch(scan, args));
    const int64_t rows = args.sequences * args.length;
    MoveDown(args.xbc, rows, args.xbc_stride, args.f32);
    MoveDown(args.dt, rows, args.dt_stride, args.f32);
    MoveDown(args.y, rows, args.y_stride, args.f32);
    MoveDown(args.dy, rows, args.dy_stride, args.f32);
    MoveDown(args.dxbc, rows, args.dxbc_stride, args.f32);
    MoveDown(args.ddt, rows, args.ddt_stride, args.f32);
    if (args.doc_begin != nullptr) args.doc_begin += rows;
    if (args.totals != nullptr) args.totals += args.chunk_count() * args.heads;
  }
  if (!scan.backward) return absl::OkStatus();
  return StatusOf(gpu::LaunchScanTotals(totals, all_chunks, args.heads, ddt_bias, da_log, dd,
                                        backend_.stream()),
                  "launch of the scan's kernel of totals");
}

absl::Status CudaMambaOps::Forward(const ScanForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  if (request.xbc.rows == 0) return absl::OkStatus();
  const ScanShape& shape = request.shape;
  const bool f32 = request.xbc.dtype == DType::kF32;
  if (!request.layout.continued.empty()) {
    const gpu::ScanTokensArgs args = {.heads = shape.heads,
                                      .head_dim = shape.head_dim,
                                      .groups = shape.groups,
                                      .state = shape.state,
                                      .f32 = f32,
                                      .dt_bias = request.params.dt_bias,
                                      .a_log = request.params.a_log,
                                      .d = request.params.d,
                                      .xbc = request.xbc.data,
                                      .dt = request.dt.data,
                                      .xbc_stride = request.xbc.stride,
                                      .dt_stride = request.dt.stride,
                                      .y = request.y.data,
                                      .y_stride = request.y.stride};
    last_path_ = "tokens";
    return ForPieces(request.layout, request.states, [&](const gpu::Pieces& pieces) {
      return StatusOf(gpu::LaunchScanTokens(args, pieces, backend_.stream()),
                      "launch of the scan kernel of continued sequences");
    });
  }
  Scan scan = Plan(shape, request.params, request.layout,
                   IsAligned(request.xbc) && IsAligned(request.y), false);
  gpu::ScanArgs& args = scan.args;
  args.f32 = f32;
  args.xbc = request.xbc.data;
  args.xbc_stride = request.xbc.stride;
  args.dt = request.dt.data;
  args.dt_stride = request.dt.stride;
  args.y = request.y.data;
  args.y_stride = request.y.stride;
  return Run(scan, nullptr, nullptr, nullptr);
}

absl::Status CudaMambaOps::Backward(const ScanBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  if (request.xbc.rows == 0) return absl::OkStatus();
  Scan scan = Plan(request);
  gpu::ScanArgs& args = scan.args;
  args.f32 = request.xbc.dtype == DType::kF32;
  args.xbc = request.xbc.data;
  args.xbc_stride = request.xbc.stride;
  args.dt = request.dt.data;
  args.dt_stride = request.dt.stride;
  args.dy = request.dy.data;
  args.dy_stride = request.dy.stride;
  args.dxbc = request.dxbc.data;
  args.dxbc_stride = request.dxbc.stride;
  args.ddt = request.ddt.data;
  args.ddt_stride = request.ddt.stride;
  return Run(scan, request.ddt_bias, request.da_log, request.dd);
}

}  // namespace nibble
