// What ranks tell one another before they exchange by copies (copy_exchange.h), and what follows
// from it: every rank decides from the same words, so that all of them decide alike.
//
// Thread-safety: pure.
#ifndef NIBBLE_KERNELS_CUDA_NCCL_COPY_OFFER_H_
#define NIBBLE_KERNELS_CUDA_NCCL_COPY_OFFER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"

namespace nibble {

// Why a rank cannot exchange by copies.
enum class CopyObstacle : uint64_t {
  kNone,
  kStreamOperations,  // its card or driver has none
  kSlots,             // no memory for them, or they cannot be shared
  kFlags,             // they cannot be shared
  kPeers,             // it cannot map the slots of another rank
};

struct CopyOffer {
  std::array<uint64_t, 2> host = {};   // the same for all processes of a boot of a machine
  std::array<uint64_t, 8> slots = {};  // cudaIpcMemHandle_t
  uint64_t flags = 0;                  // rank 0: names their shared memory
  CopyObstacle obstacle = CopyObstacle::kNone;

  static constexpr size_t kWords = 12;
  std::array<uint64_t, kWords> ToWords() const {
    return {host[0],  host[1],  slots[0], slots[1], slots[2], slots[3],
            slots[4], slots[5], slots[6], slots[7], flags,    static_cast<uint64_t>(obstacle)};
  }
  // words: [kWords]
  static CopyOffer FromWords(std::span<const uint64_t> words) {
    CopyOffer offer = {.host = {words[0], words[1]},
                       .flags = words[10],
                       .obstacle = static_cast<CopyObstacle>(words[11])};
    for (size_t i = 0; i < offer.slots.size(); ++i) offer.slots[i] = words[2 + i];
    return offer;
  }
};

// "" or what hinders `rank`.
inline std::string DescribeObstacle(size_t rank, CopyObstacle obstacle) {
  switch (obstacle) {
    case CopyObstacle::kNone:
      return "";
    case CopyObstacle::kStreamOperations:
      return absl::StrCat("the card of rank ", rank, " has no stream memory operations");
    case CopyObstacle::kSlots:
      return absl::StrCat("rank ", rank, " cannot share memory of its card");
    case CopyObstacle::kFlags:
      return absl::StrCat("rank ", rank, " cannot share memory of the host");
    case CopyObstacle::kPeers:
      return absl::StrCat("rank ", rank, " cannot map the memory of another rank's card");
  }
  return absl::StrCat("rank ", rank, " has an unknown obstacle");
}

// "" if all ranks can go on to map one another's memory, or why not. offers: by rank.
inline std::string WhyNoCopies(std::span<const CopyOffer> offers) {
  for (size_t r = 0; r < offers.size(); ++r) {
    if (offers[r].host != offers[0].host) {
      return absl::StrCat("ranks 0 and ", r, " are on different hosts");
    }
    if (offers[r].obstacle != CopyObstacle::kNone) return DescribeObstacle(r, offers[r].obstacle);
  }
  return "";
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_NCCL_COPY_OFFER_H_
