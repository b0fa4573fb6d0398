#include "bench/nccl/check_rank.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

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
  const CardExchange exchange = arguments_.exchange == "nccl"     ? CardExchange::kNccl
                                : arguments_.exchange == "copies" ? CardExchange::kCopies
                                                                  : CardExchange::kAuto;
  return ConnectCards(*card_, std::move(hosts),
                      [this](const std::string& name) { return Join(name); },
                      {.transport = CardTransport::kNccl,
                       .sums = sums,
                       .exchange = exchange,
                       .timeout = timeout()});
}

absl::StatusOr<std::unique_ptr<RankGroup>> NewTimedGroup(CheckRank& rank, Collective& hosts,
                                                         TimedExchange exchange) {
  NcclId id = {};
  if (rank.rank() == 0) {
    NIBBLE_ASSIGN_OR_RETURN(id, NewNcclId());
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, hosts.ExchangeSmall(id));
  std::copy_n(all.begin(), id.size(), id.begin());
  PeerCopies copies;
  if (exchange == TimedExchange::kCopies && rank.world() > 1) {
    NIBBLE_ASSIGN_OR_RETURN(copies, ConnectCopies(rank.backend(), rank.rank(), rank.world(),
                                                  [&](std::span<const uint64_t> mine) {
                                                    return hosts.ExchangeSmall(mine);
                                                  }));
  }
  return ConnectNccl(
      rank.backend(),
      {.rank = rank.rank(),
       .world = rank.world(),
       .id = id,
       .sums = exchange == TimedExchange::kNcclsOwn ? NcclSums::kLibrary : NcclSums::kRankOrder,
       .copies = std::move(copies)});
}

void Say(const CheckRank& rank, const std::string& text) {
  const std::string line = absl::StrCat("rank ", rank.rank(), ": ", text, "\n");
  (void)std::fwrite(line.data(), 1, line.size(), stdout);
  (void)std::fflush(stdout);
}

}  // namespace nibble::bench
