#include "kernels/cpu/layers/cpu_attention_ops.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/status_macros.h"
#include "kernels/cpu/layers/attention_backward.h"
#include "kernels/cpu/layers/attention_forward.h"
#include "kernels/cpu/layers/attention_kernels.h"
#include "kernels/cpu/layers/attention_plan.h"
#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/cached_attention.h"
#include "kernels/cpu/layers/decode_attention_kernels.h"
#include "kernels/cpu/layers/document_check.h"

namespace nibble {
namespace {

using cpu::PanelIsa;

constexpr int64_t kElementsOfTask = 1 << 16;
// In decoding the table of rotations grows by this number of positions, so that few tokens wait for
// it.
constexpr int64_t kRopeGrowth = 512;

template <class T>
cpu::AttentionEngine<T> EngineFor(PanelIsa isa) {
  return {*cpu::PanelGemmFor<T>(isa), cpu::TableFor<cpu::AttentionKernels, T>(isa)};
}

}  // namespace

CpuAttentionOps::CpuAttentionOps(ThreadPool& pool, PanelIsa isa)
    : pool_(pool), isa_(isa), rope_(cpu::TableFor<cpu::RopeKernels>(cpu::VectorIsaOf(isa))) {}

template <class T>
void CpuAttentionOps::Rotate(const Rope& request, void (*kernel)(const cpu::RopeRows<T>&)) {
  const SequenceLayout& layout = request.layout;
  // Rows of one sequence, the first of them token `first` of the sequence.
  struct Task {
    int64_t row, first, rows;
  };
  std::vector<Task> tasks;
  int64_t positions = layout.length;
  const auto add = [&](int64_t row, int64_t first, int64_t rows) {
    const cpu::Blocks blocks = cpu::RowBlocks(rows, request.shape.qkv_cols(), kElementsOfTask);
    for (int64_t i = 0; i < blocks.count(); ++i) {
      const int64_t begin = blocks.begin(i);
      tasks.push_back({row + begin, first + begin, blocks.end(i) - begin});
    }
  };
  for (int64_t s = 0; s < layout.sequences; ++s) add(s * layout.length, 0, layout.length);
  for (const Continuation& piece : layout.continued) {
    add(piece.row, piece.position, piece.rows);
    const int64_t end = piece.position + piece.rows;
    positions = std::max(positions, (end + kRopeGrowth - 1) / kRopeGrowth * kRopeGrowth);
  }
  const int half = request.shape.head_dim / 2;
  const cpu::RopeTable::Angles angles = table_.At(half, request.theta, positions);
  pool_.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t i, int) {
    const Task& task = tasks[static_cast<size_t>(i)];
    kernel({.x = static_cast<T*>(request.qkv.data) + task.row * request.qkv.stride,
            .stride = request.qkv.stride,
            .rows = task.rows,
            .first_row = task.first,
            .doc_begin = layout.doc_begin == nullptr ? nullptr : layout.doc_begin + task.row,
            .heads = request.shape.heads + request.shape.kv_heads,
            .half = half,
            .cosines = angles.cosines,
            .sines = angles.sines,
            .inverse = request.inverse});
  });
}

absl::Status CpuAttentionOps::Run(const Rope& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(cpu::CheckDocuments("rope", request.layout));
  if (request.qkv.dtype == DType::kBf16) {
    Rotate<uint16_t>(request, rope_.bf16);
  } else {
    Rotate<float>(request, rope_.fp32);
  }
  return absl::OkStatus();
}

template <class T>
void CpuAttentionOps::Forward(const AttentionForward& request) {
  if (request.layout.continued.empty()) {
    cpu::RunAttentionForward(request, EngineFor<T>(isa_), pool_, scratch_);
  } else {
    cpu::RunCachedAttention(request, EngineFor<T>(isa_),
                            cpu::TableFor<cpu::DecodeAttentionKernels<T>>(cpu::VectorIsaOf(isa_)),
                            pool_, scratch_);
  }
}

absl::Status CpuAttentionOps::Forward(const AttentionForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(cpu::CheckDocuments("attention forward", request.layout));
  if (request.qkv.dtype == DType::kBf16) {
    Forward<uint16_t>(request);
  } else {
    Forward<float>(request);
  }
  return absl::OkStatus();
}

absl::Status CpuAttentionOps::Backward(const AttentionBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(cpu::CheckDocuments("attention backward", request.layout));
  if (request.qkv.dtype == DType::kBf16) {
    cpu::RunAttentionBackward(request, EngineFor<uint16_t>(isa_), pool_, scratch_);
  } else {
    cpu::RunAttentionBackward(request, EngineFor<float>(isa_), pool_, scratch_);
  }
  return absl::OkStatus();
}

}  // namespace nibble
