// Layer operations against memcpy, for every instruction set of this machine.
//
// Ownership: an Operand owns its elements; the pool is borrowed. Thread-safety: values; one
// measurement at a time.
#ifndef NIBBLE_BENCH_LAYERS_LAYER_BENCH_H_
#define NIBBLE_BENCH_LAYERS_LAYER_BENCH_H_

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/alternate.h"
#include "common/thread_pool.h"
#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/tensor/matrix.h"

namespace nibble::bench {

// A matrix for timing operations; its elements are small and finite in both types.
struct Operand {
  Operand(DType dtype, int64_t rows, int64_t cols)
      : bytes(rows * cols * DTypeBytes(dtype), 0x3c),
        in{bytes.data(), dtype, rows, cols, cols},
        out{bytes.data(), dtype, rows, cols, cols} {}
  Operand(const Operand&) = delete;

  int64_t size() const { return static_cast<int64_t>(bytes.size()); }

  std::vector<char> bytes;
  ConstMatrix in;
  MutableMatrix out;
};

inline std::string TypeName(DType dtype) { return dtype == DType::kF32 ? "f32" : "bf16"; }

// One measurement: `against(traffic, run)` is AgainstMemcpy().
struct Against {
  benchmark::State& state;
  ThreadPool& pool;

  template <class Run>
  void operator()(int64_t traffic, Run&& run) const {
    AgainstMemcpy(state, pool, traffic, run);
  }
};

// The operations of `Ops`, in one instruction set.
template <class Ops>
struct OpsBench {
  ThreadPool& pool;
  cpu::LayerIsa isa;

  // Registers NAME/ISA. `measure(ops, against)` makes the operands and calls `against` once.
  template <class Measure>
  void Add(const std::string& name, Measure measure) const {
    benchmark::RegisterBenchmark((name + "/" + std::string(cpu::Name(isa))).c_str(),
                                 [pool = &pool, isa = isa, measure](benchmark::State& state) {
                                   Ops ops(*pool, isa);
                                   measure(ops, Against{state, *pool});
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->MinTime(0.3);
  }
};

// The main() of such a benchmark; `add` registers the operations of one instruction set.
template <class Ops>
int RunOpsBench(int argc, char** argv, void (*add)(const OpsBench<Ops>& bench)) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  ThreadPool pool(0);
  for (const cpu::LayerIsa isa : cpu::SupportedLayerIsas()) add({pool, isa});
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_LAYERS_LAYER_BENCH_H_
