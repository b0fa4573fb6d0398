#include "worker/trainer/cards/card_ranks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/link/trainer_exit.h"
#include "worker/trainer/comm/device_collective.h"
#include "worker/trainer/comm/rank_watch.h"
#include "worker/trainer/comm/staged_collective.h"

namespace nibble {
namespace {

constexpr char kWatchGroup[] = "watch";

absl::Status OfSpec(const absl::Status& status) { return WithExit(status, TrainerExit::kSpec); }

absl::StatusOr<std::vector<std::array<uint64_t, 2>>> CardsOf(Collective& hosts,
                                                             const CudaDevice& card) {
  const std::array<uint64_t, 2> mine = card.card();
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> words, hosts.ExchangeSmall(mine));
  std::vector<std::array<uint64_t, 2>> cards;
  for (size_t at = 0; at < words.size(); at += 2) cards.push_back({words[at], words[at + 1]});
  return cards;
}

// That every rank has loaded NCCL, in the same version.
absl::Status AgreeOnVersion(Collective& hosts) {
  const absl::StatusOr<int> version = NcclVersion();
  const uint64_t mine[] = {version.ok() ? static_cast<uint64_t>(*version) : 0};
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, hosts.ExchangeSmall(mine));
  if (!version.ok()) {
    return OfSpec(absl::Status(
        version.status().code(),
        absl::StrCat(version.status().message(), "; or set resources.collectives: staged")));
  }
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == 0) {
      return OfSpec(absl::NotFoundError(
          absl::StrCat("rank ", r, " has no NCCL (libnccl.so.2); its own error says why")));
    }
    if (all[r] != mine[0]) {
      return OfSpec(absl::FailedPreconditionError(
          absl::StrCat("rank ", r, " has version ", all[r], " of NCCL, rank ", hosts.rank(),
                       " has ", mine[0], "; all ranks need the same")));
    }
  }
  return absl::OkStatus();
}

// Rank 0's; all zeros if it has none.
absl::StatusOr<NcclId> ShareId(Collective& hosts) {
  NcclId id = {};
  absl::Status made;
  if (hosts.rank() == 0) {
    absl::StatusOr<NcclId> mine = NewNcclId();
    made = mine.status();
    if (mine.ok()) id = *mine;
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, hosts.ExchangeSmall(id));
  NIBBLE_RETURN_IF_ERROR(made);
  std::copy_n(all.begin(), id.size(), id.begin());
  if (std::all_of(id.begin(), id.end(), [](uint64_t word) { return word == 0; })) {
    return WithExit(absl::UnavailableError("rank 0 could not name the group of NCCL"),
                    TrainerExit::kPeer);
  }
  return id;
}

// No streams, and no reason why not, where copies are not wanted.
absl::StatusOr<PeerCopies> ChooseCopies(CudaDevice& card, Collective& hosts,
                                        const CardRanks& options) {
  if (hosts.world() == 1 || options.exchange == CardExchange::kNccl ||
      options.sums != NcclSums::kRankOrder) {
    return PeerCopies();
  }
  NIBBLE_ASSIGN_OR_RETURN(
      PeerCopies copies,
      ConnectCopies(card.backend(), hosts.rank(), hosts.world(),
                    [&](std::span<const uint64_t> mine) { return hosts.ExchangeSmall(mine); }));
  if (copies.streams == nullptr && options.exchange == CardExchange::kCopies) {
    return OfSpec(absl::FailedPreconditionError(
        absl::StrCat("resources.exchange: copies is not possible: ", copies.why_not,
                     "; allowed: auto or nccl")));
  }
  return copies;
}

absl::StatusOr<std::unique_ptr<RankWatch>> StartWatch(Collective& hosts, const HostJoiner& join,
                                                      const CardRanks& options) {
  std::unique_ptr<Collective> own;
  if (hosts.world() == 1) {
    own = CreateLocal();
  } else if (join == nullptr) {
    return absl::FailedPreconditionError("NCCL needs a second group of the hosts to be watched");
  } else {
    // With a tcp: address rank 0 serves one group after the other.
    NIBBLE_RETURN_IF_ERROR(hosts.Barrier());
    NIBBLE_ASSIGN_OR_RETURN(own, join(kWatchGroup));
  }
  return std::make_unique<RankWatch>(std::move(own),
                                     RankWatch::Options{.timeout = options.timeout});
}

}  // namespace

absl::StatusOr<bool> ChooseNccl(CardTransport transport,
                                std::span<const std::array<uint64_t, 2>> cards) {
  if (transport == CardTransport::kStaged) return false;
  if (transport == CardTransport::kAuto && cards.size() == 1) return false;
  for (size_t r = 1; r < cards.size(); ++r) {
    const auto same = std::find(cards.begin(), cards.begin() + static_cast<int64_t>(r), cards[r]);
    if (same == cards.begin() + static_cast<int64_t>(r)) continue;
    if (transport == CardTransport::kAuto) return false;
    return absl::FailedPreconditionError(absl::StrCat(
        "resources.collectives: nccl needs a card for each rank, but ranks ", same - cards.begin(),
        " and ", r, " share one; allowed: fewer ranks, more cards, or auto or staged"));
  }
  return true;
}

absl::StatusOr<std::unique_ptr<Collective>> ConnectCards(CudaDevice& card,
                                                         std::unique_ptr<Collective> hosts,
                                                         const HostJoiner& join,
                                                         const CardRanks& options) {
  NIBBLE_ASSIGN_OR_RETURN(const auto cards, CardsOf(*hosts, card));
  const absl::StatusOr<bool> nccl = ChooseNccl(options.transport, cards);
  if (!nccl.ok()) return OfSpec(nccl.status());
  if (!*nccl) return StagedCollective::Create(card.backend(), std::move(hosts));
  NIBBLE_RETURN_IF_ERROR(AgreeOnVersion(*hosts));
  NIBBLE_ASSIGN_OR_RETURN(const NcclId id, ShareId(*hosts));
  NIBBLE_ASSIGN_OR_RETURN(PeerCopies copies, ChooseCopies(card, *hosts, options));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<RankWatch> watch, StartWatch(*hosts, join, options));
  const auto beside = std::make_shared<Beside>(Beside::kComputation);
  absl::StatusOr<std::unique_ptr<RankGroup>> group =
      ConnectNccl(card.backend(), {.rank = hosts->rank(),
                                   .world = hosts->world(),
                                   .id = id,
                                   .sums = options.sums,
                                   .copies = std::move(copies),
                                   .alone = [beside] { return *beside == Beside::kNothing; },
                                   .connect_timeout = options.connect_timeout,
                                   .check = [&watch] { return watch->status(); }});
  if (!group.ok()) {
    const bool waited =
        absl::IsUnavailable(group.status()) || absl::IsDeadlineExceeded(group.status());
    return waited ? WithExit(group.status(), TrainerExit::kPeer) : group.status();
  }
  return std::make_unique<DeviceCollective>(card.backend(), *std::move(group), std::move(hosts),
                                            std::move(watch), beside);
}

}  // namespace nibble
