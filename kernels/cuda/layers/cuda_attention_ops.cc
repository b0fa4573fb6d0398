#include "kernels/cuda/layers/cuda_attention_ops.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/layers/attention_args.h"
#include "kernels/cuda/layers/attention_kernels.h"
#include "kernels/cuda/layers/attention_simple.h"
#include "kernels/cuda/layers/rope_kernels.h"

namespace nibble {
namespace {

// A table of rotations grows by this number of positions, so that few tokens of decoding wait for
// it.
constexpr int64_t kRopeGrowth = 2048;

// Whether the tensor-core kernels take a matrix: BF16, rows at multiples of 16 bytes.
bool IsAligned(const void* data, DType dtype, int64_t stride) {
  return dtype == DType::kBf16 && stride % 8 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
}
template <class... Matrix>
bool AreAligned(const Matrix&... m) {
  return (IsAligned(m.data, m.dtype, m.stride) && ...);
}

absl::Status CheckShape(const std::string& operation, const AttentionShape& shape,
                        const SequenceLayout& layout) {
  if (shape.head_dim > gpu::kSimpleHeadDim) {
    return absl::UnimplementedError(absl::StrCat(operation, ": head_dim ", shape.head_dim,
                                                 " has no CUDA kernel; up to ", gpu::kSimpleHeadDim,
                                                 " have"));
  }
  // Kernels count rows of all heads and pieces of work in 32 bits.
  const int64_t padded = (layout.length + gpu::kTokenTile - 1) / gpu::kTokenTile * gpu::kTokenTile;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (padded != 0 && layout.sequences > kMost / padded / shape.heads) {
    return absl::UnimplementedError(absl::StrCat(
        operation, ": ", layout.sequences, " sequences of length ", layout.length, " with ",
        shape.heads, " heads are more rows than the CUDA kernels count, ", kMost));
  }
  return absl::OkStatus();
}

gpu::AttentionDims DimsOf(const AttentionShape& shape, const SequenceLayout& layout) {
  return {shape.heads,      shape.kv_heads, shape.head_dim, static_cast<int>(layout.length),
          layout.sequences, shape.scale};
}

gpu::ForwardArgs ArgsOf(const AttentionForward& request) {
  return {.dims = DimsOf(request.shape, request.layout),
          .qkv = static_cast<const uint16_t*>(request.qkv.data),
          .qkv_stride = request.qkv.stride,
          .out = static_cast<uint16_t*>(request.out.data),
          .out_stride = request.out.stride,
          .lse = request.lse,
          .amax = request.amax,
          .doc_begin = request.layout.doc_begin,
          .schedule = nullptr};
}
gpu::SimpleForward SimpleArgsOf(const AttentionForward& request) {
  return {.dims = DimsOf(request.shape, request.layout),
          .f32 = request.qkv.dtype == DType::kF32,
          .qkv = request.qkv.data,
          .qkv_stride = request.qkv.stride,
          .out = request.out.data,
          .out_stride = request.out.stride,
          .lse = request.lse,
          .amax = request.amax,
          .doc_begin = request.layout.doc_begin};
}

}  // namespace

CudaAttentionOps::CudaAttentionOps(CudaBackend& backend) : backend_(backend) {
  cudaDeviceProp properties;
  if (cudaGetDevice(&device_) == cudaSuccess &&
      cudaGetDeviceProperties(&properties, device_) == cudaSuccess) {
    hopper_ = properties.major == 9;
  }
}

CudaAttentionOps::Path CudaAttentionOps::PathFor(int head_dim, bool aligned) const {
  if (!aligned || path_limit_ == Path::kSimple || !gpu::MmaTakesHeadDim(head_dim)) {
    return Path::kSimple;
  }
  const bool hopper = hopper_ && path_limit_ == Path::kHopper && gpu::HopperTakesHeadDim(head_dim);
  return hopper ? Path::kHopper : Path::kMma;
}

absl::Status CudaAttentionOps::Grow(Buffer& buffer, size_t bytes) {
  if (buffer.bytes() >= bytes) return absl::OkStatus();
  // Enqueued kernels may still use the old memory.
  NIBBLE_RETURN_IF_ERROR(backend_.Synchronize());
  buffer = Buffer();
  NIBBLE_ASSIGN_OR_RETURN(buffer, backend_.memory().Allocate(bytes));
  return absl::OkStatus();
}

absl::StatusOr<int*> CudaAttentionOps::Schedule() {
  if (!schedule_) {
    NIBBLE_RETURN_IF_ERROR(Grow(schedule_, 2 * sizeof(int)));
    NIBBLE_RETURN_IF_ERROR(backend_.memory().Fill(schedule_.data(), 0, 2 * sizeof(int)));
  }
  return schedule_.data<int>();
}

absl::StatusOr<const CudaAttentionOps::RopeTable*> CudaAttentionOps::TableFor(int half,
                                                                              double theta,
                                                                              int64_t positions) {
  RopeTable& table = rope_tables_[{half, theta}];
  if (table.positions < positions) {
    const int64_t more = (positions + kRopeGrowth - 1) / kRopeGrowth * kRopeGrowth;
    const size_t bytes = static_cast<size_t>(more * half) * sizeof(float);
    table.positions = 0;
    NIBBLE_RETURN_IF_ERROR(Grow(table.cosines, bytes));
    NIBBLE_RETURN_IF_ERROR(Grow(table.sines, bytes));
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(gpu::LaunchRopeTable(table.cosines.data<float>(), table.sines.data<float>(), more,
                                      half, theta, backend_.stream()),
                 "launch of the rope table kernel"));
    table.positions = more;
  }
  return &table;
}

absl::Status CudaAttentionOps::Run(const Rope& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const SequenceLayout& layout = request.layout;
  if (layout.tokens() == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device_), "cudaSetDevice"));
  int64_t positions = layout.length;
  for (const Continuation& piece : layout.continued) {
    positions = std::max(positions, piece.position + piece.rows);
  }
  const int half = request.shape.head_dim / 2;
  NIBBLE_ASSIGN_OR_RETURN(const RopeTable* table, TableFor(half, request.theta, positions));
  const gpu::RopeArgs args = {.qkv = request.qkv.data,
                              .stride = request.qkv.stride,
                              .f32 = request.qkv.dtype == DType::kF32,
                              .rows = layout.sequences * layout.length,
                              .length = layout.length,
                              .heads = request.shape.heads + request.shape.kv_heads,
                              .half = half,
                              .doc_begin = layout.doc_begin,
                              .cosines = table->cosines.data<float>(),
                              .sines = table->sines.data<float>(),
                              .inverse = request.inverse};
  gpu::RopePieces pieces = {};
  const auto launch = [&] {
    return StatusOf(gpu::LaunchRope(args, pieces, backend_.stream()), "launch of the rope kernel");
  };
  if (layout.continued.empty()) return launch();
  for (const Continuation& piece : layout.continued) {
    if (piece.rows != 0) pieces.piece[pieces.count++] = {piece.row, piece.rows, piece.position};
    if (pieces.count == gpu::kRopePieces || (&piece == &layout.continued.back() && pieces.count)) {
      NIBBLE_RETURN_IF_ERROR(launch());
      pieces.count = 0;
    }
  }
  return absl::OkStatus();
}

absl::Status CudaAttentionOps::AttendOverCaches(const AttentionForward& request) {
  const std::span<const Continuation> continued = request.layout.continued;
  bool aligned = AreAligned(request.qkv, request.out);
  for (size_t i = 0; i < continued.size(); ++i) {
    for (const void* data : {request.caches[i].keys, request.caches[i].values}) {
      aligned = aligned && IsAligned(data, request.qkv.dtype, 0);
    }
    if (continued[i].rows > std::numeric_limits<int32_t>::max() / request.shape.heads) {
      return absl::UnimplementedError(
          absl::StrCat("attention forward: ", continued[i].rows, " rows of one sequence with ",
                       request.shape.heads,
                       " heads over a cache are more than the CUDA kernels "
                       "count, ",
                       std::numeric_limits<int32_t>::max()));
    }
  }
  const bool simple = PathFor(request.shape.head_dim, aligned) == Path::kSimple;
  last_path_ = simple ? "simple forward over caches" : "mma forward over caches";
  const auto launch = [&](const gpu::CachedPieces& pieces) {
    if (simple) {
      gpu::SimpleForward args = SimpleArgsOf(request);
      args.lse = args.amax = nullptr;
      return StatusOf(gpu::LaunchSimpleForward(args, pieces, backend_.stream()),
                      "launch of the simple attention kernel over caches");
    }
    gpu::ForwardArgs args = ArgsOf(request);
    args.lse = args.amax = nullptr;
    return StatusOf(gpu::LaunchMmaForward(args, pieces, backend_.stream()),
                    "launch of the attention kernel over caches");
  };
  gpu::CachedPieces pieces = {};
  for (size_t i = 0; i < continued.size(); ++i) {
    const Continuation& piece = continued[i];
    const KvCache& cache = request.caches[i];
    if (piece.rows != 0) {
      pieces.piece[pieces.count++] = {.row = piece.row,
                                      .position = piece.position,
                                      .rows = static_cast<int>(piece.rows),
                                      .capacity = cache.capacity,
                                      .keys = cache.keys,
                                      .values = cache.values};
    }
    if (pieces.count == gpu::kCachedPieces || (i + 1 == continued.size() && pieces.count != 0)) {
      NIBBLE_RETURN_IF_ERROR(launch(pieces));
      pieces.count = 0;
    }
  }
  return absl::OkStatus();
}

absl::Status CudaAttentionOps::Forward(const AttentionForward& request) {
  const std::string name = "attention forward";
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(CheckShape(name, request.shape, request.layout));
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device_), "cudaSetDevice"));
  if (!request.layout.continued.empty()) return AttendOverCaches(request);
  gpu::ForwardArgs args = ArgsOf(request);
  if (args.amax != nullptr) {
    NIBBLE_RETURN_IF_ERROR(StatusOf(cudaMemsetAsync(args.amax, 0, sizeof(float), backend_.stream()),
                                    "cudaMemsetAsync"));
  }
  if (request.layout.tokens() == 0) return absl::OkStatus();
  const Path path = PathFor(request.shape.head_dim, AreAligned(request.qkv, request.out));
  if (path == Path::kSimple) {
    last_path_ = "simple forward";
    return StatusOf(gpu::LaunchSimpleForward(SimpleArgsOf(request), {}, backend_.stream()),
                    "launch of the simple attention kernel");
  }
  if (path == Path::kMma) {
    last_path_ = "mma forward";
    return StatusOf(gpu::LaunchMmaForward(args, {}, backend_.stream()),
                    "launch of the mma attention kernel");
  }
  last_path_ = "hopper forward";
  NIBBLE_ASSIGN_OR_RETURN(args.schedule, Schedule());
  return StatusOf(
      gpu::LaunchHopperForward(args, backend_.processors(), forward_warpgroups_, backend_.stream()),
      "launch of the Hopper attention kernel");
}

absl::Status CudaAttentionOps::SimpleBackward(const AttentionBackward& request) {
  const int64_t rows = request.layout.tokens() * request.shape.heads;
  NIBBLE_RETURN_IF_ERROR(Grow(dots_, static_cast<size_t>(rows) * sizeof(float)));
  const gpu::SimpleBackward args = {.dims = DimsOf(request.shape, request.layout),
                                    .f32 = request.qkv.dtype == DType::kF32,
                                    .qkv = request.qkv.data,
                                    .qkv_stride = request.qkv.stride,
                                    .out = request.out.data,
                                    .out_stride = request.out.stride,
                                    .dout = request.dout.data,
                                    .dout_stride = request.dout.stride,
                                    .lse = request.lse,
                                    .dqkv = request.dqkv.data,
                                    .dqkv_stride = request.dqkv.stride,
                                    .doc_begin = request.layout.doc_begin,
                                    .dots = dots_.data<float>()};
  last_path_ = "simple backward";
  return StatusOf(gpu::LaunchSimpleBackward(args, backend_.stream()),
                  "launch of the simple attention kernels");
}

CudaAttentionOps::Path CudaAttentionOps::PathOf(const AttentionBackward& request) const {
  return PathFor(request.shape.head_dim,
                 AreAligned(request.qkv, request.out, request.dout, request.dqkv));
}

size_t CudaAttentionOps::ScratchBytes(const AttentionBackward& request) const {
  const Path path = PathOf(request);
  const gpu::BackwardScratch scratch = gpu::ScratchOf(DimsOf(request.shape, request.layout));
  int64_t elements = 0;
  if (path == Path::kSimple) {
    elements = request.layout.tokens() * request.shape.heads;
  } else {
    elements = 2 * scratch.rows + scratch.last_query;
    if (path == Path::kHopper) elements += scratch.dq_sums + scratch.turns;
  }
  return static_cast<size_t>(elements) * sizeof(float);
}

absl::Status CudaAttentionOps::Backward(const AttentionBackward& request) {
  const std::string name = "attention backward";
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(CheckShape(name, request.shape, request.layout));
  if (request.layout.tokens() == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device_), "cudaSetDevice"));

  const Path path = PathOf(request);
  if (path == Path::kSimple) return SimpleBackward(request);
  const bool hopper = path == Path::kHopper;
  gpu::BackwardArgs args = {.dims = DimsOf(request.shape, request.layout),
                            .qkv = static_cast<const uint16_t*>(request.qkv.data),
                            .qkv_stride = request.qkv.stride,
                            .out = static_cast<const uint16_t*>(request.out.data),
                            .out_stride = request.out.stride,
                            .dout = static_cast<const uint16_t*>(request.dout.data),
                            .dout_stride = request.dout.stride,
                            .lse = request.lse,
                            .dqkv = static_cast<uint16_t*>(request.dqkv.data),
                            .dqkv_stride = request.dqkv.stride,
                            .doc_begin = request.layout.doc_begin};
  const gpu::BackwardScratch scratch = gpu::ScratchOf(args.dims);
  const auto take = [&](Buffer& buffer, int64_t elements) {
    return Grow(buffer, static_cast<size_t>(elements) * sizeof(float));
  };
  NIBBLE_RETURN_IF_ERROR(take(lse2_, scratch.rows));
  NIBBLE_RETURN_IF_ERROR(take(dots_, scratch.rows));
  NIBBLE_RETURN_IF_ERROR(take(last_query_, scratch.last_query));
  if (hopper) {
    NIBBLE_RETURN_IF_ERROR(take(dq_sums_, scratch.dq_sums));
    NIBBLE_RETURN_IF_ERROR(take(turns_, scratch.turns));
    args.dq_sums = dq_sums_.data<float>();
    args.turns = turns_.data<int>();
    NIBBLE_ASSIGN_OR_RETURN(args.schedule, Schedule());
  }
  args.lse2 = lse2_.data<float>();
  args.dots = dots_.data<float>();
  args.last_query = last_query_.data<int32_t>();
  NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchBackwardRows(args, backend_.stream()),
                                  "launch of the attention rows kernel"));
  if (!hopper) {
    last_path_ = "mma backward";
    return StatusOf(gpu::LaunchMmaBackward(args, backend_.stream()),
                    "launch of the mma attention kernels");
  }
  last_path_ = "hopper backward";
  return StatusOf(gpu::LaunchHopperBackward(args, backend_.processors(), backend_.stream()),
                  "launch of the Hopper attention kernel");
}

}  // namespace nibble
