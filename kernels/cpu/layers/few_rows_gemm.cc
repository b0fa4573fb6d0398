#include "kernels/cpu/layers/few_rows_gemm.h"

#include <algorithm>
#include <cstdint>

#include "common/status_macros.h"
#include "kernels/cpu/layers/blocks.h"

namespace nibble {
namespace {

// From this number of rows on, the matrix units are faster although they copy W first.
constexpr int64_t kManyRows = 9;
// Bytes of W per task: enough to hide the dispatch, few enough to balance.
constexpr int64_t kTaskBytes = 128 << 10;

bool IsFewRows(const GemmRequest& request) {
  const GemmOperand &x = request.a, &w = request.b;
  return !x.is_quantized() && !w.is_quantized() && x.contract == Contract::kCols &&
         w.contract == Contract::kCols && x.matrix().rows < kManyRows &&
         x.matrix().dtype == w.matrix().dtype && w.matrix().stride == w.matrix().cols &&
         (request.c.dtype == x.matrix().dtype || request.c.dtype == DType::kF32) &&
         request.alpha == 1.0f && !request.accumulate;
}

}  // namespace

template <class T, class Y>
void FewRowsGemm::Run(const GemmRequest& request, void (*kernel)(const cpu::GemvTask<T, Y>&)) {
  const ConstMatrix &x = request.a.matrix(), &w = request.b.matrix();
  const int64_t row_bytes = std::max<int64_t>(1, w.cols * static_cast<int64_t>(sizeof(T)));
  const cpu::Blocks blocks = {w.rows, std::max<int64_t>(4, kTaskBytes / row_bytes / 4 * 4)};
  pool_.ParallelFor(blocks.count(), [&](int64_t i, int) {
    kernel({.x = static_cast<const T*>(x.data),
            .x_stride = x.stride,
            .rows = x.rows,
            .w = static_cast<const T*>(w.data) + blocks.begin(i) * w.stride,
            .in = w.cols,
            .outputs = blocks.end(i) - blocks.begin(i),
            .y = static_cast<Y*>(request.c.data) + blocks.begin(i),
            .y_stride = request.c.stride});
  });
}

absl::Status FewRowsGemm::Gemm(const GemmRequest& request) {
  if (!IsFewRows(request)) return many_rows_.Gemm(request);
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  if (request.a.matrix().dtype == DType::kF32) {
    Run<float, float>(request, kernels_.fp32);
  } else if (request.c.dtype == DType::kF32) {
    Run<uint16_t, float>(request, kernels_.bf16_to_fp32);
  } else {
    Run<uint16_t, uint16_t>(request, kernels_.bf16);
  }
  return absl::OkStatus();
}

}  // namespace nibble
