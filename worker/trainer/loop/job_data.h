// The data of a job, opened for training and validation.
//
// Ownership: JobData owns the mapped shards. Thread-safety: immutable after opening.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_JOB_DATA_H_
#define NIBBLE_WORKER_TRAINER_LOOP_JOB_DATA_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "worker/corpus/data_sources.h"
#include "worker/trainer/data/batch_builder.h"

namespace nibble {

struct NamedValidation {
  std::string name;
  ValidationSet set;
};

// The opened data of a job. Text is first turned into token shards in the output directory, once;
// shards are used in place.
class JobData {
 public:
  // Makes the shards of text sources that do not exist yet. One process calls this before any calls
  // Open(). Shards are identified by source path, split and seed: a changed text needs another
  // output directory.
  // Returns notices for the user, a sentence each, about text that was left out.
  static absl::StatusOr<std::vector<std::string>> Prepare(const JobSpec& spec,
                                                          const std::string& directory);
  static absl::StatusOr<JobData> Open(const JobSpec& spec, const std::string& directory);

  const BatchBuilder& training() const { return training_; }
  const std::vector<NamedValidation>& validation() const { return validation_; }
  // The label of the data's tokenizer.
  const std::string& tokenizer() const { return tokenizer_; }
  // Notices for the user, a sentence each.
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
