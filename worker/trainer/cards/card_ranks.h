// Connects ranks whose tensors are on CUDA cards: by NCCL where each rank has a card of its own, by
// the hosts' collective through pinned memory where ranks share one.
//
// The ranks decide together, over the hosts' collective, so that all of them choose the same, and
// rank 0's id of the NCCL group reaches the others the same way.
//
// Thread-safety: one thread; ChooseNccl is pure.
#ifndef NIBBLE_WORKER_TRAINER_CARDS_CARD_RANKS_H_
#define NIBBLE_WORKER_TRAINER_CARDS_CARD_RANKS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/nccl/nccl_group.h"
#include "worker/trainer/comm/collective.h"

namespace nibble {

// Joins another group of the same processes; all ranks call it together. `name` distinguishes the
// groups of a launch.
using HostJoiner =
    std::function<absl::StatusOr<std::unique_ptr<Collective>>(const std::string& name)>;

enum class CardTransport {
  kAuto,    // NCCL if there are several ranks, each on its own card, else staged
  kNccl,    // or an error
  kStaged,  // through the hosts' memory
};

// What moves slices and gathers between cards that use NCCL with sums in rank order.
enum class CardExchange {
  kAuto,    // copy engines if every rank can, else NCCL
  kCopies,  // or an error
  kNccl,
};

struct CardRanks {
  CardTransport transport = CardTransport::kAuto;
  NcclSums sums = NcclSums::kRankOrder;
  CardExchange exchange = CardExchange::kAuto;
  // For every operation, as GlooOptions::timeout; `connect_timeout` until all are connected.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
};

// Whether ranks on these cards (CudaDevice::card(), by rank) use NCCL. FailedPrecondition, naming
// two ranks, if NCCL is asked for by name and ranks share a card.
absl::StatusOr<bool> ChooseNccl(CardTransport transport,
                                std::span<const std::array<uint64_t, 2>> cards);

// All ranks call it. `card` is borrowed; `hosts`: the group of the ranks' processes; `join` is
// needed for NCCL with several ranks. Errors of ChooseNccl, and NotFound, naming libnccl.so.2 or
// the rank that lacks it, have the exit code of an unusable spec, and so has FailedPrecondition
// where copies are asked for by name and a rank, which it names, cannot; those of lost or late
// ranks have that of a peer.
absl::StatusOr<std::unique_ptr<Collective>> ConnectCards(CudaDevice& card,
                                                         std::unique_ptr<Collective> hosts,
                                                         const HostJoiner& join,
                                                         const CardRanks& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_CARDS_CARD_RANKS_H_
