// For tests: nibble-trainer on the late device (kernels/late/late_device.h), whose work runs late
// and whose memory faults when the host touches it. Another process, another order of work.
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "common/status_macros.h"
#include "kernels/late/late_device.h"
#include "worker/trainer/comm/staged_collective.h"
#include "worker/trainer/loop/trainer_program.h"

namespace nibble {
namespace {

class LateTrainDevice : public TrainDevice {
 public:
  explicit LateTrainDevice(std::unique_ptr<LateDevice> late) : late_(std::move(late)) {}

  Device device() override { return {late_->backend(), late_->gemm(), late_->ops()}; }
  int threads() const override { return late_->backend().pool().threads(); }
  absl::StatusOr<std::unique_ptr<Collective>> Ranks(std::unique_ptr<Collective> hosts,
                                                    const HostJoiner&) override {
    return StagedCollective::Create(late_->backend(), std::move(hosts));
  }

 private:
  const std::unique_ptr<LateDevice> late_;
};

absl::StatusOr<std::unique_ptr<TrainDevice>> MakeLateDevice(const JobSpec& spec, int) {
  LateBackend::Options options = {.threads = static_cast<int>(spec.resources.threads),
                                  .seed = static_cast<uint64_t>(getpid())};
  if (spec.resources.memory_mib > 0) {
    options.memory_bytes = static_cast<size_t>(spec.resources.memory_mib) << 20;
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<LateDevice> late, LateDevice::Create(options));
  return std::make_unique<LateTrainDevice>(std::move(late));
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  return nibble::RunTrainerProgram(argc, argv, nibble::MakeLateDevice);
}
