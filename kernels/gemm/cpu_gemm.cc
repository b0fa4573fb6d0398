#include "kernels/gemm/cpu_gemm.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/gemm/expand.h"
#include "kernels/gemm/plain_operand.h"
#include "kernels/gemm/tile_loops.h"

namespace nibble {

using cpu::OperandView;
using cpu::Tile;
using cpu::TileGemm;
using cpu::TileLoops;
using cpu::TilePlan;
using cpu::TileTask;

namespace {

bool IsFp32Matrix(const GemmOperand& operand) {
  return !operand.is_quantized() && operand.matrix().dtype == DType::kF32;
}

// Copies x: [rows, cols] to out, without gaps.
void Widen(const uint16_t* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool,
           float* out) {
  const TileLoops& loops = cpu::BestTileLoops();
  constexpr int64_t kTaskElements = 1 << 16;
  const int64_t rows_per_task = std::max<int64_t>(1, kTaskElements / cols);
  pool.ParallelFor((rows + rows_per_task - 1) / rows_per_task, [&](int64_t index, int) {
    const int64_t end = std::min(rows, (index + 1) * rows_per_task);
    for (int64_t row = index * rows_per_task; row < end; ++row) {
      loops.widen(x + row * stride, cols, out + row * cols);
    }
  });
}

// Element (row, col) of C, with the stride in elements of its type.
char* At(const MutableMatrix& c, int64_t row, int64_t col) {
  return static_cast<char*>(c.data) + (row * c.stride + col) * DTypeBytes(c.dtype);
}

// The result of a GEMM with K = 0.
void Zero(const MutableMatrix& c) {
  for (int64_t row = 0; row < c.rows; ++row) {
    std::memset(At(c, row, 0), 0, c.cols * DTypeBytes(c.dtype));
  }
}

OperandPlan PlanOf(const GemmUse::Operand& operand) {
  if (!operand.spec.has_value()) return {};
  // FP32 scales that are finer than the tensor are not part of the emulated operand, and those of
  // whole tensors follow from amax.
  const bool fine = operand.spec->block.rows != BlockShape::kWhole;
  return {OperandForm::kEmulatedSource, fine && !Info(operand.spec->format).exact_in_bf16};
}

// Writes a tile's accumulator to C.
void Finish(const float* acc, float alpha, const float* row_scales, const float* col_scales,
            const Tile& tile, const GemmRequest& request) {
  const TileLoops& loops = cpu::BestTileLoops();
  for (int64_t i = 0; i < tile.rows; ++i) {
    char* c = At(request.c, tile.row + i, tile.col);
    const float* row = acc + i * tile.cols;
    if (request.c.dtype == DType::kF32) {
      loops.finish_f32(row, alpha, row_scales[i], col_scales, tile.cols, request.accumulate,
                       reinterpret_cast<float*>(c));
    } else {
      loops.finish_bf16(row, alpha, row_scales[i], col_scales, tile.cols, request.accumulate,
                        reinterpret_cast<uint16_t*>(c));
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuGemm>> CpuGemm::Create(ThreadPool& pool, const Options& options) {
  const Path path = options.path.value_or(cpu::HasBf16Instructions() ? Path::kBf16 : Path::kFp32);
  std::unique_ptr<CpuGemm> gemm(new CpuGemm(pool, path));
  gemm->fp32_ = cpu::MakeFp32TileGemm();
  if (path == Path::kBf16) {
    NIBBLE_ASSIGN_OR_RETURN(gemm->bf16_, cpu::MakeBf16TileGemm(pool.threads()));
  }
  return gemm;
}

std::string CpuGemm::Name() const {
  return absl::StrCat("onednn ", path_ == Path::kBf16 ? "bf16" : "fp32 (bf16 operands widened)",
                      ", ", pool_.threads(), pool_.threads() == 1 ? " thread" : " threads");
}

GemmPlan CpuGemm::Wants(const GemmUse& use) const {
  const auto is_fp32 = [](const GemmUse::Operand& operand) {
    return !operand.spec.has_value() && operand.dtype == DType::kF32;
  };
  const bool bf16 = path_ == Path::kBf16 && !is_fp32(use.a) && !is_fp32(use.b);
  const bool emulated = use.a.spec.has_value() || use.b.spec.has_value();
  return {PlanOf(use.a), PlanOf(use.b),
          absl::StrCat(emulated ? "emulated " : "", bf16 ? "BF16" : "FP32"),
          is_fp32(use.a) || is_fp32(use.b) ? "an operand is FP32"
          : bf16                           ? "the processor multiplies BF16"
                                           : "FP32 is faster than BF16 on this processor"};
}

absl::Status CpuGemm::Reserve(Buffer& buffer, int64_t bytes) {
  if (buffer.bytes() >= static_cast<size_t>(bytes)) return absl::OkStatus();
  { const Buffer freed = std::move(buffer); }
  NIBBLE_ASSIGN_OR_RETURN(buffer, memory_.Allocate(static_cast<size_t>(bytes)));
  return absl::OkStatus();
}

absl::StatusOr<OperandView> CpuGemm::Prepare(const GemmOperand& operand, DType dtype,
                                             Buffer& buffer) {
  const PlainOperand plain = PlainOf(operand, dtype);
  if (plain.is_ready) return OperandView{plain.data, dtype, plain.k_major, plain.stride};
  NIBBLE_RETURN_IF_ERROR(Reserve(buffer, plain.rows * plain.cols * DTypeBytes(dtype)));
  if (plain.bf16 != nullptr) {
    Widen(plain.bf16, plain.rows, plain.cols, plain.stride, pool_, buffer.data<float>());
  } else if (dtype == DType::kF32) {
    NIBBLE_RETURN_IF_ERROR(ExpandOperand(operand.quantized(), &pool_, buffer.data<float>()));
  } else {
    NIBBLE_RETURN_IF_ERROR(ExpandOperand(operand.quantized(), &pool_, buffer.data<uint16_t>()));
  }
  return OperandView{buffer.data(), dtype, plain.k_major, plain.cols};
}

absl::Status CpuGemm::Gemm(const GemmRequest& request) {
  if (absl::Status status = Validate(request); !status.ok()) return status;
  if (request.c.rows == 0 || request.c.cols == 0) return absl::OkStatus();
  if (request.a.depth() == 0) {
    if (!request.accumulate) Zero(request.c);
    return absl::OkStatus();
  }
  const bool bf16 = path_ == Path::kBf16 && !IsFp32Matrix(request.a) && !IsFp32Matrix(request.b);
  const DType dtype = bf16 ? DType::kBf16 : DType::kF32;
  NIBBLE_ASSIGN_OR_RETURN(const OperandView a, Prepare(request.a, dtype, a_));
  NIBBLE_ASSIGN_OR_RETURN(const OperandView b, Prepare(request.b, dtype, b_));
  return RunTiles(request, a, b, bf16 ? *bf16_ : *fp32_);
}

absl::Status CpuGemm::RunTiles(const GemmRequest& request, const OperandView& a,
                               const OperandView& b, TileGemm& tile_gemm) {
  const int64_t depth = request.a.depth();
  const GemmScales scales = ScalesOf(request);
  const cpu::TileLimits& limits = scales.sliced()           ? cpu::kSlicedTiles
                                  : a.dtype == DType::kBf16 ? cpu::kBf16Tiles
                                                            : cpu::kFp32Tiles;
  const TilePlan plan = cpu::PlanTiles(request.c.rows, request.c.cols, depth, limits);
  const bool fused = scales.a.data == nullptr && scales.b.data == nullptr && scales.alpha == 1.0f &&
                     tile_gemm.Supports(request.c.dtype, request.accumulate);
  for (ThreadScratch& own : threads_) {
    if (fused) break;
    const int64_t tile_bytes = plan.tile_m * plan.tile_n * int64_t{sizeof(float)};
    absl::Status status = Reserve(own.acc, tile_bytes);
    if (status.ok() && scales.sliced()) status = Reserve(own.partial, tile_bytes);
    if (status.ok()) status = Reserve(own.row_scales, plan.tile_m * int64_t{sizeof(float)});
    if (status.ok()) status = Reserve(own.col_scales, plan.tile_n * int64_t{sizeof(float)});
    if (!status.ok()) return status;
  }

  // Scales per slice, or (slice 0 only) for the whole sum.
  const auto gather = [&](const Tile& tile, bool per_slice, int64_t slice, ThreadScratch& own) {
    const LineScales none;
    (scales.a.per_slice == per_slice ? scales.a : none)
        .Gather(tile.row, tile.rows, slice, own.row_scales.data<float>());
    (scales.b.per_slice == per_slice ? scales.b : none)
        .Gather(tile.col, tile.cols, slice, own.col_scales.data<float>());
  };
  const auto run_tile = [&](const Tile& tile, int thread) -> absl::Status {
    TileTask task = {a.From(tile.row, 0), b.From(tile.col, 0), tile.rows, tile.cols, depth};
    if (fused) {
      task.accumulate = request.accumulate;
      task.c = At(request.c, tile.row, tile.col);
      task.c_dtype = request.c.dtype;
      task.c_stride = request.c.stride;
      return tile_gemm.Run(task, thread);
    }
    ThreadScratch& own = threads_[thread];
    auto* acc = own.acc.data<float>();
    const auto* row_scales = own.row_scales.data<float>();
    const auto* col_scales = own.col_scales.data<float>();
    task.c_stride = tile.cols;
    if (scales.sliced()) {
      const TileLoops& loops = cpu::BestTileLoops();
      const auto* partial = own.partial.data<float>();
      task.c = own.partial.data();
      task.k = kSliceDepth;
      for (int64_t k = 0; k < depth; k += kSliceDepth) {
        task.a = a.From(tile.row, k);
        task.b = b.From(tile.col, k);
        if (absl::Status status = tile_gemm.Run(task, thread); !status.ok()) return status;
        gather(tile, true, k / kSliceDepth, own);
        for (int64_t i = 0; i < tile.rows; ++i) {
          loops.add_scaled(partial + i * tile.cols, row_scales[i], col_scales, tile.cols, k == 0,
                           acc + i * tile.cols);
        }
      }
    } else {
      task.c = acc;
      if (absl::Status status = tile_gemm.Run(task, thread); !status.ok()) return status;
    }
    gather(tile, false, 0, own);
    Finish(acc, scales.alpha, row_scales, col_scales, tile, request);
    return absl::OkStatus();
  };

  std::mutex mutex;
  absl::Status first;
  std::atomic<bool> failed = false;
  pool_.ParallelFor(plan.tiles(), [&](int64_t index, int thread) {
    if (failed.load(std::memory_order_relaxed)) return;
    absl::Status status = run_tile(plan.At(index), thread);
    if (status.ok()) return;
    failed.store(true, std::memory_order_relaxed);
    const std::lock_guard<std::mutex> lock(mutex);
    first.Update(status);
  });
  return first;
}

}  // namespace nibble
