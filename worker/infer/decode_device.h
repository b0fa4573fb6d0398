// What a decoder runs on: the CPU's threads, its products and layer operations, and the tables that
// layers share.
//
// Ownership: a DecodeDevice owns all of it, and outlives the layers that borrow it.
// Thread-safety: one thread at a time; operations have run when their calls return.
#ifndef NIBBLE_WORKER_INFER_DECODE_DEVICE_H_
#define NIBBLE_WORKER_INFER_DECODE_DEVICE_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/layers/cpu_layer_ops.h"
#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/cpu/layers/rope_table.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/gemm/cpu_gemm.h"

namespace nibble {

struct DecodeDevice {
  // `threads` as ThreadPool's.
  static absl::StatusOr<std::unique_ptr<DecodeDevice>> Create(int threads) {
    auto device = std::make_unique<DecodeDevice>(threads);
    absl::StatusOr<std::unique_ptr<CpuGemm>> gemm = CpuGemm::Create(device->pool, {});
    if (!gemm.ok()) return gemm.status();
    device->gemm = *std::move(gemm);
    return device;
  }
  explicit DecodeDevice(int threads) : pool(threads), ops(pool) {}
  DecodeDevice(const DecodeDevice&) = delete;

  HostMemory memory;
  ThreadPool pool;
  CpuLayerOps ops;
  std::unique_ptr<CpuGemm> gemm;
  cpu::LayerIsa isa = cpu::BestLayerIsa();
  cpu::RopeTable rope;
  cpu::Scratch<char> attention;  // what attention layers, one at a time, work in
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_DECODE_DEVICE_H_
