#include "kernels/cpu/layers/cpu_layer_ops.h"

namespace nibble {

CpuLayerOps::CpuLayerOps(ThreadPool& pool)
    : norm_(pool),
      elementwise_(pool),
      token_(pool),
      attention_(pool),
      mamba_(pool),
      optimizer_(pool) {}

}  // namespace nibble
