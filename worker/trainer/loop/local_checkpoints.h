// The checkpoints of a run without a cluster: a store in the run's output directory, which this
// process writes for its ranks, whose link it serves, and the choice of the checkpoint to resume
// from.
//
// Ownership: owns the store, the hosts and the directory of the link's socket. Thread-safety: one
// thread.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_LOCAL_CHECKPOINTS_H_
#define NIBBLE_WORKER_TRAINER_LOOP_LOCAL_CHECKPOINTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "worker/checkpoint/checkpoint_host.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/link/link_host.h"

namespace nibble {

// Where a run's checkpoints are.
std::string CheckpointDirectory(const JobSpec& spec);

struct StartFrom {
  bool fresh = false;  // begin at the first step, whatever is stored
  // Resume from this one; nullopt: the newest that passes its checksums.
  std::optional<int64_t> step;
};

// The checkpoint whose weights init_from.path names.
struct InitialWeights {
  std::string store;
  int64_t step = 0;
  std::vector<std::string> notices;  // for the user: newer checkpoints that were damaged
};
// It passes its checksums. NotFound, DataLoss and others as CheckpointStore, naming the field.
absl::StatusOr<InitialWeights> FindInitialWeights(const InitSpec& init);

class LocalCheckpoints {
 public:
  // Chooses the checkpoint and starts to listen. FailedPrecondition if the store is another job's
  // or of a newer version; Unavailable if another run is writing it; DataLoss, naming each, if all
  // checkpoints are damaged; NotFound for a step without a checkpoint.
  // `trouble` is called from any thread with the reason why checkpoints are delayed, and with an
  // empty string when they no longer are.
  static absl::StatusOr<std::unique_ptr<LocalCheckpoints>> Open(
      const JobSpec& spec, const StartFrom& from,
      std::function<void(const std::string&)> trouble = nullptr);

  // LinkHost::address(), for every rank.
  const std::string& address() const { return link_->address(); }
  int64_t attempt() const { return attempt_; }
  // The checkpoint to load; nullopt: begin at the first step.
  std::optional<int64_t> resume_step() const { return resume_step_; }
  // For the user: what was found damaged or left over, and what was done about it.
  const std::vector<std::string>& notices() const { return notices_; }

  ~LocalCheckpoints();

 private:
  LocalCheckpoints() = default;
  absl::Status Serve(int32_t ranks, std::function<void(const std::string&)> trouble);

  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<CheckpointHost> host_;
  std::string socket_directory_;
  std::unique_ptr<LinkHost> link_;
  int64_t attempt_ = 1;
  std::optional<int64_t> resume_step_;
  std::vector<std::string> notices_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_LOCAL_CHECKPOINTS_H_
