// The collectives of ranks on devices over a transport between hosts: what an operation needs is
// copied to pinned memory, exchanged by the hosts, and copied back, all of it in the device's queue
// of transfers, so that the caller never waits.
//
// Results are those of the host's collective, bit for bit: sums in rank order.
//
// Ownership: borrows the backend; owns the host's collective and pinned memory of a bounded size,
// whatever the size of an operation. Thread-safety: see Collective; the host's operations run one
// at a time, on the thread that runs a queue's host work.
#ifndef NIBBLE_WORKER_TRAINER_COMM_STAGED_COLLECTIVE_H_
#define NIBBLE_WORKER_TRAINER_COMM_STAGED_COLLECTIVE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"
#include "worker/trainer/comm/collective.h"

namespace nibble {

class StagedCollective final : public Collective {
 public:
  // `piece_bytes`: of each rank, in pinned memory at a time.
  static absl::StatusOr<std::unique_ptr<StagedCollective>> Create(Backend& backend,
                                                                  std::unique_ptr<Collective> host,
                                                                  int64_t piece_bytes = int64_t{16}
                                                                                        << 20);

  std::string Name() const override { return host_->Name() + ", staged through host memory"; }
  absl::Status Synchronize() override { return backend_.Synchronize(); }
  void set_observer(CollectiveObserver* observer) override { host_->set_observer(observer); }

 private:
  StagedCollective(Backend& backend, std::unique_ptr<Collective> host, int64_t piece_bytes)
      : Collective(host->rank(), host->world()),
        backend_(backend),
        host_(std::move(host)),
        piece_bytes_(piece_bytes) {}

  absl::Status DoAllGather(const Operation& operation, const void* in, void* out,
                           int64_t bytes) override;
  absl::Status DoReduceScatter(const Operation& operation, const float* in, float* out,
                               int64_t count) override;
  absl::Status DoAllReduce(const Operation& operation, void* data, int64_t count,
                           ReduceElement element, Reduction reduction) override;
  absl::Status DoBroadcast(const Operation& operation, void* data, int64_t bytes,
                           int root) override;
  absl::Status DoBarrier(const Operation& operation) override;
  absl::Status DoExchange(const Operation& operation, uint64_t* words, int64_t count) override;
  // Enqueues host work and waits for it.
  absl::Status RunAndWait(std::function<absl::Status()> work);

  Backend& backend_;
  const std::unique_ptr<Collective> host_;
  const int64_t piece_bytes_;
  Buffer one_;  // pinned, [piece_bytes]: a piece of this rank
  Buffer all_;  // pinned, [world, piece_bytes]: of every rank
  std::unique_ptr<Event> done_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_STAGED_COLLECTIVE_H_
