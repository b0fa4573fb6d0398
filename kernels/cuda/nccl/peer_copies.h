// The streams, slots and flags of an exchange by copies (copy_exchange.h) between processes of one
// host, each with a card of its own: slots are shared by CUDA IPC handles; flags lie in shared
// memory of the hosts, where streams write and wait by memory operations, and where the host can
// end a wait by a store, with no call of CUDA's. This header names nothing of CUDA.
//
// Thread-safety: ConnectCopies from one thread.
#ifndef NIBBLE_KERNELS_CUDA_NCCL_PEER_COPIES_H_
#define NIBBLE_KERNELS_CUDA_NCCL_PEER_COPIES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/nccl/copy_exchange.h"
#include "kernels/ops/backend.h"

namespace nibble {

// Returns [world, mine.size()], row r from rank r; every rank calls it.
using WordExchange =
    std::function<absl::StatusOr<std::vector<uint64_t>>(std::span<const uint64_t> mine)>;

struct PeerCopies {
  std::unique_ptr<CopyStreams> streams;  // null: not every rank can
  std::string why_not;                   // then; begins with the rank that cannot
};

// All ranks call it together, and all of them get streams or none does. `backend`: of a CudaDevice
// (kernels/cuda/device), borrowed. An error only of `exchange`. `world`: at least 2.
absl::StatusOr<PeerCopies> ConnectCopies(Backend& backend, int rank, int world,
                                         const WordExchange& exchange);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_NCCL_PEER_COPIES_H_
