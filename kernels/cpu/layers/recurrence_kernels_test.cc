#include "kernels/cpu/layers/recurrence_kernels.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/layers/layer_testing.h"

namespace nibble::cpu {
namespace {

class RecurrenceTest : public testing::TestWithParam<LayerIsa> {
 protected:
  const RecurrenceKernels<float>& kernels = TableFor<RecurrenceKernels<float>>(GetParam());
};

TEST_P(RecurrenceTest, ConvolutionDoesNotDependOnTheDivisionIntoCalls) {
  for (const int width : {1, 2, 4}) {
    for (const int64_t channels : {1, 16, 37}) {
      const int64_t tokens = 23;
      const std::vector<float> taps = UniformFloats(width * channels, 1),
                               bias = UniformFloats(channels, 2),
                               in = UniformFloats(tokens * channels, 3);
      std::vector<float> whole(in.size());
      for (const std::vector<int64_t>& calls :
           {std::vector<int64_t>{23}, {1, 1, 1, 2, 3, 15}, {20, 1, 1, 1}}) {
        std::vector<float> window((width - 1) * channels), out(in.size());
        int64_t t = 0;
        for (const int64_t n : calls) {
          kernels.conv({.tokens = n,
                        .channels = channels,
                        .width = width,
                        .taps = taps.data(),
                        .bias = bias.data(),
                        .window = window.data(),
                        .param_stride = channels,
                        .in = in.data() + t * channels,
                        .in_stride = channels,
                        .out = out.data() + t * channels,
                        .out_stride = channels});
          t += n;
        }
        if (calls.size() == 1) whole = out;
        EXPECT_EQ(std::memcmp(out.data(), whole.data(), out.size() * sizeof(float)), 0);
      }
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < channels; ++c) {
          double sum = bias[c];
          for (int w = 0; w < width; ++w) {
            const int64_t from = t - (width - 1) + w;
            if (from >= 0) sum += double{taps[w * channels + c]} * in[from * channels + c];
          }
          ASSERT_NEAR(whole[t * channels + c], sum / (1 + std::exp(-sum)), 2e-6);
        }
      }
    }
  }
}

TEST_P(RecurrenceTest, StateMatchesFloat64ForAnyDivisionIntoCalls) {
  for (const int dim : {16, 20, 64, 80}) {
    for (const int state : {5, 48}) {
      const int64_t tokens = 50, stride = dim + 2 * state;
      const std::vector<float> xbc = UniformFloats(tokens * stride, 1),
                               delta = UniformFloats(tokens, 2, 0, 1),
                               decay = UniformFloats(tokens, 3, 0.5f, 1);
      std::vector<double> expected(state * dim);
      std::vector<float> first;
      for (const int64_t call : {tokens, int64_t{1}, int64_t{7}}) {
        std::vector<float> s(state * dim), y(tokens * dim), room(2 * state);
        for (int64_t t = 0; t < tokens; t += call) {
          const int64_t n = std::min(call, tokens - t);
          kernels.scan({.tokens = n,
                        .head_dim = dim,
                        .state = state,
                        .delta = delta.data() + t,
                        .decay = decay.data() + t,
                        .d = 0.7f,
                        .x = xbc.data() + t * stride,
                        .b = xbc.data() + t * stride + dim,
                        .c = xbc.data() + t * stride + dim + state,
                        .stride = stride,
                        .y = y.data() + t * dim,
                        .y_stride = dim,
                        .s = s.data(),
                        .room = room.data()});
        }
        if (first.empty()) {
          for (int64_t t = 0; t < tokens; ++t) {
            const float* row = xbc.data() + t * stride;
            for (int p = 0; p < dim; ++p) {
              double sum = 0.7f * double{row[p]};
              for (int i = 0; i < state; ++i) {
                double& e = expected[i * dim + p];
                e = decay[t] * e + double{delta[t]} * row[p] * row[dim + i];
                sum += e * row[dim + state + i];
              }
              ASSERT_NEAR(y[t * dim + p], sum, 1e-4);
            }
          }
          for (size_t i = 0; i < s.size(); ++i) ASSERT_NEAR(s[i], expected[i], 1e-5);
          first = s;
          first.insert(first.end(), y.begin(), y.end());
        }
        s.insert(s.end(), y.begin(), y.end());
        EXPECT_EQ(std::memcmp(s.data(), first.data(), s.size() * sizeof(float)), 0) << call;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RecurrenceTest, testing::ValuesIn(SupportedLayerIsas()),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace nibble::cpu
