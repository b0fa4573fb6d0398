// The update of sixteen million parameters, against memcpy. AdamW writes three of its seven streams
// to cache lines that it has read, which costs less than memcpy's writes.
#include <vector>

#include "bench/layers/layer_bench.h"
#include "kernels/cpu/layers/cpu_optimizer_ops.h"

namespace nibble::bench {
namespace {

constexpr int64_t kParameters = 1 << 24;

void Add(const OpsBench<CpuOptimizerOps>& bench) {
  bench.Add("sum_of_squares", [=](CpuOptimizerOps& ops, const Against& against) {
    const std::vector<float> x(kParameters, 0.5f);
    double sum;
    against(kParameters * 4, [&] { return ops.Run(SumOfSquares{x.data(), kParameters, &sum}); });
  });
  bench.Add("adamw", [=](CpuOptimizerOps& ops, const Against& against) {
    std::vector<float> param(kParameters, 0.5f), m(kParameters), v(kParameters);
    const std::vector<float> grad(kParameters, 0.01f);
    const AdamWRun run = {
        .n = kParameters, .param = param.data(), .m = m.data(), .v = v.data(), .grad = grad.data()};
    against(kParameters * 28, [&] { return ops.Run(AdamW{.runs = {&run, 1}, .lr = 1e-4f}); });
  });
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::RunOpsBench(argc, argv, nibble::bench::Add);
}
