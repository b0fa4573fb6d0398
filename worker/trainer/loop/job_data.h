// The data that a job's spec names, opened: text is turned into token shards under the output
// directory first, once; shards are used where they are.
//
// Ownership: owns the mapped shards. Thread-safety: immutable after opening.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_JOB_DATA_H_
#define NIBBLE_WORKER_TRAINER_LOOP_JOB_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "worker/trainer/data/batch_builder.h"
#include "worker/trainer/data/validation_set.h"

namespace nibble {

struct NamedValidation {
  std::string name;
  ValidationSet set;
};

class JobData {
 public:
  // Makes the shards that Open needs of text sources, where they are not there yet. One process
  // does this before any opens. A shard is known by its source's path, the split and the seed: a
  // text that changed needs another output directory.
  static absl::Status Prepare(const JobSpec& spec, const std::string& directory);
  static absl::StatusOr<JobData> Open(const JobSpec& spec, const std::string& directory);

  const BatchBuilder& training() const { return training_; }
  const std::vector<NamedValidation>& validation() const { return validation_; }
  // The label of the tokenizer that made all of it.
  const std::string& tokenizer() const { return tokenizer_; }
  // What a person should know of it, a sentence each.
  const std::vector<std::string>& notices() const { return notices_; }

 private:
  explicit JobData(BatchBuilder training) : training_(std::move(training)) {}

  BatchBuilder training_;
  std::vector<NamedValidation> validation_;
  std::string tokenizer_;
  std::vector<std::string> notices_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_JOB_DATA_H_
