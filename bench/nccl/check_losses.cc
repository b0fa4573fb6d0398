// A peer that is lost, in the middle of a collective: the others must end in time and name it.
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/nccl/check_rank.h"
#include "common/status_macros.h"

namespace nibble::bench {
namespace {

using LossClock = std::chrono::steady_clock;

constexpr int64_t kSlice = int64_t{8} << 20;  // elements, FP32
// Beyond the timeout: the watch's beat, and the end of the work on the card.
constexpr std::chrono::seconds kEndTime(3);

struct LossBuffers {
  Buffer in, out;  // [world, kSlice], FP32
};

using LossOperation = std::function<absl::Status(Collective&, const LossBuffers&)>;

const std::vector<std::pair<std::string, LossOperation>>& Operations() {
  static const auto* const operations = new std::vector<std::pair<std::string, LossOperation>>{
      {"ReduceScatter",
       [](Collective& ranks, const LossBuffers& buffers) {
         return ranks.ReduceScatter(buffers.in.data<float>(), buffers.out.data<float>(), kSlice);
       }},
      {"AllGather",
       [](Collective& ranks, const LossBuffers& buffers) {
         return ranks.AllGather(buffers.in.data(), buffers.out.data(), kSlice * 4);
       }},
      {"AllReduce",
       [](Collective& ranks, const LossBuffers& buffers) {
         return ranks.AllReduce(buffers.in.data<float>(), 10'000, Reduction::kSum);
       }},
      {"Broadcast",
       [](Collective& ranks, const LossBuffers& buffers) {
         return ranks.Broadcast(buffers.in.data(), kSlice * 4, 0);
       }},
      {"ExchangeSmall", [](Collective& ranks, const LossBuffers&) {
         const uint64_t word = 1;
         return ranks.ExchangeSmall({&word, 1}).status();
       }}};
  return *operations;
}

absl::Status RunOnce(CheckRank& rank, Collective& ranks, const LossBuffers& buffers, Event& done,
                     const LossOperation& operation) {
  NIBBLE_RETURN_IF_ERROR(operation(ranks, buffers));
  NIBBLE_RETURN_IF_ERROR(rank.backend().transfers().Record(done));
  return rank.backend().Wait(done);
}

absl::StatusOr<LossBuffers> MakeBuffers(CheckRank& rank) {
  LossBuffers buffers;
  const std::vector<float> zeros(static_cast<size_t>(kSlice * rank.world()));
  NIBBLE_ASSIGN_OR_RETURN(buffers.in, rank.Put(zeros));
  NIBBLE_ASSIGN_OR_RETURN(buffers.out, rank.Put(zeros));
  return buffers;
}

absl::Status Lose(CheckRank& rank, Collective& ranks, const LossCase& loss) {
  NIBBLE_ASSIGN_OR_RETURN(const LossBuffers buffers, MakeBuffers(rank));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Event> done, rank.backend().NewEvent());
  LossOperation operation;
  for (const auto& [name, run] : Operations()) {
    if (name == loss.kind) operation = run;
  }
  if (!operation) return absl::InvalidArgumentError(absl::StrCat("no collective ", loss.kind));
  // Connections are made.
  NIBBLE_RETURN_IF_ERROR(RunOnce(rank, ranks, buffers, *done, operation));
  NIBBLE_RETURN_IF_ERROR(ranks.Barrier());
  const bool victim = rank.rank() == loss.victim;
  const auto begin = LossClock::now();
  const auto lost_at = begin + std::chrono::milliseconds(loss.after_ms);
  if (victim && loss.how != "late") {
    const int signal = loss.how == "killed" ? SIGKILL : SIGSTOP;
    std::thread([lost_at, signal] {
      std::this_thread::sleep_until(lost_at);
      (void)raise(signal);
    }).detach();
  }
  if (victim && loss.how == "late") {
    // The others wait in an operation that this rank does not call.
    std::this_thread::sleep_for(rank.timeout() + kEndTime);
  }
  absl::Status status;
  auto last_done = LossClock::now();
  while (status.ok()) {
    last_done = LossClock::now();
    status = RunOnce(rank, ranks, buffers, *done, operation);
  }
  const auto took =
      std::chrono::duration_cast<std::chrono::milliseconds>(LossClock::now() - last_done);
  Say(rank, absl::StrCat(loss.kind, ", rank ", loss.victim, " ", loss.how, ": after ", took.count(),
                         " ms: ", status.ToString()));
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) {
    return absl::InternalError("neither UNAVAILABLE nor DEADLINE_EXCEEDED");
  }
  if (!absl::StrContains(status.message(), absl::StrCat("rank ", loss.victim))) {
    return absl::InternalError(absl::StrCat("rank ", loss.victim, " is not named"));
  }
  if (took > rank.timeout() + kEndTime) return absl::InternalError("too late");
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> LossKinds() {
  std::vector<std::string> kinds;
  for (const auto& [name, run] : Operations()) kinds.push_back(name);
  return kinds;
}

int CheckLoss(CheckRank& rank, const LossCase& loss) {
  // The launcher asks the ranks to end once one has ended; these end by themselves.
  (void)signal(SIGTERM, SIG_IGN);
  absl::StatusOr<std::unique_ptr<Collective>> ranks = rank.Connect(NcclSums::kRankOrder);
  const absl::Status status = ranks.ok() ? Lose(rank, **ranks, loss) : ranks.status();
  if (status.ok()) return kRankLostAPeer;
  Say(rank, absl::StrCat("FAILED: ", status.ToString()));
  return kRankFailed;
}

}  // namespace nibble::bench
