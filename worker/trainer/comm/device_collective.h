// The collectives of ranks that have devices of their own with a transport between them
// (kernels/ops/rank_group.h), such as NCCL: operations on tensors run in the device's queue of
// transfers; barriers and ExchangeSmall() go through the hosts' collective and wait for no device.
//
// The device of a lost or late rank's peer waits inside an operation, and so may this rank, in the
// backend's Wait(): a RankWatch ends the operation within the timeout, and its error is that of the
// wait and of later operations.
//
// Ownership: owns group, watch and the hosts' collective; borrows the backend. The destructor
// waits, for a bounded time, for its operations and for peers that still read this device's memory.
// Thread-safety: see Collective.
#ifndef NIBBLE_WORKER_TRAINER_COMM_DEVICE_COLLECTIVE_H_
#define NIBBLE_WORKER_TRAINER_COMM_DEVICE_COLLECTIVE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "kernels/ops/backend.h"
#include "kernels/ops/rank_group.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/comm/rank_watch.h"

namespace nibble {

class DeviceCollective final : public Collective {
 public:
  // `group` and `hosts` have the same rank and world; `watch` does not watch yet. `beside`: set
  // before each operation of `group`, on this thread, for a group that chooses by it; or null.
  DeviceCollective(Backend& backend, std::unique_ptr<RankGroup> group,
                   std::unique_ptr<Collective> hosts, std::unique_ptr<RankWatch> watch,
                   std::shared_ptr<Beside> beside = nullptr);
  ~DeviceCollective() override;

  std::string Name() const override;
  absl::Status Synchronize() override { return backend_.Synchronize(); }
  void set_observer(CollectiveObserver* observer) override { watch_->set_observer(observer); }

 private:
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

  absl::Status Enqueued(const char* name, const Operation& operation);

  Backend& backend_;
  const std::unique_ptr<Collective> hosts_;
  const std::unique_ptr<RankGroup> group_;
  const std::unique_ptr<RankWatch> watch_;
  const std::shared_ptr<Beside> beside_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_DEVICE_COLLECTIVE_H_
