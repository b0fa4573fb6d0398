// The checkpoints of a run that has no cluster: a store in the run's output directory, which this
// process writes for its ranks, and where they begin.
//
// Ownership: owns the store and the host. Thread-safety: one thread.
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

namespace nibble {

// Where a run's checkpoints are.
std::string CheckpointDirectory(const JobSpec& spec);

struct StartFrom {
  bool fresh = false;           // from the first step, whatever is stored
  std::optional<int64_t> step;  // from this checkpoint; otherwise from the newest that is whole
};

// The checkpoint whose weights init_from.path names.
struct InitialWeights {
  std::string store;
  int64_t step = 0;
  std::vector<std::string> notices;  // newer ones that were damaged and passed over, for people
};
// Every byte of it is right. NotFound, DataLoss and others as CheckpointStore's, naming the field.
absl::StatusOr<InitialWeights> FindInitialWeights(const InitSpec& init);

class LocalCheckpoints {
 public:
  // Finds where to begin and starts to listen. FailedPrecondition where the store is another job's
  // or of a newer version; Unavailable where another run writes it; DataLoss, naming each, where
  // there are checkpoints and all are damaged; NotFound for a step that has none.
  // `trouble` is told what checkpoints wait for, and nothing once they do not; from any thread.
  static absl::StatusOr<std::unique_ptr<LocalCheckpoints>> Open(
      const JobSpec& spec, const StartFrom& from,
      std::function<void(const std::string&)> trouble = nullptr);

  const std::string& address() const { return host_->address(); }
  int64_t attempt() const { return attempt_; }
  // The checkpoint to load; nullopt: from the first step.
  std::optional<int64_t> resume_step() const { return resume_step_; }
  // What was found damaged or left over, and what was done about it, for people.
  const std::vector<std::string>& notices() const { return notices_; }

 private:
  LocalCheckpoints() = default;

  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<CheckpointHost> host_;
  int64_t attempt_ = 1;
  std::optional<int64_t> resume_step_;
  std::vector<std::string> notices_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_LOCAL_CHECKPOINTS_H_
