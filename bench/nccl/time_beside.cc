// GEMMs in the queue of computation while the queue of transfers exchanges, as in a backward pass:
// the rate of the GEMMs, and that of the exchanges, beside what each has alone.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/nccl/check_rank.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "kernels/gemm/gemm.h"

namespace nibble::bench {
namespace {

constexpr int64_t kGemmSize = 8192;
constexpr int kGemms = 60;
constexpr int64_t kExchangedBytes = int64_t{256} << 20;  // of a rank's gradients, FP32
constexpr int kBesideRounds = 5;

struct BesideFigures {
  double gemm_seconds = 0;      // of one; 0: none ran
  double exchange_seconds = 0;  // of one; 0: none ran
};

class BesideBench {
 public:
  BesideBench(CheckRank& rank, Collective& hosts) : rank_(rank), hosts_(hosts) {}

  absl::Status Prepare() {
    Backend& backend = rank_.backend();
    const int64_t elements = kGemmSize * kGemmSize;
    for (Buffer& matrix : matrices_) {
      NIBBLE_ASSIGN_OR_RETURN(matrix, backend.memory().Allocate(static_cast<size_t>(elements) * 2));
    }
    NIBBLE_ASSIGN_OR_RETURN(gradients_, backend.memory().Allocate(kExchangedBytes));
    NIBBLE_ASSIGN_OR_RETURN(
        sums_, backend.memory().Allocate(static_cast<size_t>(kExchangedBytes / rank_.world())));
    for (std::unique_ptr<Event>* event : {&begin_, &end_, &exchanged_, &exchange_begin_}) {
      NIBBLE_ASSIGN_OR_RETURN(*event, backend.NewEvent());
    }
    // Random values: a GEMM of equal values takes less power and is faster.
    for (int i = 0; i < 2; ++i) {
      NIBBLE_ASSIGN_OR_RETURN(const Buffer values,
                              backend.memory().Allocate(static_cast<size_t>(elements) * 4));
      NIBBLE_RETURN_IF_ERROR(rank_.card().ops().elementwise().Run(
          FillInitial{.init = Init::kNormal,
                      .scale = 1,
                      .random = {.seed = static_cast<uint64_t>(i)},
                      .n = elements,
                      .out = values.data<float>()}));
      NIBBLE_RETURN_IF_ERROR(rank_.card().ops().elementwise().Run(
          Cast{.from = ConstMatrix::Of(values.data<float>(), kGemmSize, kGemmSize),
               .to = MutableMatrix::OfBf16(matrices_[i].data<uint16_t>(), kGemmSize, kGemmSize)}));
      NIBBLE_RETURN_IF_ERROR(backend.Synchronize());
    }
    NIBBLE_RETURN_IF_ERROR(rank_.card().ops().elementwise().Run(
        FillInitial{.init = Init::kNormal,
                    .scale = 1,
                    .random = {.seed = static_cast<uint64_t>(rank_.rank())},
                    .n = kExchangedBytes / 4,
                    .out = gradients_.data<float>()}));
    NIBBLE_RETURN_IF_ERROR(rank_.card().gemm().Prepare(Request()));
    return backend.Synchronize();
  }

  using Exchange = std::function<absl::Status(RankGroup&)>;
  absl::Status ReduceScatter(RankGroup& group) {
    return group.ReduceScatter(++number_, gradients_.data<float>(), sums_.data<float>(),
                               kExchangedBytes / 4 / rank_.world());
  }
  absl::Status AllGather(RankGroup& group) {
    return group.AllGather(++number_, sums_.data(), gradients_.data(),
                           kExchangedBytes / rank_.world());
  }

  // Medians over rounds, of the slowest rank. `exchanges` of `group`, null: none.
  absl::StatusOr<BesideFigures> Time(int gemms, int exchanges, RankGroup* group,
                                     const Exchange& exchange) {
    Backend& backend = rank_.backend();
    std::vector<double> gemm_seconds, exchange_seconds;
    for (int round = 0; round <= kBesideRounds; ++round) {
      NIBBLE_RETURN_IF_ERROR(backend.Synchronize());
      NIBBLE_RETURN_IF_ERROR(hosts_.Barrier());
      // GEMMs first: a call of an exchange may wait until earlier ones have run.
      NIBBLE_RETURN_IF_ERROR(backend.compute().Record(*begin_));
      NIBBLE_RETURN_IF_ERROR(backend.transfers().Record(*exchange_begin_));
      for (int i = 0; i < gemms; ++i) NIBBLE_RETURN_IF_ERROR(rank_.card().gemm().Gemm(Request()));
      NIBBLE_RETURN_IF_ERROR(backend.compute().Record(*end_));
      for (int i = 0; i < exchanges; ++i) NIBBLE_RETURN_IF_ERROR(exchange(*group));
      NIBBLE_RETURN_IF_ERROR(backend.transfers().Record(*exchanged_));
      NIBBLE_ASSIGN_OR_RETURN(const double computed, backend.SecondsBetween(*begin_, *end_));
      NIBBLE_ASSIGN_OR_RETURN(const double moved,
                              backend.SecondsBetween(*exchange_begin_, *exchanged_));
      const uint64_t mine[] = {static_cast<uint64_t>(computed * 1e12),
                               static_cast<uint64_t>(moved * 1e12)};
      NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, hosts_.ExchangeSmall(mine));
      uint64_t slowest[2] = {0, 0};
      for (size_t i = 0; i < all.size(); ++i) slowest[i % 2] = std::max(slowest[i % 2], all[i]);
      if (round == 0) continue;  // warms up
      gemm_seconds.push_back(static_cast<double>(slowest[0]) / 1e12 / std::max(1, gemms));
      exchange_seconds.push_back(static_cast<double>(slowest[1]) / 1e12 / std::max(1, exchanges));
    }
    std::sort(gemm_seconds.begin(), gemm_seconds.end());
    std::sort(exchange_seconds.begin(), exchange_seconds.end());
    return BesideFigures{
        .gemm_seconds = gemms == 0 ? 0 : gemm_seconds[kBesideRounds / 2],
        .exchange_seconds = exchanges == 0 ? 0 : exchange_seconds[kBesideRounds / 2]};
  }

 private:
  GemmRequest Request() const {
    return Fprop(ConstMatrix::OfBf16(matrices_[0].data<uint16_t>(), kGemmSize, kGemmSize),
                 ConstMatrix::OfBf16(matrices_[1].data<uint16_t>(), kGemmSize, kGemmSize),
                 MutableMatrix::OfBf16(matrices_[2].data<uint16_t>(), kGemmSize, kGemmSize));
  }

  CheckRank& rank_;
  Collective& hosts_;
  Buffer matrices_[3];
  Buffer gradients_, sums_;
  std::unique_ptr<Event> begin_, end_, exchange_begin_, exchanged_;
  uint64_t number_ = 0;
};

absl::Status TimeBeside(CheckRank& rank) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Collective> hosts, rank.Join("beside"));
  BesideBench bench(rank, *hosts);
  NIBBLE_RETURN_IF_ERROR(bench.Prepare());
  NIBBLE_ASSIGN_OR_RETURN(const BesideFigures alone, bench.Time(kGemms, 0, nullptr, nullptr));
  const auto tflops = [](double seconds) {
    return 2.0 * std::pow(static_cast<double>(kGemmSize), 3) / seconds / 1e12;
  };
  const double wire =
      static_cast<double>(kExchangedBytes) * (rank.world() - 1) / rank.world() / 1e9;
  TextTable table({"beside", "GEMM TFLOP/s", "of alone", "GB/s", "GB/s alone"});
  table.Add({"nothing", absl::StrFormat("%.0f", tflops(alone.gemm_seconds)), "1.000", "-", "-"});
  const std::pair<TimedExchange, const char*> exchanges[] = {
      {TimedExchange::kCopies, "copies"},
      {TimedExchange::kKernels, "NCCL's kernels"},
      {TimedExchange::kNcclsOwn, "NCCL's own"}};
  for (const auto& [how, name] : exchanges) {
    NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroup> group,
                            NewTimedGroup(rank, *hosts, how));
    const std::pair<const char*, BesideBench::Exchange> kinds[] = {
        {"reduce-scatter", [&](RankGroup& ranks) { return bench.ReduceScatter(ranks); }},
        {"all-gather", [&](RankGroup& ranks) { return bench.AllGather(ranks); }}};
    for (const auto& [kind, exchange] : kinds) {
      NIBBLE_ASSIGN_OR_RETURN(const BesideFigures moved, bench.Time(0, 40, group.get(), exchange));
      // Longer than the GEMMs, so that all of them have one beside them.
      const int enough =
          static_cast<int>(std::ceil(1.4 * kGemms * alone.gemm_seconds / moved.exchange_seconds));
      NIBBLE_ASSIGN_OR_RETURN(const BesideFigures both,
                              bench.Time(kGemms, enough, group.get(), exchange));
      table.Add({absl::StrCat(kind, ", ", name), absl::StrFormat("%.0f", tflops(both.gemm_seconds)),
                 absl::StrFormat("%.3f", alone.gemm_seconds / both.gemm_seconds),
                 absl::StrFormat("%.0f", wire / both.exchange_seconds),
                 absl::StrFormat("%.0f", wire / moved.exchange_seconds)});
    }
    NIBBLE_RETURN_IF_ERROR(rank.backend().Synchronize());
    NIBBLE_RETURN_IF_ERROR(hosts->Barrier());
    if (rank.rank() == 0) Say(rank, absl::StrCat(name, ": ", group->Name()));
  }
  if (rank.rank() == 0) {
    std::printf(
        "%s: %d GEMMs of %d cubed, BF16, beside exchanges of %d MiB; %d ranks, medians of %d "
        "rounds\n%s",
        rank.backend().Name().c_str(), kGemms, static_cast<int>(kGemmSize),
        static_cast<int>(kExchangedBytes >> 20), rank.world(), kBesideRounds, table.Text().c_str());
    (void)std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace

int TimeBesideGemms(CheckRank& rank) {
  const absl::Status status = TimeBeside(rank);
  if (status.ok()) return kRankOk;
  Say(rank, status.ToString());
  return kRankFailed;
}

}  // namespace nibble::bench
