#include "kernels/cpu/layers/gemv_kernels.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/layers/layer_testing.h"
#include "kernels/formats/bfloat16.h"

namespace nibble::cpu {
namespace {

class GemvTest : public testing::TestWithParam<LayerIsa> {
 protected:
  const GemvKernels& kernels = TableFor<GemvKernels>(GetParam());
};

TEST_P(GemvTest, EveryShapeMatchesFloat64) {
  for (const int64_t in : {1, 15, 16, 17, 100, 128}) {
    for (const int64_t outputs : {1, 3, 4, 9}) {
      for (int64_t rows = 1; rows <= 9; ++rows) {
        const int64_t x_stride = in + 3, y_stride = outputs + 2;
        // Exact in BF16, so that both types multiply the same numbers.
        const std::vector<float> x = UniformBf16(rows * x_stride, 1),
                                 w = UniformBf16(outputs * in, 2);
        std::vector<float> y(rows * y_stride, 7.0f), from_bf16 = y;
        std::vector<uint16_t> rounded(rows * y_stride, 7);
        const std::vector<uint16_t> x16 = Bf16Codes(x), w16 = Bf16Codes(w);
        kernels.fp32({x.data(), x_stride, rows, w.data(), in, outputs, y.data(), y_stride});
        kernels.bf16_to_fp32(
            {x16.data(), x_stride, rows, w16.data(), in, outputs, from_bf16.data(), y_stride});
        kernels.bf16(
            {x16.data(), x_stride, rows, w16.data(), in, outputs, rounded.data(), y_stride});
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t o = 0; o < y_stride; ++o) {
            const int64_t at = r * y_stride + o;
            if (o >= outputs) {
              // Memory beside y is unchanged.
              ASSERT_EQ(y[at], 7.0f);
              ASSERT_EQ(rounded[at], 7);
              continue;
            }
            double sum = 0;
            for (int64_t i = 0; i < in; ++i) sum += double{x[r * x_stride + i]} * w[o * in + i];
            ASSERT_NEAR(y[at], sum, 1e-5) << in << " " << outputs << " " << rows;
            ASSERT_EQ(from_bf16[at], y[at]);
            ASSERT_EQ(rounded[at], EncodeBf16(y[at]));
          }
        }
      }
    }
  }
}

TEST_P(GemvTest, RowsAreIndependent) {
  const int64_t in = 333, outputs = 11;
  const std::vector<float> x = UniformBf16(9 * in, 1), w = UniformBf16(outputs * in, 2);
  std::vector<float> alone(outputs);
  kernels.fp32({x.data() + 4 * in, in, 1, w.data(), in, outputs, alone.data(), outputs});
  for (const int64_t rows : {5, 6, 7, 8, 9}) {
    std::vector<float> together(rows * outputs);
    kernels.fp32({x.data(), in, rows, w.data(), in, outputs, together.data(), outputs});
    for (int64_t o = 0; o < outputs; ++o) EXPECT_EQ(together[4 * outputs + o], alone[o]);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GemvTest, testing::ValuesIn(SupportedLayerIsas()),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace nibble::cpu
