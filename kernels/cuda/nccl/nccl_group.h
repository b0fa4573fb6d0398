// Ranks on CUDA cards, connected by NCCL, for code that is also built where there is no CUDA
// toolkit: this header names nothing of CUDA or NCCL.
//
// A reduce-scatter in rank order sends every slice to the rank that owns it, all to all, and one
// kernel adds the slices; pieces of large ones are summed in a stream of their own while the next
// piece arrives. Where the ranks are connected for copies (peer_copies.h), copy engines move the
// slices, and those of all-gathers, beside computation: NCCL's kernels would take multiprocessors
// from it. Otherwise NCCL moves them, with scratch in the card's memory, 256 MiB at most
// (piece_plan.h), which grows with the largest operation so far. The bits are the same.
//
// Thread-safety: see RankGroup; the functions here from any thread.
#ifndef NIBBLE_KERNELS_CUDA_NCCL_NCCL_GROUP_H_
#define NIBBLE_KERNELS_CUDA_NCCL_NCCL_GROUP_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/nccl/peer_copies.h"
#include "kernels/ops/backend.h"
#include "kernels/ops/rank_group.h"

namespace nibble {

struct NcclLibrary;

// Names a group that is about to be formed; rank 0 makes it, and the others receive it.
using NcclId = std::array<uint64_t, 16>;

enum class NcclSums {
  kRankOrder,  // in the order of the ranks: the bits of any other transport's
  kLibrary,    // in the order that NCCL chooses, which depends on the cards and how they are linked
};

// Both as LoadNccl(); Unimplemented if the program was built without a CUDA toolkit or without
// nccl.h.
absl::StatusOr<int> NcclVersion();
absl::StatusOr<NcclId> NewNcclId();

struct NcclOptions {
  int rank = 0;
  int world = 1;
  NcclId id = {};
  NcclSums sums = NcclSums::kRankOrder;
  // For sums in rank order: with streams on every rank or on none. Name() tells which.
  PeerCopies copies = {};
  // Asked by each operation that copies could move: whether the card computes nothing beside it.
  // The same on every rank; null: it computes.
  std::function<bool()> alone;
  // Until all ranks are connected.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
  // Asked while the ranks are being connected; an error ends it. Null: none.
  std::function<absl::Status()> check;
  const NcclLibrary* library = nullptr;  // null: LoadNccl()
};

// Connects the ranks; all of them call it, each on its own card. `backend`: of a CudaDevice
// (kernels/cuda/device), borrowed. DeadlineExceeded after connect_timeout.
absl::StatusOr<std::unique_ptr<RankGroup>> ConnectNccl(Backend& backend, NcclOptions options);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_NCCL_NCCL_GROUP_H_
