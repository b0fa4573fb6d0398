#include "kernels/cpu/layers/cpu_recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/cpu_conv.h"
#include "kernels/cpu/layers/subnormals_scope.h"
#include "kernels/formats/bfloat16.h"

namespace nibble::cpu {
namespace {

// Channels per task of the convolution.
constexpr int64_t kChannelBlock = 512;

double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

double Widened(float x) { return x; }
double Widened(uint16_t x) { return DecodeBf16(x); }

template <class T>
const T* At(const ConstMatrix& m, int64_t row, int64_t col) {
  return static_cast<const T*>(m.data) + row * m.stride + col;
}
template <class T>
T* At(const MutableMatrix& m, int64_t row, int64_t col) {
  return static_cast<T*>(m.data) + row * m.stride + col;
}

}  // namespace

template <class T>
void CpuRecurrence::RunAs(const ConvForward& request) {
  const int64_t count = request.in.cols;
  const float* taps = TapsByColumn(request.weight, request.width, count, taps_);
  const Blocks channels = {count, kChannelBlock};
  pool_.ParallelFor(static_cast<int64_t>(request.windows.size()) * channels.count(),
                    [&](int64_t task, int) {
                      const auto i = static_cast<size_t>(task / channels.count());
                      const Continuation& piece = request.layout.continued[i];
                      const int64_t c = channels.begin(task % channels.count());
                      TableFor<RecurrenceKernels<T>>(isa_).conv(
                          {.tokens = piece.rows,
                           .channels = channels.end(task % channels.count()) - c,
                           .width = request.width,
                           .taps = taps + c,
                           .bias = request.bias + c,
                           .window = request.windows[i] + c,
                           .param_stride = count,
                           .in = At<T>(request.in, piece.row, c),
                           .in_stride = request.in.stride,
                           .out = At<T>(request.out, piece.row, c),
                           .out_stride = request.out.stride});
                    });
}

template <class T>
void CpuRecurrence::RunAs(const ScanForward& request) {
  const ScanShape& shape = request.shape;
  int64_t longest = 0;
  for (const Continuation& piece : request.layout.continued) {
    longest = std::max(longest, piece.rows);
  }
  const int64_t room_size = 2 * (longest + shape.state);
  float* rooms = rooms_.Get(pool_.threads() * room_size);
  pool_.ParallelFor(
      static_cast<int64_t>(request.states.size()) * shape.heads, [&](int64_t task, int thread) {
        const SubnormalsAreZero no_subnormals;
        const auto i = static_cast<size_t>(task / shape.heads);
        const Continuation& piece = request.layout.continued[i];
        const int64_t head = task % shape.heads;
        float* delta = rooms + thread * room_size;
        float* decay = delta + longest;
        const double rate = -std::exp(static_cast<double>(request.params.a_log[head]));
        for (int64_t t = 0; t < piece.rows; ++t) {
          const double raw = Widened(*At<T>(request.dt, piece.row + t, head));
          const double step = Softplus(raw + request.params.dt_bias[head]);
          delta[t] = static_cast<float>(step);
          decay[t] = static_cast<float>(std::exp(step * rate));
        }
        const int64_t group = head / (shape.heads / shape.groups);
        const int64_t x = head * shape.head_dim, b = shape.d_inner() + group * shape.state;
        TableFor<RecurrenceKernels<T>>(isa_).scan(
            {.tokens = piece.rows,
             .head_dim = shape.head_dim,
             .state = shape.state,
             .delta = delta,
             .decay = decay,
             .d = request.params.d[head],
             .x = At<T>(request.xbc, piece.row, x),
             .b = At<T>(request.xbc, piece.row, b),
             .c = At<T>(request.xbc, piece.row, b + int64_t{shape.groups} * shape.state),
             .stride = request.xbc.stride,
             .y = At<T>(request.y, piece.row, x),
             .y_stride = request.y.stride,
             .s = request.states[i] + x * shape.state,
             .room = decay + longest});
      });
}

void CpuRecurrence::Run(const ConvForward& request) {
  if (request.in.dtype == DType::kBf16) {
    RunAs<uint16_t>(request);
  } else {
    RunAs<float>(request);
  }
}

void CpuRecurrence::Run(const ScanForward& request) {
  if (request.xbc.dtype == DType::kBf16) {
    RunAs<uint16_t>(request);
  } else {
    RunAs<float>(request);
  }
}

}  // namespace nibble::cpu
