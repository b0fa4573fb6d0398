// The update of sixteen million parameters, against memcpy. AdamW writes three of its seven streams
// to cache lines that it has read, which costs less than memcpy's writes.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "bench/layers/against_memcpy.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/cpu_optimizer_ops.h"

namespace nibble::bench {
namespace {

constexpr int64_t kParameters = 1 << 24;

void RegisterAll(ThreadPool& pool, cpu::LayerIsa isa) {
  const std::string set(cpu::Name(isa));
  Register(("sum_of_squares/" + set).c_str(), [=, &pool](benchmark::State& state) {
    CpuOptimizerOps ops(pool, isa);
    const std::vector<float> x(kParameters, 0.5f);
    double sum;
    AgainstMemcpy(state, pool, kParameters * 4, [&] {
      return ops.Run(SumOfSquares{x.data(), kParameters, &sum}).ok();
    });
  });
  Register(("adamw/" + set).c_str(), [=, &pool](benchmark::State& state) {
    CpuOptimizerOps ops(pool, isa);
    std::vector<float> param(kParameters, 0.5f), m(kParameters), v(kParameters);
    const std::vector<float> grad(kParameters, 0.01f);
    AdamW request;
    request.n = kParameters;
    request.param = param.data();
    request.m = m.data();
    request.v = v.data();
    request.grad = grad.data();
    request.lr = 1e-4f;
    AgainstMemcpy(state, pool, kParameters * 28, [&] { return ops.Run(request).ok(); });
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
