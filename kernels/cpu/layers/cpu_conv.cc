#include "kernels/cpu/layers/cpu_conv.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/conv_kernels.h"

namespace nibble::cpu {
namespace {

// Rows and parameters of this number of channels stay in the first-level cache.
constexpr int64_t kChannelBlock = 512;

// Few enough blocks that their sums are small beside the matrices.
Blocks RowsOf(int64_t rows) { return {rows, std::max<int64_t>(256, (rows + 127) / 128)}; }

}  // namespace

const float* TapsByColumn(const float* weight, int width, int64_t channels,
                          Scratch<float>& scratch) {
  float* taps = scratch.Get(width * channels);
  for (int64_t c = 0; c < channels; ++c) {
    for (int w = 0; w < width; ++w) taps[w * channels + c] = weight[c * width + w];
  }
  return taps;
}

ConvParams CpuConv::Prepare(const SequenceLayout& layout, int width, const float* weight,
                            const float* bias, int64_t channels) {
  const float* taps = TapsByColumn(weight, width, channels, taps_);
  uint8_t* reach = reach_.Get(layout.tokens());
  const int64_t past = width - 1;
  for (int64_t s = 0; s < layout.sequences; ++s) {
    const int64_t row = s * layout.length;
    for (int64_t t = 0; t < layout.length; ++t) {
      const int64_t begin = layout.doc_begin == nullptr ? 0 : layout.doc_begin[row + t];
      reach[row + t] = static_cast<uint8_t>(std::min(past, t - begin));
    }
  }
  return {taps, bias, reach};
}

template <class T>
void CpuConv::Run(const ConvForward& request, const ConvParams& params) {
  const int64_t rows = request.in.rows, channels = request.in.cols;
  const ConvKernels<T>& kernels = TableFor<ConvKernels, T>(isa_);
  const T* in = static_cast<const T*>(request.in.data);
  T* out = static_cast<T*>(request.out.data);
  const Blocks by_row = RowsOf(rows), by_channel = {channels, kChannelBlock};
  pool_.ParallelFor(by_row.count() * by_channel.count(), [&](int64_t task, int) {
    const int64_t block = task / by_channel.count();
    const int64_t c = by_channel.begin(task % by_channel.count());
    const ConvShape shape = {.rows = rows,
                             .channels = by_channel.end(task % by_channel.count()) - c,
                             .width = request.width,
                             .in_stride = request.in.stride,
                             .out_stride = request.out.stride,
                             .param_stride = channels};
    kernels.forward(shape, {params.taps + c, params.bias + c, params.reach}, by_row.begin(block),
                    by_row.end(block), in + c, out + c);
  });
}

template <class T>
void CpuConv::Run(const ConvBackward& request, const ConvParams& params) {
  const int64_t rows = request.in.rows, channels = request.in.cols;
  const int width = request.width;
  const ConvKernels<T>& kernels = TableFor<ConvKernels, T>(isa_);
  const T* in = static_cast<const T*>(request.in.data);
  const T* dout = static_cast<const T*>(request.dout.data);
  T* din = static_cast<T*>(request.din.data);
  const Blocks by_row = RowsOf(rows), by_channel = {channels, kChannelBlock};
  const int64_t block_sums = (width + 1) * channels;
  float* sums = sums_.Get(by_row.count() * block_sums);
  float* carry = carry_.Get(pool_.threads() * width * kChannelBlock);
  pool_.ParallelFor(by_row.count() * by_channel.count(), [&](int64_t task, int thread) {
    const int64_t block = task / by_channel.count();
    const int64_t c = by_channel.begin(task % by_channel.count());
    const ConvShape shape = {.rows = rows,
                             .channels = by_channel.end(task % by_channel.count()) - c,
                             .width = width,
                             .in_stride = request.in.stride,
                             .dout_stride = request.dout.stride,
                             .din_stride = request.din.stride,
                             .param_stride = channels};
    kernels.backward(shape, {params.taps + c, params.bias + c, params.reach}, by_row.begin(block),
                     by_row.end(block), in + c, dout + c, din + c, sums + block * block_sums + c,
                     carry + thread * width * kChannelBlock);
  });
  pool_.ParallelFor(by_channel.count(), [&](int64_t task, int) {
    const int64_t begin = by_channel.begin(task), count = by_channel.end(task) - begin;
    for (int w = 0; w <= width; ++w) {
      double total[kChannelBlock] = {};
      for (int64_t block = 0; block < by_row.count(); ++block) {
        const float* from = sums + block * block_sums + w * channels + begin;
        for (int64_t c = 0; c < count; ++c) total[c] += from[c];
      }
      for (int64_t c = 0; c < count; ++c) {
        float& to = w < width ? request.dweight[(begin + c) * width + w] : request.dbias[begin + c];
        to = static_cast<float>(to + total[c]);
      }
    }
  });
}

void CpuConv::Forward(const ConvForward& request) {
  const ConvParams params =
      Prepare(request.layout, request.width, request.weight, request.bias, request.in.cols);
  if (request.in.dtype == DType::kBf16) {
    Run<uint16_t>(request, params);
  } else {
    Run<float>(request, params);
  }
}

void CpuConv::Backward(const ConvBackward& request) {
  const ConvParams params =
      Prepare(request.layout, request.width, request.weight, request.bias, request.in.cols);
  if (request.in.dtype == DType::kBf16) {
    Run<uint16_t>(request, params);
  } else {
    Run<float>(request, params);
  }
}

}  // namespace nibble::cpu
