#include "kernels/cpu/layers/decode_attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/layers/layer_testing.h"
#include "kernels/formats/bfloat16.h"

namespace nibble::cpu {
namespace {

void Convert(const std::vector<float>& from, std::vector<float>& to) { to = from; }
void Convert(const std::vector<float>& from, std::vector<uint16_t>& to) { to = Bf16Codes(from); }
double Value(float x) { return x; }
double Value(uint16_t x) { return DecodeBf16(x); }

class DecodeAttentionTest : public testing::TestWithParam<LayerIsa> {
 protected:
  // All blocks of `keys` keys, put together, against the softmax in FP64.
  template <class T>
  void Check(int heads, int dim, int64_t keys, double tolerance) {
    const DecodeAttentionKernels<T>& kernels = TableFor<DecodeAttentionKernels<T>>(GetParam());
    const std::vector<float> q = UniformBf16(heads * dim, 1, -2, 2),
                             k = UniformBf16(keys * dim, 2, -2, 2),
                             v = UniformBf16(keys * dim, 3, -2, 2);
    std::vector<T> tq, tk, tv, out(heads * dim);
    Convert(q, tq);
    Convert(k, tk);
    Convert(v, tv);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    const int64_t blocks = (keys + kDecodeKeys - 1) / kDecodeKeys;
    std::vector<float> room(DecodeRoom(heads, dim)), top(blocks * heads), sum(blocks * heads),
        part(blocks * heads * dim);
    for (int64_t b = 0; b < blocks; ++b) {
      kernels.block({.heads = heads,
                     .head_dim = dim,
                     .keys = std::min(kDecodeKeys, keys - b * kDecodeKeys),
                     .scale = scale,
                     .q = tq.data(),
                     .k = tk.data() + b * kDecodeKeys * dim,
                     .v = tv.data() + b * kDecodeKeys * dim,
                     .room = room.data(),
                     .top = top.data() + b * heads,
                     .sum = sum.data() + b * heads,
                     .out = part.data() + b * heads * dim});
    }
    for (int h = 0; h < heads; ++h) {
      kernels.finish({.blocks = blocks,
                      .head_dim = dim,
                      .top = top.data() + h,
                      .sum = sum.data() + h,
                      .top_stride = heads,
                      .out = part.data() + h * dim,
                      .out_stride = heads * dim,
                      .to = out.data() + h * dim});
      std::vector<double> weight(keys), expected(dim);
      double total = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double dot = 0;
        for (int i = 0; i < dim; ++i) dot += double{q[h * dim + i]} * k[j * dim + i];
        total += weight[j] = std::exp(dot * scale);
      }
      for (int64_t j = 0; j < keys; ++j) {
        for (int i = 0; i < dim; ++i) expected[i] += weight[j] / total * v[j * dim + i];
      }
      for (int i = 0; i < dim; ++i) {
        ASSERT_NEAR(Value(out[h * dim + i]), expected[i], tolerance)
            << heads << " " << dim << " " << keys;
      }
    }
  }
};

TEST_P(DecodeAttentionTest, CombinedBlocksMatchSoftmaxInFloat64) {
  for (const int heads : {1, 3, 4, 5}) {
    for (const int dim : {16, 20, 64}) {
      for (const int64_t keys : {1, 15, 256, 257, 700}) {
        Check<float>(heads, dim, keys, 2e-6);
        Check<uint16_t>(heads, dim, keys, 8e-3);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, DecodeAttentionTest, testing::ValuesIn(SupportedLayerIsas()),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace nibble::cpu
