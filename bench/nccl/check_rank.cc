#include "bench/nccl/check_rank.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/trainer/comm/gloo_collective.h"

namespace nibble::bench {

absl::StatusOr<std::unique_ptr<CheckRank>> CheckRank::Create(const RankArguments& arguments) {
  NIBBLE_ASSIGN_OR_RETURN(const int cards, CudaDevice::Count());
  if (arguments.rank >= cards) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", arguments.rank, " has no card: there are ", cards));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> card,
                          CudaDevice::Create({.index = arguments.rank}));
  return std::unique_ptr<CheckRank>(new CheckRank(arguments, std::move(card)));
}

absl::StatusOr<std::unique_ptr<Collective>> CheckRank::Join(const std::string& name) const {
  return CreateGloo({.rank = rank(),
                     .world = world(),
                     .rendezvous = arguments_.rendezvous,
                     .attempt = name,
                     .timeout = timeout()});
}

absl::StatusOr<std::unique_ptr<Collective>> CheckRank::Connect(NcclSums sums) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Collective> hosts, Join("hosts"));
  return ConnectCards(*card_, std::move(hosts),
                      [this](const std::string& name) { return Join(name); },
                      {.transport = CardTransport::kNccl, .sums = sums, .timeout = timeout()});
}

void Say(const CheckRank& rank, const std::string& text) {
  const std::string line = absl::StrCat("rank ", rank.rank(), ": ", text, "\n");
  (void)std::fwrite(line.data(), 1, line.size(), stdout);
  (void)std::fflush(stdout);
}

}  // namespace nibble::bench
