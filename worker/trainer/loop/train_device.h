// The device that a run computes on, with all that it owns, and the collectives of ranks on such
// devices.
//
// Ownership: a TrainDevice owns its backend and operations; what was made on it goes before it.
// Thread-safety: as kernels/ops/backend.h.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_TRAIN_DEVICE_H_
#define NIBBLE_WORKER_TRAINER_LOOP_TRAIN_DEVICE_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "worker/trainer/cards/card_ranks.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/model/device.h"

namespace nibble {

class TrainDevice {
 public:
  virtual ~TrainDevice() = default;
  virtual Device device() = 0;
  virtual int threads() const = 0;
  // `hosts`: the collective of the ranks' processes; `join`: makes another one, if the devices
  // need it.
  virtual absl::StatusOr<std::unique_ptr<Collective>> Ranks(std::unique_ptr<Collective> hosts,
                                                            const HostJoiner& join) = 0;
};

// `local_rank`: the rank's number on its node.
using DeviceFactory = std::function<absl::StatusOr<std::unique_ptr<TrainDevice>>(
    const JobSpec& spec, int local_rank)>;

// The device that resources.device names, with resources.threads and resources.memory_mib. Ranks of
// a node that see the same cards take one each, in turn.
absl::StatusOr<std::unique_ptr<TrainDevice>> MakeDevice(const JobSpec& spec, int local_rank = 0);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_TRAIN_DEVICE_H_
