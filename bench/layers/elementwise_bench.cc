// Element-wise operations at the sizes of a 1.2B model's MLP, against memcpy.
#include <string>
#include <vector>

#include "bench/layers/layer_bench.h"
#include "kernels/cpu/layers/cpu_elementwise_ops.h"

namespace nibble::bench {
namespace {

constexpr int64_t kTokens = 2048;
constexpr int64_t kWidth = 6144;
constexpr const char* kKindNames[] = {"relu2", "gelu", "swiglu"};

void Add(const OpsBench<CpuElementwiseOps>& bench) {
  const auto name = [](const std::string& operation, DType dtype) {
    return operation + "/" + TypeName(dtype);
  };
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const Activation kind :
         {Activation::kSquaredRelu, Activation::kGelu, Activation::kSwiglu}) {
      const int64_t wide = kind == Activation::kSwiglu ? 2 * kWidth : kWidth;
      const std::string kind_name = kKindNames[static_cast<int>(kind)];
      bench.Add(name(kind_name + "/forward", dtype),
                [=](CpuElementwiseOps& ops, const Against& against) {
                  Operand in(dtype, kTokens, wide), out(dtype, kTokens, kWidth);
                  float amax;
                  against(in.size() + out.size(), [&] {
                    return ops.Forward({kind, nullptr, in.in, out.out, &amax});
                  });
                });
      bench.Add(name(kind_name + "/backward", dtype), [=](CpuElementwiseOps& ops,
                                                          const Against& against) {
        Operand in(dtype, kTokens, wide), dout(dtype, kTokens, kWidth), din(dtype, kTokens, wide);
        float amax;
        against(in.size() + dout.size() + din.size(), [&] {
          return ops.Backward({kind, nullptr, in.in, dout.in, din.out, &amax});
        });
      });
    }
    bench.Add(name("bias/forward", dtype), [=](CpuElementwiseOps& ops, const Against& against) {
      Operand y(dtype, kTokens, kWidth);
      const std::vector<float> bias(kWidth);
      against(2 * y.size(), [&] { return ops.Forward(BiasForward{y.out, bias.data()}); });
    });
    bench.Add(name("bias/backward", dtype), [=](CpuElementwiseOps& ops, const Against& against) {
      Operand dy(dtype, kTokens, kWidth);
      std::vector<float> dbias(kWidth);
      against(dy.size(), [&] { return ops.Backward(BiasBackward{dy.in, dbias.data()}); });
    });
    for (const DType to_type : {DType::kF32, DType::kBf16}) {
      const std::string to_name = "_to_" + TypeName(to_type);
      bench.Add(name("cast" + to_name, dtype), [=](CpuElementwiseOps& ops, const Against& against) {
        Operand from(dtype, kTokens, kWidth), to(to_type, kTokens, kWidth);
        against(from.size() + to.size(), [&] { return ops.Run(Cast{from.in, to.out}); });
      });
      bench.Add(name("accumulate" + to_name, dtype), [=](CpuElementwiseOps& ops,
                                                         const Against& against) {
        Operand from(dtype, kTokens, kWidth), to(to_type, kTokens, kWidth);
        against(from.size() + 2 * to.size(), [&] { return ops.Run(Accumulate{from.in, to.out}); });
      });
    }
  }
  bench.Add("zero", [=](CpuElementwiseOps& ops, const Against& against) {
    Operand data(DType::kF32, kTokens, kWidth);
    against(data.size(), [&] { return ops.Zero(data.bytes.data(), data.size()); });
  });
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::RunOpsBench(argc, argv, nibble::bench::Add);
}
