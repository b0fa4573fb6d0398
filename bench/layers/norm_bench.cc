// Normalisation at the width of a 1.2B model, against memcpy.
#include <string>
#include <vector>

#include "bench/layers/layer_bench.h"
#include "kernels/cpu/layers/cpu_norm_ops.h"

namespace nibble::bench {
namespace {

constexpr int64_t kTokens = 4096;
constexpr int64_t kWidth = 2048;
constexpr int kGroups = 8;

void Add(const OpsBench<CpuNormOps>& bench) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const auto name = [&](const std::string& operation) {
      return operation + "/" + TypeName(dtype);
    };
    for (const bool centered : {false, true}) {
      const std::string kind = centered ? "layernorm" : "rmsnorm";
      bench.Add(name("add_" + kind + "/forward"), [=](CpuNormOps& ops, const Against& against) {
        Operand x(dtype, kTokens, kWidth), y(dtype, kTokens, kWidth);
        Operand sum(dtype, kTokens, kWidth), out(dtype, kTokens, kWidth);
        const std::vector<float> weight(kWidth, 1), bias(kWidth);
        std::vector<float> mean(kTokens), rstd(kTokens);
        float amax;
        against(4 * x.size(), [&] {
          return ops.Forward({{centered, 1e-5f, weight.data(), bias.data()},
                              x.in,
                              y.in,
                              sum.out,
                              out.out,
                              mean.data(),
                              rstd.data(),
                              &amax});
        });
      });
      bench.Add(name(kind + "/backward"), [=](CpuNormOps& ops, const Against& against) {
        Operand x(dtype, kTokens, kWidth), dout(dtype, kTokens, kWidth);
        Operand residual(dtype, kTokens, kWidth), dx(dtype, kTokens, kWidth);
        const std::vector<float> weight(kWidth, 1), bias(kWidth);
        const std::vector<float> mean(kTokens), rstd(kTokens, 1);
        std::vector<float> dweight(kWidth), dbias(kWidth);
        against(4 * x.size(), [&] {
          return ops.Backward({{centered, 1e-5f, weight.data(), bias.data()},
                               x.in,
                               dout.in,
                               residual.in,
                               mean.data(),
                               rstd.data(),
                               dx.out,
                               dweight.data(),
                               dbias.data()});
        });
      });
    }
    bench.Add(name("gated/forward"), [=](CpuNormOps& ops, const Against& against) {
      Operand y(dtype, kTokens, kWidth), z(dtype, kTokens, kWidth), out(dtype, kTokens, kWidth);
      const std::vector<float> weight(kWidth, 1);
      std::vector<float> rstd(kTokens * kGroups);
      float amax;
      against(3 * y.size(), [&] {
        return ops.Forward(GatedNormForward{kGroups, 1e-5f, weight.data(), y.in, z.in, out.out,
                                            rstd.data(), &amax});
      });
    });
    bench.Add(name("gated/backward"), [=](CpuNormOps& ops, const Against& against) {
      Operand y(dtype, kTokens, kWidth), z(dtype, kTokens, kWidth), dout(dtype, kTokens, kWidth);
      Operand dy(dtype, kTokens, kWidth), dz(dtype, kTokens, kWidth);
      const std::vector<float> weight(kWidth, 1), rstd(kTokens * kGroups, 1);
      std::vector<float> dweight(kWidth);
      against(5 * y.size(), [&] {
        return ops.Backward(GatedNormBackward{kGroups, weight.data(), y.in, z.in, dout.in,
                                              rstd.data(), dy.out, dz.out, dweight.data()});
      });
    });
  }
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::RunOpsBench(argc, argv, nibble::bench::Add);
}
