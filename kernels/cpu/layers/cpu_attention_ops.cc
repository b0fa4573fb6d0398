#include "kernels/cpu/layers/cpu_attention_ops.h"

#include <cstdint>

#include "kernels/cpu/layers/attention_backward.h"
#include "kernels/cpu/layers/attention_forward.h"
#include "kernels/cpu/layers/attention_kernels.h"
#include "kernels/cpu/layers/attention_plan.h"
#include "kernels/cpu/layers/attention_request.h"
#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/layer_isa.h"

namespace nibble {
namespace {

using cpu::LayerIsa;
using cpu::PanelIsa;

LayerIsa VectorsOf(PanelIsa isa) {
  switch (isa) {
    case PanelIsa::kBaseline:
      return LayerIsa::kBaseline;
    case PanelIsa::kAvx2:
      return LayerIsa::kAvx2;
    case PanelIsa::kAvx512:
    case PanelIsa::kAvx512Bf16:
    case PanelIsa::kAmx:
      break;
  }
  return LayerIsa::kAvx512;
}

template <class T>
cpu::AttentionEngine<T> EngineFor(PanelIsa isa) {
  return {*cpu::PanelGemmFor<T>(isa), cpu::AttentionKernelsFor<T>(isa)};
}

}  // namespace

CpuAttentionOps::CpuAttentionOps(ThreadPool& pool, PanelIsa isa)
    : pool_(pool), isa_(isa), rope_(cpu::RopeKernelsFor(VectorsOf(isa))) {}

template <class T>
void CpuAttentionOps::Rotate(const Rope& request, void (*kernel)(const cpu::RopeRows<T>&)) {
  const SequenceLayout& layout = request.layout;
  const int half = request.shape.head_dim / 2;
  const cpu::RopeTable::Angles angles = table_.At(half, request.theta, layout.length);
  constexpr int64_t kElementsOfTask = 1 << 16;
  const cpu::Blocks blocks =
      cpu::RowBlocks(layout.length, request.shape.qkv_cols(), kElementsOfTask);
  pool_.ParallelFor(layout.sequences * blocks.count(), [&](int64_t i, int) {
    const int64_t first = blocks.begin(i % blocks.count()), end = blocks.end(i % blocks.count());
    const int64_t row = i / blocks.count() * layout.length + first;
    kernel({.x = static_cast<T*>(request.qkv.data) + row * request.qkv.stride,
            .stride = request.qkv.stride,
            .rows = end - first,
            .first_row = first,
            .doc_begin = layout.doc_begin == nullptr ? nullptr : layout.doc_begin + row,
            .heads = request.shape.heads + request.shape.kv_heads,
            .half = half,
            .cosines = angles.cosines,
            .sines = angles.sines,
            .inverse = request.inverse});
  });
}

absl::Status CpuAttentionOps::Run(const Rope& request) {
  absl::Status status = cpu::Validate(request);
  if (!status.ok()) return status;
  if (request.qkv.dtype == DType::kBf16) {
    Rotate<uint16_t>(request, rope_.bf16);
  } else {
    Rotate<float>(request, rope_.fp32);
  }
  return absl::OkStatus();
}

absl::Status CpuAttentionOps::Forward(const AttentionForward& request) {
  absl::Status status = cpu::Validate(request);
  if (!status.ok()) return status;
  if (request.qkv.dtype == DType::kBf16) {
    cpu::RunAttentionForward(request, EngineFor<uint16_t>(isa_), pool_, scratch_);
  } else {
    cpu::RunAttentionForward(request, EngineFor<float>(isa_), pool_, scratch_);
  }
  return absl::OkStatus();
}

absl::Status CpuAttentionOps::Backward(const AttentionBackward& request) {
  absl::Status status = cpu::Validate(request);
  if (!status.ok()) return status;
  if (request.qkv.dtype == DType::kBf16) {
    cpu::RunAttentionBackward(request, EngineFor<uint16_t>(isa_), pool_, scratch_);
  } else {
    cpu::RunAttentionBackward(request, EngineFor<float>(isa_), pool_, scratch_);
  }
  return absl::OkStatus();
}

}  // namespace nibble
