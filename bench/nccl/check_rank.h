// One rank of nccl_check: its card, its group of hosts, and what all parts of the check share.
//
// Ownership: a CheckRank owns its card; what is made on it goes before it. Thread-safety: none.
#ifndef NIBBLE_BENCH_NCCL_CHECK_RANK_H_
#define NIBBLE_BENCH_NCCL_CHECK_RANK_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/cuda_device.h"
#include "worker/trainer/cards/card_ranks.h"
#include "worker/trainer/comm/collective.h"

namespace nibble::bench {

struct RankArguments {
  int rank = -1;  // -1: the process that starts the ranks
  int world = 1;
  std::string rendezvous;
  std::string exchange = "auto";  // auto, copies, nccl: as CardExchange
  int64_t seed = 1;
  int64_t timeout_ms = 60'000;
};

class CheckRank {
 public:
  static absl::StatusOr<std::unique_ptr<CheckRank>> Create(const RankArguments& arguments);

  int rank() const { return arguments_.rank; }
  int world() const { return arguments_.world; }
  uint64_t seed() const { return static_cast<uint64_t>(arguments_.seed); }
  std::chrono::milliseconds timeout() const {
    return std::chrono::milliseconds(arguments_.timeout_ms);
  }
  CudaDevice& card() { return *card_; }
  Backend& backend() { return card_->backend(); }

  // A group of the hosts, and the collective of the cards through NCCL, by the exchange that the
  // arguments name.
  absl::StatusOr<std::unique_ptr<Collective>> Join(const std::string& name) const;
  absl::StatusOr<std::unique_ptr<Collective>> Connect(NcclSums sums);

  template <class T>
  absl::StatusOr<Buffer> Put(const std::vector<T>& values) {
    absl::StatusOr<Buffer> buffer = backend().memory().Allocate(values.size() * sizeof(T));
    if (!buffer.ok()) return buffer;
    const absl::Status copied =
        backend().memory().CopyIn(buffer->data(), values.data(), buffer->bytes());
    if (!copied.ok()) return copied;
    return buffer;
  }

 private:
  CheckRank(const RankArguments& arguments, std::unique_ptr<CudaDevice> card)
      : arguments_(arguments), card_(std::move(card)) {}
  const RankArguments arguments_;
  const std::unique_ptr<CudaDevice> card_;
};

// Prints "rank 0: text" as one line.
void Say(const CheckRank& rank, const std::string& text);

// Exit codes of a rank.
inline constexpr int kRankOk = 0;
inline constexpr int kRankFailed = 1;
inline constexpr int kRankLostAPeer = 3;  // as it should have

// Every collective in random sizes, bit for bit; `cases` of each.
int CheckCollectives(CheckRank& rank, int64_t cases);

// Repeats one kind of collective until the victim is lost, and checks the error. `how`: "killed",
// "stopped", or "late" (it lives, but does not call the operation).
struct LossCase {
  std::string kind;  // as LossKinds()
  std::string how;
  int victim = 1;
  int64_t after_ms = 0;
};
std::vector<std::string> LossKinds();
int CheckLoss(CheckRank& rank, const LossCase& loss);

// Times the collectives in rank order, by copy engines and by NCCL's kernels, beside NCCL's own;
// rank 0 prints the table.
int TimeCollectives(CheckRank& rank);

// Times GEMMs alone and beside each kind of exchange; rank 0 prints the table.
int TimeBesideGemms(CheckRank& rank);

// Times gathers of weights in packed NVFP4 and in BF16, with their kernels; rank 0 prints the
// table. Fails if the packed ones take no less time.
int TimeGathers(CheckRank& rank);

// How a group of NCCL's is made for timing; all ranks call it.
enum class TimedExchange { kCopies, kKernels, kNcclsOwn };
absl::StatusOr<std::unique_ptr<RankGroup>> NewTimedGroup(CheckRank& rank, Collective& hosts,
                                                         TimedExchange exchange);

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_NCCL_CHECK_RANK_H_
