// The collectives in rank order, moved by copy engines and by NCCL's kernels, beside NCCL's own, in
// the same run. Bus bandwidth as NCCL's tests
// count it: the bytes that a link carries in the best case, (n - 1) / n of the buffer for a
// reduce-scatter or an all-gather, twice that for an all-reduce.
#include <algorithm>
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

namespace nibble::bench {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kSizes[] = {16 * kMiB, 64 * kMiB, 256 * kMiB, 1024 * kMiB};
constexpr int kRounds = 5;

using TimedOperation = std::function<absl::Status(RankGroup&, uint64_t& number)>;

class Stopwatch {
 public:
  static absl::StatusOr<Stopwatch> Create(CheckRank& rank, Collective& hosts) {
    Stopwatch watch(rank, hosts);
    NIBBLE_ASSIGN_OR_RETURN(watch.begin_, rank.backend().NewEvent());
    NIBBLE_ASSIGN_OR_RETURN(watch.end_, rank.backend().NewEvent());
    return watch;
  }

  // Median seconds of an operation, of the slowest rank.
  absl::StatusOr<double> Time(RankGroup& group, const TimedOperation& operation, int64_t bytes) {
    const int runs = static_cast<int>(std::clamp<int64_t>(2048 * kMiB / bytes, 5, 50));
    Queue& queue = rank_->backend().transfers();
    std::vector<double> seconds;
    for (int round = 0; round <= kRounds; ++round) {
      NIBBLE_RETURN_IF_ERROR(hosts_->Barrier());
      NIBBLE_RETURN_IF_ERROR(queue.Record(*begin_));
      for (int i = 0; i < runs; ++i) NIBBLE_RETURN_IF_ERROR(operation(group, number_));
      NIBBLE_RETURN_IF_ERROR(queue.Record(*end_));
      NIBBLE_ASSIGN_OR_RETURN(const double all, rank_->backend().SecondsBetween(*begin_, *end_));
      const uint64_t mine[] = {static_cast<uint64_t>(all / runs * 1e12)};
      NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> every, hosts_->ExchangeSmall(mine));
      // The first round warms up.
      if (round == 0) continue;
      seconds.push_back(static_cast<double>(*std::max_element(every.begin(), every.end())) / 1e12);
    }
    std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
    return seconds[kRounds / 2];
  }

 private:
  Stopwatch(CheckRank& rank, Collective& hosts) : rank_(&rank), hosts_(&hosts) {}
  CheckRank* rank_;
  Collective* hosts_;
  std::unique_ptr<Event> begin_, end_;
  uint64_t number_ = 0;
};

absl::Status TimeAll(CheckRank& rank) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Collective> hosts, rank.Join("times"));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroup> copies,
                          NewTimedGroup(rank, *hosts, TimedExchange::kCopies));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroup> kernels,
                          NewTimedGroup(rank, *hosts, TimedExchange::kKernels));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroup> own,
                          NewTimedGroup(rank, *hosts, TimedExchange::kNcclsOwn));
  const int world = rank.world(), me = rank.rank();
  const auto most = static_cast<size_t>(kSizes[std::size(kSizes) - 1]);
  NIBBLE_ASSIGN_OR_RETURN(const Buffer in, rank.backend().memory().Allocate(most));
  NIBBLE_ASSIGN_OR_RETURN(const Buffer out, rank.backend().memory().Allocate(most));
  const std::vector<float> zeros(most / sizeof(float));
  NIBBLE_RETURN_IF_ERROR(rank.backend().memory().CopyIn(in.data(), zeros.data(), most));
  NIBBLE_ASSIGN_OR_RETURN(Stopwatch watch, Stopwatch::Create(rank, *hosts));
  float* const data = in.data<float>();

  TextTable table({"collective", "MiB", "copies ms", "GB/s", "kernels ms", "GB/s", "NCCL's own ms",
                   "GB/s", "ratio"});
  for (const char* const name : {"all-reduce", "all-gather", "reduce-scatter"}) {
    for (const int64_t wanted : kSizes) {
      const int64_t count = wanted / (4 * world) / 32 * 32;
      const int64_t bytes = count * 4 * world;
      const auto scatter = [&](RankGroup& group, uint64_t& number) {
        return group.ReduceScatter(++number, data, data + me * count, count);
      };
      const auto gather = [&](RankGroup& group, uint64_t& number) {
        return group.AllGather(++number, data + me * count, data, count * 4);
      };
      TimedOperation ordered, library;
      double factor = 1;
      if (name == std::string("all-reduce")) {
        factor = 2;
        ordered = [&](RankGroup& group, uint64_t& number) {
          const absl::Status status = scatter(group, number);
          return status.ok() ? gather(group, number) : status;
        };
        library = [&](RankGroup& group, uint64_t& number) {
          return group.AllReduce(++number, data, count * world, ReduceElement::kFloat32,
                                 Reduction::kSum);
        };
      } else if (name == std::string("all-gather")) {
        ordered = library = gather;
      } else {
        // Apart, as the optimizer does it.
        ordered = library = [&](RankGroup& group, uint64_t& number) {
          return group.ReduceScatter(++number, data, out.data<float>(), count);
        };
      }
      NIBBLE_ASSIGN_OR_RETURN(const double own_seconds, watch.Time(*own, library, bytes));
      NIBBLE_ASSIGN_OR_RETURN(const double copy_seconds, watch.Time(*copies, ordered, bytes));
      NIBBLE_ASSIGN_OR_RETURN(const double kernel_seconds, watch.Time(*kernels, ordered, bytes));
      const double wire = factor * static_cast<double>(bytes) * (world - 1) / world;
      const auto rate = [&](double seconds) {
        return world == 1 ? std::string("-") : absl::StrFormat("%.0f", wire / seconds / 1e9);
      };
      std::vector<std::string> row = {name, absl::StrCat(wanted / kMiB)};
      for (const double seconds : {copy_seconds, kernel_seconds, own_seconds}) {
        row.push_back(absl::StrFormat("%.3f", seconds * 1e3));
        row.push_back(rate(seconds));
      }
      row.push_back(absl::StrFormat("%.2f", copy_seconds / own_seconds));
      table.Add(row);
    }
  }
  // Of the queue of transfers, which checks after each exchange by copies whether a peer gave up.
  constexpr int kCalls = 500;
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Event> begin, rank.backend().NewEvent());
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Event> end, rank.backend().NewEvent());
  NIBBLE_RETURN_IF_ERROR(rank.backend().transfers().Record(*begin));
  for (int i = 0; i < kCalls; ++i) {
    NIBBLE_RETURN_IF_ERROR(rank.backend().transfers().Host([] { return absl::OkStatus(); }));
  }
  NIBBLE_RETURN_IF_ERROR(rank.backend().transfers().Record(*end));
  NIBBLE_ASSIGN_OR_RETURN(const double calls, rank.backend().SecondsBetween(*begin, *end));
  // The groups of this rank end when the others need nothing of it.
  NIBBLE_RETURN_IF_ERROR(rank.backend().Synchronize());
  NIBBLE_RETURN_IF_ERROR(hosts->Barrier());
  if (me == 0) {
    std::printf(
        "%s: copies: %s; kernels: %s; beside %s; %d ranks, medians of %d rounds, bus "
        "bandwidth; ratio: copies to NCCL's own\n%s",
        rank.backend().Name().c_str(), copies->Name().c_str(), kernels->Name().c_str(),
        own->Name().c_str(), world, kRounds, table.Text().c_str());
    std::printf("a call of the host in a queue: %.1f us\n", calls / kCalls * 1e6);
    (void)std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace

int TimeCollectives(CheckRank& rank) {
  const absl::Status status = TimeAll(rank);
  if (status.ok()) return kRankOk;
  Say(rank, status.ToString());
  return kRankFailed;
}

}  // namespace nibble::bench
