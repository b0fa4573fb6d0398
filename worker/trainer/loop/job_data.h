// The data of a job: which tokenizer made it, and its sources, opened for training and validation.
//
// The tokenizer is determined by the data: token shards have its label, and its file is in their
// directory. The job spec supplies what files of other trainers do not record; if it names a
// tokenizer, the shards must agree.
//
// Ownership: JobData owns the mapped shards. Thread-safety: immutable after opening; the functions
// depend on nothing but the file system.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_JOB_DATA_H_
#define NIBBLE_WORKER_TRAINER_LOOP_JOB_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job_spec.h"
#include "worker/trainer/data/batch_builder.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

enum class SourceKind : uint8_t {
  kText,    // a directory, or a file without the first bytes of a token file
  kShard,   // a token shard, which needs no hints
  kOthers,  // a token file of another trainer
};

// `status` with the field of the spec and its path before the message.
absl::Status OfField(absl::string_view field, const std::string& path, const absl::Status& status);

// NotFound names the path.
absl::StatusOr<SourceKind> KindOfSource(const std::string& path, int64_t token_width);

struct DataTokenizer {
  std::string label;
  // Null if only the label is known, in which case no source is text.
  std::shared_ptr<const Tokenizer> tokenizer;
};

//   InvalidArgument  begins with the field of the spec: the data was made by another tokenizer than
//                    the spec names, a source does not record its tokenizer, a source is text and
//                    the tokenizer's file is missing, or its vocabulary is larger than the model's
//   any other        reading files failed
absl::StatusOr<DataTokenizer> FindDataTokenizer(const JobSpec& spec);

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
  static absl::Status Prepare(const JobSpec& spec, const std::string& directory);
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
