#include "kernels/cpu/layers/cpu_elementwise_ops.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "kernels/formats/initial_values.h"

namespace nibble {
namespace {

// Elements per task: enough to hide the dispatch, few enough to balance.
constexpr int64_t kTaskElements = 32768;
constexpr int64_t kZeroBytes = 1 << 20;
constexpr int64_t kCopyBytes = 1 << 18;
constexpr int64_t kCombineCols = 2048;

int Index(DType dtype) { return static_cast<int>(dtype); }

// Matrices without gaps between their rows are one long row, with one remainder instead of one per
// row.
template <class... Matrix>
void Flatten(Matrix&... m) {
  if (!((m.rows <= 1 || m.stride == m.cols) && ...)) return;
  const auto flatten = [](auto& one) {
    one.cols *= one.rows;
    one.stride = one.cols;
    one.rows = std::min<int64_t>(one.rows, 1);
  };
  (flatten(m), ...);
}

void FillFour(const FillInitial& request, uint64_t block, float* out) {
  switch (request.init) {
    case Init::kZeros:
    case Init::kOnes:
      std::fill_n(out, 4, request.init == Init::kOnes ? 1.0f : 0.0f);
      return;
    case Init::kNormal:
      return InitialNormal(InitialDraw(request.random, block), request.scale, out);
    case Init::kUniform:
      return InitialUniform(InitialDraw(request.random, block), request.scale, out);
    case Init::kMambaDt:
      return InitialMambaDt(InitialDraw(request.random, block), out);
    case Init::kMambaDecay:
      return InitialMambaDecay(InitialDraw(request.random, block), out);
  }
}

}  // namespace

CpuElementwiseOps::CpuElementwiseOps(ThreadPool& pool, cpu::LayerIsa isa)
    : pool_(pool),
      kernels_(cpu::TableFor<cpu::ElementwiseKernels>(isa)),
      sums_(cpu::TableFor<cpu::ColumnSumKernels>(isa)) {}

void CpuElementwiseOps::RunPatches(const cpu::Patches& patches, float* amax,
                                   absl::FunctionRef<float(const cpu::BlockPatch&)> run) {
  const int64_t count = patches.count();
  float* patch_amax = patch_amax_.Get(count);
  pool_.ParallelFor(count, [&](int64_t i, int) { patch_amax[i] = run(patches.at(i)); });
  if (amax == nullptr) return;
  *amax = 0;
  for (int64_t i = 0; i < count; ++i) *amax = std::max(*amax, patch_amax[i]);
}

absl::Status CpuElementwiseOps::Forward(const ActivationForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  ActivationForward flat = request;
  if (flat.kind != Activation::kSwiglu && flat.bias == nullptr) Flatten(flat.in, flat.out);
  const auto kernel = kernels_.forward[static_cast<int>(flat.kind)][Index(flat.in.dtype)];
  RunPatches({flat.out.rows, flat.out.cols, kTaskElements}, flat.amax,
             [&](const cpu::BlockPatch& patch) { return kernel(flat, patch); });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Backward(const ActivationBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  ActivationBackward flat = request;
  if (flat.kind != Activation::kSwiglu && flat.bias == nullptr) {
    Flatten(flat.in, flat.dout, flat.din);
  }
  const auto kernel = kernels_.backward[static_cast<int>(flat.kind)][Index(flat.in.dtype)];
  RunPatches({flat.dout.rows, flat.dout.cols, kTaskElements}, flat.amax,
             [&](const cpu::BlockPatch& patch) { return kernel(flat, patch); });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Forward(const BiasForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const auto kernel = kernels_.add_bias[Index(request.y.dtype)];
  const cpu::Patches patches(request.y.rows, request.y.cols, kTaskElements);
  pool_.ParallelFor(patches.count(), [&](int64_t i, int) { kernel(request, patches.at(i)); });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Backward(const BiasBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const ConstMatrix& dy = request.dy;
  const cpu::Blocks blocks = cpu::SumBlocks(dy.rows);
  float* partial = partial_.Get(blocks.count() * dy.cols);
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    sums_.sum[Index(dy.dtype)](dy, blocks.begin(i), blocks.end(i), partial + i * dy.cols);
  });
  const cpu::Blocks columns{dy.cols, kCombineCols};
  pool_.ParallelFor(columns.count(), [&](int64_t i, int) {
    sums_.combine(partial, blocks.count(), dy.cols, columns.begin(i), columns.end(i),
                  request.dbias);
  });
  return absl::OkStatus();
}

template <class Request, class Kernel>
absl::Status CpuElementwiseOps::RunFlat(const Request& request, Kernel (&kernels)[2][2]) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  Request flat = request;
  Flatten(flat.from, flat.to);
  const auto kernel = kernels[Index(flat.from.dtype)][Index(flat.to.dtype)];
  const cpu::Patches patches(flat.to.rows, flat.to.cols, kTaskElements);
  pool_.ParallelFor(patches.count(), [&](int64_t i, int) { kernel(flat, patches.at(i)); });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Run(const Cast& request) { return RunFlat(request, kernels_.cast); }

absl::Status CpuElementwiseOps::Run(const Accumulate& request) {
  return RunFlat(request, kernels_.accumulate);
}

absl::Status CpuElementwiseOps::Run(const CopyParts& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  for (const CopyParts::Part& part : request.parts) {
    if (part.lines * part.elements == 0) continue;
    if (part.as != CopyParts::As::kBytes) {
      const bool widens = part.as == CopyParts::As::kWidened;
      const bool one = part.lines == 1;
      Cast cast;
      cast.from = {part.from, widens ? DType::kBf16 : DType::kF32, part.lines, part.elements,
                   one ? part.elements : part.from_pitch / part.from_size()};
      cast.to = {part.to, widens ? DType::kF32 : DType::kBf16, part.lines, part.elements,
                 one ? part.elements : part.to_pitch / part.to_size()};
      NIBBLE_RETURN_IF_ERROR(Run(cast));
      continue;
    }
    const cpu::Patches patches(part.lines, part.elements, kCopyBytes);
    pool_.ParallelFor(patches.count(), [&](int64_t i, int) {
      const cpu::BlockPatch patch = patches.at(i);
      for (int64_t line = patch.row; line < patch.row_end; ++line) {
        std::memcpy(static_cast<char*>(part.to) + line * part.to_pitch + patch.col,
                    static_cast<const char*>(part.from) + line * part.from_pitch + patch.col,
                    static_cast<size_t>(patch.col_end - patch.col));
      }
    });
  }
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Run(const FillInitial& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const cpu::Blocks blocks{request.n, kTaskElements};
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    for (int64_t first = blocks.begin(i); first < blocks.end(i); first += 4) {
      float four[4] = {};
      FillFour(request, static_cast<uint64_t>(first) / 4, four);
      std::copy_n(four, std::min<int64_t>(4, request.n - first), request.out + first);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuElementwiseOps::Zero(void* data, int64_t bytes) {
  NIBBLE_RETURN_IF_ERROR(ValidateZero(data, bytes));
  const cpu::Blocks blocks{bytes, kZeroBytes};
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    std::memset(static_cast<char*>(data) + blocks.begin(i), 0, blocks.end(i) - blocks.begin(i));
  });
  return absl::OkStatus();
}

}  // namespace nibble
