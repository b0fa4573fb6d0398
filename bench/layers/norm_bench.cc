// Normalisation at the width of a 1.2B model, against memcpy.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "bench/layers/against_memcpy.h"
#include "bench/layers/operand.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/cpu_norm_ops.h"

namespace nibble::bench {
namespace {

constexpr int64_t kTokens = 4096;
constexpr int64_t kWidth = 2048;
constexpr int kGroups = 8;

void RegisterAll(ThreadPool& pool, cpu::LayerIsa isa) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const auto name = [&](const std::string& operation) {
      return operation + "/" + TypeName(dtype) + "/" + std::string(cpu::Name(isa));
    };
    for (const bool centered : {false, true}) {
      const std::string kind = centered ? "layernorm" : "rmsnorm";
      Register(name("add_" + kind + "/forward").c_str(), [=, &pool](benchmark::State& state) {
        CpuNormOps ops(pool, isa);
        Operand x(dtype, kTokens, kWidth), y(dtype, kTokens, kWidth);
        Operand sum(dtype, kTokens, kWidth), out(dtype, kTokens, kWidth);
        const std::vector<float> weight(kWidth, 1), bias(kWidth);
        std::vector<float> mean(kTokens), rstd(kTokens);
        float amax;
        AgainstMemcpy(state, pool, 4 * x.size(), [&] {
          return ops
              .Forward({{centered, 1e-5f, weight.data(), bias.data()},
                        x.in,
                        y.in,
                        sum.out,
                        out.out,
                        mean.data(),
                        rstd.data(),
                        &amax})
              .ok();
        });
      });
      Register(name(kind + "/backward").c_str(), [=, &pool](benchmark::State& state) {
        CpuNormOps ops(pool, isa);
        Operand x(dtype, kTokens, kWidth), dout(dtype, kTokens, kWidth);
        Operand residual(dtype, kTokens, kWidth), dx(dtype, kTokens, kWidth);
        const std::vector<float> weight(kWidth, 1), bias(kWidth);
        const std::vector<float> mean(kTokens), rstd(kTokens, 1);
        std::vector<float> dweight(kWidth), dbias(kWidth);
        AgainstMemcpy(state, pool, 4 * x.size(), [&] {
          return ops
              .Backward({{centered, 1e-5f, weight.data(), bias.data()},
                         x.in,
                         dout.in,
                         residual.in,
                         mean.data(),
                         rstd.data(),
                         dx.out,
                         dweight.data(),
                         dbias.data()})
              .ok();
        });
      });
    }
    Register(name("gated/forward").c_str(), [=, &pool](benchmark::State& state) {
      CpuNormOps ops(pool, isa);
      Operand y(dtype, kTokens, kWidth), z(dtype, kTokens, kWidth), out(dtype, kTokens, kWidth);
      const std::vector<float> weight(kWidth, 1);
      std::vector<float> rstd(kTokens * kGroups);
      float amax;
      AgainstMemcpy(state, pool, 3 * y.size(), [&] {
        return ops
            .Forward(GatedNormForward{kGroups, 1e-5f, weight.data(), y.in, z.in, out.out,
                                      rstd.data(), &amax})
            .ok();
      });
    });
    Register(name("gated/backward").c_str(), [=, &pool](benchmark::State& state) {
      CpuNormOps ops(pool, isa);
      Operand y(dtype, kTokens, kWidth), z(dtype, kTokens, kWidth), dout(dtype, kTokens, kWidth);
      Operand dy(dtype, kTokens, kWidth), dz(dtype, kTokens, kWidth);
      const std::vector<float> weight(kWidth, 1), rstd(kTokens * kGroups, 1);
      std::vector<float> dweight(kWidth);
      AgainstMemcpy(state, pool, 5 * y.size(), [&] {
        return ops
            .Backward(GatedNormBackward{kGroups, weight.data(), y.in, z.in, dout.in, rstd.data(),
                                        dy.out, dz.out, dweight.data()})
            .ok();
      });
    });
  }
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  nibble::ThreadPool pool(0);
  for (const nibble::cpu::LayerIsa isa : nibble::cpu::SupportedLayerIsas()) {
    nibble::bench::RegisterAll(pool, isa);
  }
  benchmark::RunSpecifiedBenchmarks();
}
