// Element-wise operations at the sizes of a 1.2B model's MLP, against memcpy.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "bench/layers/against_memcpy.h"
#include "bench/layers/operand.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/cpu_elementwise_ops.h"

namespace nibble::bench {
namespace {

constexpr int64_t kTokens = 2048;
constexpr int64_t kWidth = 6144;
constexpr const char* kKindNames[] = {"relu2", "gelu", "swiglu"};

void RegisterAll(ThreadPool& pool, cpu::LayerIsa isa) {
  const auto name = [&](const std::string& operation, DType dtype) {
    return operation + "/" + TypeName(dtype) + "/" + std::string(cpu::Name(isa));
  };
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const Activation kind :
         {Activation::kSquaredRelu, Activation::kGelu, Activation::kSwiglu}) {
      const int64_t wide = kind == Activation::kSwiglu ? 2 * kWidth : kWidth;
      const std::string kind_name = kKindNames[static_cast<int>(kind)];
      Register(name(kind_name + "/forward", dtype).c_str(), [=, &pool](benchmark::State& state) {
        CpuElementwiseOps ops(pool, isa);
        Operand in(dtype, kTokens, wide), out(dtype, kTokens, kWidth);
        float amax;
        AgainstMemcpy(state, pool, in.size() + out.size(), [&] {
          return ops.Forward({kind, nullptr, in.in, out.out, &amax}).ok();
        });
      });
      Register(name(kind_name + "/backward", dtype).c_str(), [=, &pool](benchmark::State& state) {
        CpuElementwiseOps ops(pool, isa);
        Operand in(dtype, kTokens, wide), dout(dtype, kTokens, kWidth), din(dtype, kTokens, wide);
        float amax;
        AgainstMemcpy(state, pool, in.size() + dout.size() + din.size(), [&] {
          return ops.Backward({kind, nullptr, in.in, dout.in, din.out, &amax}).ok();
        });
      });
    }
    Register(name("bias/forward", dtype).c_str(), [=, &pool](benchmark::State& state) {
      CpuElementwiseOps ops(pool, isa);
      Operand y(dtype, kTokens, kWidth);
      const std::vector<float> bias(kWidth);
      AgainstMemcpy(state, pool, 2 * y.size(), [&] {
        return ops.Forward(BiasForward{y.out, bias.data()}).ok();
      });
    });
    Register(name("bias/backward", dtype).c_str(), [=, &pool](benchmark::State& state) {
      CpuElementwiseOps ops(pool, isa);
      Operand dy(dtype, kTokens, kWidth);
      std::vector<float> dbias(kWidth);
      AgainstMemcpy(state, pool, dy.size(), [&] {
        return ops.Backward(BiasBackward{dy.in, dbias.data()}).ok();
      });
    });
    for (const DType to_type : {DType::kF32, DType::kBf16}) {
      const std::string to_name = "_to_" + TypeName(to_type);
      Register(name("cast" + to_name, dtype).c_str(), [=, &pool](benchmark::State& state) {
        CpuElementwiseOps ops(pool, isa);
        Operand from(dtype, kTokens, kWidth), to(to_type, kTokens, kWidth);
        AgainstMemcpy(state, pool, from.size() + to.size(), [&] {
          return ops.Run(Cast{from.in, to.out}).ok();
        });
      });
      Register(name("accumulate" + to_name, dtype).c_str(), [=, &pool](benchmark::State& state) {
        CpuElementwiseOps ops(pool, isa);
        Operand from(dtype, kTokens, kWidth), to(to_type, kTokens, kWidth);
        AgainstMemcpy(state, pool, from.size() + 2 * to.size(), [&] {
          return ops.Run(Accumulate{from.in, to.out}).ok();
        });
      });
    }
  }
  Register(("zero/" + std::string(cpu::Name(isa))).c_str(), [=, &pool](benchmark::State& state) {
    CpuElementwiseOps ops(pool, isa);
    Operand data(DType::kF32, kTokens, kWidth);
    AgainstMemcpy(state, pool, data.size(),
                  [&] { return ops.Zero(data.bytes.data(), data.size()).ok(); });
  });
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
