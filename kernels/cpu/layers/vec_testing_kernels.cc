#include "kernels/cpu/layers/vec_testing_kernels.h"

#include "kernels/cpu/layers/vec.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {}  // namespace NIBBLE_ISA

const VecTestingKernels VecTestingKernels::NIBBLE_ISA = {
    .exp = [](const float* x, float* y) { Store(y, Exp(Load(x))); },
    .sigmoid = [](const float* x, float* y) { Store(y, Sigmoid(Load(x))); },
    .silu = [](const float* x, float* y) { Store(y, Silu(Load(x))); },
    .sqrt = [](const float* x, float* y) { Store(y, Sqrt(Load(x))); },
    .max = [](const float* a, const float* b, float* y) { Store(y, Max(Load(a), Load(b))); },
    .sum = [](const float* x) { return Sum(Load(x)); },
    .largest = [](const float* x) { return Largest(Load(x)); },
    .to_bf16 = [](const float* x, uint16_t* y) { Store(y, Load(x)); },
    .rounded = [](const float* x, float* y) { Store(y, Rounded<uint16_t>(Load(x))); },
    .from_bf16 = [](const uint16_t* x, float* y) { Store(y, Load(x)); },
    .part =
        [](const float* x, int64_t n, float* y, float* all) {
          const Vec v = LoadPart(x, n);
          Store(all, v);
          StorePart(y, v, n);
        },
    .part_bf16 =
        [](const uint16_t* x, int64_t n, uint16_t* y, float* all) {
          const Vec v = LoadPart(x, n);
          Store(all, v);
          StorePart(y, v, n);
        },
    .first_lanes = [](const float* x, int64_t n, float rest,
                      float* y) { Store(y, FirstLanes(Load(x), n, Splat(rest))); },
};

}  // namespace nibble::cpu
