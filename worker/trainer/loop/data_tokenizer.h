// Which tokenizer made a run's data, and what kind of data each source is.
//
// The tokenizer follows the data: token shards carry its label, and its file lies beside them. What
// files of other trainers do not say is asked for, and what the job spec names is compared with
// what the shards carry.
//
// Ownership: results own themselves. Thread-safety: pure functions of the file system.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_DATA_TOKENIZER_H_
#define NIBBLE_WORKER_TRAINER_LOOP_DATA_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job_spec.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

enum class SourceKind : uint8_t {
  kText,    // a directory, or a file that begins like no token file
  kShard,   // a token shard, which says everything
  kOthers,  // a token file of another trainer
};

// The error of what a field of the spec names, beginning with the field and the path.
absl::Status OfField(absl::string_view field, const std::string& path, const absl::Status& status);

// NotFound names the path.
absl::StatusOr<SourceKind> KindOfSource(const std::string& path, int64_t token_width);

struct DataTokenizer {
  std::string label;
  // Null where only the label is known, and no source is text.
  std::shared_ptr<const Tokenizer> tokenizer;
};

//   InvalidArgument  begins with the field of the spec: the data was made by another tokenizer than
//                    the spec names, a source does not say by which, text comes with a tokenizer
//                    whose file is not at hand, or the tokenizer's vocabulary is over the model's
//   any other        of reading files
absl::StatusOr<DataTokenizer> FindDataTokenizer(const JobSpec& spec);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_DATA_TOKENIZER_H_
